"""`KafkaGroupMember`: a member of a group over the classic protocol that joins, syncs and sends heartbeats.

It does not know the purpose of the group: metadata and assignments are bytes, and its `MembershipListener` reacts to
the coordinator's responses. Members are dynamic, because static membership (KIP-345) keeps the place of a dead process
for a whole session and gives it to any process with the name.

It has two connections to the coordinator, since a JoinGroup may wait there for the whole rebalance: one for joins and
syncs, one for heartbeats. Times are seconds of ``clock``. `MembershipListener.on_confirmed` receives the time
at which the member *sent* the request, not the time of the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kio.schema.join_group.v5.response import JoinGroupResponse
from kio.schema.sync_group.v3.response import SyncGroupResponse

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import LockLost, OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.retries import backoff
from offsetmgr.kafka.groups import lock_membership, member_requests
from offsetmgr.kafka.groups.lock_membership import LockMembership
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import RETRIABLE, kafka_error

_MEMBERSHIP_ENDED: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
)
_MEMBER_ID_INVALID: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
"""The codes of these after which the member id is invalid too."""
_JOIN_MARGIN_S: Final = 10.0
"""Seconds beyond the rebalance timeout that a response may take (the first join of a new group waits for the broker's
group.initial.rebalance.delay.ms)."""
_MAX_HEARTBEAT_INTERVAL_S: Final = 0.25
"""Seconds. A member learns of a rebalance from its next heartbeat, so a move of a shard group waits for it."""

_log = logging.getLogger(__name__)

AssignmentFunction = Callable[[int, Sequence[tuple[str, bytes]]], Mapping[str, bytes]]
"""Computes the assignments of members from a generation and their metadata, by member id; the leader calls it."""


class MembershipListener(Protocol):
    """Callbacks of a member on the event loop; they must not block or raise."""

    def on_confirmed(self, sent: float, *, stable: bool) -> None:
        """The coordinator answered a request that a member of its current generation had sent at that time.
        ``settled``: at that moment the coordinator owed it neither a JoinGroup nor a SyncGroup response."""
        ...

    def on_rebalance(self) -> None:
        """A rebalance has started, so the caller must call `KafkaGroupMember.join`."""
        ...

    def on_ended(self, why: OffsetMgrError) -> None:
        """The membership has ended, and with it the assignment."""
        ...


class Generation(NamedTuple):
    """A generation after join and sync."""

    member_id: str
    generation: int
    assignment: bytes
    sent: float
    """The time at which the SyncGroup was sent."""


class KafkaGroupMember:
    """The constructor performs no I/O. Use it within one event loop; only one task may call `join`."""

    def __init__(
        self,
        client: Client,
        group: str,
        listener: MembershipListener,
        *,
        protocol_type: str,
        protocol: str,
        session: float,
        rebalance: float,
        clock: Callable[[], float],
    ) -> None:
        """``session`` (brokers allow 6 s to 30 min by default) and ``rebalance`` are the timeouts of the member in
        seconds."""
        self._client = client
        self._group = group
        self._listener = listener
        self._protocol = (protocol_type, protocol)
        self._session = session
        self._rebalance = rebalance
        self._clock = clock
        self._interval = min(session / 6, _MAX_HEARTBEAT_INTERVAL_S)
        self._wait_s = session / 5
        """Seconds for one heartbeat or one lookup of the coordinator; several fit into a session."""
        self._coordinator: Address | None = None
        self._lookup_lock = asyncio.Lock()
        self._member_id = ""
        self._membership: LockMembership | None = None
        self._synced = False
        self._join_connection: BrokerConnection | None = None
        self._join_in_flight = False
        """Whether a JoinGroup is in flight, so that the generation may change at any moment."""
        self._newer_generation_since: float | None = None
        """The time since which the coordinator has a later generation than the response to that JoinGroup reported."""
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._last_problem = ""

    async def join(self, metadata: Callable[[], bytes], assign: AssignmentFunction) -> Generation:
        """Joins or rejoins until a generation is complete and its assignment is known. It calls ``metadata`` for every
        JoinGroup.

        It continues after rebalances and after coordinators that move, are unavailable or do not know the member any
        more (it then joins as a new member, after `MembershipListener.on_ended`). Raises `OffsetMgrError` for other
        errors: not authorized, another protocol in the group, a session timeout that the broker rejects.
        """
        if self._heartbeat_task is None:
            self._heartbeat_task = asyncio.create_task(self._heartbeat_loop())
        for pause in backoff():
            try:
                while (found := await self._attempt(metadata, assign)) is None:
                    pass
                self._log_recovery()
                return found
            except OffsetMgrError as error:
                if not error.retriable and not isinstance(error, LockLost):
                    raise
                self._log_problem(error)
            await asyncio.sleep(pause)
        raise AssertionError("back-off has no end")

    async def leave(self, timeout: float) -> None:
        """Leaves the group, so that no client waits for the session to end; takes at most ``timeout`` seconds. If the
        request fails, the membership ends with the session."""
        membership, self._membership = self._membership, None
        deadline = asyncio.get_running_loop().time() + timeout
        if membership is not None:
            with contextlib.suppress(OffsetMgrError, TimeoutError):
                async with asyncio.timeout_at(deadline):
                    connection = await self._client.node(await self._find_coordinator()).connection(deadline)
                    await lock_membership.leave(self._client, connection, membership, deadline)
        await self.close()

    async def close(self) -> None:
        """Closes the connections; the membership ends with its session."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heartbeat_task
            self._heartbeat_task = None
        if self._join_connection is not None:
            await self._join_connection.close()

    # --- join ----------------------------------------------------------------------------------------

    async def _attempt(self, metadata: Callable[[], bytes], assign: AssignmentFunction) -> Generation | None:
        """Makes one JoinGroup and one SyncGroup; None means to retry at once."""
        connection = await self._connection_for_joins()
        try:
            joined = await self._join(connection, metadata())
            if joined is None:
                return None
            return await self._sync(connection, joined, assign)
        except OffsetMgrError as error:
            if connection.closed:
                self._forget_coordinator(connection.address)
            raise error

    async def _connection_for_joins(self) -> BrokerConnection:
        """Returns the connection for joins, to the current coordinator."""
        address = await self._find_coordinator()
        if self._join_connection is None or self._join_connection.closed or self._join_connection.address != address:
            if self._join_connection is not None:
                await self._join_connection.close()
            try:
                self._join_connection = await self._client.node(address).open(self._deadline())
            except OffsetMgrError:
                self._forget_coordinator(address)
                raise
        return self._join_connection

    async def _join(self, connection: BrokerConnection, metadata: bytes) -> JoinGroupResponse | None:
        request = member_requests.join_as(
            self._group, self._member_id, *self._protocol, metadata, _ms(self._session), _ms(self._rebalance)
        )
        self._join_in_flight = True
        try:
            sent = self._clock()
            answer = await connection.call(request, JoinGroupResponse, self._rebalance + _JOIN_MARGIN_S)
        finally:
            self._join_in_flight, self._newer_generation_since = False, None
        code = int(answer.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:  # KIP-394: a dynamic member joins twice
            self._member_id = answer.member_id
            return None
        if code:
            raise self._request_error(code, connection.address)
        self._member_id = answer.member_id
        self._membership = LockMembership(self._group, answer.member_id, int(answer.generation_id))
        self._synced = False
        self._listener.on_confirmed(sent, stable=True)
        return answer

    async def _sync(
        self, connection: BrokerConnection, joined: JoinGroupResponse, assign: AssignmentFunction
    ) -> Generation | None:
        generation = int(joined.generation_id)
        assignments: Mapping[str, bytes] = {}
        if joined.leader == joined.member_id:
            assignments = assign(generation, [(m.member_id, m.metadata) for m in joined.members])
        request = member_requests.sync_as(self._group, generation, joined.member_id, assignments)
        sent = self._clock()
        # It waits for the leader's SyncGroup; the coordinator removes a dead leader after a session.
        answer = await connection.call(request, SyncGroupResponse, self._session + self._wait_s)
        code = int(answer.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if code:
            raise self._request_error(code, connection.address)
        if self._membership is None or self._membership.generation != generation:
            return None  # a heartbeat reported that the membership has ended
        self._synced = True
        return Generation(joined.member_id, generation, answer.assignment, sent)

    def _request_error(self, code: int, address: Address) -> OffsetMgrError:
        error = kafka_error(code, f"group {self._group}")
        if code in _MEMBERSHIP_ENDED:
            self._end(error, code)
        elif code in RETRIABLE:
            self._forget_coordinator(address)
        return error

    def _end(self, why: OffsetMgrError, code: int) -> None:
        previous, self._membership = self._membership, None
        if code in _MEMBER_ID_INVALID:
            self._member_id = ""
        if previous is not None:
            self._listener.on_ended(why)

    # --- heartbeat -----------------------------------------------------------------------------------

    async def _heartbeat_loop(self) -> None:
        loop = asyncio.get_running_loop()
        connection: BrokerConnection | None = None
        due = loop.time()
        try:
            while True:
                due = max(due + self._interval, loop.time())
                await asyncio.sleep(due - loop.time())
                if self._membership is None:
                    continue
                try:
                    connection = await self._send_heartbeat(connection, self._membership)
                except OffsetMgrError as error:
                    self._log_problem(error)
        finally:
            if connection is not None:
                await connection.close()

    async def _send_heartbeat(
        self, connection: BrokerConnection | None, membership: LockMembership
    ) -> BrokerConnection:
        """Sends one heartbeat to the current coordinator; returns the connection for the next one."""
        address = await self._find_coordinator()
        try:
            if connection is None or connection.closed or connection.address != address:
                if connection is not None:
                    await connection.close()
                connection = await self._client.node(address).open(self._deadline())
            synced, sent = self._synced, self._clock()
            code = await lock_membership.heartbeat(connection, membership, self._wait_s)
        except OffsetMgrError:
            self._forget_coordinator(address)
            raise
        await self._handle_heartbeat(address, membership, code, sent, synced)
        return connection

    async def _handle_heartbeat(
        self, address: Address, membership: LockMembership, code: int, sent: float, synced: bool
    ) -> None:
        now = self._membership
        if now is None or now.member_id != membership.member_id:
            return  # its membership has ended
        if code == ErrorCode.NONE:
            self._log_recovery()
            self._listener.on_confirmed(sent, stable=synced)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._listener.on_confirmed(sent, stable=False)
            self._listener.on_rebalance()
        elif code == ErrorCode.ILLEGAL_GENERATION and (
            now.generation != membership.generation or self._join_response_pending()
        ):
            pass  # the response to the JoinGroup of the new generation has arrived or will arrive
        elif code in _MEMBERSHIP_ENDED:
            self._end(kafka_error(code, f"group {self._group}"), code)
            self._listener.on_rebalance()
            if self._join_connection is not None:
                await self._join_connection.close()  # its request belongs to a membership that has ended
        else:
            if code in RETRIABLE:
                self._forget_coordinator(address)
            self._log_problem(kafka_error(code, f"heartbeat of group {self._group}"))

    def _join_response_pending(self) -> bool:
        """Returns whether the JoinGroup in flight may have started the generation that we do not know; its response is
        then about to arrive, unless it is lost."""
        if not self._join_in_flight:
            return False
        now = asyncio.get_running_loop().time()
        self._newer_generation_since = now if self._newer_generation_since is None else self._newer_generation_since
        return now - self._newer_generation_since < self._wait_s

    # --- coordinator ---------------------------------------------------------------------------------

    async def _find_coordinator(self) -> Address:
        async with self._lookup_lock:
            if self._coordinator is None:
                found = (await self._client.find_coordinators([self._group], self._deadline()))[self._group]
                if isinstance(found, OffsetMgrError):
                    raise found
                self._coordinator = found
                if self._join_connection is not None and self._join_connection.address != found:
                    await self._join_connection.close()  # its request waits at a former coordinator
            return self._coordinator

    def _forget_coordinator(self, address: Address) -> None:
        """Forgets the coordinator, because the group may have another one now."""
        if self._coordinator == address:
            self._coordinator = None

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._wait_s

    # --- logging -------------------------------------------------------------------------------------

    def _log_problem(self, error: OffsetMgrError) -> None:
        """Logs each reason once, not each attempt."""
        if str(error) != self._last_problem:
            self._last_problem = str(error)
            _log.warning("managers' group %s: %s", self._group, error)

    def _log_recovery(self) -> None:
        if self._last_problem:
            self._last_problem = ""
            _log.info("managers' group %s: the coordinator responds again", self._group)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
