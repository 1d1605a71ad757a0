"""`SwitchedStore`: the offsets of groups that a live migration can move between ZooKeeper, both stores and Kafka.

The store reads and writes each group according to its znode. A program that commits is a member, and a switch waits for
it. A program that only reads is not; its read is repeated if the mode changed meanwhile.

The member uses one ZooKeeper session, that of its ephemeral node: the server rejects later requests of a frozen
process. For Kafka the store checks the session's lease just before.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import (
    Conflict,
    GroupNotFound,
    OffsetMgrError,
    SessionExpired,
    SwitchInProgress,
    Unreachable,
)
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import Committed, Offset, OffsetAndMetadata, TopicPartition, Weakness
from offsetmgr.core.offset_store import (
    Capabilities,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    StoreBase,
    StoreIdentity,
)
from offsetmgr.stores.switched.mode_listener import ModeListener, SessionLeaseProtocol
from offsetmgr.stores.switched.nodes import SwitchStateStore, modes
from offsetmgr.stores.switched.records import StorageModeNode
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease

SESSION_TIMEOUT_MS: Final = 6000
"""The session timeout of a member without its own session."""
_READS: Final = 5
_GROUPS_AT_ONCE: Final = 200


class StorageBackends(Protocol):
    """The stores behind the modes, opened within one session and closed with it."""

    def store(self, mode: CommitMode) -> OffsetStore: ...

    def flush(self, group: str) -> bool:
        """Writes what the group's second store lacks; returns whether nothing is left."""
        ...

    def close(self) -> None: ...


class _SessionState:
    """The state of one session, which ends as a whole."""

    def __init__(
        self, session: ZookeeperSession, lease: SessionLeaseProtocol, places: StorageBackends, follower: ModeListener
    ) -> None:
        self.session, self.lease, self.places, self.follower = session, lease, places, follower

    def end(self) -> None:
        self.follower.end()
        try:
            self.places.close()
        finally:
            if isinstance(self.lease, SessionLease):
                self.lease.end()
            self.session.close()


class SwitchedStore(StoreBase):
    """The znode of each group under ``connect`` has its storage mode; ``open_places`` opens the stores in a session.

    ``start`` is the mode of groups without one. With ``bound`` (a member's session and its lease) the store lives as
    long as that session; without, it opens a session, and another one after that has ended. Thread-safe; one call runs
    at a time.

    A commit during a switch waits as long as a call to a server may take, then fails with `SwitchInProgress`, which is
    retriable.
    """

    def __init__(
        self,
        uri: str,
        connect: str,
        open_places: Callable[[ZookeeperSession], StorageBackends],
        config: ConnectionConfig | None = None,
        *,
        start: CommitMode | None = None,
        bound: tuple[ZookeeperSession, SessionLeaseProtocol] | None = None,
    ) -> None:
        """Raises `InvalidUri`."""
        ZookeeperSession(connect, config)
        self._uri = uri
        self._connect = connect
        self._open_places = open_places
        self._config = config or ConnectionConfig()
        self._start = start
        self._bound = bound
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._current: _SessionState | None = None
        self._opening = threading.Lock()
        self._closed = False

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def capabilities(self) -> Capabilities:
        """The fields that every mode can keep: offsets alone, as in ZooKeeper."""
        return Capabilities(metadata=False, leader_epoch=False, commit_timestamp=False, conditional="none")

    @property
    def member(self) -> str:
        """The name of this member in the groups' switches."""
        return self._name

    def identity(self) -> StoreIdentity:
        """Returns the identity of both stores together, because the mode may change."""
        both = self._life().places.store(CommitMode.DUAL).identity()
        return StoreIdentity("switched", both.id, both.how)

    def log_origin(self) -> LogOrigin:
        """Returns the origin of both stores together, which must belong to one Kafka cluster (see
        `DualStore.crossing`)."""
        return self._life().places.store(CommitMode.DUAL).log_origin()

    def weaknesses(self) -> tuple[Weakness, ...]:
        return self._life().places.store(CommitMode.DUAL).weaknesses()

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        return self._life().places.store(CommitMode.DUAL).topic_ids(topics)

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:
        return self._life().places.store(CommitMode.DUAL).topic_creation_times(topics)

    def mode(self, group: str) -> CommitMode:
        """Returns the group's current mode; ``start`` if none was declared. Raises `GroupNotFound`."""
        life = self._life()
        life.session.sync()
        seen = SwitchStateStore(life.session, group).read()
        return self._mode_of(group, None if seen is None else seen.storage)

    def follow(self, group: str) -> None:
        """Joins the group's switch now instead of at the first commit: a switch then waits for this member.

        Raises `GroupNotFound` if no mode was declared.
        """
        self._life().follower.follow(group)

    # --- reads ---------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        return self._life().places.store(CommitMode.DUAL).groups()

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        asked = None if partitions is None else list(partitions)
        if self._life().follower.follows(group):
            with self._using(group) as (life, mode):
                found = _plain(life.places.store(mode).fetch(group, asked))
                if not life.lease.valid():
                    raise SwitchInProgress(f"fetch of group {group}", "the session may have ended meanwhile")
                return found
        for _ in range(_READS):
            mode = self.mode(group)
            found = _plain(self._life().places.store(mode).fetch(group, asked))
            if self.mode(group) is mode:
                return found
        raise Conflict(f"fetch of group {group}", "its mode changes all the time", "try again when it is quiet")

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        names = iter(groups)
        while batch := list(islice(names, _GROUPS_AT_ONCE)):
            yield from self._scan_batch(batch)

    def _scan_batch(self, batch: list[str]) -> Iterator[GroupOffsets]:
        life = self._life()
        left, found = list(dict.fromkeys(batch)), dict[str, GroupOffsets]()
        for _ in range(_READS):
            said = self._modes(life, left)
            for group, mode in said.items():
                if isinstance(mode, OffsetMgrError):
                    found[group] = GroupOffsets(group, {}, error=mode)
            for mode in CommitMode:
                of_mode = [group for group, one in said.items() if one is mode]
                for result in life.places.store(mode).scan(of_mode) if of_mode else ():
                    offsets = {tp: Committed(one.offset) for tp, one in result.offsets.items()}
                    found[result.group] = replace(result, offsets=offsets, as_of=None)
            again = self._modes(life, [group for group, one in said.items() if isinstance(one, CommitMode)])
            left = [group for group, one in again.items() if one is not said[group]]
            if not left:
                break
        for group in left:
            why = "its mode changes all the time"
            found[group] = GroupOffsets(group, {}, error=Conflict(f"scan of group {group}", why))
        yield from (found[group] for group in batch)

    def _modes(self, life: _SessionState, groups: list[str]) -> dict[str, CommitMode | OffsetMgrError]:
        if not groups:
            return {}
        life.session.sync()
        said: dict[str, CommitMode | OffsetMgrError] = {}
        for group, storage in modes(life.session, groups).items():
            try:
                said[group] = storage if isinstance(storage, OffsetMgrError) else self._mode_of(group, storage)
            except GroupNotFound as error:
                said[group] = error
        return said

    def _mode_of(self, group: str, storage: StorageModeNode | None) -> CommitMode:
        if storage is not None:
            return storage.mode
        if self._start is None:
            raise GroupNotFound(
                f"group {group}",
                "its storage mode is not declared",
                "declare it once: offsetmgr migrate switch --declare --to MODE, or start=MODE in the store's URI",
            )
        return self._start

    # --- writes --------------------------------------------------------------------------------------

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Works as `OffsetStore.edit`, one group after the other: for commits, not for bulk work."""
        for edit in edits:
            yield self._edit_group(edit)

    def _edit_group(self, edit: GroupEdit) -> GroupEditResult:
        plain = {
            tp: change if change.after is None else change._replace(after=OffsetAndMetadata(change.after.offset))
            for tp, change in edit.changes.items()
        }
        try:
            with self._using(edit.group) as (life, mode):
                (result,) = life.places.store(mode).edit([replace(edit, changes=plain)])
        except OffsetMgrError as error:
            failed = ChangeOutcome(EditStatus.FAILED, None, self._told(error))
            return GroupEditResult(edit.group, dict.fromkeys(edit.changes, failed), how="nothing was written")
        outcomes = {
            tp: outcome if outcome.error is None else outcome._replace(error=self._told(outcome.error))
            for tp, outcome in result.outcomes.items()
        }
        return replace(result, outcomes=outcomes)

    @contextmanager
    def _using(self, group: str) -> Iterator[tuple[_SessionState, CommitMode]]:
        """Works as `ModeListener.using`; if the store's own session has ended, in another one."""
        while True:
            life = self._life()
            with ExitStack() as within:
                try:
                    mode = within.enter_context(life.follower.using(group))
                except SessionExpired:
                    if self._bound is not None or not life.lease.expired:
                        raise
                    continue
                yield life, mode
                return

    def _told(self, error: OffsetMgrError) -> OffsetMgrError:
        """Returns a retriable error if the store's own session has ended, because the same call may succeed in another
        one."""
        if not isinstance(error, SessionExpired) or self._bound is not None:
            return error
        return SwitchInProgress(error.what, f"{error.why}; the next call opens another session")

    def close(self) -> None:
        with self._opening:
            self._closed = True
            life, self._current = self._current, None
            if life is not None:
                life.end()

    def _life(self) -> _SessionState:
        with self._opening:
            if self._closed:
                raise Unreachable(self._uri, "the store has been closed")
            if self._current is not None and self._current.lease.expired and self._bound is None:
                life, self._current = self._current, None
                life.end()
            if self._current is None:
                self._current = self._open()
            return self._current

    def _open(self) -> _SessionState:
        if self._bound is not None:
            session, lease = self._bound
        else:
            session = ZookeeperSession(self._connect, self._config, session_timeout_ms=SESSION_TIMEOUT_MS)
            own = SessionLease(session, lambda: None)
            try:
                own.begin()
            except OffsetMgrError:
                session.close()
                raise
            lease = own
        places = self._open_places(session)
        follower = ModeListener(
            session,
            lease,
            self._name,
            start=self._start,
            flush=places.flush,
            wait_s=self._config.timeout_ms / 1000,
        )
        follower.begin()
        return _SessionState(session, lease, places, follower)


def _plain(found: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, Offset]:
    """Returns offsets alone, because other fields would appear and disappear with the mode."""
    return {tp: Committed(one.offset) if isinstance(one, Committed) else one for tp, one in found.items()}
