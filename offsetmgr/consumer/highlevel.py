"""`ZookeeperConsumer`: the high-level consumer of Kafka 0.8 to 1.1, for Python, beside members that run on the JVM.

It joins the members' group in ZooKeeper, owns its share of the partitions, and hands their messages out in streams. It
needs brokers that still keep their metadata in ZooKeeper.

Source: kafka.javaapi.consumer.ConsumerConnector and ZookeeperConsumerConnector of 0.10.2.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Final, Self, TypeAlias

from offsetmgr.clock import SystemClock
from offsetmgr.cluster.kafka import KafkaCluster
from offsetmgr.config import ConnectionConfig
from offsetmgr.consumer.fetching import Fetcher
from offsetmgr.consumer.offsets import Offsets, OffsetsPlace
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import Desk, Holding, MessageStream
from offsetmgr.errors import AuthenticationFailed, NotAuthorized, OffsetMgrError, PartialFailure, UsageError
from offsetmgr.model import Committed, LogRange, Offset, TopicPartition
from offsetmgr.zookeeper.assignors import ThreadId, assignor_named
from offsetmgr.zookeeper.membership import member_id
from offsetmgr.zookeeper.rebalance import Member, Timing
from offsetmgr.zookeeper.session import ZookeeperSession
from offsetmgr.zookeeper.sessionlease import SessionLease
from offsetmgr.zookeeper.subscription import Subscription

_LOG: Final = logging.getLogger("offsetmgr.consumer")
_JOIN_S: Final = 60.0

StreamOf: TypeAlias = Callable[[str, int], MessageStream]
"""Which stream a topic's thread is."""


class ZookeeperConsumer:
    """One member of an old consumer group. Construction does no I/O; creating streams joins the group.

    ``zookeeper`` is ``h1:2181,h2:2181/chroot`` as the brokers have it. ``offsets`` says where the group's offsets are:
    ``zookeeper``, ``kafka``, ``dual`` (Kafka first, then ZooKeeper), or any store's URI. All members of a group must
    have the same ``strategy`` (``range`` or ``roundrobin``) and read and write the same offsets. Without
    ``consumer_id`` an id is made up, as the old consumer does.

    Raises `UsageError`, `InvalidUri`.
    """

    def __init__(
        self,
        *,
        zookeeper: str,
        bootstrap_servers: str,
        group: str,
        offsets: str = "zookeeper",
        strategy: str = "range",
        consumer_id: str | None = None,
        config: ConnectionConfig | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self.group = group
        self.settings = settings or ConsumerSettings()
        self.member_id = member_id(group, consumer_id, now_ms=SystemClock().now_ms())
        self._zookeeper = zookeeper
        self._bootstrap = bootstrap_servers
        self._config = config or ConnectionConfig()
        if strategy not in ("range", "roundrobin"):
            raise UsageError(f"strategy {strategy!r}", "is unknown", "strategies: range, roundrobin")
        self._assignor = assignor_named(strategy)
        self._place = OffsetsPlace.of(offsets, zookeeper, bootstrap_servers, self._config)
        ZookeeperSession(zookeeper, self._config)
        self._desk = Desk()
        self._work: _Work | None = None
        self._shut = threading.Lock()

    # --- what the old consumer has --------------------------------------------------------------------

    def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Joins the group for these topics, with so many streams of each; each partition goes to exactly one stream of
        one member. Returns after the first rebalance; partitions that others still hold follow.

        Can be called once. Raises `UsageError`, and what hinders the joining.
        """
        subscription = Subscription.static(topics)
        streams = {topic: [self._stream(topic) for _ in range(count)] for topic, count in topics.items()}
        self._join(subscription, lambda topic, thread: streams[topic][thread])
        return streams

    def create_message_streams_by_filter(
        self, *, white_list: str | None = None, black_list: str | None = None, streams: int = 1
    ) -> list[MessageStream]:
        """Joins the group for all topics, present and future, whose name matches the white list (or does not match the
        black list): a regular expression of Java's, where a comma means "or". Each stream mixes the topics.

        Otherwise as `create_message_streams`. Raises `UnsupportedOperation` too, for an expression that cannot be
        matched here as in Java.
        """
        if (white_list is None) == (black_list is None):
            raise UsageError("topic filter", "is either a white list or a black list")
        if white_list is not None:
            subscription = Subscription.white_list(white_list, streams)
        else:
            subscription = Subscription.black_list(black_list or "", streams)
        created = [self._stream(None) for _ in range(streams)]
        self._join(subscription, lambda _topic, thread: created[thread])
        return created

    def commit_offsets(self) -> None:
        """Commits what has been consumed of all partitions owned, the message in this thread's hand included.

        Raises `PartialFailure` where some could not be committed, after retries.
        """
        self._desk.done_by(threading.get_ident())
        if self._work is not None:
            self._work.commit("commit")

    def shutdown(self) -> None:
        """Stops handing out messages, commits (where ``auto_commit`` is on; what is in this thread's hand included),
        and leaves the group. Can be called again, and from any thread."""
        if self.settings.auto_commit:
            self._desk.done_by(threading.get_ident())
        self._close()

    # --- what it adds ---------------------------------------------------------------------------------

    @property
    def owned(self) -> dict[TopicPartition, int]:
        """The partitions that it owns now, each with the number of its stream."""
        return {} if self._work is None else {tp: thread.thread for tp, thread in self._work.member.owned.items()}

    @property
    def held_by_others(self) -> dict[TopicPartition, str]:
        """Partitions of its share that another member has not released yet, and that member's thread."""
        return {} if self._work is None else self._work.member.held_by_others

    @property
    def rebalances(self) -> int:
        """How often it has divided the partitions anew."""
        return 0 if self._work is None else self._work.member.rebalances

    @property
    def error(self) -> OffsetMgrError | None:
        """Why it has given up; None while it has not."""
        return self._desk.error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Shuts down. Where an error ends the block, the message in hand does not count as consumed."""
        if exc_type is None:
            self.shutdown()
        else:
            self._close()

    # --- inside ---------------------------------------------------------------------------------------

    def _stream(self, topic: str | None) -> MessageStream:
        if self._work is not None or self._desk.closed:
            raise UsageError("message streams", "a consumer can create them once", "make another consumer")
        stream = self._desk.stream(topic)
        timeout = self.settings.consumer_timeout_ms
        stream.timeout_s = None if timeout is None else timeout / 1000
        return stream

    def _join(self, subscription: Subscription, stream_of: StreamOf) -> None:
        settings = self.settings
        work = _Work(self._bootstrap, self.group, self._config, self._place, settings, self._desk, stream_of)
        work.member = Member(
            self._zookeeper,
            self.group,
            self.member_id,
            subscription,
            self._assignor,
            work,
            config=self._config,
            timing=Timing(
                settings.zookeeper_session_timeout_ms,
                settings.rebalance_backoff_ms,
                settings.rebalance_max_retries,
            ),
            exclude_internal=settings.exclude_internal_topics,
        )
        self._work = work
        try:
            work.start()
        except OffsetMgrError:
            self._close()
            raise

    def _close(self) -> None:
        with self._shut:
            self._desk.left_by(threading.get_ident())  # nobody can wait for the caller
            if self._work is not None:
                self._work.close()
            self._desk.close()


class _Work:
    """What goes on behind the streams: a `Holder` of the partitions that the member owns."""

    member: Member

    def __init__(
        self,
        bootstrap: str,
        group: str,
        config: ConnectionConfig,
        place: OffsetsPlace,
        settings: ConsumerSettings,
        desk: Desk,
        stream_of: StreamOf,
    ) -> None:
        self._settings = settings
        self._desk = desk
        self._group = group
        self._place = place
        self._stream_of = stream_of
        self._cluster = KafkaCluster(bootstrap, config)
        self._fetcher = Fetcher(
            bootstrap,
            group,
            config,
            desk,
            from_smallest=settings.from_smallest,
            queued_max=settings.queued_max_messages,
        )
        self._offsets: Offsets | None = None
        self._closing = threading.Event()
        self._committing = threading.Lock()
        self._committer: threading.Thread | None = None
        self._refreshed = SystemClock().monotonic()

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

    # --- as the member's holder -----------------------------------------------------------------------

    def joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        settings = self._settings
        self._offsets = Offsets(
            self._place.open(session),
            self._group,
            lease,
            retries=settings.offsets_commit_max_retries,
            backoff_s=settings.offsets_backoff_ms / 1000,
            pause=self._closing.wait,
        )
        self._desk.grant(lease.valid)

    def begin(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        offsets = self._offsets
        assert offsets is not None
        found, late = offsets.fetch(claimed)
        if late is not None:
            _LOG.warning("group %s: %s; trying again", self._group, late)
        positions = {tp: offset.offset for tp, offset in found.items() if isinstance(offset, Committed)}
        positions |= self._initial([tp for tp in found if tp not in positions])
        begun = [
            Holding(tp, self._stream_of(tp.topic, claimed[tp].thread), position, position, position, found[tp])
            for tp, position in positions.items()
        ]
        for holding in begun:
            self._desk.add(holding)
        self._fetcher.add(begun)
        return claimed.keys() - positions.keys()

    def stop(self, partitions: Collection[TopicPartition], *, leaving: bool) -> None:
        """As `Holder.stop`. Without automatic commits what was consumed since the last commit is not committed here
        either, as in the old consumer.

        The old consumer reads the committed offsets *before* it claims. If it does so while we commit and release, it
        may begin at the offset from before our commit. So partitions are kept for a moment after their last commit: an
        attempt that read too early finds our node still there, fails, and reads again. Whoever has written over our
        commit meanwhile (an old consumer whose session has expired) is corrected.
        """
        settings = self._settings
        stopped = self._desk.stop(partitions, settings.hand_over_ms / 1000 if settings.auto_commit else 0.0)
        holdings = {holding.partition: holding for holding in stopped}
        self._fetcher.remove(holdings)
        try:
            if settings.auto_commit and self._commit(holdings, "last commit") and not leaving:
                self._closing.wait(settings.release_delay_ms / 1000)
                self._correct(holdings)
        except PartialFailure as failure:
            _LOG.warning("%s; the next owner gets some messages again", failure)
        finally:
            self._desk.remove(partitions)

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        self._fetcher.remove(self._desk.remove(partitions))
        if partitions is None:
            self._desk.grant(lambda: False)
            offsets, self._offsets = self._offsets, None
            if offsets is not None:
                offsets.close()

    def failed(self, error: OffsetMgrError) -> None:
        self._desk.fail(error)

    def _initial(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin what has never been committed; without those that the brokers do not know yet."""
        positions: dict[TopicPartition, int] = {}
        for tp, found in self._cluster.log_ranges(partitions).items() if partitions else ():
            if isinstance(found, LogRange):
                positions[tp] = found.start if self._settings.from_smallest else found.end
            elif isinstance(found, AuthenticationFailed | NotAuthorized):
                raise found
            else:
                _LOG.info("%s: %s; trying again", tp, found)  # a new partition has no leader at first
        return positions

    # --- committing -----------------------------------------------------------------------------------

    def commit(self, what: str) -> None:
        """Commits what has changed; all of it, from time to time, where the store forgets. Raises `PartialFailure`."""
        self._commit(dict(self._desk.commitable()), what)

    def _correct(self, holdings: dict[TopicPartition, Holding]) -> None:
        """Commits again what the store does not hold any more."""
        if self._offsets is None:
            return
        found, late = self._offsets.fetch(holdings)
        if late is not None:
            _LOG.warning("group %s: %s", self._group, late)
        for tp, offset in found.items():
            holdings[tp].known = offset
        self._commit({tp: holdings[tp] for tp in found}, "correction")

    def _commit(self, holdings: dict[TopicPartition, Holding], what: str) -> bool:
        """Whether there was anything to commit."""
        offsets = self._offsets
        if offsets is None:
            return False
        with self._committing:
            positions = self._desk.positions(holdings.values())
            known: dict[TopicPartition, Offset] = {tp: holdings[tp].known for tp in positions}
            now = SystemClock().monotonic()
            if not (offsets.forgets and now - self._refreshed > self._settings.refresh_ms / 1000):
                positions = {tp: at for tp, at in positions.items() if not _holds(known[tp], at)}
            else:
                self._refreshed = now
            if not positions:
                return False
            done, errors = offsets.commit(positions, known)
            for tp, offset in done.items():
                holdings[tp].known = offset
        if errors:
            raise PartialFailure(f"{what} of group {self._group}", successes=done, failures=errors)
        return True


def _holds(known: Offset, position: int) -> bool:
    return isinstance(known, Committed) and known.offset == position
