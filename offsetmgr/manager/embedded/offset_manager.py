"""`OffsetManager`: the calls that programs make. They block; the manager runs on an event loop in a thread of its own.

It is the same manager as ``offsetmgr manager serve`` without the listener: it joins the managers' group, owns what it
is given there, appends to the same topic.  Alone it owns everything.  Where others are in the group each owns a part of
the groups, and nobody can reach an embedded one from outside; so a program whose groups must be reachable for others
talks to the servers instead.
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

    ``config`` says how to reach the brokers, ``manager`` how to manage; ``retention_ms`` how long offsets of groups
    without members are kept (None: as ``manager`` says, without it a week like ``manager serve``); ``timeout``
    (seconds) is how long a call waits for a load or for the managers' group.  May be used by several threads.

    Calls raise `NotCoordinator` for a group that another manager owns (the text names it), `CoordinatorNotAvailable`
    where a commit could not be replicated in time (it may have happened nevertheless, or happen still),
    `CoordinatorLoadInProgress` and `TimedOut` where ``timeout`` was not enough: all of them retriable.
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
        how = manager or ManagerConfig(standby=False)
        if retention_ms is not None:
            how = replace(how, limits=how.limits._replace(retention_ms=retention_ms))
        self._assembly = EmbeddedNode(
            NodeConfig(
                bootstrap,
                config or ConnectionConfig(),
                topic=topic,
                partitions=partitions,
                record_format=record_format,
                manager=how,
                timeout=timeout,
            ),
            timeout,
        )
        self._runner = EventLoopThread()
        self._running = False

    def start(self) -> Self:
        """Creates the topic if need be, joins the managers' group, begins to load. Raises `OffsetMgrError`."""
        self._running = True
        try:
            self._run(self._assembly.open())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends commits in flight, hands over what is owned, and leaves the group."""
        if self._running:
            self._running = False
            self._runner.run(self._assembly.close())
            self._runner.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, allow_rewind: bool = False
    ) -> None:
        """Commits; returns once every in-sync replica has it.

        Raises `PartialFailure` where some partitions failed, among them `RewindRefused` for offsets below the committed
        ones unless ``allow_rewind``.
        """
        self._run(self._requests.commit(group, offsets, allow_rewind=allow_rewind))

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Offset]:
        """The committed offsets of these partitions, `Absent` where there is none; None: all that are committed.

        Raises `PartialFailure` where some cannot be read.
        """
        return self._run(self._requests.fetch(group, None if partitions is None else list(partitions)))

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Deletes offsets (None: all of the group's); what does not exist is no error."""
        self._run(self._requests.delete(group, None if partitions is None else list(partitions)))

    def groups(self) -> list[str]:
        """The groups that this process owns and that have offsets, sorted."""
        return self._run(self._requests.groups())

    def status(self) -> Sequence[ShardStatus]:
        """What it is to every shard, and how far with it."""
        return self._run(self._requests.status())

    @property
    def _requests(self) -> RequestAdapter:
        if self._assembly.requests is None:
            raise NotCoordinator("offset manager", "it is not running", "use it within `with OffsetManager(...):`")
        return self._assembly.requests

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)
