"""`KafkaGroupMember`: a member of a group over the classic protocol that joins, syncs and sends heartbeats.

It does not know the purpose of the group: metadata and assignments are bytes, and its `MembershipListener` reacts to
the coordinator's responses. Members are dynamic, because static membership (KIP-345) keeps the place of a dead process
for a whole session and gives it to any process with the name.

It has two connections to the coordinator, since a JoinGroup may wait there for the whole rebalance: one for joins and
syncs, one for heartbeats. Times are seconds of ``clock``; each `MembershipListener.kept` receives the time at which the
answered request had been *sent*.
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

_MEMBERSHIP_OVER: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
)
_NAME_OVER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
"""The codes of these after which the member id is invalid too."""
_SLACK_S: Final = 10.0
"""Seconds beyond the rebalance timeout that a response may take (the first join of a new group waits for the broker's
group.initial.rebalance.delay.ms)."""
_MOST_BETWEEN_HEARTBEATS_S: Final = 0.25
"""Seconds. A member learns of a rebalance from its next heartbeat, so a move of a shard group waits for it."""

_log = logging.getLogger(__name__)

Lead = Callable[[int, Sequence[tuple[str, bytes]]], Mapping[str, bytes]]
"""Computes the assignments of members from a generation and their metadata, by member id; the leader calls it."""


class MembershipListener(Protocol):
    """Callbacks of a member on the event loop; they must not block or raise."""

    def kept(self, sent: float, *, settled: bool) -> None:
        """The coordinator answered a request that a member of its current generation had sent at that time.
        ``settled``: at that moment the coordinator owed it neither a JoinGroup nor a SyncGroup response."""
        ...

    def rebalance(self) -> None:
        """A rebalance has started, so the caller must call `KafkaGroupMember.join`."""
        ...

    def ended(self, why: OffsetMgrError) -> None:
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
        events: MembershipListener,
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
        self._events = events
        self._protocol = (protocol_type, protocol)
        self._session = session
        self._rebalance = rebalance
        self._clock = clock
        self._interval = min(session / 6, _MOST_BETWEEN_HEARTBEATS_S)
        self._wait_s = session / 5
        """Seconds for one heartbeat or one lookup of the coordinator; several fit into a session."""
        self._coordinator: Address | None = None
        self._locating = asyncio.Lock()
        self._member_id = ""
        self._mine: LockMembership | None = None
        self._synced = False
        self._joining: BrokerConnection | None = None
        self._waiting = False
        """Whether a JoinGroup is in flight, so that the generation may change at any moment."""
        self._overtaken: float | None = None
        """The time since which the coordinator has a later generation than the response to that JoinGroup reported."""
        self._beating: asyncio.Task[None] | None = None
        self._trouble = ""

    async def join(self, metadata: Callable[[], bytes], lead: Lead) -> Generation:
        """Joins or rejoins until a generation is complete and its assignment is known. It calls ``metadata`` for every
        JoinGroup.

        It continues after rebalances and after coordinators that move, are unavailable or do not know the member any
        more (it then joins as a new member, after `MembershipListener.ended`). Raises `OffsetMgrError` for other
        errors: not authorized, another protocol in the group, a session timeout that the broker rejects.
        """
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        for pause in backoff():
            try:
                while (found := await self._attempt(metadata, lead)) is None:
                    pass
                self._well()
                return found
            except OffsetMgrError as error:
                if not error.retriable and not isinstance(error, LockLost):
                    raise
                self._in_trouble(error)
            await asyncio.sleep(pause)
        raise AssertionError("back-off has no end")

    async def leave(self, timeout: float) -> None:
        """Leaves the group, so that no client waits for the session to end; takes at most ``timeout`` seconds. If the
        request fails, the membership ends with the session."""
        mine, self._mine = self._mine, None
        deadline = asyncio.get_running_loop().time() + timeout
        if mine is not None:
            with contextlib.suppress(OffsetMgrError, TimeoutError):
                async with asyncio.timeout_at(deadline):
                    connection = await self._client.node(await self._locate()).connection(deadline)
                    await lock_membership.leave(self._client, connection, mine, deadline)
        await self.close()

    async def close(self) -> None:
        """Closes the connections; the membership ends with its session."""
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
        if self._joining is not None:
            await self._joining.close()

    # --- join ----------------------------------------------------------------------------------------

    async def _attempt(self, metadata: Callable[[], bytes], lead: Lead) -> Generation | None:
        """Makes one JoinGroup and one SyncGroup; None means to retry at once."""
        connection = await self._connect()
        try:
            joined = await self._join(connection, metadata())
            if joined is None:
                return None
            return await self._sync(connection, joined, lead)
        except OffsetMgrError as error:
            if connection.closed:
                self._mislay(connection.address)
            raise error

    async def _connect(self) -> BrokerConnection:
        """Returns the connection for joins, to the current coordinator."""
        address = await self._locate()
        if self._joining is None or self._joining.closed or self._joining.address != address:
            if self._joining is not None:
                await self._joining.close()
            try:
                self._joining = await self._client.node(address).open(self._deadline())
            except OffsetMgrError:
                self._mislay(address)
                raise
        return self._joining

    async def _join(self, connection: BrokerConnection, metadata: bytes) -> JoinGroupResponse | None:
        request = member_requests.join_as(
            self._group, self._member_id, *self._protocol, metadata, _ms(self._session), _ms(self._rebalance)
        )
        self._waiting = True
        try:
            sent = self._clock()
            answer = await connection.call(request, JoinGroupResponse, self._rebalance + _SLACK_S)
        finally:
            self._waiting, self._overtaken = False, None
        code = int(answer.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:  # KIP-394: a dynamic member joins twice
            self._member_id = answer.member_id
            return None
        if code:
            raise self._refused(code, connection.address)
        self._member_id = answer.member_id
        self._mine = LockMembership(self._group, answer.member_id, int(answer.generation_id))
        self._synced = False
        self._events.kept(sent, settled=True)
        return answer

    async def _sync(self, connection: BrokerConnection, joined: JoinGroupResponse, lead: Lead) -> Generation | None:
        generation = int(joined.generation_id)
        assignments: Mapping[str, bytes] = {}
        if joined.leader == joined.member_id:
            assignments = lead(generation, [(m.member_id, m.metadata) for m in joined.members])
        request = member_requests.sync_as(self._group, generation, joined.member_id, assignments)
        sent = self._clock()
        # It waits for the leader's SyncGroup; the coordinator removes a dead leader after a session.
        answer = await connection.call(request, SyncGroupResponse, self._session + self._wait_s)
        code = int(answer.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if code:
            raise self._refused(code, connection.address)
        if self._mine is None or self._mine.generation != generation:
            return None  # a heartbeat reported that the membership has ended
        self._synced = True
        return Generation(joined.member_id, generation, answer.assignment, sent)

    def _refused(self, code: int, address: Address) -> OffsetMgrError:
        error = kafka_error(code, f"group {self._group}")
        if code in _MEMBERSHIP_OVER:
            self._end(error, code)
        elif code in RETRIABLE:
            self._mislay(address)
        return error

    def _end(self, why: OffsetMgrError, code: int) -> None:
        had, self._mine = self._mine, None
        if code in _NAME_OVER:
            self._member_id = ""
        if had is not None:
            self._events.ended(why)

    # --- heartbeat -----------------------------------------------------------------------------------

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        connection: BrokerConnection | None = None
        due = loop.time()
        try:
            while True:
                due = max(due + self._interval, loop.time())
                await asyncio.sleep(due - loop.time())
                if self._mine is None:
                    continue
                try:
                    connection = await self._beat_once(connection, self._mine)
                except OffsetMgrError as error:
                    self._in_trouble(error)
        finally:
            if connection is not None:
                await connection.close()

    async def _beat_once(self, connection: BrokerConnection | None, mine: LockMembership) -> BrokerConnection:
        """Sends one heartbeat to the current coordinator; returns the connection for the next one."""
        address = await self._locate()
        try:
            if connection is None or connection.closed or connection.address != address:
                if connection is not None:
                    await connection.close()
                connection = await self._client.node(address).open(self._deadline())
            synced, sent = self._synced, self._clock()
            code = await lock_membership.heartbeat(connection, mine, self._wait_s)
        except OffsetMgrError:
            self._mislay(address)
            raise
        await self._heard(address, mine, code, sent, synced)
        return connection

    async def _heard(self, address: Address, mine: LockMembership, code: int, sent: float, synced: bool) -> None:
        now = self._mine
        if now is None or now.member_id != mine.member_id:
            return  # its membership has ended
        if code == ErrorCode.NONE:
            self._well()
            self._events.kept(sent, settled=synced)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._events.kept(sent, settled=False)
            self._events.rebalance()
        elif code == ErrorCode.ILLEGAL_GENERATION and (
            now.generation != mine.generation or self._may_be_answered_yet()
        ):
            pass  # the response to the JoinGroup of the new generation has arrived or will arrive
        elif code in _MEMBERSHIP_OVER:
            self._end(kafka_error(code, f"group {self._group}"), code)
            self._events.rebalance()
            if self._joining is not None:
                await self._joining.close()  # its request belongs to a membership that has ended
        else:
            if code in RETRIABLE:
                self._mislay(address)
            self._in_trouble(kafka_error(code, f"heartbeat of group {self._group}"))

    def _may_be_answered_yet(self) -> bool:
        """Returns whether the JoinGroup in flight may have started the generation that we do not know; its response is
        then about to arrive, unless it is lost."""
        if not self._waiting:
            return False
        now = asyncio.get_running_loop().time()
        self._overtaken = now if self._overtaken is None else self._overtaken
        return now - self._overtaken < self._wait_s

    # --- coordinator ---------------------------------------------------------------------------------

    async def _locate(self) -> Address:
        async with self._locating:
            if self._coordinator is None:
                found = (await self._client.find_coordinators([self._group], self._deadline()))[self._group]
                if isinstance(found, OffsetMgrError):
                    raise found
                self._coordinator = found
                if self._joining is not None and self._joining.address != found:
                    await self._joining.close()  # its request waits at a former coordinator
            return self._coordinator

    def _mislay(self, address: Address) -> None:
        """Forgets the coordinator, because the group may have another one now."""
        if self._coordinator == address:
            self._coordinator = None

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._wait_s

    # --- logging -------------------------------------------------------------------------------------

    def _in_trouble(self, error: OffsetMgrError) -> None:
        """Logs each reason once, not each attempt."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            _log.warning("managers' group %s: %s", self._group, error)

    def _well(self) -> None:
        if self._trouble:
            self._trouble = ""
            _log.info("managers' group %s: its coordinator answers again", self._group)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
