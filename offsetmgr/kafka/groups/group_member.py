"""`KafkaGroupMember`: a group member over the classic protocol, which joins, syncs, sends heartbeats and proves its
membership.

The class can be used for any kind of group. It treats metadata and assignments as bytes, and passes the results of the
coordinator's responses to a `MembershipListener`. Members are dynamic. A static member (KIP-345) has two disadvantages:
it keeps its assignment for a whole session timeout after its process has died, and any process with the same instance
id can take over the assignment.

Heartbeats extend the session, and their responses report rebalances. They do not prove the membership, because a
coordinator that loads its groups, and a broker that is no longer the coordinator, answer them without a check. A
*proof* is an OffsetCommit with the member id and the generation: only the real coordinator can replicate its record.
Brokers reject commits for topics that do not exist. While the topic of the proof does not exist, the member uses a
heartbeat instead of the proof, and the caller has to know what a heartbeat is worth then.

A member has three connections to the coordinator: one for JoinGroup and SyncGroup, one for heartbeats and one for
proofs. A broker processes the requests of a connection one at a time. On a shared connection, a JoinGroup that waits
for a rebalance, or a proof that waits for a replica, would delay the heartbeats. Times are seconds of ``clock``.
`MembershipListener.on_confirmed` receives the time at which the member *sent* the request, not the time of the
response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from offsetmgr.core.errors import ErrorCode, LockLost, OffsetMgrError, value_of
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.retry import Retries, cancel_tasks
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.groups import group_lock as lock_membership
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import RETRIABLE, VALID_MEMBER_CODES, kafka_error
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.requests import LockMembership
from offsetmgr.kafka.protocol.schema_codec import Message

_log = logging.getLogger(__name__)
_JOIN_MARGIN_S: Final = 10.0
"""The timeout of a JoinGroup request is the rebalance timeout plus this time, because the broker delays the first join
of a new group by group.initial.rebalance.delay.ms."""
_MAX_HEARTBEAT_INTERVAL_S: Final = 0.25
"""The maximum interval between heartbeats, and between proofs. A member learns of a rebalance from the response to a
heartbeat, so a long interval would delay the rebalance."""
_PROOF_TIMEOUT_S: Final = 1.0
"""The timeout of a proof. A proof that takes longer extends the lease of a manager hardly or not at all."""
_UNPROVEN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
"""The responses to a proof that are normal during a rebalance. The heartbeats handle the rebalance."""

AssignmentFunction = Callable[[int, Sequence[tuple[str, bytes]]], Mapping[str, bytes]]
"""A function that the leader of the group calls. Its arguments are the generation, and a list of member ids with the
metadata of each member. It returns the assignment of each member id."""


class MembershipListener(Protocol):
    """Callbacks of a `KafkaGroupMember`. They run on the event loop and must not block or raise."""

    def on_confirmed(self, sent: float, generation: int) -> None:
        """The coordinator has confirmed a proof that the member sent at ``sent``: when the coordinator processed the
        request, the member belonged to ``generation``, and this generation was the group's current one."""

    def on_rebalance(self) -> None:
        """A rebalance has started, or the membership has ended. The caller must call `KafkaGroupMember.join`."""

    def on_ended(self, why: OffsetMgrError) -> None:
        """The membership has ended, so the assignment is no longer valid."""


class Generation(NamedTuple):
    """The result of a complete join and sync."""

    member_id: str
    generation: int
    assignment: bytes
    sent: float
    """The time at which the member sent the SyncGroup request."""


@dataclass(frozen=True, slots=True)
class GroupMemberConfig:
    """The settings of a `KafkaGroupMember`. By default brokers allow session timeouts from 6 s to 30 min."""

    group: str
    protocol_type: str
    protocol: str
    session_timeout_s: float
    rebalance_timeout_s: float
    proof: TopicPartition
    """The partition whose offset the member commits to prove its membership. The partition must exist, because brokers
    reject commits for other partitions. The committed offset is the generation and has no other meaning."""


class KafkaGroupMember:
    """A dynamic member of a group. The constructor performs no I/O.

    Use it within one event loop. Only one task may call `join`.
    """

    def __init__(
        self, client: Client, config: GroupMemberConfig, listener: MembershipListener, *, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._config = config
        self._group = config.group
        self._listener = listener
        self._clock = clock
        self._interval_s = min(config.session_timeout_s / 6, _MAX_HEARTBEAT_INTERVAL_S)
        self._wait_s = config.session_timeout_s / 5
        """The timeout of one heartbeat or one coordinator lookup, short enough for several attempts within a session
        timeout."""
        self._coordinator: Address | None = None
        """The address of the coordinator; None if it has to be looked up."""
        self._lookup_lock = asyncio.Lock()
        self._member_id = ""
        self._membership: LockMembership | None = None
        self._synced = False
        self._join_connection: BrokerConnection | None = None
        self._join_in_flight = False
        """Whether a JoinGroup is in flight. While a JoinGroup is in flight, the generation may change at any moment."""
        self._newer_generation_since: float | None = None
        """The time of the first heartbeat response that showed a newer generation than the generation of this member,
        while the JoinGroup response is pending. None if no heartbeat response has shown a newer generation."""
        self._proof_needed = asyncio.Event()
        """Set when a new generation is complete, so that the member sends a proof at once."""
        self._tasks: list[asyncio.Task[None]] = []
        """The tasks that send heartbeats and proofs."""
        self._problems = ProblemLog(f"group {self._group}")
        self._proof_problems = ProblemLog(f"group {self._group}, proof of the membership")

    async def join(self, metadata: Callable[[str], bytes], assign: AssignmentFunction) -> Generation:
        """Joins or rejoins the group. Returns when a generation is complete, with this generation and the assignment of
        the member.

        The method calls ``metadata`` for every JoinGroup, with the member id, and ``assign`` if this member is the
        leader. The member id is empty in the first JoinGroup, whose metadata no coordinator keeps (KIP-394). The method
        retries the join if another rebalance starts, or if the coordinator moves or is unavailable. If the coordinator
        no longer knows the member, the method calls `MembershipListener.on_ended` and joins as a new member. Raises
        `OffsetMgrError` for other errors, such as missing authorization, another protocol in the group, or a session
        timeout that the broker rejects.
        """
        if not self._tasks:
            pause = partial(asyncio.sleep, self._interval_s)
            self._tasks = [
                asyncio.create_task(self._send_regularly(pause, self._send_heartbeat)),
                asyncio.create_task(self._send_regularly(self._pause_between_proofs, self._send_proof)),
            ]
        retries = Retries()
        while True:
            try:
                while (found := await self._attempt(metadata, assign)) is None:
                    pass
                self._problems.log_recovery()
                return found
            except OffsetMgrError as error:
                if not error.retriable and not isinstance(error, LockLost):
                    raise
                self._problems.log(error)
                await retries.pause()

    async def remove(self, member_id: str, timeout_s: float) -> None:
        """Removes another member from the group. Returns once the coordinator does not know the member. Raises
        `OffsetMgrError`; then the coordinator may still remove the member."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        address = await self._address()
        try:
            connection = await self._client.node(address).connection(deadline)
            request = requests.evict(self._group, [(member_id, None)])
            answer = await connection.call(request, remaining(deadline))
        except OffsetMgrError as error:
            self._forget(address, error)
            raise
        code = answer["error_code"] or next((member["error_code"] for member in answer["members"]), ErrorCode.NONE)
        if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
            rejected = kafka_error(code, f"group {self._group}, member {member_id}")
            if code in RETRIABLE:
                self._forget(address, rejected)
            raise rejected
        self._listener.on_rebalance()

    async def leave(self, timeout_s: float) -> None:
        """Leaves the group and closes the connections, within ``timeout_s`` seconds. If the request fails, the
        membership ends when the session times out."""
        membership, self._membership = self._membership, None
        deadline = asyncio.get_running_loop().time() + timeout_s
        if membership is not None:
            with contextlib.suppress(OffsetMgrError, TimeoutError):
                async with asyncio.timeout_at(deadline):
                    at = await self._address()
                    await lock_membership.leave(self._client, membership, deadline, at=at)
        await self.close()

    async def close(self) -> None:
        """Closes the connections without leaving the group. The membership ends when the session times out."""
        tasks, self._tasks = self._tasks, []
        await cancel_tasks(*tasks)
        if self._join_connection is not None:
            await self._join_connection.close()

    # --- the coordinator -----------------------------------------------------------------------------

    async def _address(self) -> Address:
        """Returns the address of the coordinator. Raises `OffsetMgrError`."""
        async with self._lookup_lock:
            if self._coordinator is None:
                found = (await self._client.find_coordinators([self._group], self._deadline()))[self._group]
                self._coordinator = value_of(found)
                if self._join_connection is not None and self._join_connection.address != self._coordinator:
                    await self._join_connection.close()  # its JoinGroup waits in the former coordinator
            return self._coordinator

    async def _connect(self, previous: BrokerConnection | None) -> BrokerConnection:
        """Returns ``previous`` if ``previous`` is an open connection to the current coordinator. Otherwise closes
        ``previous``, and opens and returns a new connection. Raises `OffsetMgrError`."""
        address = await self._address()
        if previous is not None:
            if not previous.closed and previous.address == address:
                return previous
            await previous.close()
        try:
            return await self._client.node(address).open(self._deadline())
        except OffsetMgrError as error:
            self._forget(address, error)
            raise

    def _forget(self, address: Address, error: OffsetMgrError) -> None:
        """Discards the known coordinator if it is ``address``, because the group may now have another coordinator."""
        if self._coordinator == address:
            self._coordinator = None
            self._client.rotate_after([error])

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._wait_s

    # --- join ----------------------------------------------------------------------------------------

    async def _attempt(self, metadata: Callable[[str], bytes], assign: AssignmentFunction) -> Generation | None:
        """Sends one JoinGroup and one SyncGroup. Returns None if the caller must make another attempt immediately."""
        connection = self._join_connection = await self._connect(self._join_connection)
        try:
            joined = await self._join(connection, metadata(self._member_id))
            if joined is None:
                return None
            return await self._sync(connection, joined, assign)
        except OffsetMgrError as error:
            if connection.closed:
                self._forget(connection.address, error)
            raise error

    async def _join(self, connection: BrokerConnection, metadata: bytes) -> Message | None:
        config = self._config
        session_ms, rebalance_ms = (round(s * 1000) for s in (config.session_timeout_s, config.rebalance_timeout_s))
        protocols = {config.protocol: metadata}
        request = requests.join_as(
            self._group, self._member_id, config.protocol_type, protocols, session_ms, rebalance_ms
        )
        self._join_in_flight = True
        try:
            answer = await connection.call(request, config.rebalance_timeout_s + _JOIN_MARGIN_S)
        finally:
            self._join_in_flight, self._newer_generation_since = False, None
        code = answer["error_code"]
        if code == ErrorCode.MEMBER_ID_REQUIRED:  # a dynamic member joins twice (KIP-394)
            self._member_id = answer["member_id"]
            return None
        if code:
            raise self._request_error(code, connection.address)
        self._member_id = answer["member_id"]
        self._membership = LockMembership(self._group, answer["member_id"], answer["generation_id"])
        self._synced = False
        return answer

    async def _sync(
        self, connection: BrokerConnection, joined: Message, assign: AssignmentFunction
    ) -> Generation | None:
        generation = joined["generation_id"]
        assignments: Mapping[str, bytes] = {}
        if joined["leader"] == joined["member_id"]:
            assignments = assign(generation, [(m["member_id"], m["metadata"]) for m in joined["members"]])
        membership = LockMembership(self._group, joined["member_id"], generation)
        request = requests.sync_group(membership, assignments)
        sent = self._clock()
        # The coordinator responds only after the leader has sent SyncGroup. If the leader is dead, the coordinator
        # removes the leader from the group after the session timeout.
        answer = await connection.call(request, self._config.session_timeout_s + self._wait_s)
        code = answer["error_code"]
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if code:
            raise self._request_error(code, connection.address)
        if self._membership is None or self._membership.generation != generation:
            return None  # a heartbeat has shown that the membership has ended
        self._synced = True
        self._proof_needed.set()
        return Generation(joined["member_id"], generation, answer["assignment"], sent)

    def _request_error(self, code: int, address: Address) -> OffsetMgrError:
        """Returns the error for ``code``. If the code means that the membership has ended, ends the membership. If the
        code is retriable, discards the cached coordinator."""
        error = kafka_error(code, f"group {self._group}")
        if isinstance(error, LockLost):
            previous, self._membership = self._membership, None
            if code != ErrorCode.ILLEGAL_GENERATION:  # otherwise the member id remains valid
                self._member_id = ""
            if previous is not None:
                self._listener.on_ended(error)
        elif code in RETRIABLE:
            self._forget(address, error)
        return error

    # --- heartbeats and proofs -----------------------------------------------------------------------

    async def _send_regularly(
        self, pause: Callable[[], Awaitable[None]], send: Callable[[BrokerConnection, LockMembership], Awaitable[None]]
    ) -> None:
        """Sends heartbeats or proofs, on a connection of its own, while the member belongs to the group."""
        problems = self._proof_problems if send == self._send_proof else self._problems
        connection: BrokerConnection | None = None
        try:
            while True:
                await pause()
                membership = self._membership
                if membership is None:
                    continue
                try:
                    connection = await self._connect(connection)
                    await send(connection, membership)
                except OffsetMgrError as error:
                    if connection is not None:
                        self._forget(connection.address, error)
                    problems.log(error)
        finally:
            if connection is not None:
                await connection.close()

    async def _pause_between_proofs(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._proof_needed.wait()
        self._proof_needed.clear()

    async def _send_proof(self, connection: BrokerConnection, membership: LockMembership) -> None:
        """Sends one proof. An outdated or unfinished generation cannot be proven."""
        if not self._synced:
            return
        sent = self._clock()
        code = await lock_membership.prove(connection, membership, self._config.proof, _PROOF_TIMEOUT_S)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            answer = await lock_membership.heartbeat(connection, membership, _PROOF_TIMEOUT_S)
            code = ErrorCode.NONE if answer in VALID_MEMBER_CODES else answer
        if self._membership != membership:
            return
        if code == ErrorCode.NONE:
            self._proof_problems.log_recovery()
            self._listener.on_confirmed(sent, membership.generation)
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            await self._handle_response(connection.address, membership, code)
        elif code not in _UNPROVEN:
            self._proof_problems.log(self._request_error(code, connection.address))

    async def _send_heartbeat(self, connection: BrokerConnection, membership: LockMembership) -> None:
        code = await lock_membership.heartbeat(connection, membership, self._wait_s)
        await self._handle_response(connection.address, membership, code)

    async def _handle_response(self, address: Address, membership: LockMembership, code: int) -> None:
        now = self._membership
        if now is None or now.member_id != membership.member_id:
            return  # the membership that sent the request has ended
        if code == ErrorCode.NONE:
            self._problems.log_recovery()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._listener.on_rebalance()
        elif code == ErrorCode.ILLEGAL_GENERATION and (
            now.generation != membership.generation or self._join_response_pending()
        ):
            pass  # the JoinGroup response of the new generation has arrived or is about to arrive
        elif isinstance(error := self._request_error(code, address), LockLost):
            self._listener.on_rebalance()
            if self._join_connection is not None:
                await self._join_connection.close()  # its JoinGroup belongs to the ended membership
        else:
            self._problems.log(error)

    def _join_response_pending(self) -> bool:
        """Returns whether a JoinGroup is in flight that may have started the newer generation.

        If the JoinGroup has started the newer generation, the coordinator sends the JoinGroup response soon. If the
        response does not arrive within the timeout of a heartbeat, the response counts as lost and the method returns
        False.
        """
        if not self._join_in_flight:
            return False
        now = asyncio.get_running_loop().time()
        self._newer_generation_since = now if self._newer_generation_since is None else self._newer_generation_since
        return now - self._newer_generation_since < self._wait_s


class ProblemLog:
    """Logs the errors of consecutive attempts. If several attempts fail with the same error, logs the error once.
    ``what`` names the subject of the messages."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = ""

    def log(self, error: OffsetMgrError) -> None:
        if str(error) != self._last:
            self._last = str(error)
            _log.warning("%s: %s", self._what, error)

    def log_recovery(self) -> None:
        """Called after a successful attempt. Logs the success if the previous attempt failed."""
        if self._last:
            self._last = ""
            _log.info("%s: the coordinator responds again", self._what)
