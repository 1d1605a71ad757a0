"""`KafkaStore`: committed offsets in the brokers' group coordinators.

Lists of groups, the offsets of single groups and the deletion of whole groups go through the Admin client, which
starts quickly. Bulk reads and every write go through `offsetmgr.wire`, which asks for many groups in one request and
takes the group lock; how, is in `kafka_edits`. The wire protocol is imported when it is first needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from offsetmgr.cluster.kafka import Admin, error_of
from offsetmgr.config import ConnectionConfig
from offsetmgr.errors import (
    GroupActive,
    OffsetMgrError,
    PartialFailure,
)
from offsetmgr.model import (
    ABSENT,
    Committed,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
)
from offsetmgr.stores.base import (
    Capabilities,
    Change,
    ChangeOutcome,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    StoreBase,
    StoreIdentity,
)

if TYPE_CHECKING:
    from offsetmgr.wire.held import Hold
    from offsetmgr.wire.requests import FetchedGroup

_FEW_GROUPS: Final = 32
"""Scans of no more groups than these use the Admin client, and are done before the wire protocol is imported."""
_SCAN_BATCH: Final = 100
_EDIT_BATCH: Final = 128
_SCANS_IN_FLIGHT: Final = 3
_EDITS_IN_FLIGHT: Final = 4


class KafkaStore(StoreBase):
    """The native groups of a Kafka cluster.

    ``timeout_ms`` of the configuration bounds the reading of one group and the edit of one group. Groups with members
    cannot be edited (`GroupActive`). A deletion of a partition's commit needs brokers from 2.4 on, edits from 3.0 on.
    """

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        self._bootstrap = bootstrap
        self._config = config or ConnectionConfig()
        self._timeout = self._config.timeout_ms / 1000
        self._admin = Admin(bootstrap, self._config)
        self._wire: _Wire | None = None

    @property
    def uri(self) -> str:
        return f"kafka://{self._bootstrap}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="group-lock")

    def identity(self) -> StoreIdentity:
        self._admin.client()
        if self._admin.cluster_id is None:
            return StoreIdentity("kafka", self._bootstrap, "bootstrap servers, since the cluster has no id")
        return StoreIdentity("kafka", self._admin.cluster_id, "cluster id")

    def groups(self) -> Iterator[str]:
        found: Any = self._admin.ask(
            "list of groups", lambda client, left: client.list_consumer_groups(request_timeout=left)
        )
        for error in found.errors:
            raise error_of(error.args[0] if isinstance(error, ck.KafkaException) else error, "list of groups")
        yield from (group.group_id for group in found.valid)

    # --- reading ----------------------------------------------------------------------------------

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        asked = None if partitions is None else list(dict.fromkeys(partitions))
        if asked is not None and not asked:
            return {}
        found = self._fetch_few({group: asked})[group]
        if found.error is not None:
            raise found.error
        return _answer(group, asked, found.offsets, found.errors)

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        remaining = iter(groups)
        few = list(itertools.islice(remaining, _FEW_GROUPS + 1))
        if len(few) <= _FEW_GROUPS:
            yield from self._fetch_few(dict.fromkeys(few)).values()
            return
        from offsetmgr.wire.runner import batches, in_flight

        wire = self._connected()
        yield from in_flight(
            wire.runner,
            batches(itertools.chain(few, remaining), first=_FEW_GROUPS, most=_SCAN_BATCH, key=str),
            wire.edits.scan,
            most=_SCANS_IN_FLIGHT,
            key=str,
            finish=False,
        )

    def _fetch_few(self, asked: Mapping[str, Sequence[TopicPartition] | None]) -> dict[str, GroupOffsets]:
        """Through the Admin client, one request a group, all in flight."""

        def call(client: AdminClient, groups: list[str], left: float) -> Mapping[str, Any]:
            futures: dict[str, Any] = {}
            for group in groups:
                partitions = asked[group]
                wanted = None if partitions is None else [ck.TopicPartition(t, p) for t, p in partitions]
                futures |= client.list_consumer_group_offsets(
                    [ck.ConsumerGroupTopicPartitions(group, wanted)], require_stable=True, request_timeout=left
                )
            return futures

        found = self._admin.ask_each(asked, call, "group ")
        return {group: _group_offsets(group, found[group]) for group in asked}

    # --- writing ----------------------------------------------------------------------------------

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        from offsetmgr.wire.runner import batches, in_flight

        wire = self._connected()
        yield from in_flight(
            wire.runner,
            batches(edits, first=_EDIT_BATCH // 4, most=_EDIT_BATCH, key=_group_of),
            wire.edits.edit,
            most=_EDITS_IN_FLIGHT,
            key=_group_of,
            finish=True,
        )

    def hold(self, group: str, *, holder: str) -> HeldKafkaGroup:
        """See `offsetmgr.stores.base.HoldingStore`. Raises `GroupActive`, with names, where others are members."""
        from offsetmgr.wire.held import Hold

        wire = self._connected()

        async def take() -> Hold:
            return await Hold.take(wire.client, group, holder, wire.edits.deadline())

        return HeldKafkaGroup(wire, wire.runner.run(take()))

    def delete_group(self, group: str) -> None:
        """Deletes a group with all that it has committed. Raises `GroupActive`, `GroupNotFound`, other errors."""
        found = self._admin.ask_each(
            [group], lambda client, names, left: client.delete_consumer_groups(names, request_timeout=left), "group "
        )[group]
        if isinstance(found, GroupActive):
            raise GroupActive(f"group {group}", found.why, "stop its consumers, or wait until it is empty")
        if isinstance(found, OffsetMgrError):
            raise found

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._admin.close()

    def _connected(self) -> _Wire:
        if self._wire is None:
            self._wire = _Wire(self._bootstrap, self._config)
        return self._wire


class _Wire:
    """The connected half of a store: an event loop in a thread, and what runs in it."""

    def __init__(self, bootstrap: str, config: ConnectionConfig) -> None:
        from offsetmgr.stores.kafka_edits import KafkaEdits
        from offsetmgr.wire.client import Client
        from offsetmgr.wire.runner import Runner
        from offsetmgr.wire.security import Security

        self.client = Client(bootstrap, Security.of(config.kafka))
        self.edits = KafkaEdits(self.client, config.timeout_ms / 1000)
        self.runner = Runner()

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()


class HeldKafkaGroup:
    """A group held for long; see `offsetmgr.stores.base.HeldGroup`."""

    def __init__(self, wire: _Wire, hold: Hold) -> None:
        self._wire = wire
        self._hold = hold

    @property
    def group(self) -> str:
        return self._hold.group

    @property
    def lost(self) -> OffsetMgrError | None:
        return self._hold.lost

    def fetch(self) -> Mapping[TopicPartition, Committed]:
        async def fetch() -> FetchedGroup:
            return await self._hold.fetch(None, self._wire.edits.deadline())

        found = self._wire.runner.run(fetch())
        if found.errors:
            raise PartialFailure(f"fetch of group {self.group}", successes=found.offsets, failures=found.errors)
        return found.offsets

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, ChangeOutcome]:
        return self.edit({tp: Change(after) for tp, after in offsets.items()})

    def edit(self, changes: Mapping[TopicPartition, Change]) -> Mapping[TopicPartition, ChangeOutcome]:
        """As an edit of this group: expected values, rewinds and deletions too. Raises `LockLost`."""
        from offsetmgr.stores.kafka_edits import Outcomes, carry_out

        async def edit() -> dict[TopicPartition, ChangeOutcome]:
            deadline = self._wire.edits.deadline()

            async def write(wanted: Mapping[TopicPartition, OffsetAndMetadata]) -> Outcomes:
                return await self._hold.commit(wanted, deadline)

            async def erase(partitions: Sequence[TopicPartition]) -> Outcomes:
                return await self._hold.delete(partitions, deadline)

            return await carry_out(changes, await self._hold.fetch(list(changes), deadline), write, erase)

        return self._wire.runner.run(edit())

    def release(self) -> None:
        async def release() -> None:
            await self._hold.release(self._wire.edits.deadline())

        self._wire.runner.run(release())


def _answer(
    group: str,
    asked: Sequence[TopicPartition] | None,
    committed: Mapping[TopicPartition, Committed],
    errors: Mapping[TopicPartition, OffsetMgrError],
) -> dict[TopicPartition, Offset]:
    """What `fetch` returns: `Absent` where asked and not committed. Raises `PartialFailure`."""
    offsets: dict[TopicPartition, Offset] = dict(committed)
    if asked is not None:
        offsets = {tp: committed.get(tp, ABSENT) for tp in asked if tp not in errors}
    if errors:
        raise PartialFailure(f"fetch of group {group}", successes=offsets, failures=errors)
    return offsets


def _group_offsets(group: str, found: Any) -> GroupOffsets:
    """From the Admin client's answer for one group, or its error."""
    if isinstance(found, OffsetMgrError):
        return GroupOffsets(group, {}, error=found)
    offsets: dict[TopicPartition, Committed] = {}
    errors: dict[TopicPartition, OffsetMgrError] = {}
    for part in found.topic_partitions:
        tp = TopicPartition(part.topic, part.partition)
        if part.error is not None:
            errors[tp] = error_of(part.error, f"group {group}, {tp}")
        elif part.offset >= 0:
            epoch = part.leader_epoch
            known = epoch is not None and epoch >= 0
            offsets[tp] = Committed(part.offset, part.metadata or "", epoch if known else None)
    return GroupOffsets(group, offsets, errors)


def _group_of(edit: GroupEdit) -> str:
    return edit.group
