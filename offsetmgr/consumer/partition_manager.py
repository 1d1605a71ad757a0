"""The partitions behind the streams of a `ZookeeperConsumer`: starts, commits and releases them.

`PartitionManager` is the `offsetmgr.zookeeper.groups.rebalance.PartitionListener` of the member: it is called with
claimed and revoked partitions, and keeps its part of that module's ordering contract.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.fetch import Fetcher
from offsetmgr.consumer.offsets import Offsets, OffsetStorage
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import MessageStream, PartitionProgress, StreamState
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import AuthenticationFailed, NotAuthorized, OffsetMgrError, PartialFailure
from offsetmgr.core.model import Committed, LogRange, Offset, TopicPartition
from offsetmgr.kafka.cluster.confluent import open_cluster
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.consumer_member import ConsumerMember

_LOG: Final = logging.getLogger("offsetmgr.consumer")
_JOIN_S: Final = 60.0

StreamOf: TypeAlias = Callable[[str, int], MessageStream]
"""Returns the stream of a topic's thread."""


class PartitionManager:
    """The partitions that a member owns. No I/O before `start`; ``member`` must have been set by then."""

    member: ConsumerMember

    def __init__(
        self,
        bootstrap: str,
        group: str,
        config: ConnectionConfig,
        place: OffsetStorage,
        settings: ConsumerSettings,
        desk: StreamState,
        stream_of: StreamOf,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._desk = desk
        self._group = group
        self._place = place
        self._stream_of = stream_of
        self._cluster = open_cluster(bootstrap, config)
        self._fetcher = Fetcher(
            bootstrap,
            group,
            config,
            desk,
            from_smallest=settings.from_smallest,
            queued_max=settings.queued_max_messages,
            failed=self._fetching_failed,
        )
        self._offsets: Offsets | None = None
        self._closing = threading.Event()
        self._committing = threading.Lock()
        self._committer: threading.Thread | None = None
        self._clock = clock or SystemClock()
        self._refreshed = self._clock.monotonic()

    def start(self) -> None:
        self._fetcher.start()
        self.member.start(_JOIN_S)
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
                _LOG.warning("%s; tried again at the next interval", error)

    # --- calls of the member -------------------------------------------------------------------------

    def on_joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        settings = self._settings
        self._offsets = Offsets(
            self._place.open(session, lease, self._group),
            self._group,
            lease,
            retries=settings.offsets_commit_max_retries,
            backoff_s=settings.offsets_backoff_ms / 1000,
            wait_s=settings.zookeeper_session_timeout_ms / 1000,
            clock=self._clock,
        )
        self._desk.grant(lease.valid)

    def on_assigned(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        offsets = self._offsets
        assert offsets is not None
        found, late = offsets.fetch(claimed)
        if late is not None:
            _LOG.warning("group %s: %s; trying again", self._group, late)
        positions = {tp: offset.offset for tp, offset in found.items() if isinstance(offset, Committed)}
        positions |= self._initial([tp for tp in found if tp not in positions])
        begun = [
            PartitionProgress(
                tp, self._stream_of(tp.topic, claimed[tp].thread), position, position, position, found[tp]
            )
            for tp, position in positions.items()
        ]
        for holding in begun:
            self._desk.add(holding)
        self._fetcher.add(begun)
        return claimed.keys() - positions.keys()

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Works as `PartitionListener.on_revoked`. Without automatic commits, messages consumed since the last commit
        are not committed here either, as in the old consumer.

        The old consumer reads the committed offsets *before* it claims. If it does so while this member commits and
        releases, it may begin at the offset before that commit. So partitions are kept for a moment after their last
        commit, whatever caused it: an attempt that read too early finds this member's node, fails, and reads again. The
        same holds when the member leaves the group, since the others may be rebalancing at that time. A client that has
        overwritten the commit meanwhile (an old consumer with an expired session) is corrected.
        """
        settings = self._settings
        stopped = self._desk.stop(partitions, settings.hand_over_ms / 1000 if settings.auto_commit else 0.0)
        holdings = {holding.partition: holding for holding in stopped}
        self._fetcher.remove(stopped)
        try:
            if settings.auto_commit:
                self._commit_last(holdings)
            with self._committing:
                pass  # their commit must have been written while they are owned
            self._keep_a_moment(stopped)
            if settings.auto_commit and self._correct(holdings):
                self._keep_a_moment(stopped)
        except PartialFailure as failure:
            _LOG.warning("%s; the next owner gets some messages again", failure)
        finally:
            self._desk.remove(partitions)

    def on_lost(self, partitions: Collection[TopicPartition] | None) -> None:
        self._fetcher.remove(self._desk.remove(partitions))
        if partitions is None:
            self._desk.grant(lambda: False)
            offsets, self._offsets = self._offsets, None
            if offsets is not None:
                offsets.close()

    def on_failed(self, error: OffsetMgrError) -> None:
        self._desk.fail(error)

    def _fetching_failed(self, error: OffsetMgrError) -> None:
        """A member that cannot fetch must not own: the others get the partitions."""
        _LOG.error("consumer of group %s leaves: %s", self._group, error)
        self._desk.fail(error)
        self.member.leave()

    def _initial(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the start offsets of partitions without a commit; omits those that the brokers do not know yet."""
        positions: dict[TopicPartition, int] = {}
        for tp, found in self._cluster.log_ranges(partitions).items() if partitions else ():
            if isinstance(found, LogRange):
                positions[tp] = found.start if self._settings.from_smallest else found.end
            elif isinstance(found, AuthenticationFailed | NotAuthorized):
                raise found
            else:
                _LOG.warning("%s; trying again", found)  # a new partition has no leader at first
        if len(positions) < len(partitions):
            # librdkafka's Admin client remembers for minutes that there was no leader, so the next request uses a new
            # client.
            self._cluster.close()
        return positions

    # --- commits -------------------------------------------------------------------------------------

    def commit(self, what: str) -> None:
        """Commits what has changed; everything, from time to time, if the store's offsets expire. Raises
        `PartialFailure`."""
        self._commit(None, what)

    def _commit_last(self, holdings: dict[TopicPartition, PartitionProgress]) -> None:
        try:
            self._commit(holdings, "last commit")
        except PartialFailure as failure:
            _LOG.warning("%s; the next owner gets some messages again", failure)

    def _keep_a_moment(self, holdings: Collection[PartitionProgress]) -> None:
        """Waits until all of these were committed long enough ago."""
        commits = [holding.committed_at for holding in holdings if holding.committed_at is not None]
        if commits:
            left = max(commits) + self._settings.release_delay_ms / 1000 - self._clock.monotonic()
            if left > 0:
                self._clock.sleep(left)

    def _correct(self, holdings: dict[TopicPartition, PartitionProgress]) -> bool:
        """Commits again what this member has committed and the store has lost. Returns whether there was any."""
        ours = [tp for tp, holding in holdings.items() if holding.committed_at is not None]
        if self._offsets is None or not ours:
            return False
        found, late = self._offsets.fetch(ours)
        if late is not None:
            _LOG.warning("group %s: %s", self._group, late)
        for tp, offset in found.items():
            holdings[tp].known = offset
        return self._commit({tp: holdings[tp] for tp in found}, "correction")

    def _commit(self, chosen: dict[TopicPartition, PartitionProgress] | None, what: str) -> bool:
        """Commits these, or (None) all that are not being released. Returns whether there was anything to commit.

        It omits partitions that are released while it waits for another commit, and those lost between two attempts,
        which belong to another member by then.
        """
        with self._committing:
            holdings = dict(self._desk.committable()) if chosen is None else chosen
            offsets = self._offsets
            if offsets is None:
                return False
            positions = self._desk.positions(holdings.values())
            known: dict[TopicPartition, Offset] = {tp: holdings[tp].known for tp in positions}
            now = self._clock.monotonic()
            if not (offsets.forgets and now - self._refreshed > self._settings.refresh_ms / 1000):
                positions = {tp: at for tp, at in positions.items() if not _holds(known[tp], at)}
            else:
                self._refreshed = now
            if not positions:
                return False
            done, errors = offsets.commit(positions, known, lambda tp: self._desk.holds(holdings[tp]))
            for tp, offset in done.items():
                holdings[tp].known = offset
                holdings[tp].committed_at = self._clock.monotonic()
        if errors:
            raise PartialFailure(f"{what} of group {self._group}", successes=done, failures=errors)
        return True


def _holds(known: Offset, position: int) -> bool:
    return isinstance(known, Committed) and known.offset == position
