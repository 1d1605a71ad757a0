"""`KafkaGroupMember`: a group member over the classic protocol, which joins, syncs and sends heartbeats.

The class can be used for any kind of group. It treats metadata and assignments as bytes, and passes the results of the
coordinator's responses to a `MembershipListener`. Members are dynamic. A static member (KIP-345) has two disadvantages:
it keeps its assignment for a whole session timeout after its process has died, and any process with the same instance
id can take over the assignment.

A member has two connections to the coordinator: one for JoinGroup and SyncGroup, and one for heartbeats. If it had only
one connection, a JoinGroup that waits in the coordinator during a rebalance would delay the heartbeats. Times are
seconds of ``clock``. `MembershipListener.on_confirmed` receives the time at which the member *sent* the request, not
the time of the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import LockLost, OffsetMgrError
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.groups import lock_membership, member_requests
from offsetmgr.kafka.groups.lock_membership import LockMembership
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import RETRIABLE, kafka_error
from offsetmgr.kafka.protocol.schema_codec import Message

_JOIN_MARGIN_S: Final = 10.0
"""The timeout of a JoinGroup request is the rebalance timeout plus this time, because the broker delays the first join
of a new group by group.initial.rebalance.delay.ms."""
_MAX_HEARTBEAT_INTERVAL_S: Final = 0.25
"""The maximum interval between heartbeats. A member learns of a rebalance from the response to a heartbeat, so a long
interval would delay the rebalance."""

_log = logging.getLogger(__name__)

AssignmentFunction = Callable[[int, Sequence[tuple[str, bytes]]], Mapping[str, bytes]]
"""A function that the leader of the group calls. Its arguments are the generation, and a list of member ids with the
metadata of each member. It returns the assignment of each member id."""


class MembershipListener(Protocol):
    """Callbacks of a `KafkaGroupMember`. They run on the event loop and must not block or raise."""

    def on_confirmed(self, sent: float, *, stable: bool) -> None:
        """The coordinator has confirmed the membership, in its response to a request that the member sent at ``sent``.

        ``stable`` is True if no rebalance was in progress for this member. During a rebalance the member waits for a
        JoinGroup response or a SyncGroup response.
        """
        ...

    def on_rebalance(self) -> None:
        """A rebalance has started, or the membership has ended. The caller must call `KafkaGroupMember.join`."""
        ...

    def on_ended(self, why: OffsetMgrError) -> None:
        """The membership has ended, so the assignment is no longer valid."""
        ...


class Generation(NamedTuple):
    """The result of a complete join and sync."""

    member_id: str
    generation: int
    assignment: bytes
    sent: float
    """The time at which the member sent the SyncGroup request."""


class KafkaGroupMember:
    """A dynamic member of a group. The constructor performs no I/O.

    Use it within one event loop. Only one task may call `join`.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        listener: MembershipListener,
        *,
        protocol_type: str,
        protocol: str,
        session_timeout_s: float,
        rebalance_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        """By default brokers allow session timeouts from 6 s to 30 min."""
        self._client = client
        self._group = group
        self._listener = listener
        self._protocol_type, self._protocol = protocol_type, protocol
        self._session_timeout_s = session_timeout_s
        self._rebalance_timeout_s = rebalance_timeout_s
        self._clock = clock
        self._interval = min(session_timeout_s / 6, _MAX_HEARTBEAT_INTERVAL_S)
        self._wait_s = session_timeout_s / 5
        """The timeout of one heartbeat or one coordinator lookup, short enough for several attempts within a session
        timeout."""
        self._coordinator: Address | None = None
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
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._last_problem = ""

    async def join(self, metadata: Callable[[], bytes], assign: AssignmentFunction) -> Generation:
        """Joins or rejoins the group. Returns when a generation is complete, with this generation and the assignment of
        the member.

        The method calls ``metadata`` for every JoinGroup, and ``assign`` if this member is the leader. The method
        retries the join if another rebalance starts, or if the coordinator moves or is unavailable. If the coordinator
        no longer knows the member, the method calls `MembershipListener.on_ended` and joins as a new member. Raises
        `OffsetMgrError` for other errors, such as missing authorization, another protocol in the group, or a session
        timeout that the broker rejects.
        """
        if self._heartbeat_task is None:
            self._heartbeat_task = asyncio.create_task(self._heartbeat_loop())
        retries = Retries()
        while True:
            try:
                while (found := await self._attempt(metadata, assign)) is None:
                    pass
                self._log_recovery()
                return found
            except OffsetMgrError as error:
                if not error.retriable and not isinstance(error, LockLost):
                    raise
                self._log_problem(error)
                await retries.pause()

    async def leave(self, timeout_s: float) -> None:
        """Leaves the group and closes the connections, within ``timeout_s`` seconds. If the request fails, the
        membership ends when the session times out."""
        membership, self._membership = self._membership, None
        deadline = asyncio.get_running_loop().time() + timeout_s
        if membership is not None:
            with contextlib.suppress(OffsetMgrError, TimeoutError):
                async with asyncio.timeout_at(deadline):
                    at = await self._find_coordinator()
                    await lock_membership.leave(self._client, membership, deadline, at=at)
        await self.close()

    async def close(self) -> None:
        """Closes the connections without leaving the group. The membership ends when the session times out."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heartbeat_task
            self._heartbeat_task = None
        if self._join_connection is not None:
            await self._join_connection.close()

    # --- join ----------------------------------------------------------------------------------------

    async def _attempt(self, metadata: Callable[[], bytes], assign: AssignmentFunction) -> Generation | None:
        """Sends one JoinGroup and one SyncGroup. Returns None if the caller must make another attempt immediately."""
        connection = self._join_connection = await self._current_connection(self._join_connection)
        try:
            joined = await self._join(connection, metadata())
            if joined is None:
                return None
            return await self._sync(connection, joined, assign)
        except OffsetMgrError as error:
            if connection.closed:
                self._forget_coordinator(connection.address)
            raise error

    async def _join(self, connection: BrokerConnection, metadata: bytes) -> Message | None:
        request = member_requests.join_as(
            self._group,
            self._member_id,
            self._protocol_type,
            {self._protocol: metadata},
            _ms(self._session_timeout_s),
            _ms(self._rebalance_timeout_s),
        )
        self._join_in_flight = True
        try:
            sent = self._clock()
            answer = await connection.call(request, self._rebalance_timeout_s + _JOIN_MARGIN_S)
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
        self._listener.on_confirmed(sent, stable=True)
        return answer

    async def _sync(
        self, connection: BrokerConnection, joined: Message, assign: AssignmentFunction
    ) -> Generation | None:
        generation = joined["generation_id"]
        assignments: Mapping[str, bytes] = {}
        if joined["leader"] == joined["member_id"]:
            assignments = assign(generation, [(m["member_id"], m["metadata"]) for m in joined["members"]])
        request = member_requests.sync_group(self._group, generation, joined["member_id"], assignments)
        sent = self._clock()
        # The coordinator responds only after the leader has sent SyncGroup. If the leader is dead, the coordinator
        # removes the leader from the group after the session timeout.
        answer = await connection.call(request, self._session_timeout_s + self._wait_s)
        code = answer["error_code"]
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if code:
            raise self._request_error(code, connection.address)
        if self._membership is None or self._membership.generation != generation:
            return None  # a heartbeat has shown that the membership has ended
        self._synced = True
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
            self._forget_coordinator(address)
        return error

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
        """Sends one heartbeat to the current coordinator. Returns the connection for the next one."""
        connection = await self._current_connection(connection)
        synced, sent = self._synced, self._clock()
        try:
            code = await lock_membership.heartbeat(connection, membership, self._wait_s)
        except OffsetMgrError:
            self._forget_coordinator(connection.address)
            raise
        await self._handle_heartbeat(connection.address, membership, code, sent, synced)
        return connection

    async def _handle_heartbeat(
        self, address: Address, membership: LockMembership, code: int, sent: float, synced: bool
    ) -> None:
        now = self._membership
        if now is None or now.member_id != membership.member_id:
            return  # the membership that sent the heartbeat has ended
        if code == ErrorCode.NONE:
            self._log_recovery()
            self._listener.on_confirmed(sent, stable=synced)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._listener.on_confirmed(sent, stable=False)
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
            self._log_problem(error)

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

    # --- coordinator ---------------------------------------------------------------------------------

    async def _find_coordinator(self) -> Address:
        async with self._lookup_lock:
            if self._coordinator is None:
                found = (await self._client.find_coordinators([self._group], self._deadline()))[self._group]
                if isinstance(found, OffsetMgrError):
                    raise found
                self._coordinator = found
                if self._join_connection is not None and self._join_connection.address != found:
                    await self._join_connection.close()  # its JoinGroup waits in the former coordinator
            return self._coordinator

    async def _current_connection(self, previous: BrokerConnection | None) -> BrokerConnection:
        """Returns ``previous`` if ``previous`` is an open connection to the current coordinator. Otherwise opens and
        returns a new connection."""
        address = await self._find_coordinator()
        if previous is not None:
            if not previous.closed and previous.address == address:
                return previous
            await previous.close()
        try:
            return await self._client.node(address).open(self._deadline())
        except OffsetMgrError:
            self._forget_coordinator(address)
            raise

    def _forget_coordinator(self, address: Address) -> None:
        """Discards the cached coordinator, because the group may now have another coordinator."""
        if self._coordinator == address:
            self._coordinator = None

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._wait_s

    # --- logging -------------------------------------------------------------------------------------

    def _log_problem(self, error: OffsetMgrError) -> None:
        """Logs an error. If consecutive attempts fail with the same error, logs the error only once."""
        if str(error) != self._last_problem:
            self._last_problem = str(error)
            _log.warning("group %s: %s", self._group, error)

    def _log_recovery(self) -> None:
        if self._last_problem:
            self._last_problem = ""
            _log.info("group %s: the coordinator responds again", self._group)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
