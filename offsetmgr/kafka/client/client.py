"""`Client`, the client of a Kafka cluster: bootstrap, coordinator lookup, routing and retries.

Bulk calls return one outcome for each group: the result, or an error. The client retries a *retriable* error (the
coordinator moved, is still loading, or the connection broke) with backoff until the deadline. If the last attempt
before the deadline fails, the outcome is the error of this attempt. A deadline is a time of the event loop's clock, in
seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import (
    ErrorCode,
    LockLost,
    NotCoordinator,
    OffsetMgrError,
    ServerError,
    TimedOut,
    UnknownTopicOrPartition,
    Unreachable,
    UnsupportedOperation,
    value_of,
)
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import CommitErrors
from offsetmgr.core.retry import Retries, completed, is_retriable
from offsetmgr.kafka.client.connection import (
    MIN_ATTEMPT_S,
    BrokerConnection,
    BrokerNode,
    Security,
    attempt_deadline,
    remaining,
)
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import NOT_A_MEMBER, RETRIABLE, checked, kafka_error, reason
from offsetmgr.kafka.protocol.frames import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.releases import DESCRIBES_MEMBERS, READS_ALL_OFFSETS, REPORTS_CLUSTER_ID, ApiKey, Versions
from offsetmgr.kafka.protocol.requests import FetchedGroup, FetchedGroups, RequestedOffsets
from offsetmgr.kafka.protocol.schema_codec import Message

# Interprets OffsetCommit responses, and defines the interface to the offsets topic that the client needs.

_REJECTS_MEMBER: Final = NOT_A_MEMBER | {ErrorCode.FENCED_INSTANCE_ID}


class OffsetsTopic(Protocol):
    """A reader of the topic in which brokers store committed offsets."""

    async def groups(self, deadline: float) -> list[str]:
        """Returns the ids of all groups with offsets."""

    async def partitions(self, groups: Sequence[str], deadline: float) -> Mapping[str, Sequence[TopicPartition]]:
        """Returns the partitions for which each of these groups has committed offsets."""

    async def partitions_in_log(
        self, groups: Sequence[str], deadline: float
    ) -> dict[str, Mapping[TopicPartition, bool]]:
        """Returns each partition for which the log has an offset of these groups, and whether the offset is pending in
        an open transaction."""


def commit_outcomes(group: str, answer: Message, *, forwarded: bool = False) -> CommitErrors | OffsetMgrError:
    """Returns the outcome of each partition of a commit, or the error of the whole commit.

    If an error concerns the whole group, Kafka reports the error for every partition, and the function returns it once.
    If ``forwarded`` is True, the commit contains the membership of another client. If the coordinator rejects this
    membership, the returned error contains the broker's error code. A retriable code in some partitions makes the whole
    commit retriable. This is safe, because the retry commits the same offsets.
    """
    outcomes: CommitErrors = {}
    for tp, part in requests.parts_of(answer):
        code = part["error_code"]
        if forwarded and code in _REJECTS_MEMBER:
            return ServerError(f"commit of group {group}", reason(code), kafka_code=code)
        if code in NOT_A_MEMBER:
            error = kafka_error(code, f"commit of group {group}")
            return error if code == ErrorCode.ILLEGAL_GENERATION else NotAMember(error.what, error.why)
        if code in RETRIABLE:
            return kafka_error(code, f"commit of group {group}")
        outcomes[tp] = kafka_error(code, f"group {group}, {tp}") if code else None
    return outcomes


class NotAMember(LockLost):
    """The coordinator rejected a commit because the group has members and the client is not one of them."""


# Routes requests to the leaders of partitions, with retries. `PartitionLeaders.per_partition` is the counterpart of
# `Client.per_group` for partitions and returns one outcome for each partition. After a *retriable* error (the leader
# moved, the connection broke) the method waits, looks up the leader again and repeats the request. The method stops
# at the deadline.

T = TypeVar("T")

AskLeader: TypeAlias = Callable[
    [BrokerConnection, Mapping[TopicPartition, int], float], Awaitable[Mapping[TopicPartition, T | OffsetMgrError]]
]

UNKNOWN_TOPIC_TIMEOUT_S: Final = 2.0
"""How long the client retries a request about an unknown topic. The topic may be new, or all brokers may have just
started."""


class PartitionLeaders:
    """Caches the leaders of partitions and sends requests to them. Use it within the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[TopicPartition, Address] = {}

    async def per_partition(
        self,
        requested: Mapping[TopicPartition, int],
        ask: AskLeader[T],
        deadline: float,
        *,
        wait_s: float | None = None,
    ) -> dict[TopicPartition, T | OffsetMgrError]:
        """Sends a request to the leader of each partition, and returns one outcome for each partition.

        ``requested`` has the offset or the time that is requested in each partition. ``ask`` sends the request to one
        leader. Its arguments are a connection to the leader, the part of ``requested`` with its partitions, and the
        timeout of the attempt in seconds. ``wait_s`` is the number of seconds for which a leader may delay its response
        on purpose (long poll); it has a connection of its own then. Raises an error only if no broker has ever
        responded, or if the lookup of the leaders fails with an error that is not retriable.
        """

        async def ask_leader(leader: Address, tps: list[TopicPartition]) -> Mapping[TopicPartition, T | OffsetMgrError]:
            theirs = {tp: requested[tp] for tp in tps}
            if wait_s is None:
                return await ask(await self._client.node(leader).connection(until), theirs, remaining(until))
            async with self._client.node(leader).dedicated_connection(until) as dedicated:
                dedicated.mark_waiting()
                return await ask(dedicated.connection, theirs, remaining(until))

        loop = asyncio.get_running_loop()
        unknown_topic_deadline = min(deadline, loop.time() + UNKNOWN_TOPIC_TIMEOUT_S)
        done: dict[TopicPartition, T | OffsetMgrError] = {}
        pending = list(requested)
        retries = Retries(deadline)
        while True:
            until = attempt_deadline(deadline, wait_s or 0.0)
            answers, unknown = await self._attempt(pending, ask_leader, until)
            done |= answers
            now = loop.time()
            pending = [
                tp for tp in pending if _worth_retrying(done[tp], now < unknown_topic_deadline or tp not in unknown)
            ]
            for tp in pending:
                self._known.pop(tp, None)
            if not pending or not await retries.pause():
                return done

    async def _attempt(
        self,
        partitions: Sequence[TopicPartition],
        ask: Callable[[Address, list[TopicPartition]], Awaitable[Mapping[TopicPartition, T | OffsetMgrError]]],
        deadline: float,
    ) -> tuple[dict[TopicPartition, T | OffsetMgrError], set[TopicPartition]]:
        """Makes one attempt. Returns an outcome for every partition, and the partitions without a known leader."""
        uncached = [tp for tp in partitions if tp not in self._known]
        try:
            where = await find_leaders(self._client, uncached, deadline) if uncached else {}
        except OffsetMgrError as error:
            if not self._client.reached or not error.retriable:
                raise
            return dict.fromkeys(partitions, error), set(partitions)
        self._known |= {tp: found for tp, found in where.items() if isinstance(found, Address)}
        unknown = {tp for tp, found in where.items() if isinstance(found, OffsetMgrError)}
        where |= {tp: self._known[tp] for tp in partitions if tp not in where}
        return await ask_each(partitions, where, ask), unknown


async def find_leaders(
    client: Client, partitions: Sequence[TopicPartition], deadline: float
) -> dict[TopicPartition, Address | OffsetMgrError]:
    """Returns the leader of each partition, or an error if the leader is unknown.

    A partition counts as missing only if no responding broker knows it, because a broker that has just started knows no
    partitions. Raises the errors of `Client.ask_any`.
    """

    def is_missing(answer: Address | OffsetMgrError) -> bool:
        return isinstance(answer, UnknownTopicOrPartition)

    return await ask_until_known(client, partitions, _leaders_from, is_missing, deadline)


async def ask_until_known(
    client: Client,
    keys: Sequence[K],
    ask: Callable[[BrokerConnection, Sequence[K], float], Awaitable[dict[K, T]]],
    is_missing: Callable[[T], bool],
    deadline: float,
) -> dict[K, T]:
    """Asks one broker about ``keys``, and then further brokers about the keys whose answer ``is_missing``, because a
    broker that has just started knows no topics. Raises the errors of `Client.ask_any`."""

    async def ask_first(connection: BrokerConnection, until: float) -> tuple[Address, dict[K, T]]:
        return connection.address, await ask(connection, keys, until)

    first, found = await client.ask_any(ask_first, deadline)
    for address in client.addresses:
        missing = [key for key in keys if key not in found or is_missing(found[key])]
        if missing and address != first:
            # Another broker has already responded, so the client waits only briefly for a response from this broker.
            by_then = min(deadline, asyncio.get_running_loop().time() + MIN_ATTEMPT_S)
            with contextlib.suppress(OffsetMgrError):
                found |= await ask(await client.node(address).connection(by_then), missing, by_then)
    return found


async def _leaders_from(
    connection: BrokerConnection, partitions: Sequence[TopicPartition], deadline: float
) -> dict[TopicPartition, Address | OffsetMgrError]:
    """Returns the leaders of the partitions according to one broker."""
    topics = list(dict.fromkeys(tp.topic for tp in partitions))
    answer = await connection.call(requests.metadata(topics), remaining(deadline))
    brokers = requests.broker_addresses(answer)
    codes = {topic["name"]: topic["error_code"] for topic in answer["topics"]}
    known = dict(requests.parts_of(answer))
    found: dict[TopicPartition, Address | OffsetMgrError] = {}
    for tp in partitions:
        part = known.get(tp)
        leader = brokers.get(part["leader_id"]) if part is not None else None
        if leader is not None:
            found[tp] = leader
        elif part is not None:
            found[tp] = kafka_error(part["error_code"] or ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
        else:
            found[tp] = kafka_error(codes.get(tp.topic) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(tp))
    return found


def _worth_retrying(answer: object, wait_for_topic: bool) -> bool:
    """Returns whether to repeat the request for a partition with this outcome."""
    if isinstance(answer, UnknownTopicOrPartition):
        return wait_for_topic
    return isinstance(answer, OffsetMgrError) and is_retriable(answer)


K = TypeVar("K")

_HANGING_TRANSACTION_TIMEOUT_S: Final = 1.0
"""The maximum time for which `fetch` retries partitions with open transactions. A longer time would delay the other
groups in the same batch if a transaction hangs."""
_DEAD_AFTER_S: Final = 5.0
"""The time without a response after which a broker counts as dead."""
_FETCH_BATCH: Final = 25
"""The number of groups in one OffsetFetch request. The number is small, so that the broker can process one request
while the client decodes the response to another request."""


class Client:
    """The client of the cluster at ``bootstrap`` (``host:port``, separated by commas). Use it within one event loop."""

    creates_offsets_topic: ClassVar[bool] = True
    """Whether `find_coordinators` may make the broker create ``__consumer_offsets``."""

    def __init__(
        self,
        bootstrap: str,
        security: Security,
        needed: Mapping[int, tuple[str, int]] | None = None,
        coordinator: Address | None = None,
    ) -> None:
        """``needed`` contains the APIs that a broker must support. It maps the key of each API to the name of the API
        and the required version. By default the client accepts any broker.

        With ``coordinator``, the client sends the requests for all groups to this server and looks up no coordinator.
        If the server is not the coordinator of a group, calls for this group fail with `NotCoordinator` after the usual
        retries."""
        self._coordinator = coordinator
        self._security = security
        self._needed = needed or {}
        self.offsets_topic: Callable[[], OffsetsTopic] | None = None
        """Returns the reader of the offsets topic, for brokers that cannot list the partitions of a group. The code
        that creates the client sets this attribute."""
        self._bootstrap = [Address.parse(part) for part in bootstrap.split(",") if part.strip()]
        self._nodes: dict[Address, BrokerNode] = {}
        self._known_good: Address | None = None

    def node(self, address: Address) -> BrokerNode:
        """Returns the connections to the broker at ``address``. The first use opens a connection."""
        node = self._nodes.get(address)
        if node is None:
            known = self._nodes.get(self._known_good) if self._known_good and address not in self._bootstrap else None
            node = self._nodes[address] = BrokerNode(address, self._security, known)
        return node

    async def any_connection(self, deadline: float) -> BrokerConnection:
        """Returns a connection to a broker that responds.

        Raises the error of the last address: `Unreachable`, `TimedOut`, `AuthenticationFailed`, `ServerError`;
        `UnsupportedOperation` if the brokers are too old.
        """
        candidates = list(dict.fromkeys(filter(None, [self._known_good, *self._bootstrap, *self._nodes])))
        failure: OffsetMgrError = Unreachable("Kafka", "no bootstrap server was named")
        for left, address in zip(range(len(candidates), 0, -1), candidates, strict=True):
            now = asyncio.get_running_loop().time()
            # Each address gets only a share of the time, so that time remains for the other addresses if one does not
            # respond.
            limit_s = _DEAD_AFTER_S if any(node.connected for node in self._nodes.values()) else deadline - now
            share = min(deadline, now + max(min((deadline - now) / left, limit_s), 0.001))
            try:
                connection = await self.node(address).connection(share)
            except OffsetMgrError as error:
                failure = error
                continue
            self._known_good = address
            _check_versions(connection, self._needed)
            return connection
        raise failure

    async def ask_any(self, ask: Callable[[BrokerConnection, float], Awaitable[T]], deadline: float) -> T:
        """Calls ``ask`` with a connection to a broker that responds, and with the deadline. After a retriable error,
        for example because the broker stops, asks another broker. If there is no answer within a third of the time that
        is left, also asks another broker, and returns the first answer: a slow broker has the whole time, and a frozen
        one does not use it up. Raises the errors of `any_connection` and of ``ask``."""

        async def attempt() -> T:
            connection = await self.any_connection(deadline)
            try:
                return await ask(connection, deadline)
            finally:
                connection.abort_if_abandoned()

        asked: list[asyncio.Task[T]] = []
        try:
            while True:
                asked.append(asyncio.create_task(with_retries(self, attempt, deadline)))
                wait_s = remaining(deadline) / 3 if len(asked) < len(self.addresses) else None
                done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    ended = done.pop()  # the error of the first request names the whole time
                    return await (asked[0] if isinstance(ended.exception(), TimedOut) else ended)
                self.rotate_lookup_broker()
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def call_any(self, request: Request, deadline: float) -> Message:
        """Sends a request that any broker can answer. Raises the errors of `ask_any`."""
        return await self.ask_any(lambda connection, until: connection.call(request, remaining(until)), deadline)

    async def call(self, address: Address, request: Request | EncodedRequest, deadline: float) -> Message:
        """Sends a request to the broker at ``address``. Raises the errors of `BrokerNode.connection` and of
        `BrokerConnection.call`."""
        connection = await self.node(address).connection(deadline)
        return await connection.call(request, remaining(deadline))

    async def brokers(self, deadline: float) -> dict[int, Address]:
        """Returns the address of each broker of the cluster, by the broker's id. Raises the errors of `ask_any`."""
        return requests.broker_addresses(await self.call_any(requests.metadata(), deadline))

    @property
    def addresses(self) -> list[Address]:
        """Returns the known addresses of brokers."""
        return list(dict.fromkeys([*self._bootstrap, *self._nodes]))

    @property
    def reached(self) -> bool:
        """Returns whether any broker has responded. As long as no broker has responded, the client does not retry a
        failed connection."""
        return self._known_good is not None

    @property
    def accepted(self) -> bool:
        """Returns whether a broker has accepted a login, or has responded to a request without one."""
        return any(node.accepted for node in self._nodes.values())

    async def cluster(self, deadline: float) -> tuple[str, tuple[Address, ...]]:
        """Returns the cluster id and the addresses of the brokers. The id is empty for clusters before Kafka 0.10.1.
        Raises the errors of `ask_any`.

        During an upgrade only some brokers know the cluster id, so the client asks the brokers one after the other
        until one returns the id.
        """

        async def ask(connection: BrokerConnection, until: float) -> tuple[str, tuple[Address, ...]]:
            answer = await connection.call(requests.metadata(), remaining(until))
            brokers = tuple(requests.broker_addresses(answer).values())
            cluster_id: str = answer.get("cluster_id") or ""
            if not REPORTS_CLUSTER_ID.supported_by(connection.versions):
                for address, versions in (await self.broker_versions(brokers, until)).items():
                    if not cluster_id and versions is not None and REPORTS_CLUSTER_ID.supported_by(versions):
                        cluster_id = (await self.call(address, requests.metadata(), until)).get("cluster_id") or ""
            return cluster_id, brokers

        return await self.ask_any(ask, deadline)

    async def versions(self, address: Address, deadline: float) -> Versions:
        """Returns the API versions of the broker at ``address``. Raises the errors of `BrokerNode.connection`."""
        return (await self.node(address).connection(deadline)).versions

    async def broker_versions(self, brokers: Sequence[Address], deadline: float) -> dict[Address, Versions | None]:
        """Returns the API versions of these brokers; None for a broker that does not respond within a few seconds."""
        until = min(deadline, asyncio.get_running_loop().time() + _DEAD_AFTER_S)

        async def ask(broker: Address) -> Versions | None:
            try:
                return await self.versions(broker, until)
            except (Unreachable, TimedOut):
                return None

        return dict(zip(brokers, await asyncio.gather(*map(ask, brokers)), strict=True))

    # --- bulk calls, one outcome for each group ------------------------------------------------------

    async def fetch(self, partitions_by_group: RequestedOffsets, deadline: float) -> FetchedGroups:
        """Returns the committed offsets of many groups. ``partitions_by_group`` contains the partitions to read for
        each group; None selects all partitions of the group.

        For a short time, the client retries groups that have partitions with open transactions, because most
        transactions are short.
        """
        found = await self._fetch(partitions_by_group, deadline)
        retries = Retries(min(deadline, asyncio.get_running_loop().time() + _HANGING_TRANSACTION_TIMEOUT_S))
        while True:
            unstable = {
                group: partitions_by_group[group]
                for group, answer in found.items()
                if isinstance(answer, FetchedGroup) and any(e.retriable for e in answer.errors.values())
            }
            if not unstable or not await retries.pause():
                return found
            found |= await self._fetch(unstable, deadline)

    async def _fetch(self, partitions_by_group: RequestedOffsets, deadline: float) -> FetchedGroups:
        async def ask(address: Address, groups: list[str]) -> FetchedGroups:
            connection = await self.node(address).connection(deadline)
            now = asyncio.get_running_loop().time
            started = now()
            named = await self._with_partitions(
                connection, {group: partitions_by_group[group] for group in groups}, deadline
            )
            until = deadline + now() - started  # A read of the offsets topic has its own time limit.
            listed = {group for group, partitions in named.items() if partitions is None}
            read = partial(requests.read_offset_fetch, listed=listed)

            async def ask_for(batch: Sequence[str]) -> FetchedGroups:
                request = requests.offset_fetch({group: named[group] for group in batch})
                answer = await connection.call_and_read(request, remaining(until), read)
                # An offset manager rejects groups that do not fit into its largest response.
                rejected = [
                    group
                    for group, found in answer.items()
                    if isinstance(found, ServerError) and found.kafka_code == ErrorCode.INVALID_REQUEST
                ]
                return answer | await ask_for(rejected) if 0 < len(rejected) < len(batch) else answer

            answers = await asyncio.gather(*map(ask_for, batched(groups, _FETCH_BATCH)))
            return {group: found for answer in answers for group, found in answer.items()}

        return await self.per_group(list(partitions_by_group), ask, deadline)

    async def _with_partitions(
        self,
        connection: BrokerConnection,
        partitions_by_group: RequestedOffsets,
        deadline: float,
    ) -> RequestedOffsets:
        """If the broker cannot list the partitions of a group, replaces each None by the partitions of the group, which
        are read from the offsets topic."""
        everything = [group for group, partitions in partitions_by_group.items() if partitions is None]
        if not everything or self.offsets_topic is None or READS_ALL_OFFSETS.supported_by(connection.versions):
            return partitions_by_group
        return {**partitions_by_group, **await self.offsets_topic().partitions(everything, deadline)}

    async def describe(self, groups: Sequence[str], deadline: float) -> dict[str, GroupDescription | OffsetMgrError]:
        """Returns the state and members of many groups, which may use the classic protocol or the new one (KIP-848).
        The state is UNKNOWN on brokers of Kafka 0.8.2, which do not support group membership."""

        async def ask(address: Address, groups: list[str]) -> dict[str, GroupDescription | OffsetMgrError]:
            connection = await self.node(address).connection(deadline)
            if not DESCRIBES_MEMBERS.supported_by(connection.versions):
                at = str(address)
                return {group: GroupDescription(group, "UNKNOWN", coordinator=at, membership=False) for group in groups}
            answer = await connection.call(requests.describe_groups(groups), remaining(deadline))
            found = {g["group_id"]: requests.parse_described_group(g, str(address)) for g in answer["groups"]}
            # DescribeGroups reports groups of the new protocol (KIP-848) as dead, so the client requests dead groups
            # again with ConsumerGroupDescribe. The new protocol does not accept the empty group id.
            dead = [name for name, d in found.items() if isinstance(d, GroupDescription) and d.state == "DEAD" and name]
            if dead and ApiKey.CONSUMER_GROUP_DESCRIBE in connection.versions:
                more = await connection.call(requests.describe_kind(dead), remaining(deadline))
                found |= {
                    g["group_id"]: requests.parse_consumer_group(g, str(address))
                    for g in more["groups"]
                    if g["error_code"] not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
                }
            return found

        return await self.per_group(groups, ask, deadline)

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
        at: Address | None = None,
        member: tuple[int, str, str | None] | None = None,
    ) -> CommitErrors:
        """Commits without membership, or forwards the commit of ``member`` (generation, member id and instance id).

        Returns one outcome for each partition. A coordinator accepts a commit without membership only if the group has
        no members. Raises `NotAMember` if the coordinator rejects the commit because the group has members and the
        client is not one of them. Also raises the errors of `per_group`. If the coordinator rejects ``member``, the
        error contains the broker's error code.
        """
        request = requests.offset_commit(group, offsets, member)

        async def ask(address: Address) -> CommitErrors:
            async with self.node(address).dedicated_connection(deadline) as dedicated:
                answer = await dedicated.connection.call(request, remaining(deadline))
            return value_of(commit_outcomes(group, answer, forwarded=member is not None))

        return await self.for_group(group, ask, deadline, at)

    async def delete_group(self, group: str, deadline: float) -> None:
        """Deletes a group and its offsets. Raises `GroupActive` if the group has members, `GroupNotFound` if the group
        does not exist, or another error of the coordinator."""

        async def ask(address: Address) -> None:
            (result,) = (await self.call(address, requests.delete_groups([group]), deadline))["results"]
            checked(result, f"group {group}")

        await self.for_group(group, ask, deadline)

    async def find_coordinators(
        self, groups: Sequence[str], deadline: float, *, of_transactions: bool = False
    ) -> dict[str, Address | OffsetMgrError]:
        """Looks up the coordinators of many groups. If a broker does not answer, asks another one, but does not retry
        the lookups that fail. If ``of_transactions`` is True, ``groups`` are transactional ids.

        If the cluster has no ``__consumer_offsets``, this request makes the broker create that topic. Until the topic
        exists, the broker returns COORDINATOR_NOT_AVAILABLE. Unless `creates_offsets_topic`, the method raises
        `UnsupportedOperation` for such a cluster.
        """
        if self._coordinator is not None:
            await self.any_connection(deadline)
            return dict.fromkeys(groups, self._coordinator)
        if not self.creates_offsets_topic:
            await self._require_offsets_topic(deadline)
        answer = await self.call_any(requests.find_coordinator(groups, of_transactions=of_transactions), deadline)
        kind = "transactional id" if of_transactions else "group"
        return {
            c["key"]: kafka_error(c["error_code"], f"coordinator of {kind} {c['key']}")
            if c["error_code"]
            else Address(c["host"], c["port"])
            for c in answer["coordinators"]
        }

    async def _require_offsets_topic(self, deadline: float) -> None:
        """Raises `UnsupportedOperation` if the cluster has neither ``__consumer_offsets`` nor a group. Some services
        have groups without this topic."""
        answer = await self.call_any(requests.metadata([requests.OFFSETS_TOPIC]), deadline)
        if answer["topics"][0]["error_code"] != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return
        for broker in requests.broker_addresses(answer).values():
            if (await self.call(broker, requests.list_groups(), deadline))["groups"]:
                return
        why = "the cluster has no groups yet, and a lookup would make it create __consumer_offsets"
        raise UnsupportedOperation("lookup of a group's coordinator", why)

    async def coordinator(self, group: str, deadline: float) -> Address:
        """Returns the coordinator of one group; retries the lookup until the deadline. Raises `OffsetMgrError`."""
        return await self.for_group(group, completed, deadline)

    async def coordinator_connection(self, group: str, deadline: float, at: Address | None = None) -> BrokerConnection:
        """Returns the shared connection to the coordinator of one group, which is ``at`` if this address responds.
        Retries like `coordinator`, also if the coordinator does not respond. Raises `OffsetMgrError`."""
        return await self.for_group(group, lambda address: self.node(address).connection(deadline), deadline, at)

    async def for_group(
        self, group: str, ask: Callable[[Address], Awaitable[T]], deadline: float, at: Address | None = None
    ) -> T:
        """Like `per_group` for one group. Returns the result of ``ask``, or raises its error."""

        async def ask_for_all(address: Address, groups: list[str]) -> dict[str, T | OffsetMgrError]:
            return dict.fromkeys(groups, await ask(address))

        return value_of((await self.per_group([group], ask_for_all, deadline, at))[group])

    async def per_group(
        self,
        groups: Sequence[str],
        ask: Callable[[Address, list[str]], Awaitable[Mapping[str, T | OffsetMgrError]]],
        deadline: float,
        at: Address | None = None,
        *,
        of_transactions: bool = False,
    ) -> dict[str, T | OffsetMgrError]:
        """In each attempt, calls ``ask`` once for each coordinator of the groups. If ``at`` is not None, the first
        attempt uses ``at`` as the coordinator of all groups. If ``of_transactions`` is True, ``groups`` are
        transactional ids.

        Retries retriable errors and returns one outcome for each group. Raises an error only if no broker has ever
        responded, or if the lookup of the coordinators fails with an error that is not retriable.
        """
        done: dict[str, T | OffsetMgrError] = {}
        pending = list(groups)
        retries = Retries(deadline)
        while pending:
            done |= await self._attempt(pending, ask, deadline, at, of_transactions)
            at = None
            pending = [g for g in pending if isinstance(e := done[g], OffsetMgrError) and is_retriable(e)]
            if not pending or not await retries.pause():
                break
            self.rotate_after(e for group in pending if isinstance(e := done[group], OffsetMgrError))
        return done

    def rotate_lookup_broker(self) -> None:
        """Selects another broker for the next lookup of coordinators or leaders."""
        known = self.addresses
        if self._known_good in known:
            self._known_good = known[(known.index(self._known_good) + 1) % len(known)]

    def rotate_after(self, errors: Iterable[OffsetMgrError]) -> None:
        """Selects another broker for the next lookup if a server did not respond or is not the coordinator. A broker
        that has just restarted, or has lost its connection to the controller, may not know yet that a coordinator has
        moved or stopped, and would return the former coordinator again."""
        if any(isinstance(error, NotCoordinator | Unreachable | TimedOut) for error in errors):
            self.rotate_lookup_broker()

    async def _attempt(
        self,
        groups: list[str],
        ask: Callable[[Address, list[str]], Awaitable[Mapping[str, T | OffsetMgrError]]],
        deadline: float,
        at: Address | None,
        of_transactions: bool,
    ) -> dict[str, T | OffsetMgrError]:
        """Makes one attempt; returns an outcome for every group."""
        try:
            if at is not None:
                return await ask_each(groups, dict.fromkeys(groups, at), ask)
            found = await self.find_coordinators(groups, deadline, of_transactions=of_transactions)
        except OffsetMgrError as error:
            if not self.reached or not error.retriable:
                raise
            return dict.fromkeys(groups, error)
        return await ask_each(groups, found, ask)

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))


async def ask_each(
    keys: Iterable[K],
    where: Mapping[K, Address | OffsetMgrError],
    ask: Callable[[Address, list[K]], Awaitable[Mapping[K, T | OffsetMgrError]]],
) -> dict[K, T | OffsetMgrError]:
    """Calls ``ask`` at the same time once for each address in ``where``, with the keys of this address. Returns one
    outcome for each of ``keys``; the error of a call is the outcome of its keys."""

    async def ask_at(address: Address, its_keys: list[K]) -> Mapping[K, T | OffsetMgrError]:
        try:
            return await ask(address, its_keys)
        except OffsetMgrError as error:
            return dict.fromkeys(its_keys, error)

    answers: dict[K, T | OffsetMgrError] = {}
    by_address: dict[Address, list[K]] = {}
    for key, found in where.items():
        if isinstance(found, OffsetMgrError):
            answers[key] = found
        else:
            by_address.setdefault(found, []).append(key)
    for of_address in await asyncio.gather(*(ask_at(address, its_keys) for address, its_keys in by_address.items())):
        answers |= of_address
    missing = "the broker's response does not contain it"
    return {key: answers[key] if key in answers else ServerError(str(key), missing) for key in keys}


def _check_versions(connection: BrokerConnection, versions: Mapping[int, tuple[str, int]]) -> None:
    for key, (name, needed) in versions.items():
        low, high = connection.versions.get(key, (0, -1))
        if not low <= needed <= high:
            raise UnsupportedOperation(
                f"broker {connection.address}",
                f"it does not support {name} version {needed}",
                "check that this is the address of an offset manager",
            )


async def with_retries(client: Client, attempt: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Calls ``attempt`` until it succeeds, fails with an error that is not retriable, or the deadline passes. Asks
    another broker after each failure. Does not retry as long as no broker has responded. As long as the brokers have
    responded only to ApiVersions, calls ``attempt`` once for each address, because the listeners may require a
    login."""
    retries, failed = Retries(deadline), 0
    while True:
        try:
            return await attempt()
        except OffsetMgrError as error:
            failed += 1
            if not client.reached or (failed >= len(client.addresses) and not client.accepted):
                raise
            client.rotate_lookup_broker()
            await retries.pause_or_raise(error)


# Reads the features that a server announces in its ApiVersions response, such as offsetmgr's extensions.

_VERSION: Final = 3
"""The first version with features."""


async def features(connection: BrokerConnection, timeout_s: float) -> Mapping[str, int]:
    """Returns the maximum level of each announced feature, by name.

    The connection keeps the result. A cache for each address could be wrong, because after a restart an older release
    of the server may listen at the same address. Raises `TimedOut`, `Unreachable`, `ServerError`.
    """
    if not connection.supports(ApiKey.API_VERSIONS, _VERSION):
        return {}
    if connection.features is None:
        software = {"client_software_name": "offsetmgr", "client_software_version": "1"}
        answer = await connection.call(Request(ApiKey.API_VERSIONS, _VERSION, software), timeout_s)
        announced = answer.get("supported_features", ())
        connection.features = {feature["name"]: feature["max_version"] for feature in announced}
    return connection.features


# Runs coroutines for synchronous callers, on an event loop in a background thread. This package has no other thread.

A = TypeVar("A")
SLOW_S: Final = 3.0
"""The time after which a call is slow."""


class EventLoopThread:
    """An event loop in a daemon thread. The first call of `submit` or `run` starts the thread, and `close` ends it.
    After `close`, both raise `Unreachable`."""

    def __init__(self) -> None:
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts ``coroutine`` and returns a future of its result."""
        with self._starting:
            if not self.closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._running())
        coroutine.close()
        raise _closed_error()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs ``coroutine`` and waits for its result. If the wait is interrupted, cancels the coroutine. If another
        thread calls `close` meanwhile, raises `Unreachable`."""
        future = self.submit(coroutine)
        try:
            return _result(future)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels the running coroutines and ends the thread."""
        with self._starting:
            self.closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            atexit.unregister(self.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name="offsetmgr-kafka-client", daemon=True
            )
            self._thread.start()
            # Without this handler, the interpreter would destroy the loop at exit while coroutines are running, and
            # would print warnings to stderr.
            atexit.register(self.close)
        return self._loop


class ClientThread:
    """A client and the thread in which its event loop runs. ``timeout_s`` limits each call."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self.client = client
        self.runner = EventLoopThread()
        self._timeout_s = timeout_s

    def run(
        self,
        call: Callable[[float], Awaitable[T]],
        timeout_s: float | None = None,
        on_slow: Callable[[float], None] | None = None,
    ) -> T:
        """Runs a coroutine in the event loop and waits for its result. The argument of ``call`` is the deadline, as a
        time of the loop's clock. ``timeout_s`` replaces the timeout of the client. After 3 s, ``on_slow`` is called
        with the seconds that are left."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s

        async def within() -> T:
            loop = asyncio.get_running_loop()
            slow = None
            if on_slow is not None and limit_s > SLOW_S:
                slow = loop.call_later(SLOW_S, on_slow, limit_s - SLOW_S)
            try:
                return await call(loop.time() + limit_s)
            finally:
                if slow is not None:
                    slow.cancel()

        return self.runner.run(within())

    def close(self) -> None:
        if not self.runner.closed:
            self.runner.run(self.client.close())
            self.runner.close()


def _result(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise _closed_error() from None


def _closed_error() -> Unreachable:
    return Unreachable("Kafka", "this client was closed")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


def batches(items: Iterable[A], *, first: int, max_size: int, key: Callable[[A], str]) -> Iterator[list[A]]:
    """Splits a stream lazily into batches that grow from ``first`` to ``max_size`` items. A batch never contains two
    items with the same key."""
    source, size = iter(items), first
    carried: list[A] = []
    while True:
        batch, keys = carried, {key(item) for item in carried}
        carried = []
        for item in islice(source, size - len(batch)):
            if key(item) in keys:
                carried = [item]
                break
            keys.add(key(item))
            batch.append(item)
        if not batch:
            return
        yield batch
        size = min(size * 2, max_size)


def run_batches(
    runner: EventLoopThread,
    batches_to_run: Iterable[list[A]],
    do: Callable[[list[A]], Coroutine[Any, Any, list[T]]],
    *,
    max_in_flight: int,
    key: Callable[[A], str],
    finish: bool,
) -> Iterator[T]:
    """Runs ``do`` on batches, at most ``max_in_flight`` at a time, and yields the results in the order of completion.

    While a batch is in flight, no other batch that contains one of its keys is started, so that the items of each key
    stay in order. If the caller stops the iteration early, some batches may be in flight. If ``finish`` is True, the
    function waits for these batches; otherwise the function cancels them.
    """
    running: dict[concurrent.futures.Future[list[T]], set[str]] = {}

    def completed_results() -> Iterator[T]:
        done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            del running[future]
            yield from _result(future)

    try:
        for batch in batches_to_run:
            keys = {key(item) for item in batch}
            while len(running) >= max_in_flight or any(keys & busy for busy in running.values()):
                yield from completed_results()
            running[runner.submit(do(batch))] = keys
        while running:
            yield from completed_results()
    finally:
        for future in running:
            if finish:
                with contextlib.suppress(Exception):
                    future.result()
            else:
                future.cancel()
