"""`ZookeeperConsumer`: the high-level consumer of Kafka 0.8 to 1.1, implemented in Python. A group can contain both
such consumers and old consumers that run on the JVM.

A `ZookeeperConsumer` registers itself in ZooKeeper as a member of the group, owns the partitions that are assigned to
it, and delivers the messages of these partitions in streams. The brokers must keep their metadata in ZooKeeper.

Source: kafka.javaapi.consumer.ConsumerConnector and ZookeeperConsumerConnector of Kafka 0.10.2.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Self

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.offsets import OffsetStorage
from offsetmgr.consumer.partition_manager import PartitionManager, StreamOf
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import MessageStream, StreamState
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.assignors import ASSIGNORS
from offsetmgr.zookeeper.groups.consumer_member import ConsumerMember, MemberSettings
from offsetmgr.zookeeper.groups.registration import member_id
from offsetmgr.zookeeper.groups.subscription import Subscription


class ZookeeperConsumer:
    """One member of an old consumer group. The constructor performs no I/O; the consumer joins the group when it
    creates its streams.

    ``zookeeper`` is ``h1:2181,h2:2181/chroot`` as in the brokers' configuration. ``offsets`` is the store of the
    group's offsets: ``zookeeper``, ``kafka``, ``dual`` (Kafka first, then ZooKeeper), or any store's URI. All members
    of a group must have the same ``strategy`` (``range`` or ``roundrobin``) and the same ``offsets``. If
    ``consumer_id`` is None, the consumer generates an id, as the old consumer does.

    Raises `UsageError`, `InvalidUri`.

    Example::

        from offsetmgr.consumer import ConsumerSettings, ZookeeperConsumer

        settings = ConsumerSettings(auto_commit=False, auto_offset_reset="smallest", consumer_timeout_ms=3_000)
        with ZookeeperConsumer(
            zookeeper="h1:2181", bootstrap_servers="h1:9092", group="shop-old", settings=settings
        ) as member:
            (stream,) = member.create_message_streams({"orders": 1})["orders"]
            print(next(iter(stream)).offset, member.owned)
            member.commit_offsets()
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
        if strategy not in ASSIGNORS:
            raise UsageError(f"strategy {strategy!r}", "is unknown", f"strategies: {', '.join(ASSIGNORS)}")
        self._assignor = ASSIGNORS[strategy]
        self._storage = OffsetStorage.of(offsets, zookeeper, bootstrap_servers, self._config)
        ZookeeperSession(zookeeper, self._config)
        self._state = StreamState()
        self._partitions: PartitionManager | None = None
        self._close_lock = threading.Lock()

    # --- the old consumer's methods ------------------------------------------------------------------

    def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Joins the group and subscribes to these topics, each with the given number of streams. Each partition belongs
        to exactly one stream of one member. Returns after the first rebalance. If another member still owns a partition
        that is assigned to this consumer, the partition is added to its stream later.

        A consumer can create its streams only once. Raises `UsageError`, and any error from joining the group.
        """
        subscription = Subscription.static(topics)
        streams = {topic: [self._stream(topic) for _ in range(count)] for topic, count in topics.items()}
        self._join(subscription, lambda topic, thread: streams[topic][thread])
        return streams

    def create_message_streams_by_filter(
        self, *, white_list: str | None = None, black_list: str | None = None, streams: int = 1
    ) -> list[MessageStream]:
        """Joins the group and subscribes to all present and future topics whose name matches the white list, or does
        not match the black list. Both lists are Java regular expressions in which a comma means "or". Each stream can
        deliver messages of all selected topics.

        Otherwise works as `create_message_streams`. Also raises `UnsupportedOperation` if Python cannot match the
        expression exactly as Java does.
        """
        if (white_list is None) == (black_list is None):
            raise UsageError("topic filter", "needs either a white list or a black list")
        if white_list is not None:
            subscription = Subscription.white_list(white_list, streams)
        else:
            subscription = Subscription.black_list(black_list or "", streams)
        created = [self._stream(None) for _ in range(streams)]
        self._join(subscription, lambda _topic, thread: created[thread])
        return created

    def commit_offsets(self) -> None:
        """Commits the consumed offsets of all owned partitions. The current message of the calling thread counts as
        consumed.

        Raises `PartialFailure` if some offsets could not be committed after retries.
        """
        self._state.finish_current_of_caller()
        if self._partitions is not None:
            self._partitions.commit("commit")

    def shutdown(self) -> None:
        """Stops delivering messages, commits if ``auto_commit`` is enabled, and leaves the group. For this commit, the
        current message of the calling thread counts as consumed. Any thread may call this method, and may call it more
        than once."""
        if self.settings.auto_commit:
            self._state.finish_current_of_caller()
        self._close()

    # --- additional methods --------------------------------------------------------------------------

    @property
    def owned(self) -> dict[TopicPartition, int]:
        """The owned partitions, each with the number of its stream."""
        owned = {} if self._partitions is None else self._partitions.member.owned
        return {tp: thread.thread for tp, thread in owned.items()}

    @property
    def held_by_others(self) -> dict[TopicPartition, str]:
        """The partitions that are assigned to this consumer but that other members have not released yet, each with the
        consumer thread that still owns the partition."""
        return {} if self._partitions is None else self._partitions.member.held_by_others

    @property
    def rebalances(self) -> int:
        """The number of rebalances."""
        return 0 if self._partitions is None else self._partitions.member.rebalances

    @property
    def error(self) -> OffsetMgrError | None:
        """The error that stopped the consumer; None while it runs."""
        return self._state.error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        """Shuts down. If an error ends the block, the current message does not count as consumed."""
        if failure is None:
            self.shutdown()
        else:
            self._close()

    # --- internals -----------------------------------------------------------------------------------

    def _stream(self, topic: str | None) -> MessageStream:
        if self._partitions is not None or self._state.closed:
            raise UsageError("message streams", "a consumer can create them only once", "create another consumer")
        stream = self._state.stream(topic)
        timeout_ms = self.settings.consumer_timeout_ms
        stream.timeout_s = None if timeout_ms is None else timeout_ms / 1000
        return stream

    def _join(self, subscription: Subscription, stream_of: StreamOf) -> None:
        settings = self.settings
        partitions = PartitionManager(
            self._bootstrap, self.group, self._config, self._storage, settings, self._state, stream_of
        )
        partitions.member = ConsumerMember(
            self._zookeeper,
            self.group,
            self.member_id,
            subscription,
            self._assignor,
            partitions,
            config=self._config,
            settings=MemberSettings(
                settings.zookeeper_session_timeout_ms,
                settings.rebalance_backoff_ms,
                settings.rebalance_max_retries,
                exclude_internal=settings.exclude_internal_topics,
            ),
        )
        self._partitions = partitions
        try:
            partitions.start()
        except OffsetMgrError:
            self._close()
            raise

    def _close(self) -> None:
        with self._close_lock:
            self._state.discard_current_of_caller()  # the caller cannot finish its message while it waits here
            if self._partitions is not None:
                self._partitions.close()
            self._state.close()
