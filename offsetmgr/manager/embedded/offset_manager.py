"""`OffsetManager`: the blocking API for programs. The manager runs on an event loop in its own thread.

It is the same manager as ``offsetmgr manager serve`` without the listener: it joins the managers' group, owns the shard
groups that are assigned to it, and appends to the same topic. Alone it owns everything. With other managers each owns a
part of the groups, and no client can reach an embedded manager from outside; a program whose groups must be reachable
uses the servers instead.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import NotCoordinator
from offsetmgr.core.model import Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.background_loop import EventLoopThread
from offsetmgr.manager.embedded.node_assembly import EmbeddedNode
from offsetmgr.manager.embedded.request_adapter import RequestAdapter
from offsetmgr.manager.log.topic import DEFAULT_PARTITIONS, DEFAULT_TOPIC
from offsetmgr.manager.node.node_config import NodeConfig
from offsetmgr.manager.runtime import ManagerConfig, ShardStatus

T = TypeVar("T")


class OffsetManager:
    """A context manager; `start` and `close` do the same.

    ``config`` has the connection to the brokers, ``manager`` the settings of the manager. ``retention_ms`` is the
    retention of offsets of groups without members (None: as in ``manager``, else one week as in ``manager serve``).
    ``timeout`` (seconds) limits how long a call waits for a load or for the managers' group. Several threads may use
    it.

    Calls raise `NotCoordinator` for a group of another manager (the text names it), `CoordinatorNotAvailable` if a
    commit could not be replicated in time (it may have succeeded or succeed later), `CoordinatorLoadInProgress` and
    `TimedOut` if ``timeout`` was too short. All of them are retriable.
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
        timeout: float = 30.0,
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
                timeout=timeout,
            ),
            timeout,
        )
        self._loop_thread = EventLoopThread()
        self._running = False

    def start(self) -> Self:
        """Creates the topic if it does not exist, joins the managers' group and starts to load. Raises
        `OffsetMgrError`."""
        self._running = True
        try:
            self._run(self._node.open())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends commits in flight, hands over the shard groups and leaves the group."""
        if self._running:
            self._running = False
            self._loop_thread.run(self._node.close())
            self._loop_thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, allow_rewind: bool = False
    ) -> None:
        """Commits, and returns once every in-sync replica has the commit.

        Raises `PartialFailure` if some partitions failed, with `RewindRefused` for offsets below the committed ones
        unless ``allow_rewind``.
        """
        self._run(self._requests.commit(group, offsets, allow_rewind=allow_rewind))

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Offset]:
        """Returns the committed offsets of these partitions, `Absent` for those without one; None: all committed
        offsets.

        Raises `PartialFailure` if some cannot be read.
        """
        return self._run(self._requests.fetch(group, None if partitions is None else list(partitions)))

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Deletes offsets (None: all of the group). A missing offset is no error."""
        self._run(self._requests.delete(group, None if partitions is None else list(partitions)))

    def groups(self) -> list[str]:
        """Returns the groups with offsets that this process owns, sorted."""
        return self._run(self._requests.groups())

    def status(self) -> Sequence[ShardStatus]:
        """Returns the role of this process for every shard, and its progress."""
        return self._run(self._requests.status())

    @property
    def _requests(self) -> RequestAdapter:
        if self._node.requests is None:
            raise NotCoordinator("offset manager", "it is not running", "use it within `with OffsetManager(...):`")
        return self._node.requests

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop_thread.run(coroutine)
