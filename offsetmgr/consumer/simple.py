"""`SimpleConsumer`: reads partitions at given offsets. The consumer keeps no position, and commits offsets only when
the caller requests a commit.

The class corresponds to Kafka's class of the same name (kafka.javaapi.consumer.SimpleConsumer, up to Kafka 0.10.2) with
three differences. This class accepts the addresses of any brokers of the cluster, and finds the leaders of partitions
itself. If the requested offset is inside a compressed batch, this class omits the batch's earlier messages; callers of
the Java class must skip these messages themselves. This class returns the first batch of a partition in full even if
the batch is larger than the caller's limit.

The class uses `offsetmgr.kafka` instead of librdkafka, because each fetch must be one request with one response.
librdkafka prefetches in the background, and reports neither the first offset nor the high watermark of a response.
`SimpleConsumer` verifies every checksum, in all three message formats.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import (
    CorruptData,
    GroupActive,
    OffsetMgrError,
    OffsetOutOfRange,
    PartialFailure,
    UnknownTopicOrPartition,
    UnknownVersion,
    UsageError,
    value_of,
)
from offsetmgr.core.model import Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import CommitErrors, fetched
from offsetmgr.core.plurals import count_of
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.client import (
    UNKNOWN_TOPIC_TIMEOUT_S,
    Client,
    ClientThread,
    NotAMember,
    find_leaders,
)
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import FetchLimits
from offsetmgr.kafka.client.log_reader import OutOfRange, PartitionLogReader, ReadResult
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.requests import MANAGER_API_VERSIONS
from offsetmgr.segments.batch_reader import Record, batches

T = TypeVar("T")

_OUT_OF_RANGE: Final = ("raise", "earliest", "latest")


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The result of one fetch in one partition.

    ``records`` begin at the requested offset. If the log has no record at this offset, ``records`` begin at the next
    record of the log; compaction and transactions leave such gaps. ``fetch_offset`` is the requested offset or, if the
    requested offset was out of range, the offset that was read instead. ``next_offset`` is the offset for the next
    fetch; it is equal to ``fetch_offset`` if the response contained no messages. ``high_watermark`` is the offset after
    the last message that consumers could read when the leader sent the response. ``log_start_offset`` is None if the
    leader did not report it.

    >>> found = FetchResult((), fetch_offset=7, next_offset=7, high_watermark=9, log_start_offset=0)
    >>> found.high_watermark - found.next_offset  # messages that are left to read
    2
    """

    records: tuple[Record, ...]
    fetch_offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int | None


class SimpleConsumer(Closeable):
    """A consumer without a group and without a position. The constructor performs no I/O. Several threads may share one
    consumer.

    ``bootstrap_servers`` (``host:port,...``) are brokers of the cluster. ``offset_managers`` are the offset managers
    (``manager serve``) from which the consumer requests the address of a group's coordinator; by default, it requests
    the address from the brokers. ``out_of_range`` is the policy for a fetch outside the log: ``raise`` an error, or
    read from the ``earliest`` or ``latest`` offset. ``timeout_ms`` of ``config`` limits the duration of each call; for
    a fetch, the limit is ``max_wait_ms`` longer. Within this limit, requests that failed with a retriable error are
    retried after a pause.

    Example::

        from offsetmgr import OffsetAndMetadata, TopicPartition
        from offsetmgr.consumer import EARLIEST, SimpleConsumer

        orders = TopicPartition("orders", 0)
        with SimpleConsumer("h1:9092") as consumer:
            (first,) = consumer.get_offsets_before([orders], EARLIEST)[orders]
            found = consumer.fetch({orders: first})[orders]
            print([record.value for record in found.records])
            consumer.commit_offsets("shop-simple", {orders: OffsetAndMetadata(found.next_offset)})
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        offset_managers: str | None = None,
        out_of_range: OutOfRange = "raise",
        client_id: str | None = None,
        config: ConnectionConfig | None = None,
    ) -> None:
        """Raises `UsageError`, `ConfigError`, `UnsupportedOperation` for invalid settings."""
        self._out_of_range: OutOfRange = _check_policy(out_of_range)
        self._config = config or ConnectionConfig()
        kafka = {**self._config.kafka, "client.id": client_id} if client_id is not None else self._config.kafka
        self._security = Security.of(kafka)
        self._thread = ClientThread(Client(bootstrap_servers, self._security), self._config.timeout_ms / 1000)
        self._logs = PartitionLogReader(self._thread.client)
        self._managers = Client(offset_managers or bootstrap_servers, self._security, MANAGER_API_VERSIONS)
        self._pinned: dict[Address, Client] = {}
        """The servers that a caller has named. Only the event loop changes this."""
        self._closing = threading.Lock()
        self._closed = False

    # --- logs -------------------------------------------------------------------------------------

    def fetch(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 1024 * 1024,
        min_bytes: int = 0,
        max_wait_ms: int = 0,
        out_of_range: OutOfRange | None = None,
    ) -> Mapping[TopicPartition, FetchResult]:
        """Returns the messages of each partition in ``offsets``, starting at the given offset. Each partition is read
        from its leader.

        ``max_bytes`` limits the bytes that are read from each partition; if the first batch is larger than this limit,
        it is still returned in full. If a leader has fewer than ``min_bytes`` bytes to return, it waits up to
        ``max_wait_ms`` for more. If a result has no messages, the partition has no messages between the requested
        offset and the result's high watermark. For a short time after a leader has changed or restarted, the high
        watermark may be too low. ``out_of_range`` overrides the policy of the consumer. Messages of open and aborted
        transactions are included, as in all consumers before Kafka 0.11.

        Raises `OffsetOutOfRange`, `UnknownTopicOrPartition`, `TopicNotAuthorized`, `TimedOut`, `Unreachable`,
        `CorruptData` (the batch at the requested offset is damaged) and others. If several partitions were requested
        and some of them failed, raises `PartialFailure` with the results of the other partitions.
        """
        if max_bytes < 1 or min_bytes < 0 or max_wait_ms < 0:
            raise UsageError("fetch", "max_bytes must be at least 1, min_bytes and max_wait_ms at least 0")
        limits = FetchLimits(max_bytes, min_bytes, max_wait_ms)
        policy = self._out_of_range if out_of_range is None else _check_policy(out_of_range)
        if not offsets:
            return {}
        found = self._run(lambda deadline: self._logs.fetch(dict(offsets), limits, policy, deadline), max_wait_ms)
        return _all_or_raise(f"fetch of {len(offsets)} partitions", {tp: _decode(read) for tp, read in found.items()})

    def get_offsets_before(
        self, partitions: Iterable[TopicPartition], time: int, max_offsets: int = 1
    ) -> Mapping[TopicPartition, tuple[int, ...]]:
        """Returns for each partition at most ``max_offsets`` offsets, in descending order. A consumer that starts at
        one of these offsets reads all messages after ``time`` (milliseconds since 1970).

        As in Kafka 0.10.2, these offsets are the first offsets of the segments that were last written at or before
        ``time``, and the log's end offset if ``time`` is not in the past. `LATEST` (-1) counts as a time after all
        messages. For `EARLIEST` (-2), only the log's first offset is returned. A partition's result is empty if all of
        its segments were last written after ``time``.

        Brokers of Kafka 4.0 and later report only the earliest and the latest offset, and not the offsets of segments.
        With these brokers, the method raises `UnsupportedOperation` for any ``time`` except `LATEST` and `EARLIEST`.
        The method also raises the errors of `fetch`.
        """
        if max_offsets < 1:
            raise UsageError("offsets before a time", "max_offsets must be at least 1")
        times = dict.fromkeys(partitions, time)
        if not times:
            return {}
        found = self._run(lambda deadline: self._logs.offsets_before(times, max_offsets, deadline))
        return _all_or_raise(
            f"offsets of {len(times)} partitions before a time",
            {tp: tuple(outcome) if isinstance(outcome, list) else outcome for tp, outcome in found.items()},
        )

    # --- committed offsets ---------------------------------------------------------------------------

    def find_coordinator(self, group: str) -> Address:
        """Returns the coordinator of the group: the broker or offset manager that now stores the group's offsets.

        Raises `CoordinatorNotAvailable`, `TimedOut`, `Unreachable`, `NotAuthorized` and others.
        """
        return self._run(lambda deadline: self._managers.coordinator(group, deadline))

    def fetch_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        coordinator: Address | str | None = None,
    ) -> Mapping[TopicPartition, Offset]:
        """Returns the group's committed offsets: `Committed` or `Absent` for each of ``partitions``, or all committed
        offsets if ``partitions`` is None.

        The offsets are read from the group's coordinator, unless the caller names another server in ``coordinator``
        (``host:port``). While the coordinator is loading or moves to another broker, this method retries until the
        timeout.

        Raises `CoordinatorLoadInProgress`, `NotCoordinator`, `TimedOut`, `Unreachable`, `NotAuthorized` and others.
        Raises `PartialFailure` if some partitions could not be read.
        """
        requested = None if partitions is None else list(dict.fromkeys(partitions))
        if requested is not None and not requested:
            return {}
        at = _address(coordinator)
        groups = self._run(lambda deadline: self._manager(at).fetch({group: requested}, deadline))
        found = value_of(groups[group])
        return fetched(f"offsets of group {group}", found.offsets, found.errors, requested)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        coordinator: Address | str | None = None,
    ) -> None:
        """Commits for each partition the offset of the next message to consume. The offsets are sent to the group's
        coordinator, unless the caller names another server in ``coordinator``. A commit also overwrites a higher
        committed offset.

        Raises the errors of `fetch_offsets`. Also raises `GroupActive` if the group has members, because clients that
        are not members may commit only to a group without members. If the method raises `TimedOut` or `Unreachable`,
        the commit may have succeeded.
        """
        if not offsets:
            return
        at = _address(coordinator)
        outcomes = self._run(lambda deadline: _commit(self._manager(at), group, dict(offsets), deadline))
        failures = {tp: error for tp, error in outcomes.items() if error is not None}
        if failures:
            done = {tp: offsets[tp] for tp in outcomes.keys() - failures.keys()}
            raise PartialFailure(f"commit of group {group}", successes=done, failures=failures)

    # --- lifecycle -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the connections. Calls in progress in other threads raise `Unreachable`."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for client in (self._managers, *self._pinned.values()):
            self._thread.runner.run(client.close())
        self._thread.close()

    def _manager(self, coordinator: Address | None) -> Client:
        """Returns the client of the server that the caller names, or the client that finds the coordinator of a
        group."""
        if coordinator is None:
            return self._managers
        if coordinator not in self._pinned:
            server = f"[{coordinator.host}]:{coordinator.port}"
            self._pinned[coordinator] = Client(server, self._security, MANAGER_API_VERSIONS, coordinator)
        return self._pinned[coordinator]

    def _run(self, call: Callable[[float], Awaitable[T]], wait_ms: int = 0) -> T:
        """Runs a call with a deadline in the event loop, and waits for its result."""
        if self._closed:
            raise UsageError("this consumer", "it is closed")
        return self._thread.run(call, (self._config.timeout_ms + wait_ms) / 1000)


async def _commit(
    client: Client, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
) -> CommitErrors:
    """Returns the error of each partition, or None if the partition was committed. Raises `GroupActive` if the group
    has members, and `OffsetMgrError` if the request failed for all partitions."""
    loop = asyncio.get_running_loop()
    wait_s = min(deadline, loop.time() + UNKNOWN_TOPIC_TIMEOUT_S)
    outcomes: CommitErrors = {}
    pending = dict(offsets)
    retries = Retries(deadline)
    while True:
        try:
            outcomes |= await client.commit(group, pending, deadline)
        except NotAMember as error:
            hint = "while a group has members, only they may commit; stop the members first"
            raise GroupActive(error.what, error.why, hint) from None
        # A coordinator that has just started may not have received the metadata of a topic yet, although other
        # brokers already have the metadata.
        unknown = [tp for tp in pending if isinstance(outcomes.get(tp), UnknownTopicOrPartition)]
        if unknown and loop.time() + retries.next_pause_s >= wait_s and not retries.exhausted:
            known = await find_leaders(client, unknown, deadline)
            unknown = [tp for tp in unknown if not isinstance(known[tp], UnknownTopicOrPartition)]
        if not unknown or not await retries.pause():
            return outcomes
        pending = {tp: offsets[tp] for tp in unknown}


def offset_after(log: SimpleConsumer, partition: TopicPartition, start: int, count: int) -> int:
    """Reads the log from the committed offset ``start`` on. Returns the offset after ``count`` records. Offsets without
    a record (compaction, transactions) do not count. Raises `OffsetOutOfRange` if ``start`` is outside the log, or if
    the log has fewer records."""
    at, found = start, 0
    while True:
        try:
            read = log.fetch({partition: at})[partition]
        except CorruptData as error:
            hint = Advice("the records of a damaged batch cannot be counted: name the offset with {to_offset}")
            raise CorruptData(error.what, error.why, hint) from None
        except OffsetOutOfRange as error:  # the hint of the library names a parameter of its consumer
            hint = Advice("{to_earliest} goes to the log's start, {to_latest} to its end")
            raise OffsetOutOfRange(error.what, error.why, hint) from None
        if found + len(read.records) >= count:
            return read.records[count - found - 1].offset + 1
        found += len(read.records)
        if read.next_offset <= at or read.next_offset >= read.high_watermark:
            follow = "follows" if found == 1 else "follow"
            why = f"{count_of(found, 'record')} {follow} the committed offset {start}"
            what = Advice("{skip} {} in {}", count, partition)
            raise OffsetOutOfRange(what, why, Advice("{to_latest} goes to the log's end"))
        at = read.next_offset


def _decode(read: ReadResult | OffsetMgrError) -> FetchResult | OffsetMgrError:
    """Decodes the records of a slice from the requested offset on. If a batch is damaged, returns the records before
    this batch, or the error if there are no such records."""
    if isinstance(read, OffsetMgrError):
        return read
    records: list[Record] = []
    next_offset = read.offset
    try:
        for batch in batches(read.slice.data, read.offset):
            records += batch.records
            next_offset = max(next_offset, batch.last_offset + 1)
    except (CorruptData, UnknownVersion) as error:
        if next_offset == read.offset:
            return error
    return FetchResult(tuple(records), read.offset, next_offset, read.slice.high_watermark, read.slice.log_start_offset)


def _all_or_raise(what: str, outcomes: Mapping[TopicPartition, T | OffsetMgrError]) -> dict[TopicPartition, T]:
    """Returns the outcomes if no partition failed. Otherwise raises `PartialFailure`, or the partition's own error if
    only one partition was requested."""
    failures = {tp: outcome for tp, outcome in outcomes.items() if isinstance(outcome, OffsetMgrError)}
    successes = {tp: outcome for tp, outcome in outcomes.items() if not isinstance(outcome, OffsetMgrError)}
    if failures:
        if len(outcomes) == 1:
            raise next(iter(failures.values()))
        raise PartialFailure(what, successes=successes, failures=failures)
    return successes


def _check_policy(policy: Any) -> OutOfRange:
    if policy not in _OUT_OF_RANGE:
        raise UsageError(f"out_of_range={policy!r}", f"must be one of {', '.join(_OUT_OF_RANGE)}")
    return policy  # type: ignore[no-any-return]


def _address(coordinator: Address | str | None) -> Address | None:
    return Address.parse(coordinator) if isinstance(coordinator, str) else coordinator
