"""`ConsumerOffsets`: reads the committed offsets of partitions when the consumer claims the partitions, and commits
offsets while the consumer owns them.

If the offsets are in the ZooKeeper ensemble in which the member is registered, commits use the member's own session.
The server rejects these commits once the session has expired, so a process that was frozen cannot overwrite the new
owner's offsets. A commit to ZooKeeper also requires that the node still has the version that this consumer last read or
wrote. This condition detects a late commit of an old consumer. Kafka's coordinator has neither protection. For offsets
in Kafka, the lease is therefore checked just before a commit. If a process freezes between the check and the commit,
the next commit of the new owner overwrites the late commit.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import Conflict, OffsetMgrError, PartialFailure, SessionExpired
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, Guard, OffsetStore
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.uri import inner_uris, open_store, parse_uri, translate_of
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.connection import parse_connect
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_member import SessionLease

_LOG: Final = logging.getLogger("offsetmgr.consumer")
_LEASE_CHECK_INTERVAL_S: Final = 0.05
_PORT: Final = re.compile(r":[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class OffsetStorage:
    """The URI of the store that holds a group's offsets. `open` opens the store with a member's session."""

    uri: str
    config: ConnectionConfig

    @classmethod
    def of(cls, offsets: str, zookeeper: str, bootstrap: str, config: ConnectionConfig) -> OffsetStorage:
        """Returns the storage for ``offsets``, which is ``zookeeper``, ``kafka``, ``dual`` or the URI of a store. The
        first three values select stores in the consumer's own ZooKeeper and Kafka. Raises `InvalidUri`."""
        zookeeper_uri, kafka_uri = f"zookeeper://{zookeeper}", f"kafka://{bootstrap}"
        if offsets == "dual":
            open_store("zookeeper://" + zookeeper, config)
            primary, secondary = (quote(uri, safe="") for uri in (kafka_uri, zookeeper_uri))
            return cls(f"dual:?primary={primary}&secondary={secondary}", config)
        uri = {"zookeeper": zookeeper_uri, "kafka": kafka_uri}.get(offsets, offsets)
        parse_uri(uri)
        return cls(uri, config)

    def open(self, session: ZookeeperSession) -> OffsetStore:
        """Opens the store. If the store is in the ZooKeeper of ``session``, the store uses ``session`` and opens no
        other session."""
        if parse_uri(self.uri).kind != "dual":
            return _bind_to_session(open_store(self.uri, self.config), session)
        inner = inner_uris(self.uri, self.config)
        primary, secondary = (_bind_to_session(open_store(uri, self.config), session) for uri in inner)
        return DualStore(primary, secondary, translate=translate_of(self.uri, self.config))


def _bind_to_session(store: OffsetStore, session: ZookeeperSession) -> OffsetStore:
    """Returns the store. If the store is in the ZooKeeper of ``session``, the store uses this session from now on, and
    closing the store also closes the session."""
    if isinstance(store, ZookeeperStore):
        if same_zookeeper(store.session.connect, session.connect):
            store.session = session
        else:
            _LOG.warning(
                "offsets are in %s, but the consumer is registered in %s; their addresses differ, so ZooKeeper does "
                "not reject commits after the consumer's session has expired",
                store.session.connect,
                session.connect,
            )
    return store


def same_zookeeper(first: str, second: str) -> bool:
    """Returns whether two connect strings name the same ensemble and chroot. The connect strings need only one server
    in common, because a connect string may omit servers of the ensemble. Raises `InvalidUri`."""
    (hosts, chroot), (second_hosts, second_chroot) = parse_connect(first), parse_connect(second)
    return chroot == second_chroot and bool(_servers(hosts) & _servers(second_hosts))


def _servers(hosts: str) -> set[str]:
    host_ports = (host.lower() for host in hosts.split(","))
    return {host if _PORT.search(host) else f"{host}:2181" for host in host_ports}


class ConsumerOffsets:
    """The offsets of one group during one session. Any thread may call its methods; only one call runs at a time."""

    def __init__(
        self, store: OffsetStore, group: str, lease: SessionLease, settings: ConsumerSettings, clock: Clock
    ) -> None:
        """If a commit fails with a retriable error, it is retried as ``settings`` say. If the lease is not valid, a
        commit waits for up to the session timeout, because the lease of a live session soon becomes valid again."""
        self._store = store
        self._group = group
        self._lease = lease
        self._backoff = Backoff.fixed(settings.offsets_backoff_ms / 1000, settings.offsets_commit_max_retries)
        self._wait_s = settings.zookeeper_session_timeout_ms / 1000
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def offsets_expire(self) -> bool:
        """Whether offsets expire unless they are committed again."""
        return self._store.capabilities.conditional != "version"

    def fetch(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Offset], OffsetMgrError | None]:
        """Returns the committed offsets that could be read, and an error. The error is the retriable error because of
        which other offsets could not be read, or None if all offsets could be read.

        Raises errors that are not retriable.
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
        """Commits with retries. Returns the store's offset of each committed partition, and the error of each other
        partition.

        ``known`` contains for each partition the offset that this consumer last read from the store or wrote to the
        store. If another client has committed an offset since that read or write, this commit overwrites the other
        client's offset. ``owned`` is called for each partition before each write. If ``owned`` returns False, no offset
        of the partition is committed, and the result of the partition is an error.
        """
        remaining = dict(positions)
        expected = dict(known)
        committed: dict[TopicPartition, Offset] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        lost: dict[TopicPartition, OffsetMgrError] = {}
        with self._lock:
            retries = BlockingRetries(backoff=self._backoff, clock=self._clock)
            while True:
                has_lease = self._wait_for_lease()  # the consumer may lose partitions during this wait
                for tp in [tp for tp in remaining if not owned(tp)]:
                    del remaining[tp]
                    lost[tp] = Conflict(f"group {self._group}, {tp}", "this consumer does not own it any more")
                errors = {}
                for tp, outcome in self._write(remaining, expected, has_lease).items():
                    if outcome.error is None:
                        committed[tp] = _offset_after(outcome, positions[tp])
                        continue
                    errors[tp] = outcome.error
                    if isinstance(outcome.error, Conflict) and outcome.error.actual is not None:
                        _LOG.warning("group %s, %s: %s", self._group, tp, outcome.error)
                        expected[tp] = outcome.error.actual
                remaining = {
                    tp: offset for tp, offset in remaining.items() if tp in errors and _is_worth_retrying(errors[tp])
                }
                if not remaining or not retries.pause():
                    break
        return committed, errors | lost

    def _write(
        self, positions: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Offset], has_lease: bool
    ) -> Mapping[TopicPartition, ChangeOutcome]:
        if not positions:
            return {}
        if not has_lease:
            expired = SessionExpired(f"commit of group {self._group}", "the ZooKeeper session may have expired")
            return dict.fromkeys(positions, ChangeOutcome(EditStatus.FAILED, None, expired))
        versioned = not self.offsets_expire
        changes = {
            tp: Change(OffsetAndMetadata(offset), known.get(tp, ABSENT) if versioned else None, allow_rewind=True)
            for tp, offset in positions.items()
        }
        try:
            (result,) = self._store.edit([GroupEdit(self._group, changes, Guard.OVERWRITE)])
        except OffsetMgrError as error:
            return dict.fromkeys(positions, ChangeOutcome(EditStatus.FAILED, None, error))
        for tp, secondary_error in result.secondary.items():
            _LOG.warning("group %s, %s: not committed to the secondary store yet: %s", self._group, tp, secondary_error)
        return result.outcomes

    def _wait_for_lease(self) -> bool:
        """Waits up to the session timeout until the lease is valid. Returns whether it is valid."""
        deadline = self._clock.monotonic() + self._wait_s
        while not self._lease.valid():
            if self._lease.expired or self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_LEASE_CHECK_INTERVAL_S)
        return True

    def close(self) -> None:
        """Closes the store."""
        with self._lock:
            self._store.close()


def _is_worth_retrying(error: OffsetMgrError) -> bool:
    return error.retriable or (isinstance(error, Conflict) and error.actual is not None)


def _offset_after(outcome: ChangeOutcome, offset: int) -> Offset:
    """Returns the offset that the store holds after a commit. The next commit passes this value as the expected
    offset."""
    before = outcome.before
    if outcome.status is EditStatus.UNCHANGED and before is not None:
        return before
    if isinstance(before, Committed) and before.version is not None:
        return Committed(offset, version=before.version + 1)
    return Committed(offset, version=0 if isinstance(before, Absent) else None)
