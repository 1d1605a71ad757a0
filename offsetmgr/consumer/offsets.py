"""Committed offsets of the partitions that a consumer owns: read when they are claimed, written while they are owned.

Offsets in the ZooKeeper in which the member is registered are read and written through the member's own session: the
server refuses them once the session is over, so a process that was frozen and wakes can commit nothing over the new
owner's offsets. They are conditional on the version read before as well: an old consumer's late commit is noticed.
Kafka's coordinator knows neither: there the lease is asked just before a commit is sent, and what a process sends that
froze between the two is overwritten by the owner's next commit.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import Conflict, OffsetMgrError, PartialFailure, SessionExpired, UsageError
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, Guard, OffsetStore
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.pair_uri import inner_uris, translate_of
from offsetmgr.stores.switched.scheme import open_switched
from offsetmgr.stores.uri import open_store, parse_uri, zookeeper_of
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.connection import parse_connect
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease

_LOG: Final = logging.getLogger("offsetmgr.consumer")
_LOOK_S: Final = 0.05
_PORT: Final = re.compile(r":[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class OffsetStorage:
    """Where a group's offsets are: a store's URI, and how to open it within a member's session."""

    uri: str
    config: ConnectionConfig

    @classmethod
    def of(cls, offsets: str, zookeeper: str, bootstrap: str, config: ConnectionConfig) -> OffsetStorage:
        """``offsets`` is a store's URI, or ``zookeeper``, ``kafka``, ``dual`` or ``switched`` for those of the consumer
        itself. Raises `InvalidUri`."""
        in_zookeeper, in_kafka = f"zookeeper://{zookeeper}", f"kafka://{bootstrap}"
        if offsets == "switched":
            open_store("zookeeper://" + zookeeper, config)
            return cls(f"switched:?zookeeper={quote(in_zookeeper, safe='')}&kafka={quote(in_kafka, safe='')}", config)
        if offsets == "dual":
            open_store("zookeeper://" + zookeeper, config)
            return cls(_dual(in_kafka, in_zookeeper), config)
        uri = {"zookeeper": in_zookeeper, "kafka": in_kafka}.get(offsets, offsets)
        parse_uri(uri)
        return cls(uri, config)

    def open(self, session: ZookeeperSession, lease: SessionLease, group: str) -> OffsetStore:
        """The store; as far as it is in the same ZooKeeper, it asks in ``session`` and in no other.

        A switched one follows the group's switch from now on. Raises what hinders that.
        """
        if parse_uri(self.uri).kind == "switched":
            return self._follow(session, lease, group)
        if parse_uri(self.uri).kind != "dual":
            return _within(open_store(self.uri, self.config), session)
        primary, secondary = inner_uris(self.uri, self.config)
        return DualStore(
            _within(open_store(primary, self.config), session),
            _within(open_store(secondary, self.config), session),
            translate=translate_of(self.uri, self.config),
        )

    def _follow(self, session: ZookeeperSession, lease: SessionLease, group: str) -> OffsetStore:
        connect = zookeeper_of(self.uri, self.config)
        if connect is None or not same_place(connect, session.connect):
            raise UsageError(
                f"offsets of group {group}",
                f"are switched in {connect}, and the consumer is registered in {session.connect}",
                "the switch of a group is where its members are: name the same ZooKeeper",
            )
        store = open_switched(self.uri, self.config, (session, lease))
        try:
            store.follow(group)
        except OffsetMgrError:
            store.close()
            raise
        return store


def _dual(primary: str, secondary: str) -> str:
    return f"dual:?primary={quote(primary, safe='')}&secondary={quote(secondary, safe='')}"


def _within(store: OffsetStore, session: ZookeeperSession) -> OffsetStore:
    """The same store; one in the session's own ZooKeeper is bound to the session, which is closed with it."""
    if isinstance(store, ZookeeperStore):
        if same_place(store.session.connect, session.connect):
            store.session = session
        else:
            _LOG.warning(
                "offsets are in %s, and the consumer is registered in %s: two places, as far as the addresses tell, so "
                "commits are not refused when the consumer's session is over",
                store.session.connect,
                session.connect,
            )
    return store


def same_place(one: str, other: str) -> bool:
    """Whether two connect strings name the same ensemble and chroot, as far as can be told from them: a server that
    both name is enough, since they need not list all, nor in the same order. Raises `InvalidUri`."""
    (hosts, chroot), (other_hosts, other_chroot) = parse_connect(one), parse_connect(other)
    return chroot == other_chroot and bool(_servers(hosts) & _servers(other_hosts))


def _servers(hosts: str) -> set[str]:
    named = (host.lower() for host in hosts.split(","))
    return {host if _PORT.search(host) else f"{host}:2181" for host in named}


class OffsetsLeaseProtocol(Protocol):
    """What is asked of a `SessionLease` here."""

    @property
    def expired(self) -> bool: ...

    def valid(self) -> bool: ...


class Offsets:
    """One group's offsets, for as long as one session lasts. Safe for several threads, one call at a time."""

    def __init__(
        self,
        store: OffsetStore,
        group: str,
        lease: OffsetsLeaseProtocol,
        *,
        retries: int,
        backoff_s: float,
        patience_s: float,
        clock: Clock | None = None,
    ) -> None:
        """``retries`` is how often a commit with a retriable error is tried again, ``backoff_s`` apart. A lease that
        has run out is waited for, ``patience_s`` at most: it is good again soon where the session is alive."""
        self._store = store
        self._group = group
        self._lease = lease
        self._retries = retries
        self._backoff_s = backoff_s
        self._patience_s = patience_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()

    @property
    def forgets(self) -> bool:
        """Whether offsets that are not committed again are forgotten one day."""
        return self._store.capabilities.conditional != "version"

    def fetch(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Offset], OffsetMgrError | None]:
        """What is committed, as far as it could be read, and why the rest could not yet.

        Raises what will not go away by itself.
        """
        with self._lock:
            try:
                return dict(self._store.fetch(self._group, list(partitions))), None
            except PartialFailure as partial:
                for error in partial.failures.values():
                    if not error.retriable:
                        raise error from None
                return dict(partial.successes), partial
            except OffsetMgrError as error:
                if not error.retriable:
                    raise
                return {}, error

    def commit(
        self,
        positions: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, Offset],
        owned: Callable[[TopicPartition], bool],
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, OffsetMgrError]]:
        """Commits, again while that may help: what the store holds now, and the errors of the others.

        ``known`` is what it held before. Where somebody else has written since, the owner's word counts: ``owned`` is
        asked before each write whether that is still us, and what is not is an error.
        """
        left = dict(positions)
        expected = dict(known)
        done: dict[TopicPartition, Offset] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        lost: dict[TopicPartition, OffsetMgrError] = {}
        with self._lock:
            for attempt in range(self._retries + 1):
                if attempt:
                    self._clock.sleep(self._backoff_s)
                leased = self._leased()  # which may take a while
                for tp in [tp for tp in left if not owned(tp)]:
                    del left[tp]
                    lost[tp] = Conflict(f"group {self._group}, {tp}", "is not this consumer's any more")
                errors = {}
                for tp, outcome in self._write(left, expected, leased).items():
                    if outcome.error is None:
                        done[tp] = _after(outcome, positions[tp])
                        continue
                    errors[tp] = outcome.error
                    if isinstance(outcome.error, Conflict) and outcome.error.actual is not None:
                        _LOG.warning("group %s, %s: %s", self._group, tp, outcome.error)
                        expected[tp] = outcome.error.actual
                left = {tp: offset for tp, offset in left.items() if tp in errors and _again(errors[tp])}
                if not left:
                    break
        return done, errors | lost

    def _write(
        self, positions: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Offset], leased: bool
    ) -> Mapping[TopicPartition, ChangeOutcome]:
        if not positions:
            return {}
        if not leased:
            late = SessionExpired(f"commit of group {self._group}", "the ZooKeeper session may be over")
            return dict.fromkeys(positions, ChangeOutcome(EditStatus.FAILED, None, late))
        versioned = not self.forgets
        changes = {
            tp: Change(OffsetAndMetadata(offset), known.get(tp, ABSENT) if versioned else None, allow_rewind=True)
            for tp, offset in positions.items()
        }
        try:
            (result,) = self._store.edit([GroupEdit(self._group, changes, Guard.OVERWRITE)])
        except OffsetMgrError as error:
            return dict.fromkeys(positions, ChangeOutcome(EditStatus.FAILED, None, error))
        for tp, late_error in result.secondary.items():
            _LOG.warning("group %s, %s: not in the second store yet: %s", self._group, tp, late_error)
        return result.outcomes

    def _leased(self) -> bool:
        """Whether the lease is good, now or soon."""
        deadline = self._clock.monotonic() + self._patience_s
        while not self._lease.valid():
            if self._lease.expired or self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_LOOK_S)
        return True

    def close(self) -> None:
        """Lets the store go."""
        with self._lock:
            self._store.close()


def _again(error: OffsetMgrError) -> bool:
    return error.retriable or (isinstance(error, Conflict) and error.actual is not None)


def _after(outcome: ChangeOutcome, offset: int) -> Offset:
    """What the store holds after a change, as a condition for the next one."""
    before = outcome.before
    if outcome.status is EditStatus.UNCHANGED and before is not None:
        return before
    if isinstance(before, Committed) and before.version is not None:
        return Committed(offset, version=before.version + 1)
    return Committed(offset, version=0 if isinstance(before, Absent) else None)
