"""`OffsetManager`: a blocking API for programs that contain an offset manager. The manager runs on an event loop in its
own thread.

The manager does the same as ``offsetmgr manager serve``, but has no listener. It joins the managers' group, owns the
shard groups that are assigned to it, and appends to the same topic. If it is the only manager of the topic, it owns all
groups. If the topic has several managers, they divide the groups among them. Clients cannot connect to an embedded
manager. If clients need the offsets of the program's groups, use ``manager serve`` instead.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import NotCoordinator
from offsetmgr.core.model import Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.background_loop import EventLoopThread
from offsetmgr.manager.embedded.node_assembly import EmbeddedNode
from offsetmgr.manager.embedded.request_adapter import RequestAdapter
from offsetmgr.manager.log.topic import DEFAULT_PARTITIONS, DEFAULT_TOPIC
from offsetmgr.manager.node.node_config import NodeConfig
from offsetmgr.manager.runtime import ManagerConfig, ShardStatus

T = TypeVar("T")


class OffsetManager(Closeable):
    """An offset manager in this process. Use it as a context manager, or call `start` and `close`.

    ``config`` contains the settings of the connection to the brokers, ``manager`` those of the manager.
    ``retention_ms`` is the retention of offsets of groups without members; if it is None, the retention in ``manager``
    applies, which is one week by default as in ``manager serve``. ``timeout_s`` limits how long `start` waits to join
    the managers' group, and how long each other call waits until the group's shard has an owner and is loaded. Several
    threads may use the same `OffsetManager`.

    Calls raise `NotCoordinator` if another manager owns the group (the message names this manager),
    `CoordinatorNotAvailable` if a commit was not replicated in time (the commit may have succeeded, or may still
    succeed), and `CoordinatorLoadInProgress` or `TimedOut` if ``timeout_s`` was too short. All of these errors are
    retriable.

    Example::

        from offsetmgr import OffsetAndMetadata, OffsetManager, TopicPartition

        orders = TopicPartition("orders", 0)
        with OffsetManager("h1:9092", topic="shop-offsets", partitions=2) as manager:
            manager.commit("shop", {orders: OffsetAndMetadata(42)})
            print(manager.fetch("shop"), manager.groups())
    """

    def __init__(
        self,
        bootstrap: str,
        config: ConnectionConfig | None = None,
        *,
        topic: str = DEFAULT_TOPIC,
        partitions: int = DEFAULT_PARTITIONS,
        record_format: str = "avro",
        retention_ms: int | None = None,
        manager: ManagerConfig | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        manager_config = manager or ManagerConfig(standby=False)
        if retention_ms is not None:
            manager_config = replace(manager_config, limits=manager_config.limits._replace(retention_ms=retention_ms))
        self._node = EmbeddedNode(
            NodeConfig(
                bootstrap,
                config or ConnectionConfig(),
                topic=topic,
                partitions=partitions,
                record_format=record_format,
                manager=manager_config,
                timeout_s=timeout_s,
            ),
            timeout_s,
        )
        self._running = False

    def start(self) -> Self:
        """Creates the topic if it does not exist, joins the managers' group and starts to load the assigned shards.
        Raises `OffsetMgrError`."""
        self._running = True
        self._loop_thread = EventLoopThread()
        try:
            self._run(self._node.open())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Completes commits in flight, revokes the shard groups and leaves the managers' group."""
        if self._running:
            self._running = False
            self._loop_thread.run(self._node.close())
            self._loop_thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, allow_rewind: bool = False
    ) -> None:
        """Commits offsets, and returns once every in-sync replica has the commit.

        Raises `PartialFailure` if some partitions failed. Unless ``allow_rewind`` is set, an offset below the committed
        one fails with `RewindRefused`.
        """
        self._run(self._requests.commit(group, offsets, allow_rewind=allow_rewind))

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Offset]:
        """Returns the committed offset of each of these partitions, or `Absent` for a partition without a committed
        offset. If ``partitions`` is None, returns all committed offsets of the group.

        Raises `PartialFailure` if some offsets are unreadable.
        """
        return self._run(self._requests.fetch(group, None if partitions is None else list(partitions)))

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Deletes the offsets of these partitions, or all offsets of the group if ``partitions`` is None. A missing
        offset is not an error. Raises the errors that the class's docstring describes."""
        self._run(self._requests.delete(group, None if partitions is None else list(partitions)))

    def groups(self) -> list[str]:
        """Returns the groups that this process owns and that have offsets, sorted. Raises `NotCoordinator` if the
        manager is not running or has lost its shards, `CoordinatorLoadInProgress` or `CoordinatorNotAvailable` if a
        shard of this process cannot be read within ``timeout_s``."""
        return self._run(self._requests.groups())

    def status(self) -> Sequence[ShardStatus]:
        """Returns the status of every shard in this process. Raises `NotCoordinator` if the manager is not running."""
        return self._run(self._requests.status())

    @property
    def _requests(self) -> RequestAdapter:
        if self._node.requests is None:
            raise NotCoordinator("offset manager", "it is not running", "use it within `with OffsetManager(...):`")
        return self._node.requests

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop_thread.run(coroutine)
