"""`PartitionManager`: starts, commits and releases the partitions of a `ZookeeperConsumer`.

It implements the methods of `PartitionListener` in `offsetmgr.zookeeper.groups.consumer_member`, which the member calls
when partitions are claimed or revoked. These methods follow the ordering contract of the module `consumer_member`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.fetch import Fetcher
from offsetmgr.consumer.offsets import ConsumerOffsets, OffsetStorage
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import MessageStream, PartitionProgress, StreamState
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import AuthenticationFailed, NotAuthorized, OffsetMgrError, PartialFailure
from offsetmgr.core.model import Committed, LogRange, Offset, TopicPartition
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_member import SessionLease
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.consumer_member import ConsumerMember

_LOG: Final = logging.getLogger("offsetmgr.consumer")
_JOIN_TIMEOUT_S: Final = 60.0

StreamOf: TypeAlias = Callable[[str, int], MessageStream]
"""Returns the stream for a topic and a thread number."""


class PartitionManager:
    """Manages the partitions that a member owns. The constructor performs no I/O. The caller must set ``member`` before
    it calls `start`."""

    member: ConsumerMember

    def __init__(
        self,
        bootstrap: str,
        group: str,
        config: ConnectionConfig,
        storage: OffsetStorage,
        settings: ConsumerSettings,
        state: StreamState,
        stream_of: StreamOf,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._state = state
        self._group = group
        self._storage = storage
        self._stream_of = stream_of
        self._cluster = KafkaCluster(bootstrap, config)
        self._fetcher = Fetcher(bootstrap, group, config, state, settings, self._on_fetch_failure)
        self._offsets: ConsumerOffsets | None = None
        self._closing = threading.Event()
        self._commit_lock = threading.Lock()
        self._committer: threading.Thread | None = None
        self._clock = clock or SystemClock()
        self._last_refresh = self._clock.monotonic()

    def start(self) -> None:
        self._fetcher.start()
        self.member.start(_JOIN_TIMEOUT_S)
        if self._settings.auto_commit:
            self._committer = threading.Thread(target=self._commit_at_intervals, name="offsetmgr-commits", daemon=True)
            self._committer.start()

    def close(self) -> None:
        self._closing.set()
        if self._committer is not None:
            self._committer.join()
        self.member.leave()
        self._fetcher.stop()
        self._cluster.close()

    def _commit_at_intervals(self) -> None:
        while not self._closing.wait(self._settings.auto_commit_interval_ms / 1000):
            try:
                self.commit("automatic commit")
            except OffsetMgrError as error:
                _LOG.warning("%s; retrying at the next interval", error)

    # --- calls of the member -------------------------------------------------------------------------

    def on_joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        store = self._storage.open(session)
        self._offsets = ConsumerOffsets(store, self._group, lease, self._settings, self._clock)
        self._state.set_delivery_check(lease.valid)

    def on_assigned(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        offsets = self._offsets
        assert offsets is not None
        found, error = offsets.fetch(claimed)
        if error is not None:
            _LOG.warning("group %s: %s; retrying", self._group, error)
        positions = {tp: offset.offset for tp, offset in found.items() if isinstance(offset, Committed)}
        positions |= self._start_offsets([tp for tp in found if tp not in positions])
        started = [
            PartitionProgress(tp, self._stream_of(tp.topic, claimed[tp].thread), position, position, found[tp])
            for tp, position in positions.items()
        ]
        for progress in started:
            self._state.add(progress)
        self._fetcher.add(started)
        return claimed.keys() - positions.keys()

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Works as `PartitionListener.on_revoked`.

        If automatic commits are disabled, this method commits nothing, like the old consumer.

        The old consumer reads the committed offsets *before* it claims a partition. If an old consumer reads the offset
        just before this member commits, and claims the partition just after this member releases it, the old consumer
        starts at the outdated offset. Therefore this member keeps a partition for a short time after the partition's
        last commit, whether that commit was automatic or manual. During this time, an old consumer that has read the
        outdated offset fails to claim the partition, because this member's owner node still exists, and reads the
        offset again. When this member leaves the group, it waits in the same way before it releases its partitions,
        because other members may be rebalancing. If another client (an old consumer with an expired session) has
        overwritten the commit during the wait, this member commits again.
        """
        settings = self._settings
        stopped = self._state.stop(partitions, settings.hand_over_ms / 1000 if settings.auto_commit else 0.0)
        owned = {progress.partition: progress for progress in stopped}
        self._fetcher.remove(stopped)
        try:
            if settings.auto_commit:
                try:
                    self.commit("last commit", owned)
                except PartialFailure as failure:
                    _LOG.warning("%s; the next owner reprocesses some messages", failure)
            with self._commit_lock:
                pass  # waits for a commit in another thread, which must end before the partitions are released
            self._wait_release_delay(stopped)
            if settings.auto_commit and self._recommit_overwritten(owned):
                self._wait_release_delay(stopped)
        except PartialFailure as failure:
            _LOG.warning("%s; the next owner reprocesses some messages", failure)
        finally:
            self._state.remove(partitions)

    def on_lost(self, partitions: Collection[TopicPartition] | None) -> None:
        self._fetcher.remove(self._state.remove(partitions))
        if partitions is None:
            self._state.set_delivery_check(lambda: False)
            offsets, self._offsets = self._offsets, None
            if offsets is not None:
                offsets.close()

    def on_failed(self, error: OffsetMgrError) -> None:
        self._state.fail(error)

    def _on_fetch_failure(self, error: OffsetMgrError) -> None:
        """Leaves the group, because a member that cannot fetch must not own partitions."""
        _LOG.error("the consumer leaves group %s because it cannot fetch: %s", self._group, error)
        self._state.fail(error)
        self.member.leave()

    def _start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the start offsets of partitions that have no committed offset. The result omits partitions whose log
        range cannot be read yet."""
        positions: dict[TopicPartition, int] = {}
        for tp, found in self._cluster.log_ranges(partitions).items() if partitions else ():
            if isinstance(found, LogRange):
                positions[tp] = found.start if self._settings.from_smallest else found.end
            elif isinstance(found, AuthenticationFailed | NotAuthorized):
                raise found
            else:
                _LOG.warning("%s; retrying", found)  # a new partition has no leader for a short time
        return positions

    # --- commits -------------------------------------------------------------------------------------

    def _wait_release_delay(self, owned: Collection[PartitionProgress]) -> None:
        """Waits until ``release_delay_ms`` has passed since the last commit of these partitions."""
        commits = [progress.committed_at for progress in owned if progress.committed_at is not None]
        if commits:
            remaining = max(commits) + self._settings.release_delay_ms / 1000 - self._clock.monotonic()
            if remaining > 0:
                self._clock.sleep(remaining)

    def _recommit_overwritten(self, owned: dict[TopicPartition, PartitionProgress]) -> bool:
        """Commits an offset again if another client has overwritten it since this member's commit. Returns whether it
        committed any offset."""
        committed = [tp for tp, progress in owned.items() if progress.committed_at is not None]
        if self._offsets is None or not committed:
            return False
        found, error = self._offsets.fetch(committed)
        if error is not None:
            _LOG.warning("group %s: %s", self._group, error)
        for tp, offset in found.items():
            owned[tp].known = offset
        return self.commit("correction", {tp: owned[tp] for tp in found})

    def commit(self, what: str, selected: dict[TopicPartition, PartitionProgress] | None = None) -> bool:
        """Commits the offsets of the selected partitions that have changed. If ``selected`` is None, commits those of
        all partitions that are not being released. If the store's offsets expire, the unchanged offsets are also
        committed every ``refresh_ms``. ``what`` names the commit in errors. Returns whether it committed any offset.
        Raises `PartialFailure`.

        If this member loses or releases a partition before the partition's offset is committed, the offset is not
        committed, because another member may already own the partition.
        """
        with self._commit_lock:
            owned = dict(self._state.committable()) if selected is None else selected
            offsets = self._offsets
            if offsets is None:
                return False
            positions = self._state.positions(owned.values())
            known: dict[TopicPartition, Offset] = {tp: owned[tp].known for tp in positions}
            now = self._clock.monotonic()
            if not (offsets.offsets_expire and now - self._last_refresh > self._settings.refresh_ms / 1000):
                positions = {tp: at for tp, at in positions.items() if not _is_committed(known[tp], at)}
            else:
                self._last_refresh = now
            if not positions:
                return False
            committed, errors = offsets.commit(positions, known, lambda tp: self._state.is_current(owned[tp]))
            for tp, offset in committed.items():
                owned[tp].known = offset
                owned[tp].committed_at = self._clock.monotonic()
        if errors:
            raise PartialFailure(f"{what} of group {self._group}", successes=committed, failures=errors)
        return True


def _is_committed(known: Offset, position: int) -> bool:
    return isinstance(known, Committed) and known.offset == position
