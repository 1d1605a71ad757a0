"""`KafkaStore`: committed offsets in the brokers' group coordinators, read and edited through `offsetmgr.wire`.

The Admin client is not used for offsets: the one of confluent-kafka 2.16 reads past the end of a commit's metadata,
asks for one group a request, and waits out its time-out on a cluster that has no offsets topic yet.

Synchronous on the outside; the work is done in an event loop in the background (`_Wire`).  How edits are guarded is
in `kafka_edits`.  The wire protocol is imported when it is first needed, because that takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from offsetmgr.config import ConnectionConfig
from offsetmgr.errors import OffsetMgrError, PartialFailure
from offsetmgr.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.stores.base import (
    Capabilities,
    Change,
    ChangeOutcome,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    HeldGroup,
    StoreBase,
    StoreIdentity,
)

if TYPE_CHECKING:
    from offsetmgr.wire.held import Hold

A = TypeVar("A")
T = TypeVar("T")

_SCAN_BATCH: Final = 100
_EDIT_BATCH: Final = 128
_FIRST_BATCH: Final = 25
"""Groups in the first batch of a stream: the first results come soon, and short streams need no more."""
_SCANS_IN_FLIGHT: Final = 3
_EDITS_IN_FLIGHT: Final = 4


class KafkaStore(StoreBase):
    """The native groups of a Kafka cluster; brokers from 3.0 on.

    ``timeout_ms`` of the configuration bounds the reading of one group and the edit of one group. Groups with members
    cannot be edited (`GroupActive`).  Besides plain text it speaks TLS and SASL PLAIN and SCRAM.
    """

    capabilities = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="group-lock")
    parallel_calls = 8

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        self._bootstrap = bootstrap
        self._config = config or ConnectionConfig()
        self._connection: _Wire | None = None
        self._connecting = threading.Lock()
        self._identity: StoreIdentity | None = None

    @property
    def uri(self) -> str:
        return f"kafka://{self._bootstrap}"

    def identity(self) -> StoreIdentity:
        if self._identity is None:
            wire = self._wire()
            cluster_id, _ = wire.run(wire.client.cluster)
            self._identity = StoreIdentity("kafka", cluster_id, "cluster id")
        return self._identity

    def groups(self) -> Iterator[str]:
        from offsetmgr.wire.listing import list_groups

        wire = self._wire()
        yield from wire.run(lambda deadline: list_groups(wire.client, deadline))

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        asked = None if partitions is None else list(dict.fromkeys(partitions))
        if asked is not None and not asked:
            return {}
        wire = self._wire()
        found = wire.run(lambda deadline: wire.edits.fetch(group, asked, deadline))
        offsets: dict[TopicPartition, Offset] = dict(found.offsets)
        if asked is not None:
            offsets = {tp: found.offsets.get(tp, ABSENT) for tp in asked if tp not in found.errors}
        if found.errors:
            raise PartialFailure(f"fetch of group {group}", successes=offsets, failures=found.errors)
        return offsets

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        from offsetmgr.wire.runner import batches, in_flight

        wire = self._wire()
        yield from in_flight(
            wire.runner,
            batches(groups, first=_FIRST_BATCH, most=_SCAN_BATCH, key=str),
            wire.edits.scan,
            most=_SCANS_IN_FLIGHT,
            key=str,
            finish=False,
        )

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        from offsetmgr.wire.runner import batches, in_flight

        wire = self._wire()
        yield from in_flight(
            wire.runner,
            batches(edits, first=_FIRST_BATCH, most=_EDIT_BATCH, key=_group_of),
            wire.edits.edit,
            most=_EDITS_IN_FLIGHT,
            key=_group_of,
            finish=True,
        )

    def hold(self, group: str, *, holder: str) -> HeldKafkaGroup:
        """See `offsetmgr.stores.base.HoldingStore`. Raises `GroupActive`, with names, where others are members."""
        from offsetmgr.wire.held import Hold

        wire = self._wire()
        return HeldKafkaGroup(wire, wire.run(lambda deadline: Hold.take(wire.client, group, holder, deadline)))

    def hold_many(self, groups: Iterable[str], *, holder: str) -> Iterator[tuple[str, HeldGroup | OffsetMgrError]]:
        """See `offsetmgr.stores.base.HoldingStore`; a broker lets the first join of each empty group wait (3 s by
        default), so these wait together."""
        from offsetmgr.wire.held import Hold

        wire = self._wire()

        async def take(group: str) -> tuple[str, HeldGroup | OffsetMgrError]:
            try:
                return group, HeldKafkaGroup(wire, await Hold.take(wire.client, group, holder, wire.edits.deadline()))
            except OffsetMgrError as error:
                return group, error

        yield from self._many(groups, take, key=str)

    def commit_held(
        self, commits: Iterable[tuple[HeldGroup, Mapping[TopicPartition, OffsetAndMetadata]]]
    ) -> Iterator[tuple[str, Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError]]:
        """See `offsetmgr.stores.base.HoldingStore`."""

        async def commit(
            one: tuple[HeldGroup, Mapping[TopicPartition, OffsetAndMetadata]],
        ) -> tuple[str, Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError]:
            held, offsets = one
            assert isinstance(held, HeldKafkaGroup)
            try:
                changes = {tp: Change(after) for tp, after in offsets.items()}
                return held.group, await held.carry_out(changes, self._wire().edits.deadline())
            except OffsetMgrError as error:
                return held.group, error

        yield from self._many(commits, commit, key=lambda one: one[0].group)

    def refresh_held(self, held: Iterable[HeldGroup]) -> Iterator[tuple[str, OffsetMgrError | None]]:
        """See `offsetmgr.stores.base.HoldingStore`. A holder subscribes to nothing, so the coordinator counts every
        offset's age from its commit (KIP-211)."""

        async def refresh(one: HeldGroup) -> tuple[str, OffsetMgrError | None]:
            assert isinstance(one, HeldKafkaGroup)
            try:
                return one.group, await one.recommit(self._wire().edits.deadline())
            except OffsetMgrError as error:
                return one.group, error

        yield from self._many(held, refresh, key=lambda one: one.group)

    def release_held(self, held: Iterable[HeldGroup]) -> None:
        """See `offsetmgr.stores.base.HoldingStore`."""

        async def release(one: HeldGroup) -> None:
            assert isinstance(one, HeldKafkaGroup)
            await one.give_up(self._wire().edits.deadline())

        for _ in self._many(held, release, key=lambda one: one.group):
            pass

    def _many(self, items: Iterable[A], do: Callable[[A], Awaitable[T]], *, key: Callable[[A], str]) -> Iterator[T]:
        """What ``do`` gives for each item, many at a time; the items of one key one after the other."""
        from offsetmgr.wire.runner import batches, in_flight

        async def do_all(batch: list[A]) -> list[T]:
            return list(await asyncio.gather(*map(do, batch)))

        yield from in_flight(
            self._wire().runner,
            batches(items, first=_FIRST_BATCH, most=_EDIT_BATCH, key=key),
            do_all,
            most=_EDITS_IN_FLIGHT,
            key=key,
            finish=True,
        )

    def delete_group(self, group: str) -> None:
        """Deletes a group with all that it has committed.

        Raises `GroupActive` with the members' names, `GroupNotFound`, and what reading raises.
        """
        wire = self._wire()
        wire.run(lambda deadline: wire.edits.delete_group(group, deadline))

    def close(self) -> None:
        with self._connecting:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _wire(self) -> _Wire:
        with self._connecting:
            if self._connection is None:
                self._connection = _Wire(self._bootstrap, self._config)
            return self._connection


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

    @property
    def replaced(self) -> bool:
        return self._hold.replaced

    def fetch(self) -> Mapping[TopicPartition, Committed]:
        found = self._wire.run(lambda deadline: self._hold.fetch(None, deadline))
        if found.errors:
            raise PartialFailure(f"fetch of group {self.group}", successes=found.offsets, failures=found.errors)
        return found.offsets

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, ChangeOutcome]:
        return self.edit({tp: Change(after) for tp, after in offsets.items()})

    def edit(self, changes: Mapping[TopicPartition, Change]) -> Mapping[TopicPartition, ChangeOutcome]:
        """As an edit of this group: expected values, rewinds and deletions too. Raises `LockLost`."""
        return self._wire.run(lambda deadline: self.carry_out(changes, deadline))

    async def carry_out(
        self, changes: Mapping[TopicPartition, Change], deadline: float
    ) -> dict[TopicPartition, ChangeOutcome]:
        """`edit`, within the store's event loop."""
        from offsetmgr.stores.kafka_edits import Outcomes, carry_out

        async def write(wanted: Mapping[TopicPartition, OffsetAndMetadata]) -> Outcomes:
            return await self._hold.commit(wanted, deadline)

        async def erase(partitions: Sequence[TopicPartition]) -> Outcomes:
            return await self._hold.delete(partitions, deadline)

        return await carry_out(changes, await self._hold.fetch(list(changes), deadline), write, erase)

    async def recommit(self, deadline: float) -> OffsetMgrError | None:
        """Commits what is committed once more, within the store's event loop; gives the first partition's error."""
        found = await self._hold.fetch(None, deadline)
        results: list[OffsetMgrError | None] = list((found.errors or {}).values())
        if found.offsets:
            values = {tp: committed.value() for tp, committed in found.offsets.items()}
            results += (await self._hold.commit(values, deadline)).values()
        return next((error for error in results if error is not None), None)

    def release(self) -> None:
        self._wire.run(self._hold.release)

    async def give_up(self, deadline: float) -> None:
        """`release`, within the store's event loop."""
        await self._hold.release(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()


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

    def run(self, call: Callable[[float], Awaitable[T]]) -> T:
        """Waits for a call in the loop, which is given its deadline."""

        async def within() -> T:
            return await call(self.edits.deadline())

        return self.runner.run(within())

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()


def _group_of(edit: GroupEdit) -> str:
    return edit.group
