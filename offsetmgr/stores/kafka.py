"""`KafkaStore`: the committed offsets of Kafka's group coordinators, which `offsetmgr.kafka` reads and writes.

The store does not use confluent-kafka's Admin client for offsets: release 2.16 reads past the end of a commit's
metadata, sends one request for each group, and waits for its timeout on a cluster without an offsets topic.

`KafkaEdits` protects edits against concurrent writers; this module also locks groups for longer than one edit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition, Weakness
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcomes,
    GroupEdit,
    GroupEditResult,
    HeldLock,
    LockedCommit,
    StoreIdentity,
)
from offsetmgr.kafka.client.client import Client
from offsetmgr.stores.protocol_edits import KafkaEdits, ProtocolStore, StoreThread, execute, without_epochs

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import RunningEditListener, RunningGroup
    from offsetmgr.kafka.client.connection import Security
    from offsetmgr.kafka.cluster import Logs
    from offsetmgr.kafka.groups.group_lock import StaticMemberLock
    from offsetmgr.stores.offsets_topic import KafkaOffsetsTopic, SavedGroups

Item = TypeVar("Item")
Result = TypeVar("Result")


class KafkaStore(ProtocolStore[KafkaEdits]):
    """The consumer groups of a Kafka cluster with brokers of release 0.8.2 or later.

    If a group has members, an edit of the group fails with `GroupActive`, and a deletion of the group raises
    `GroupActive` with the names of the members.
    """

    kind = "kafka"
    capabilities = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="group-lock")

    _offsets_topic: Callable[[], KafkaOffsetsTopic]

    def _new_thread(self, security: Security, timeout_s: float) -> StoreThread[KafkaEdits]:
        client = Client(self._bootstrap, security)

        @cache
        def offsets_topic() -> KafkaOffsetsTopic:
            from offsetmgr.stores.offsets_topic import KafkaOffsetsTopic

            topic = KafkaOffsetsTopic(client)
            topic.on_read = self.on_read or topic.on_read
            return topic

        client.offsets_topic = self._offsets_topic = offsets_topic
        return StoreThread(client, KafkaEdits, timeout_s)

    def identity(self) -> StoreIdentity:
        return self._identity

    @cached_property
    def _identity(self) -> StoreIdentity:
        origin = self.log_origin()
        how = "cluster id" if origin.cluster_id else "addresses of the brokers; their release has no cluster ids"
        return StoreIdentity("kafka", origin.name, how)

    def logs(self) -> Logs:
        """Returns the topics and log ranges of the cluster, which are read with the connections of this store."""
        from offsetmgr.kafka.cluster import Logs

        return Logs(self.store_thread())

    def weaknesses(self) -> tuple[Weakness, ...]:
        from offsetmgr.kafka.client.topics import describe_brokers
        from offsetmgr.kafka.protocol.releases import weaknesses

        thread = self.store_thread()
        found = thread.run(lambda deadline: describe_brokers(thread.client, deadline))
        silent = [
            Weakness(f"broker {one.address}", f"broker {one.address} does not answer, so its release is unknown")
            for one in found
            if one.versions is None
        ]
        return (*weaknesses([one.versions for one in found if one.versions is not None]), *silent)

    def unseen(self, groups: Sequence[str], *, by_deletion: bool, accept: bool = False) -> Mapping[str, OffsetMgrError]:
        """Returns the reason for each of the groups that must not be deleted, because it has offsets that the brokers
        do not list to this login, or may have some. With ``by_deletion``, `delete_group` follows, and a group has no
        reason if its deletion will be the proof. With ``accept``, no group has a reason, and this object deletes each
        of them. Raises `Unreachable`, `TimedOut`."""
        unseen = self.store_thread().edits.unseen
        unseen.accepted.update(groups if accept else ())
        return self.store_thread().run(lambda deadline: unseen.reasons(groups, deadline, by_deletion=by_deletion))

    def filter_note(self) -> str:
        from offsetmgr.kafka.client.broker_checks import filter_note

        thread = self._connection
        return "" if thread is None else thread.run(lambda _: filter_note(thread.client))

    def groups(self) -> Iterator[str]:
        from offsetmgr.kafka.client.groups import list_kinds

        thread = self.store_thread()
        kinds = thread.run(lambda deadline: list_kinds(thread.client, deadline))
        self.left_out = [name for name, kind in kinds.items() if not kind.commits]
        yield from (name for name, kind in kinds.items() if kind.commits)

    def commit_times(self, groups: Iterable[str], limit_s: float | None = None) -> SavedGroups:
        """Returns the commits of groups with their times, which only the offsets topic has. ``limit_s`` limits the
        read. Raises the errors of `KafkaOffsetsTopic.read`; a client needs READ on the offsets topic."""
        thread, names = self.store_thread(), list(groups)
        return thread.run(lambda deadline: self._offsets_topic().read(deadline, names, limit_s))

    def inspect_running(self, groups: Iterable[str]) -> Iterator[tuple[str, RunningGroup | OffsetMgrError]]:
        """Describes groups before an edit. The error of a group is `UnsupportedOperation` if an edit cannot be exact
        while its members run."""
        from offsetmgr.kafka.groups.group_inspection import inspect_group

        thread = self.store_thread()

        yield from self._many(groups, lambda g: inspect_group(thread.client, g, thread.edits.deadline()), key=str)

    def edit_running(
        self, edits: Iterable[GroupEdit], listener: RunningEditListener, *, wait_s: float, conditional: bool
    ) -> Iterator[GroupEditResult]:
        """Executes edits, one group at a time, and yields one result for each edit. The members leave their group for a
        moment, and continue at the edited offsets.

        If ``conditional`` is True, a change fails with `Conflict` if its ``expected`` differs from the offset at which
        the members were stopped. Otherwise ``expected`` applies only to groups without members. ``wait_s`` is the
        maximum time in seconds for which the store waits until the members are back. `how` of a result describes the
        evidence that the members continue at the new offsets. `atomic` is False if the evidence is incomplete.
        """
        from offsetmgr.stores.running_edits import RunningEdits

        running = RunningEdits(self.store_thread().client, self.store_thread().edits, listener, wait_s)
        for edit in edits:
            yield self._run_to_end(partial(running.edit, edit, conditional=conditional))

    def _run_to_end(self, edit: Callable[[threading.Event], Coroutine[Any, Any, Result]]) -> Result:
        """Runs an edit of a running group. If Ctrl-C cancels it, waits until it has left the group."""
        from offsetmgr.stores.running_edits import LEAVE_S

        ended = threading.Event()
        try:
            return self.store_thread().runner.run(edit(ended))
        except BaseException:
            ended.wait(LEAVE_S)
            raise

    def lock_many(self, groups: Iterable[str], *, holder: str) -> Iterator[tuple[str, HeldLock | OffsetMgrError]]:
        """See `offsetmgr.core.offset_store.LockableStore`.

        The groups are joined in parallel, because a broker delays the first join of each empty group (by 3 s by
        default).
        """
        from offsetmgr.kafka.groups.group_lock import StaticMemberLock

        thread = self.store_thread()

        async def take(group: str) -> HeldLock:
            return await StaticMemberLock.acquire(thread.client, group, holder, thread.edits.deadline())

        yield from self._many(groups, take, key=str)

    def commit_locked(self, commits: Iterable[LockedCommit]) -> Iterator[tuple[str, ChangeOutcomes | OffsetMgrError]]:
        """See `offsetmgr.core.offset_store.LockableStore`."""
        edits = self.store_thread().edits

        async def commit(one: LockedCommit) -> ChangeOutcomes:
            lock, deadline = _member_lock(one[0]), edits.deadline()
            changes = {tp: Change(after) for tp, after in one[1].items()}
            if not lock.locked:
                return (await edits.unlocked(GroupEdit(lock.group, changes), deadline)).outcomes
            if not lock.keeps_epochs:
                changes = without_epochs(changes)
            write, erase = partial(lock.commit, deadline=deadline), partial(lock.delete, deadline=deadline)
            found = await lock.fetch(list(changes), deadline)
            return await execute(GroupEdit(lock.group, changes), found, write, erase)

        yield from self._many(commits, commit, key=lambda one: one[0].group)

    def refresh_locked(
        self, held: Iterable[HeldLock], leave_out: Mapping[str, Collection[TopicPartition]] = MappingProxyType({})
    ) -> Iterator[tuple[str, OffsetMgrError | None]]:
        """See `offsetmgr.core.offset_store.LockableStore`.

        The lock's member subscribes to no topic, so the coordinator measures the retention time of each offset from its
        commit (KIP-211), and a new commit restarts that time.
        """
        edits = self.store_thread().edits

        async def refresh(one: HeldLock) -> OffsetMgrError | None:
            lock, deadline, left_out = _member_lock(one), edits.deadline(), leave_out.get(one.group, ())
            if not lock.locked:
                return next(iter((await edits.recommit(lock.group, deadline, left_out)).failures.values()), None)
            found = await lock.fetch(None, deadline)
            values = {tp: committed.value() for tp, committed in found.offsets.items() if tp not in left_out}
            results = await lock.commit(values, deadline) if found.offsets else {}
            return next((error for error in [*found.errors.values(), *results.values()] if error is not None), None)

        yield from self._many(held, refresh, key=lambda one: one.group)

    def release_locks(self, held: Iterable[HeldLock]) -> None:
        """See `offsetmgr.core.offset_store.LockableStore`."""

        async def release(one: HeldLock) -> None:
            await _member_lock(one).release(self.store_thread().edits.deadline())

        for _, error in self._many(held, release, key=lambda one: one.group):
            if error is not None:
                raise error

    def _many(
        self, items: Iterable[Item], do: Callable[[Item], Awaitable[Result]], *, key: Callable[[Item], str]
    ) -> Iterator[tuple[str, Result | OffsetMgrError]]:
        """Yields the key of each item with the result of ``do``, or with the error that it raises. Items with different
        keys are processed in parallel, and items with the same key in sequence."""

        async def do_one(item: Item) -> tuple[str, Result | OffsetMgrError]:
            try:
                return key(item), await do(item)
            except OffsetMgrError as error:
                return key(item), error

        async def do_all(batch: list[Item]) -> list[tuple[str, Result | OffsetMgrError]]:
            return list(await asyncio.gather(*map(do_one, batch)))

        yield from self._in_batches(items, do_all, key)


def _member_lock(held: HeldLock) -> StaticMemberLock:
    from offsetmgr.kafka.groups.group_lock import StaticMemberLock

    assert isinstance(held, StaticMemberLock)  # see `KafkaStore.lock_many`
    return held
