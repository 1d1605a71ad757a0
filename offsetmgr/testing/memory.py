"""`MemoryStore`: an `OffsetStore` in memory, for tests of code that works with any store. If the behaviour of a server
matters, also test the code with a real server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from offsetmgr.core.errors import GroupActive, OffsetMgrError, UnknownTopicOrPartition, UsageError
from offsetmgr.core.evaluation import evaluate
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import ABSENT, BrokerPartition, Committed, Offset, TopicPartition, is_valid_offset
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    StoreIdentity,
)


@dataclass
class MemoryStore(OffsetStore):
    """A store in memory; ``data[group][partition]`` contains the committed offsets. ``active`` contains the groups with
    members; edits of these groups are rejected. The keys of ``broken`` are groups, or pairs of a group and a partition.
    The values are the errors that the store reports when a caller reads the group or the partition.

    >>> from offsetmgr import OffsetAndMetadata, TopicPartition
    >>> store = MemoryStore()
    >>> _ = store.commit("shop", {TopicPartition("orders", 0): OffsetAndMetadata(42)})
    >>> store.data["shop"][TopicPartition("orders", 0)].offset
    42
    """

    id: str = "memory"
    cluster: str = "memory"
    """The id of the Kafka cluster whose logs the offsets refer to."""
    kind: str = "memory"
    conditional: str = "version"
    data: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    active: dict[str, tuple[str, ...]] = field(default_factory=dict)
    broken: dict[str | tuple[str, TopicPartition], OffsetMgrError] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return f"memory:{self.id}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional=self.conditional)

    def identity(self) -> StoreIdentity:
        return StoreIdentity(self.kind, self.id, "given to the constructor")

    def log_origin(self) -> LogOrigin:
        return LogOrigin(self.cluster, "given to the constructor")

    def groups(self) -> Iterator[str]:
        return iter(list(self.data))

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        found = self.data.get(group, {})
        if partitions is None:
            return dict(found)
        return {tp: found.get(tp, ABSENT) for tp in partitions}

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        for group in groups:
            if group in self.broken:
                yield GroupOffsets(group, {}, error=self.broken[group])
                continue
            found = self.data.get(group, {})
            errors = {tp: self.broken[group, tp] for tp in found if (group, tp) in self.broken}
            yield GroupOffsets(group, {tp: c for tp, c in found.items() if tp not in errors}, errors)

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        for edit in edits:
            yield GroupEditResult(
                edit.group, {tp: self._change(edit.group, tp, change) for tp, change in edit.changes.items()}
            )

    def _change(self, group: str, tp: TopicPartition, change: Change) -> ChangeOutcome:
        before: Offset = self.data.get(group, {}).get(tp, ABSENT)
        if members := self.active.get(group):
            error = GroupActive(f"group {group}", "it has active members", members=members)
            return ChangeOutcome(EditStatus.FAILED, None, error)
        if broken := self.broken.get(group) or self.broken.get((group, tp)):
            return ChangeOutcome(EditStatus.FAILED, None, broken)
        if invalid := _invalid(group, tp, change):
            return ChangeOutcome(EditStatus.FAILED, before, invalid)
        if outcome := evaluate(group, tp, change, before, self.capabilities):
            return outcome
        if change.after is None:
            del self.data[group][tp]
            return ChangeOutcome(EditStatus.WRITTEN, before)
        version = (before.version or 0) + 1 if isinstance(before, Committed) else 0
        value = change.after
        self.data.setdefault(group, {})[tp] = Committed(value.offset, value.metadata, value.leader_epoch, None, version)
        return ChangeOutcome(EditStatus.WRITTEN, before)

    def close(self) -> None:
        """Does nothing, because the store has no open resources."""


def _invalid(group: str, tp: TopicPartition, change: Change) -> OffsetMgrError | None:
    """Returns the error of a name, a partition or an offset that no store can hold. Numbers of Kafka 0.7 are valid."""
    if not group:
        return UsageError(f"group {group!r}", "is not a valid group id")
    if not tp.topic or (tp.partition < 0 and not isinstance(tp.partition, BrokerPartition)):
        return UnknownTopicOrPartition(str(tp), "no topic or partition can have this name or number")
    if change.after is not None and not is_valid_offset(change.after.offset):
        return UsageError(f"group {group}, {tp}", f"{change.after.offset} is not an offset")
    return None
