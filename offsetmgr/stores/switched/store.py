"""`SwitchedStore`: the offsets of groups that a live migration can switch between ZooKeeper, both stores and Kafka.

The store reads and writes each group in the mode that the group's znode declares. A program that commits is registered
as a member that follows the group's mode, and a switch waits for this member's acknowledgement. A program that only
reads is not registered; the store repeats a read if the mode changed during the read.

A member's commits to ZooKeeper use the session that owns the member's ephemeral node. If a member freezes until its
session has ended, ZooKeeper therefore rejects the member's later requests. Before a call to Kafka, the store checks the
lease of the session.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final, Protocol

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.batches import batched
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
from offsetmgr.stores.switched.mode_listener import ModeListener
from offsetmgr.stores.switched.nodes import SwitchStateStore, modes
from offsetmgr.stores.switched.records import StorageModeNode
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease, SessionLeaseProtocol

SESSION_TIMEOUT_MS: Final = 6000
"""The timeout of a session that the store opens itself."""
_MAX_READS: Final = 5
_MODE_CHANGES: Final = f"its storage mode changed during each of {_MAX_READS} reads"
_MAX_GROUPS_IN_FLIGHT: Final = 200


class StorageBackends(Protocol):
    """The store of each mode, opened within one session and closed with it."""

    def store(self, mode: CommitMode) -> OffsetStore: ...

    def flush(self, group: str) -> bool:
        """Writes the group's pending changes to the secondary store; returns True if no pending change is left."""
        ...

    def close(self) -> None: ...


class _SessionState:
    """One ZooKeeper session and the objects that depend on it. `end` closes the session and these objects."""

    def __init__(
        self, session: ZookeeperSession, lease: SessionLeaseProtocol, backends: StorageBackends, listener: ModeListener
    ) -> None:
        self.session, self.lease, self.backends, self.listener = session, lease, backends, listener

    def end(self) -> None:
        self.listener.stop()
        try:
            self.backends.close()
        finally:
            if isinstance(self.lease, SessionLease):
                self.lease.end()
            self.session.close()


class SwitchedStore(StoreBase):
    """An offset store that reads and writes each group through the store that belongs to the group's storage mode.

    ``connect`` is the connect string of the ZooKeeper with the storage modes; ``open_backends`` opens the stores in a
    session. ``start`` is the mode of groups without a declared mode. If ``bound`` (a session and its lease) is given,
    the store can be used until that session ends. Otherwise the store opens its own session, and a new one whenever its
    session has ended. Instances are thread-safe; one call runs at a time.

    A commit during a switch waits for up to ``timeout_ms`` of the configuration, then fails with `SwitchInProgress`,
    which is retriable.
    """

    def __init__(
        self,
        uri: str,
        connect: str,
        open_backends: Callable[[ZookeeperSession], StorageBackends],
        config: ConnectionConfig | None = None,
        *,
        start: CommitMode | None = None,
        bound: tuple[ZookeeperSession, SessionLeaseProtocol] | None = None,
    ) -> None:
        """Raises `InvalidUri`."""
        ZookeeperSession(connect, config)
        self._uri = uri
        self._connect = connect
        self._open_backends = open_backends
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
        """The capabilities that every mode has: offsets without metadata, leader epoch or timestamp."""
        return Capabilities(metadata=False, leader_epoch=False, commit_timestamp=False, conditional="none")

    @property
    def member(self) -> str:
        """The name of this member's nodes in ZooKeeper."""
        return self._name

    def identity(self) -> StoreIdentity:
        """Returns the identity of both stores together, because the mode may change."""
        both = self._session_state().backends.store(CommitMode.DUAL).identity()
        return StoreIdentity("switched", both.id, both.how)

    def log_origin(self) -> LogOrigin:
        """Returns the origin of both stores together, which must belong to one Kafka cluster (see
        `DualStore.cross_cluster_check`)."""
        return self._session_state().backends.store(CommitMode.DUAL).log_origin()

    def weaknesses(self) -> tuple[Weakness, ...]:
        return self._session_state().backends.store(CommitMode.DUAL).weaknesses()

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        return self._session_state().backends.store(CommitMode.DUAL).topic_ids(topics)

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:
        return self._session_state().backends.store(CommitMode.DUAL).topic_creation_times(topics)

    def mode(self, group: str) -> CommitMode:
        """Returns the group's current mode; ``start`` if none was declared. Raises `GroupNotFound`."""
        state = self._session_state()
        state.session.sync()
        seen = SwitchStateStore(state.session, group).read()
        return self._mode_of(group, None if seen is None else seen.storage)

    def follow(self, group: str) -> None:
        """Registers this member in the group now instead of at the member's first commit, so that a switch waits for
        the member.

        Raises `GroupNotFound` if no mode was declared.
        """
        self._session_state().listener.follow(group)

    # --- reads ---------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        return self._session_state().backends.store(CommitMode.DUAL).groups()

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        requested = None if partitions is None else list(partitions)
        if self._session_state().listener.follows(group):
            with self._using(group) as (state, mode):
                found = _offsets_only(state.backends.store(mode).fetch(group, requested))
                if not state.lease.valid():
                    raise SwitchInProgress(
                        f"fetch of group {group}", "the member's ZooKeeper session may have ended during the read"
                    )
                return found
        for _ in range(_MAX_READS):
            mode = self.mode(group)
            found = _offsets_only(self._session_state().backends.store(mode).fetch(group, requested))
            if self.mode(group) is mode:
                return found
        raise Conflict(f"fetch of group {group}", _MODE_CHANGES, "try again later")

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        for batch in batched(groups, _MAX_GROUPS_IN_FLIGHT):
            yield from self._scan_batch(batch)

    def _scan_batch(self, batch: list[str]) -> Iterator[GroupOffsets]:
        state = self._session_state()
        left, found = list(dict.fromkeys(batch)), dict[str, GroupOffsets]()
        for _ in range(_MAX_READS):
            found_modes = self._modes(state, left)
            for group, mode in found_modes.items():
                if isinstance(mode, OffsetMgrError):
                    found[group] = GroupOffsets(group, {}, error=mode)
            for mode in CommitMode:
                of_mode = [group for group, one in found_modes.items() if one is mode]
                for result in state.backends.store(mode).scan(of_mode) if of_mode else ():
                    offsets = {tp: Committed(one.offset) for tp, one in result.offsets.items()}
                    found[result.group] = replace(result, offsets=offsets, as_of=None)
            again = self._modes(state, [group for group, one in found_modes.items() if isinstance(one, CommitMode)])
            left = [group for group, one in again.items() if one is not found_modes[group]]
            if not left:
                break
        for group in left:
            found[group] = GroupOffsets(group, {}, error=Conflict(f"scan of group {group}", _MODE_CHANGES))
        yield from (found[group] for group in batch)

    def _modes(self, state: _SessionState, groups: list[str]) -> dict[str, CommitMode | OffsetMgrError]:
        if not groups:
            return {}
        state.session.sync()
        found_modes: dict[str, CommitMode | OffsetMgrError] = {}
        for group, storage in modes(state.session, groups).items():
            try:
                found_modes[group] = storage if isinstance(storage, OffsetMgrError) else self._mode_of(group, storage)
            except GroupNotFound as error:
                found_modes[group] = error
        return found_modes

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
        """Works as `OffsetStore.edit`, one group after the other. The method is designed for commits of consumers, not
        for bulk edits."""
        for edit in edits:
            yield self._edit_group(edit)

    def _edit_group(self, edit: GroupEdit) -> GroupEditResult:
        plain = {
            tp: change if change.after is None else change._replace(after=OffsetAndMetadata(change.after.offset))
            for tp, change in edit.changes.items()
        }
        try:
            with self._using(edit.group) as (state, mode):
                (result,) = state.backends.store(mode).edit([replace(edit, changes=plain)])
        except OffsetMgrError as error:
            failed = ChangeOutcome(EditStatus.FAILED, None, self._retriable_error(error))
            return GroupEditResult(edit.group, dict.fromkeys(edit.changes, failed), how="nothing was written")
        outcomes = {
            tp: outcome if outcome.error is None else outcome._replace(error=self._retriable_error(outcome.error))
            for tp, outcome in result.outcomes.items()
        }
        return replace(result, outcomes=outcomes)

    @contextmanager
    def _using(self, group: str) -> Iterator[tuple[_SessionState, CommitMode]]:
        """Works as `ModeListener.using`. If the store's own session has ended, the store opens a new session."""
        while True:
            state = self._session_state()
            with ExitStack() as within:
                try:
                    mode = within.enter_context(state.listener.using(group))
                except SessionExpired:
                    if self._bound is not None or not state.lease.expired:
                        raise
                    continue
                yield state, mode
                return

    def _retriable_error(self, error: OffsetMgrError) -> OffsetMgrError:
        """If the store's own session has expired, returns a retriable error instead of `SessionExpired`, because the
        next call opens a new session."""
        if not isinstance(error, SessionExpired) or self._bound is not None:
            return error
        return SwitchInProgress(error.what, f"{error.why}; the next call opens another session")

    def close(self) -> None:
        with self._opening:
            self._closed = True
            state, self._current = self._current, None
            if state is not None:
                state.end()

    def _session_state(self) -> _SessionState:
        with self._opening:
            if self._closed:
                raise Unreachable(self._uri, "the store has been closed")
            if self._current is not None and self._current.lease.expired and self._bound is None:
                state, self._current = self._current, None
                state.end()
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
        backends = self._open_backends(session)
        listener = ModeListener(
            session,
            lease,
            self._name,
            initial_mode=self._start,
            flush=backends.flush,
            wait_s=self._config.timeout_ms / 1000,
        )
        listener.start()
        return _SessionState(session, lease, backends, listener)


def _offsets_only(found: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, Offset]:
    """Removes all fields except the offset, because only the offset is available in every mode."""
    return {tp: Committed(one.offset) if isinstance(one, Committed) else one for tp, one in found.items()}
