"""The base class of stores over Kafka's protocol: blocking methods that run coroutines in a background event loop.

`protocol_edits.ProtocolEdits` and its subclasses contain the coroutines that read and write. The Kafka client is
imported when it is first needed, because the import takes a tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import Offset, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult, GroupOffsets, OffsetStore, fetched

if TYPE_CHECKING:
    from offsetmgr.kafka.client.client import Client
    from offsetmgr.stores.protocol_edits import ProtocolEdits, StoreThread

A = TypeVar("A")
T = TypeVar("T")
Batch: TypeAlias = Callable[[list[A]], Coroutine[Any, Any, list[T]]]
_SCAN_BATCH: Final = 100
_EDIT_BATCH: Final = 128
_FIRST_BATCH: Final = 25
"""The number of groups in the first batch of a stream. It is small so that the first results arrive soon."""
_SCANS_IN_FLIGHT: Final = 3
_EDITS_IN_FLIGHT: Final = 4


class ProtocolStore(OffsetStore):
    """An `OffsetStore` whose subclasses provide a `Client` and its `ProtocolEdits`.

    ``timeout_ms`` of the configuration limits each read and each edit of a batch of groups. Connections use plain text
    or TLS, with or without SASL PLAIN or SCRAM.
    """

    kind: ClassVar[str]
    parallel_calls = 8

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        self._bootstrap = bootstrap
        self._config = config or ConnectionConfig()
        self._connection: StoreThread | None = None
        self._connecting = threading.Lock()

    def _client(self, config: ConnectionConfig) -> Client:
        """Returns a client that has not connected yet."""
        raise NotImplementedError

    def _edits(self, client: Client, timeout_s: float) -> ProtocolEdits:
        """Returns the object that reads and edits groups; ``timeout_s`` is in seconds."""
        raise NotImplementedError

    @property
    def uri(self) -> str:
        return f"{self.kind}://{self._bootstrap}"

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        requested = None if partitions is None else list(dict.fromkeys(partitions))
        if requested is not None and not requested:
            return {}
        thread = self.store_thread()
        found = thread.run(lambda deadline: thread.edits.fetch(group, requested, deadline))
        return fetched(f"fetch of group {group}", found.offsets, found.errors, requested)

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        yield from self._scan(groups, self.store_thread().edits.scan, str)

    def scan_partitions(self, partitions: Mapping[str, Sequence[TopicPartition]]) -> Iterator[GroupOffsets]:
        """See `offsetmgr.core.offset_store.PartitionScanStore`."""
        yield from self._scan(partitions.items(), self.store_thread().edits.scan_partitions, _named_group)

    def _scan(self, items: Iterable[A], do: Batch[A, T], key: Callable[[A], str]) -> Iterator[T]:
        return self._in_batches(items, do, key, _SCAN_BATCH, _SCANS_IN_FLIGHT, finish=False)

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        yield from self._in_batches(edits, self.store_thread().edits.edit, _group_of)

    def _in_batches(
        self,
        items: Iterable[A],
        do: Batch[A, T],
        key: Callable[[A], str],
        max_size: int = _EDIT_BATCH,
        in_flight: int = _EDITS_IN_FLIGHT,
        *,
        finish: bool = True,
    ) -> Iterator[T]:
        """Runs ``do`` on batches of the items; see `run_batches`."""
        from offsetmgr.kafka.client.background_loop import batches, run_batches

        split = batches(items, first=_FIRST_BATCH, max_size=max_size, key=key)
        return run_batches(self.store_thread().runner, split, do, max_in_flight=in_flight, key=key, finish=finish)

    def log_origin(self) -> LogOrigin:
        """Returns the cluster that the brokers report. Managers report the cluster of the brokers behind them."""
        thread = self.store_thread()
        cluster_id, brokers = thread.run(thread.client.cluster)
        known = frozenset(f"{broker.host.lower()}:{broker.port}" for broker in brokers)
        return LogOrigin(cluster_id or None, f"cluster id and brokers as {self.uri} names them", known)

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        from offsetmgr.kafka.client.topic_ids import topic_ids

        thread, requested = self.store_thread(), None if topics is None else list(topics)
        return thread.run(lambda deadline: topic_ids(thread.client, requested, deadline))

    def delete_group(self, group: str) -> None:
        """Deletes a group with all its offsets.

        Raises `GroupActive` with the members' names, `GroupNotFound`, and the errors of `fetch`.
        """
        thread = self.store_thread()
        thread.run(lambda deadline: thread.edits.delete_group(group, deadline))

    def close(self) -> None:
        with self._connecting:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def store_thread(self) -> StoreThread:
        """Returns the client and its event loop. The first call creates both."""
        from offsetmgr.stores.protocol_edits import StoreThread

        with self._connecting:
            if self._connection is None:
                client, timeout_s = self._client(self._config), self._config.timeout_ms / 1000
                self._connection = StoreThread(client, self._edits(client, timeout_s), timeout_s)
            return self._connection


def _named_group(request: tuple[str, Sequence[TopicPartition]]) -> str:
    return request[0]


def _group_of(edit: GroupEdit) -> str:
    return edit.group
