"""The client of a whole cluster: bootstrap, finding coordinators, routing, and repeating what may succeed later.

Bulk calls answer with one outcome a group. A *retriable* error (coordinator moved, still loading, connection broken) is
repeated with backoff until the deadline and is the outcome after it. A deadline is a time of the running event loop's
clock, in seconds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from kio.schema.consumer_group_describe.v0.response import ConsumerGroupDescribeResponse
from kio.schema.delete_groups.v1.response import DeleteGroupsResponse
from kio.schema.describe_groups.v4.response import DescribeGroupsResponse
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.metadata.v8.response import MetadataResponse
from kio.schema.offset_commit.v7.response import OffsetCommitResponse
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import (
    LockLost,
    NotCoordinator,
    OffsetMgrError,
    ServerError,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
)
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.node import BrokerNode
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import NOT_A_MEMBER, RETRIABLE, kafka_error, reason
from offsetmgr.kafka.protocol.releases import DESCRIBES_MEMBERS, READS_ALL_OFFSETS, TELLS_CLUSTER_ID, Versions
from offsetmgr.kafka.protocol.requests import FetchedGroup

T = TypeVar("T")

_FIRST_BACKOFF: Final = 0.02
_LONGEST_BACKOFF: Final = 0.5
_TRANSACTION_PATIENCE: Final = 1.0
"""Seconds; one group with a transaction that hangs must not hold up the others in its batch for long."""
_NOT_THIS_MEMBER: Final = NOT_A_MEMBER | {82}
_DEAD_AFTER_S: Final = 5.0
"""How long a broker may take to answer before it counts as dead."""
_FETCH_BATCH: Final = 25
"""Groups in one OffsetFetch: few enough that the broker answers some while we read others."""


class NotAMember(LockLost):
    """A commit was refused because the group has members and we are none of them."""


class OffsetsTopic(Protocol):
    """The topic in which brokers keep what groups have committed."""

    async def groups(self, deadline: float) -> list[str]:
        """Ids of all groups that have offsets."""
        ...

    async def partitions(self, groups: Sequence[str], deadline: float) -> Mapping[str, Sequence[TopicPartition]]:
        """The partitions for which each of these groups has committed offsets."""
        ...


class Client:
    """A cluster, reached through any of ``bootstrap``'s addresses. Use it within one event loop."""

    def __init__(self, bootstrap: str, security: Security, needed: Mapping[int, tuple[str, int]] | None = None) -> None:
        """``needed``: the API versions without which nothing can be asked; by default any broker will do."""
        self._security = security
        self._needed = needed or {}
        self.offsets_topic: OffsetsTopic | None = None
        """Where the partitions of a group are found on brokers that cannot say them; set by whoever reads groups."""
        self._bootstrap = [Address.parse(part) for part in bootstrap.split(",") if part.strip()]
        self._nodes: dict[Address, BrokerNode] = {}
        self._known_good: Address | None = None

    def node(self, address: Address) -> BrokerNode:
        """The broker at ``address``; connects when first used."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = BrokerNode(address, self._security)
        return node

    async def any_connection(self, deadline: float) -> BrokerConnection:
        """A connection to some broker that answers.

        Raises what the last address tried answered: `Unreachable`, `TimedOut`, `AuthenticationFailed`, `ServerError`;
        `UnsupportedOperation` where the brokers are too old.
        """
        first = [self._known_good] if self._known_good else []
        candidates = list(dict.fromkeys([*first, *self._bootstrap, *self._nodes]))
        failure: OffsetMgrError = Unreachable("Kafka", "no bootstrap server was named")
        for left, address in zip(range(len(candidates), 0, -1), candidates, strict=True):
            now = asyncio.get_running_loop().time()
            # An address that does not answer must leave time for the ones after it.
            share = min(deadline, now + max((deadline - now) / left, 0.001))
            try:
                connection = await self.node(address).connection(share)
            except OffsetMgrError as error:
                failure = error
                continue
            self._known_good = address
            _check_versions(connection, self._needed)
            return connection
        raise failure

    @property
    def addresses(self) -> list[Address]:
        """Where brokers are, as far as we were told."""
        return list(dict.fromkeys([*self._bootstrap, *self._nodes]))

    @property
    def reached(self) -> bool:
        """Whether any broker has answered yet: until then, failing to connect is not worth repeating."""
        return self._known_good is not None

    async def cluster(self, deadline: float) -> tuple[str, tuple[Address, ...]]:
        """The cluster's id (empty before 0.10.1) and where its brokers listen. Raises as `any_connection`.

        While brokers are upgraded only some know the id, so those that answer are asked until one tells it.
        """
        connection = await self.any_connection(deadline)
        answer = await connection.call(requests.metadata(), MetadataResponse, remaining(deadline))
        brokers = tuple(Address(broker.host, int(broker.port)) for broker in answer.brokers)
        cluster_id = answer.cluster_id or ""
        if not TELLS_CLUSTER_ID.on(connection.versions):
            for address, versions in (await self.spoken(brokers, deadline)).items():
                if not cluster_id and versions is not None and TELLS_CLUSTER_ID.on(versions):
                    other = await self.node(address).connection(deadline)
                    told = await other.call(requests.metadata(), MetadataResponse, remaining(deadline))
                    cluster_id = told.cluster_id or ""
        return cluster_id, brokers

    async def versions(self, address: Address, deadline: float) -> Versions:
        """What the broker at ``address`` speaks. Raises as `BrokerNode.connection`."""
        return (await self.node(address).connection(deadline)).versions

    async def spoken(self, brokers: Sequence[Address], deadline: float) -> dict[Address, Versions | None]:
        """What each of these brokers speaks; None for one that does not answer within a few seconds."""
        until = min(deadline, asyncio.get_running_loop().time() + _DEAD_AFTER_S)

        async def ask(broker: Address) -> Versions | None:
            try:
                return await self.versions(broker, until)
            except (Unreachable, TimedOut):
                return None

        return dict(zip(brokers, await asyncio.gather(*map(ask, brokers)), strict=True))

    # --- bulk calls, one outcome a group ----------------------------------------------------------

    async def fetch(
        self, asked: Mapping[str, Sequence[TopicPartition] | None], deadline: float
    ) -> dict[str, FetchedGroup | OffsetMgrError]:
        """Committed offsets of many groups, of the partitions named or (None) of all.

        Partitions of open transactions are asked for again for a moment, since most transactions are short.
        """
        found = await self._fetch(asked, deadline)
        loop = asyncio.get_running_loop()
        patience = min(deadline, loop.time() + _TRANSACTION_PATIENCE)
        for pause in backoff():
            unstable = {
                group: asked[group]
                for group, answer in found.items()
                if isinstance(answer, FetchedGroup) and any(e.retriable for e in answer.errors.values())
            }
            if not unstable or loop.time() + pause >= patience:
                break
            await asyncio.sleep(pause)
            found |= await self._fetch(unstable, deadline)
        return found

    async def _fetch(
        self, asked: Mapping[str, Sequence[TopicPartition] | None], deadline: float
    ) -> dict[str, FetchedGroup | OffsetMgrError]:
        async def ask(address: Address, groups: list[str]) -> dict[str, FetchedGroup | OffsetMgrError]:
            connection = await self.node(address).connection(deadline)
            now = asyncio.get_running_loop().time
            started = now()
            named = await self._named(connection, {group: asked[group] for group in groups}, deadline)
            until = deadline + now() - started  # reading the offsets topic has limits of its own
            batches = list(_batches(groups, _FETCH_BATCH))
            answers = await asyncio.gather(
                *(
                    connection.call(
                        requests.offset_fetch({group: named[group] for group in batch}),
                        OffsetFetchResponse,
                        remaining(until),
                    )
                    for batch in batches
                )
            )
            return {
                str(found.group_id): requests.read_offset_fetch(found) for answer in answers for found in answer.groups
            }

        return await self.per_group(list(asked), ask, deadline)

    async def _named(
        self, connection: BrokerConnection, asked: Mapping[str, Sequence[TopicPartition] | None], deadline: float
    ) -> Mapping[str, Sequence[TopicPartition] | None]:
        """The same, with the partitions named of those groups of which this broker cannot say all offsets."""
        everything = [group for group, partitions in asked.items() if partitions is None]
        if not everything or self.offsets_topic is None or READS_ALL_OFFSETS.on(connection.versions):
            return asked
        return {**asked, **await self.offsets_topic.partitions(everything, deadline)}

    async def describe(self, groups: Sequence[str], deadline: float) -> dict[str, GroupDescription | OffsetMgrError]:
        """State and members of many groups, of the classic protocol and of KIP-848's. On brokers 0.8.2, where groups
        have no members, the state is UNKNOWN."""

        async def ask(address: Address, groups: list[str]) -> dict[str, GroupDescription | OffsetMgrError]:
            connection = await self.node(address).connection(deadline)
            if not DESCRIBES_MEMBERS.on(connection.versions):
                return {group: requests.undescribed(group, str(address)) for group in groups}
            answer = await connection.call(
                requests.describe_groups(groups), DescribeGroupsResponse, remaining(deadline)
            )
            found = {str(g.group_id): requests.read_described(g, str(address)) for g in answer.groups}
            # To the classic request a group of the new protocol does not exist: ask again in the new one's terms.
            dead = [name for name, d in found.items() if isinstance(d, GroupDescription) and d.state == "DEAD"]
            if dead and ApiKey.CONSUMER_GROUP_DESCRIBE in connection.versions:
                more = await connection.call(
                    requests.consumer_group_describe(dead), ConsumerGroupDescribeResponse, remaining(deadline)
                )
                found |= {
                    str(g.group_id): requests.read_new_described(g, str(address))
                    for g in more.groups
                    if int(g.error_code) == ErrorCode.NONE
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
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """A simple commit, as no member: only a group without members takes it; or a ``member``'s (its generation, id
        and instance id), which is passed on.

        Raises `NotAMember` where the group has members and we are none, else what `per_group` gave up with; partitions
        have their own outcomes, a member that the coordinator does not take the broker's own code among them.
        """
        generation, member_id, instance_id = member or (-1, "", None)
        request = requests.offset_commit(
            group, offsets, generation=generation, member_id=member_id, instance_id=instance_id
        )

        async def ask(
            address: Address, groups: list[str]
        ) -> dict[str, dict[TopicPartition, OffsetMgrError | None] | OffsetMgrError]:
            async with self.node(address).lane(deadline) as lane:
                answer = await lane.connection.call(request, OffsetCommitResponse, remaining(deadline))
            return dict.fromkeys(groups, commit_outcomes(group, answer, passed_on=member is not None))

        result = (await self.per_group([group], ask, deadline, at))[group]
        if isinstance(result, OffsetMgrError):
            raise result
        return result

    async def delete_group(self, group: str, deadline: float) -> None:
        """Deletes a group and its offsets. Raises `GroupActive`, `GroupNotFound`, others."""

        async def ask(address: Address, groups: list[str]) -> dict[str, bool | OffsetMgrError]:
            connection = await self.node(address).connection(deadline)
            answer = await connection.call(requests.delete_groups(groups), DeleteGroupsResponse, remaining(deadline))
            return {
                str(g.group_id): kafka_error(int(g.error_code), f"group {g.group_id}") if g.error_code else True
                for g in answer.results
            }

        result = (await self.per_group([group], ask, deadline))[group]
        if isinstance(result, OffsetMgrError):
            raise result

    async def find_coordinators(self, groups: Sequence[str], deadline: float) -> dict[str, Address | OffsetMgrError]:
        """One attempt to find the coordinators of many groups.

        On a cluster whose ``__consumer_offsets`` does not exist yet the question provokes its creation, and is
        answered COORDINATOR_NOT_AVAILABLE until that is done.
        """
        connection = await self.any_connection(deadline)
        answer = await connection.call(requests.find_coordinator(groups), FindCoordinatorResponse, remaining(deadline))
        return {
            c.key: kafka_error(int(c.error_code), f"coordinator of group {c.key}", detail="")
            if c.error_code
            else Address(c.host, int(c.port))
            for c in answer.coordinators
        }

    async def coordinator(self, group: str, deadline: float) -> Address:
        """The coordinator of one group, asked again until it is known. Raises `OffsetMgrError`."""

        async def ask(address: Address, groups: list[str]) -> dict[str, Address | OffsetMgrError]:
            return dict.fromkeys(groups, address)

        found = (await self.per_group([group], ask, deadline))[group]
        if isinstance(found, OffsetMgrError):
            raise found
        return found

    async def per_group(
        self,
        groups: Sequence[str],
        ask: Callable[[Address, list[str]], Awaitable[Mapping[str, T | OffsetMgrError]]],
        deadline: float,
        at: Address | None = None,
    ) -> dict[str, T | OffsetMgrError]:
        """Asks each group's coordinator (first the one ``at``, if given), repeating what may succeed later.

        Raises only if no broker was ever reached.
        """
        done: dict[str, T | OffsetMgrError] = {}
        pending = list(groups)
        for pause in backoff():
            if not pending:
                break
            done |= await self._ask_once(pending, ask, deadline, at)
            at = None
            if asyncio.get_running_loop().time() + pause >= deadline:
                break
            pending = [g for g in pending if isinstance(e := done[g], OffsetMgrError) and is_retriable(e)]
            if any(isinstance(done[group], NotCoordinator) for group in pending):
                self._ask_somebody_else()
            if pending:
                await asyncio.sleep(pause)
        return done

    def _ask_somebody_else(self) -> None:
        """Where coordinators are, another broker is asked next: one that came back a moment ago may not know yet that
        they have moved, and would send us to the wrong one again and again."""
        known = self.addresses
        if self._known_good in known:
            self._known_good = known[(known.index(self._known_good) + 1) % len(known)]

    async def _ask_once(
        self,
        groups: list[str],
        ask: Callable[[Address, list[str]], Awaitable[Mapping[str, T | OffsetMgrError]]],
        deadline: float,
        at: Address | None,
    ) -> dict[str, T | OffsetMgrError]:
        """One attempt; an answer for every group."""
        answers: dict[str, T | OffsetMgrError] = {
            group: ServerError(f"group {group}", "the broker did not answer for it") for group in groups
        }
        try:
            coordinators = dict.fromkeys(groups, at) if at else await self.find_coordinators(groups, deadline)
        except OffsetMgrError as error:
            if not self.reached or not error.retriable:
                raise
            return dict.fromkeys(groups, error)
        by_address: dict[Address, list[str]] = {}
        for group, where in coordinators.items():
            if isinstance(where, OffsetMgrError):
                answers[group] = where
            else:
                by_address.setdefault(where, []).append(group)

        async def ask_at(address: Address, names: list[str]) -> Mapping[str, T | OffsetMgrError]:
            try:
                return await ask(address, names)
            except OffsetMgrError as error:
                return dict.fromkeys(names, error)

        for found in await asyncio.gather(*(ask_at(address, names) for address, names in by_address.items())):
            answers |= found
        return answers

    async def close(self) -> None:
        """Hangs up everywhere."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))


def backoff() -> itertools.chain[float]:
    """Pauses between attempts, seconds, without end; the caller watches the deadline."""
    growing = itertools.takewhile(lambda p: p < _LONGEST_BACKOFF, (_FIRST_BACKOFF * 2**n for n in itertools.count()))
    return itertools.chain(growing, itertools.repeat(_LONGEST_BACKOFF))


def is_retriable(error: OffsetMgrError) -> bool:
    """Whether the same request is worth sending again; a lost membership needs more than that."""
    return error.retriable and not isinstance(error, LockLost)


def commit_outcomes(
    group: str, answer: OffsetCommitResponse, *, passed_on: bool = False
) -> dict[TopicPartition, OffsetMgrError | None] | OffsetMgrError:
    """The outcome of each partition of a commit; of one ``passed_on`` for a member, the broker's code is kept where it
    is the member that it does not take.

    What concerns the group as a whole Kafka says in every partition: that is one error of the whole commit. A
    retriable code in only some of them makes the commit worth repeating, which is safe: it says the same again.
    """
    outcomes: dict[TopicPartition, OffsetMgrError | None] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(str(topic.name), int(part.partition_index))
            code = int(part.error_code)
            if passed_on and code in _NOT_THIS_MEMBER:
                return ServerError(f"commit of group {group}", reason(code), wire_code=code)
            if code in NOT_A_MEMBER:
                error = kafka_error(code, f"commit of group {group}")
                return error if code == ErrorCode.ILLEGAL_GENERATION else NotAMember(error.what, error.why)
            if code in RETRIABLE:
                return kafka_error(code, f"commit of group {group}")
            outcomes[tp] = kafka_error(code, f"group {group}, {tp}") if code else None
    return outcomes


def _check_versions(connection: BrokerConnection, versions: Mapping[int, tuple[str, int]]) -> None:
    for key, (name, needed) in versions.items():
        low, high = connection.versions.get(key, (0, -1))
        if not low <= needed <= high:
            raise UnsupportedOperation(
                f"broker {connection.address}",
                f"it does not speak {name} version {needed}",
                "is this an offset manager?",
            )


def remaining(deadline: float) -> float:
    """Seconds until the deadline. Raises `TimedOut` behind it."""
    left = deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise TimedOut("Kafka", "the time-out is over")
    return left


def _batches(items: list[str], size: int) -> list[list[str]]:
    return [items[at : at + size] for at in range(0, len(items), size)]
