"""`KafkaGroupMember`: a lasting member of a group of our own, by the classic protocol: joins, syncs, keeps up its
heartbeat.

It knows nothing of what the group is for: metadata and assignments are bytes, and what is to follow from the
coordinator's answers is its `MembershipListener`' affair.  Members are dynamic (KIP-345's static membership keeps a
dead process's place for a whole session, and hands it to whoever comes with the name).

Two connections to the coordinator, since a JoinGroup may wait there for as long as the rebalance takes: one for joining
and syncing, one for heartbeats, which go on all the while.  Times are those of ``clock``, seconds; each
`MembershipListener.kept` tells when the request that was answered had been *sent*.
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
from offsetmgr.kafka.client.client import Client, backoff
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.groups import lock_membership, member_requests
from offsetmgr.kafka.groups.lock_membership import LockMembership
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import RETRIABLE, kafka_error

_MEMBERSHIP_OVER: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
)
_NAME_OVER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
"""Of these, those after which the member id is of no use either."""
_SLACK: Final = 10.0
"""Seconds beyond the rebalance timeout that an answer of the coordinator may take (a new group's first join waits for
the broker's group.initial.rebalance.delay.ms)."""
_MOST_BETWEEN_HEARTBEATS: Final = 0.25
"""Seconds: members learn of a rebalance from their next heartbeat, so this is what moving a shard group waits for."""

_log = logging.getLogger(__name__)

Lead = Callable[[int, Sequence[tuple[str, bytes]]], Mapping[str, bytes]]
"""From a generation and its members' metadata to their assignments, all by member id: what the leader does."""


class MembershipListener(Protocol):
    """What a member tells, on the event loop; none of it may block or raise."""

    def kept(self, sent: float, *, settled: bool) -> None:
        """The coordinator has answered what was sent then, to a member of its current generation. ``settled``: and
        owed it neither a JoinGroup nor a SyncGroup at that moment."""
        ...

    def rebalance(self) -> None:
        """A rebalance is on: `KafkaGroupMember.join` has to be called."""
        ...

    def ended(self, why: OffsetMgrError) -> None:
        """The membership is over, and with it everything that was assigned."""
        ...


class Generation(NamedTuple):
    """A generation that has been joined and synced."""

    member_id: str
    generation: int
    assignment: bytes
    sent: float
    """When the SyncGroup was sent."""


class KafkaGroupMember:
    """Construction does no I/O. Use it within one event loop; `join` by one task at a time."""

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
        """``session`` (brokers allow 6 s to 30 min by default) and ``rebalance``: the member's timeouts, seconds."""
        self._client = client
        self._group = group
        self._events = events
        self._protocol = (protocol_type, protocol)
        self._session = session
        self._rebalance = rebalance
        self._clock = clock
        self._interval = min(session / 6, _MOST_BETWEEN_HEARTBEATS)
        self._patience = session / 5
        """Seconds for one heartbeat, or for finding the coordinator: several fit into a session."""
        self._coordinator: Address | None = None
        self._locating = asyncio.Lock()
        self._member_id = ""
        self._mine: LockMembership | None = None
        self._synced = False
        self._joining: BrokerConnection | None = None
        self._waiting = False
        """Whether a JoinGroup is on its way, so that the generation may change at any moment."""
        self._overtaken: float | None = None
        """Since when the coordinator is in a later generation than that JoinGroup's answer has told us."""
        self._beating: asyncio.Task[None] | None = None
        self._trouble = ""

    async def join(self, metadata: Callable[[], bytes], lead: Lead) -> Generation:
        """Joins, or rejoins, until a generation is complete and its assignment known; ``metadata`` is asked for again
        for every JoinGroup.

        Goes on through everything that may be better later: rebalances, coordinators that move, are away or do not know
        us any more (then as a new member, after `MembershipListener.ended`). Raises `OffsetMgrError` for the rest: not
        authorized, another protocol spoken in the group, a session timeout that the broker does not allow.
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
        """Leaves the group, so that nobody waits for our session to end; takes ``timeout`` seconds at most. What cannot
        be told ends with the session."""
        mine, self._mine = self._mine, None
        deadline = asyncio.get_running_loop().time() + timeout
        if mine is not None:
            with contextlib.suppress(OffsetMgrError, TimeoutError):
                async with asyncio.timeout_at(deadline):
                    connection = await self._client.node(await self._locate()).connection(deadline)
                    await lock_membership.leave(self._client, connection, mine, deadline)
        await self.close()

    async def close(self) -> None:
        """Hangs up without a word: the membership ends with its session."""
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
        if self._joining is not None:
            await self._joining.close()

    # --- joining ----------------------------------------------------------------------------------

    async def _attempt(self, metadata: Callable[[], bytes], lead: Lead) -> Generation | None:
        """One JoinGroup and one SyncGroup; None: at once again."""
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
        """The connection for joining, at the coordinator of this moment."""
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
            answer = await connection.call(request, JoinGroupResponse, self._rebalance + _SLACK)
        finally:
            self._waiting, self._overtaken = False, None
        code = int(answer.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:  # KIP-394: dynamic members come twice
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
        # It waits for the leader's, and a leader that has died is put out after a session.
        answer = await connection.call(request, SyncGroupResponse, self._session + self._patience)
        code = int(answer.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if code:
            raise self._refused(code, connection.address)
        if self._mine is None or self._mine.generation != generation:
            return None  # a heartbeat was told meanwhile that the membership is over
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

    # --- the heartbeat ----------------------------------------------------------------------------

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
        """One heartbeat, at the coordinator of this moment; gives the connection for the next one."""
        address = await self._locate()
        try:
            if connection is None or connection.closed or connection.address != address:
                if connection is not None:
                    await connection.close()
                connection = await self._client.node(address).open(self._deadline())
            synced, sent = self._synced, self._clock()
            code = await lock_membership.heartbeat(connection, mine, self._patience)
        except OffsetMgrError:
            self._mislay(address)
            raise
        await self._heard(address, mine, code, sent, synced)
        return connection

    async def _heard(self, address: Address, mine: LockMembership, code: int, sent: float, synced: bool) -> None:
        now = self._mine
        if now is None or now.member_id != mine.member_id:
            return  # the membership that it was sent for is over
        if code == ErrorCode.NONE:
            self._well()
            self._events.kept(sent, settled=synced)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._events.kept(sent, settled=False)
            self._events.rebalance()
        elif code == ErrorCode.ILLEGAL_GENERATION and (
            now.generation != mine.generation or self._may_be_answered_yet()
        ):
            pass  # the JoinGroup that makes the new generation has been answered, or is about to be
        elif code in _MEMBERSHIP_OVER:
            self._end(kafka_error(code, f"group {self._group}"), code)
            self._events.rebalance()
            if self._joining is not None:
                await self._joining.close()  # what waits there waits for a member that is none any more
        else:
            if code in RETRIABLE:
                self._mislay(address)
            self._in_trouble(kafka_error(code, f"heartbeat of group {self._group}"))

    def _may_be_answered_yet(self) -> bool:
        """Whether the JoinGroup on its way may be what has begun the generation that we do not know of: its answer is
        then about to come, if it is not lost."""
        if not self._waiting:
            return False
        now = asyncio.get_running_loop().time()
        self._overtaken = now if self._overtaken is None else self._overtaken
        return now - self._overtaken < self._patience

    # --- the coordinator --------------------------------------------------------------------------

    async def _locate(self) -> Address:
        async with self._locating:
            if self._coordinator is None:
                found = (await self._client.find_coordinators([self._group], self._deadline()))[self._group]
                if isinstance(found, OffsetMgrError):
                    raise found
                self._coordinator = found
                if self._joining is not None and self._joining.address != found:
                    await self._joining.close()  # what waits there waits at a coordinator that is none any more
            return self._coordinator

    def _mislay(self, address: Address) -> None:
        """The group may have another coordinator now."""
        if self._coordinator == address:
            self._coordinator = None

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience

    # --- what people are told ---------------------------------------------------------------------

    def _in_trouble(self, error: OffsetMgrError) -> None:
        """Once for each reason, not for each attempt."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            _log.warning("managers' group %s: %s", self._group, error)

    def _well(self) -> None:
        if self._trouble:
            self._trouble = ""
            _log.info("managers' group %s: its coordinator answers again", self._group)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
