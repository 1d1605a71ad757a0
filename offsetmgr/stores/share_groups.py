"""`ShareGroupStore`: the start offsets of share groups (KIP-932), which can be reset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation, value_of
from offsetmgr.core.model import Committed, GroupDescription, OffsetAndMetadata, TopicPartition, Weakness
from offsetmgr.core.offset_store import (
    Capabilities,
    CommitErrors,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    StoreIdentity,
)
from offsetmgr.kafka.client import share_groups
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.connection import Security, remaining
from offsetmgr.kafka.client.fetch import LATEST, list_offsets
from offsetmgr.kafka.groups.group_lock import active_members_error
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.releases import RESETS_SHARE_GROUPS
from offsetmgr.kafka.protocol.requests import FetchedGroup, FetchedGroups, RequestedOffsets
from offsetmgr.stores.protocol_edits import (
    EditDecision,
    ProtocolEdits,
    ProtocolStore,
    StoreThread,
    check_age,
    decide,
    edit_each,
    execute,
)

SHARE_KIND: Final = "kafka-share"
"""The kind of the store in files of before-images."""
COMPARED: Final = (
    "read and compared just before the write, while the group had no members, and read again after it: brokers have no"
    " lock of share groups"
)
"""The value of `GroupEditResult.how`."""

_READ_S: Final = 0.5
"""How long start offsets are read again while logs grow."""

ACKNOWLEDGEMENTS: Final = Weakness(
    "acknowledgements",
    "a new start offset discards which records behind it are acknowledged, so consumers receive them again; an undo"
    " restores the start offset only",
)


class ShareEdits(ProtocolEdits):
    """Reads and resets the start offsets of share groups. A partition without a start offset counts as absent."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        super().__init__(client, timeout_s)
        self._leaders = PartitionLeaders(client)
        self._bounds: dict[tuple[str, TopicPartition, int], tuple[int, int]] = {}
        """By group, partition and start offset: the bounds of the number of acknowledged records of the last read."""

    async def read(self, partitions: RequestedOffsets, deadline: float) -> FetchedGroups:
        """Reads all partitions of the groups, each with the number of acknowledged records behind its start offset as
        the version. The log's ends before and after the read of a lag are bounds of the number. If the log grows,
        several reads narrow the bounds, and the version is None if they do not meet."""
        now = asyncio.get_running_loop().time
        until = min(deadline, now() + _READ_S)
        ends: dict[TopicPartition, Any] = {}
        bounds: dict[tuple[str, TopicPartition, int], tuple[int, int]] = {}
        while True:
            found = await share_groups.fetch(self._client, partitions, deadline)
            groups = {name: one for name, one in found.items() if not isinstance(one, OffsetMgrError)}
            known = [(name, tp, *at) for name, one in groups.items() for tp, at in one.offsets.items()]
            lags = {(name, tp, start): lag for name, tp, start, _, lag in known if start is not None is not lag}
            earlier, wanted = ends, dict.fromkeys((tp for _, tp, _ in lags), LATEST)
            ends = await list_offsets(self._leaders, wanted, deadline)
            bounds = {key: _narrowed(key, lag, earlier, ends, bounds.get(key)) for key, lag in lags.items()}
            if all(low == high for low, high in bounds.values()) or now() > until:
                break
        self._bounds |= bounds
        failed = {name: one for name, one in found.items() if isinstance(one, OffsetMgrError)}
        return {**failed, **{name: _fetched(name, one, ends, bounds) for name, one in groups.items()}}

    async def edit(self, edits: list[GroupEdit]) -> list[GroupEditResult]:
        return await edit_each(edits, self._reset)

    async def describe(self, groups: Sequence[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        """Describes groups. The error of a group whose coordinator cannot reset it is `UnsupportedOperation`."""
        deadline = self.deadline()
        found = await share_groups.describe(self._client, groups, deadline)
        for group, one in found.items():
            if isinstance(one, GroupDescription):
                connection = await self._client.node(Address.parse(one.coordinator)).connection(deadline)
                if not RESETS_SHARE_GROUPS.supported_by(connection.versions):
                    found[group] = RESETS_SHARE_GROUPS.unsupported_error(one.coordinator, connection.versions)
        return found

    async def _reset(self, edit: GroupEdit) -> GroupEditResult:
        state = value_of((await self.describe([edit.group]))[edit.group])
        if state.members:
            raise active_members_error(edit.group, [str(member) for member in state.members])
        return await self.unlocked(edit, self.deadline(), Address.parse(state.coordinator), COMPARED)

    async def _write_as_simple_consumer(
        self,
        edit: GroupEdit,
        current: FetchedGroup,
        how: str,
        deadline: float,
        at: Address | None,
        decided: EditDecision | None = None,  # noqa: ARG002
        read_at: float | None = None,
    ) -> GroupEditResult:
        """Sends each change once. The coordinator rejects it if members have joined the group since the read."""
        connection = await self._client.coordinator_connection(edit.group, deadline, at)

        async def write(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> CommitErrors:
            return await alter({tp: new.offset for tp, new in offsets.items()})

        async def erase(partitions: Sequence[TopicPartition]) -> CommitErrors:
            return await alter(dict.fromkeys(partitions, share_groups.NO_START))

        async def alter(starts: Mapping[TopicPartition, int]) -> CommitErrors:
            check_age(read_at)
            return await share_groups.alter(connection, edit.group, starts, remaining(deadline))

        # A write of the same start offset discards acknowledgements, so it is a change.
        behind = {tp for tp, start in current.offsets.items() if start.version != 0}
        current = current._replace(offsets={tp: self._compared(edit, tp, at) for tp, at in current.offsets.items()})
        outcomes, todo = decide(edit.group, edit.changes, current, whole=edit.whole)
        todo += [tp for tp in behind & outcomes.keys() if outcomes[tp].status is EditStatus.UNCHANGED]
        done = await execute(edit, current, write, erase, EditDecision(outcomes, todo))
        return GroupEditResult(edit.group, done, False, how)

    def _compared(self, edit: GroupEdit, tp: TopicPartition, now: Committed) -> Committed:
        """Returns the offset with a number of acknowledged records if it is not the expected one for certain."""
        expected = edit.changes[tp].expected if tp in edit.changes else None
        if now.version is not None or not isinstance(expected, Committed) or expected.version is None:
            return now
        low, high = self._bounds.get((edit.group, tp, now.offset), (expected.version, expected.version))
        return now if low <= expected.version <= high else now._replace(version=low)


class ShareGroupStore(ProtocolStore[ShareEdits]):
    """The start offsets of the share groups of a Kafka cluster. Only groups without members can be edited."""

    kind = "kafka"
    capabilities = Capabilities(
        metadata=False, leader_epoch=False, commit_timestamp=False, conditional="none", acknowledges=True
    )

    def _new_thread(self, security: Security, timeout_s: float) -> StoreThread[ShareEdits]:
        return StoreThread(Client(self._bootstrap, security), ShareEdits, timeout_s)

    def identity(self) -> StoreIdentity:
        return StoreIdentity(SHARE_KIND, self.log_origin().name, "cluster id")

    def weaknesses(self) -> tuple[Weakness, ...]:
        return (ACKNOWLEDGEMENTS,)

    def groups(self) -> Iterator[str]:
        raise UnsupportedOperation(self.uri, "the names of share groups are not listed")

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        """Returns the state and the members of each group, or its error: `GroupNotFound` for a group that is no share
        group, and `UnsupportedOperation` for a broker that cannot reset share groups."""
        thread, names = self.store_thread(), list(groups)
        return thread.run(lambda _deadline: thread.edits.describe(names)) if names else {}


def _narrowed(
    key: tuple[str, TopicPartition, int],
    lag: int,
    earlier: Mapping[TopicPartition, int | OffsetMgrError],
    later: Mapping[TopicPartition, int | OffsetMgrError],
    known: tuple[int, int] | None,
) -> tuple[int, int]:
    """Returns the bounds of the number of acknowledged records, from the log's ends before and after the read of the
    lag. Uses the ``known`` bounds too, unless a consumer has acknowledged records since."""
    _, tp, start = key
    low, high = (end - start - lag if isinstance(end := ends.get(tp), int) else 0 for ends in (earlier, later))
    narrow = max(0, low), high
    if known is not None and max(narrow[0], known[0]) <= min(high, known[1]):
        return max(narrow[0], known[0]), min(high, known[1])
    return narrow


def _fetched(
    group: str,
    found: share_groups.ShareOffsets,
    ends: Mapping[TopicPartition, int | OffsetMgrError],
    bounds: Mapping[tuple[str, TopicPartition, int], tuple[int, int]],
) -> FetchedGroup:
    offsets: dict[TopicPartition, Committed] = {}
    errors = dict(found.errors)
    for tp, (start, _, _) in found.offsets.items():
        low, high = (None, None) if start is None else bounds.get((group, tp, start), (None, None))
        if isinstance(end := ends.get(tp), OffsetMgrError):
            errors[tp] = end
        elif start is not None:
            offsets[tp] = Committed(start, version=low if low == high else None)
    return FetchedGroup(offsets, errors)
