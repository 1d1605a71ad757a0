"""`OwnershipManager`: joins the managers' group and determines which shard groups this process owns. It calls the
runtime (`OwnershipListener`) to assign and revoke these shard groups.

The order of events ensures one owner for each shard group (see also `ownership_protocol` and `lease`):
- A shard group is in ``owned`` from its assignment until the runtime has revoked it, and every JoinGroup reports
  exactly the shard groups in ``owned``. Therefore no other member receives a shard group that this process may serve,
  unless the coordinator has removed this process from the group.
- When an assignment arrives, the process first drops the shard groups that are not in the assignment, then accepts
  proofs of the new generation (`on_confirmed`), then assigns new shard groups to the runtime. So a lease that begins in
  a generation covers only shard groups that this generation gives to the process.
- The runtime claims an unreleased shard group (`assignment`) only after `lease.TAKEOVER_WAIT_S`. The lease of a removed
  owner has ended by then. The wait begins when this process sends the SyncGroup of the generation, because the
  coordinator had removed the former owner before. While a process waits, its JoinGroups say so. If the shard group
  moves on during the wait, the next owner waits as well, also if the leader only took the process for the owner.
- When the membership ends, the process ends the lease and drops every shard group at once, before it sends anything.
- A process that stops releases its shard groups before it leaves the group: it revokes them and rejoins without them.
  Otherwise the next owners would wait, because they could not distinguish the process from a removed one.

If a process is frozen between its assignment and its claim, its late claim fences the rightful owner. Because the lease
of the late process has expired, the late process serves nothing, and claims no other shard group until it has rejoined.
The runtime of the rightful owner reports the loss through `on_fenced`, and the owner rejoins without the shard group.
The next assignment gives the shard group to a member, which claims it. Each late claim causes at most one more claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from functools import partial
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.retry import Backoff, Retries, cancel_tasks
from offsetmgr.kafka.groups.group_member import Generation, KafkaGroupMember
from offsetmgr.manager.assignment import (
    Assignment,
    ManagerMetadata,
    NodeAddress,
    SharedConfig,
    assign_members,
    decode_assignment,
    encode_metadata,
)
from offsetmgr.manager.group_secret import GroupSecret
from offsetmgr.manager.lease import TAKEOVER_WAIT_S, OwnershipLease, boottime
from offsetmgr.manager.ownership_protocol import OwnershipListener

# `Revocations`: revokes shard groups in the runtime, and assigns them to the runtime once an earlier revocation of
# the same shard group has ended.

_log = logging.getLogger(__name__)


class Revocations:
    """The running revocations of one process. Use it on one event loop. ``listener`` is the runtime."""

    def __init__(self, listener: OwnershipListener) -> None:
        self._listener = listener
        self._running: dict[int, asyncio.Task[None]] = {}

    def running(self) -> Collection[int]:
        """Returns the shard groups that are being revoked."""
        return self._running.keys()

    def start(self, shard_groups: Iterable[int]) -> None:
        """Starts to revoke these shard groups, except those that are being revoked already."""
        for shard_group in shard_groups:
            if shard_group not in self._running:
                self._running[shard_group] = asyncio.create_task(self._revoke(shard_group))

    def when_revoked(self, shard_group: int, action: Callable[[], None]) -> None:
        """Calls ``action`` when the running revocation of this shard group has ended."""
        self._running[shard_group].add_done_callback(lambda _: action())

    async def wait(self, shard_groups: Collection[int] | None = None, timeout_s: float | None = None) -> None:
        """Waits until the running revocations of these shard groups have ended, or those of all shard groups if
        ``shard_groups`` is None, but at most ``timeout_s`` seconds."""
        tasks = [
            task for shard_group, task in self._running.items() if shard_groups is None or shard_group in shard_groups
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def assign(self, shard_group: int, not_before: float, still_owned: Callable[[], bool]) -> None:
        """Assigns the shard group to the runtime, after the end of a running revocation if ``still_owned`` returns True
        then."""

        def assign_again() -> None:
            if shard_group not in self._running and still_owned():
                self._listener.on_assigned(shard_group, not_before)

        if shard_group in self._running:
            self.when_revoked(shard_group, assign_again)
        else:
            self._listener.on_assigned(shard_group, not_before)

    async def _revoke(self, shard_group: int) -> None:
        try:
            await self._listener.on_revoked(shard_group)
        except Exception:
            _log.exception("the revocation of shard group %d failed", shard_group)
        finally:
            del self._running[shard_group]


PROTOCOL_TYPE: Final = "offsetmgr"
PROTOCOL: Final = "offsetmgr-3"
"""The name of the group protocol. The name changes when the format in `assignment` changes."""
ASSIGNMENT_RULES: Final = 2
"""The value of `SharedConfig.protocol` in this version of offsetmgr. It changes with the durations of
`lease`, and with rules of `assignment` that managers of an earlier version would apply unsafely."""
REBALANCE_TIMEOUT_S: Final = 30.0
"""At least twice the session timeout, so that the coordinator does not remove a member that waits for revocations."""

_REVOCATION_SHARE: Final = 0.25
"""The longest wait for revocations before a JoinGroup, as a fraction of the rebalance timeout."""
_JOIN_BACKOFF: Final = Backoff.fixed(5.0)  # after a failed join that needs an administrator
_LOSS_BACKOFF: Final = Backoff(0.2, 5.0)
"""The pauses before a rejoin after each loss of a shard group but the first one."""
_LOSS_RESET_S: Final = 10.0
"""If no shard group was lost for this time, the next loss counts as the first loss."""
_RELEASE_TIMEOUT_S: Final = 2.0
"""The longest time for the rebalance in which a stopping process releases its shard groups."""
_LEAVE_TIMEOUT_S: Final = 2.0
_REMOVE_TIMEOUT_S: Final = 2.0


def managers_group(topic: str) -> str:
    """Returns the group through which managers share the shards of a topic.

    The name depends only on the topic, because two groups for the same topic would both assign every shard group.
    """
    return f"{topic}.managers"


class OwnershipManager:
    """Implements `Ownership`. The constructor performs no I/O; everything but `valid` runs on one event loop."""

    def __init__(
        self,
        host: str,
        port: int,
        parameters: SharedConfig,
        member: Callable[[OwnershipManager], KafkaGroupMember],
        *,
        on_peers: Callable[[Mapping[str, NodeAddress]], None] | None = None,
        rebalance_timeout_s: float = REBALANCE_TIMEOUT_S,
        clock: Callable[[], float] = boottime,
        secret: GroupSecret | None = None,
    ) -> None:
        """``host`` and ``port`` are the address for clients. ``member`` creates the member of the group from this
        `OwnershipManager`. The member must use the same timeout and clock, and report its events to `on_confirmed`,
        `on_rebalance` and `on_ended`. ``on_peers`` is called with the other members of each new assignment, and without
        members when the membership has ended. ``rebalance_timeout_s`` is a timeout in seconds. ``secret`` verifies the
        messages of other managers."""
        self._address = (host, port)
        self._parameters = parameters
        self.secret = secret or GroupSecret()
        self._max_revocation_wait_s = rebalance_timeout_s * _REVOCATION_SHARE
        self._clock = clock
        self.lease = OwnershipLease(clock)
        self.valid = self.lease.valid
        self._assign = partial(assign_members, secret=self.secret)
        self._member = member(self)
        self._on_peers: Callable[[Mapping[str, NodeAddress]], object] = on_peers or dict
        self._revocations: Revocations
        self._last_known: Assignment | None = None
        self._current: Assignment | None = None
        """The last assignment of this membership; None after the membership ends (`_last_known` remains)."""
        self._applied = -1
        """The generation of `_current`, once the runtime has started to revoke the shard groups that it lacks."""
        self.exclusion_reason: str | None = None
        """Why this manager receives no shard groups, as a sentence; None if the manager is not excluded."""
        self._owned: dict[int, int] = {}
        self._waiting_until: dict[int, float] = {}
        """For each unreleased shard group that this process has received, the time at which the lease of every former
        owner has ended. The entry remains if this process loses or revokes the shard group."""
        self._leaving = False
        self._lost: set[int] = set()
        """The shard groups that this process has lost since its last JoinGroup, which still reported them as owned."""
        self._losses = 0
        """The number of recent losses of shard groups to other claimants."""
        self._last_loss = float("-inf")
        self._attempts = 0
        self._rejoin_needed = asyncio.Event()
        self._first_assignment: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # --- for the runtime -----------------------------------------------------------------------------

    def on_fenced(self, shard_group: int, why: str) -> None:
        """See `Ownership.on_fenced`."""
        if self._owned.pop(shard_group, None) is None:
            return
        _log.warning("shard group %d was lost to another manager: %s", shard_group, why)
        self._lost.add(shard_group)
        self._losses += 1
        self._rejoin_needed.set()

    # --- for all callers -----------------------------------------------------------------------------

    def nodes(self) -> tuple[NodeAddress, ...]:
        """Returns all managers of the newest known assignment, sorted by node id; none before the first assignment."""
        nodes = self._last_known.nodes.values() if self._last_known else ()
        return tuple({node.node_id: node for node in sorted(nodes, key=lambda n: n.node_id)}.values())

    def owner_of(self, shard_group: int) -> NodeAddress | None:
        """Returns the last known owner of the shard group; None if the shard group has no owner or is being revoked."""
        assignment = self._last_known
        return assignment.nodes.get(assignment.owners.get(shard_group, "")) if assignment else None

    def owned(self) -> frozenset[int]:
        """Returns the shard groups that this process would report as owned if it joined now."""
        return frozenset(self._owned)

    @property
    def generation(self) -> int:
        """The generation of the current assignment; -1 if there is no assignment or the membership has ended."""
        return self._current.generation if self._current else -1

    async def start(self, listener: OwnershipListener) -> None:
        """Joins the group; returns when the first assignment has arrived. Retries while the coordinator is unavailable.

        Raises `OffsetMgrError` if the group cannot be joined (see `KafkaGroupMember.join`).
        """
        self._revocations = Revocations(listener)
        self._first_assignment = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_task_done)
        try:
            await asyncio.shield(self._first_assignment)
        except OffsetMgrError:
            await self._member.close()
            raise

    async def stop(self) -> None:
        """Revokes every shard group and leaves the group, so that the other managers own the shard groups at once."""
        if self._task is None:
            await self._member.close()
            return
        await cancel_tasks(self._task)
        self._on_peers({})
        self._revocations.start(self._owned)
        await self._revocations.wait()
        self.lease.end()
        self._applied, released = -1, bool(self._owned)
        self._owned.clear()
        if released and self._current is not None:
            self._leaving = True
            with contextlib.suppress(OffsetMgrError, TimeoutError):
                async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                    await self._member.join(self._metadata, self._assign)
        await self._member.leave(_LEAVE_TIMEOUT_S)

    async def remove(self, member_id: str) -> None:
        """Removes another member, which is dead, from the group. Raises `OffsetMgrError`."""
        await self._member.remove(member_id, _REMOVE_TIMEOUT_S)

    # --- events of the member ------------------------------------------------------------------------

    def on_confirmed(self, sent: float, generation: int) -> None:
        """Extends the lease, because the coordinator has confirmed the membership in ``generation``. A proof of a
        generation whose assignment this process has not applied is ignored: the assignment may give shard groups to
        other members that this process still serves."""
        if generation == self._applied:
            self.lease.extend(sent)

    def on_rebalance(self) -> None:
        """Rejoins the group, because the coordinator has started a rebalance."""
        self._rejoin_needed.set()

    def on_ended(self, why: OffsetMgrError) -> None:
        """Ends the lease and drops every shard group, because the membership has ended."""
        self.lease.end()
        _log.warning(
            "the membership of the managers' group has ended; dropping shard groups %s: %s", sorted(self._owned), why
        )
        self._revocations.start(self._owned)
        self._owned.clear()
        self._current, self._applied = None, -1
        self._on_peers({})
        self._rejoin_needed.set()

    # --- the membership ------------------------------------------------------------------------------

    async def _run(self) -> None:
        retries = Retries(backoff=_JOIN_BACKOFF)
        while True:
            try:
                joined = await self._member.join(self._metadata, self._assign)
            except OffsetMgrError as error:
                if self._first_assignment is not None and not self._first_assignment.done():
                    self._first_assignment.set_exception(error)
                    return
                _log.error("managers' group: %s", error)
                await retries.pause()
                continue
            await self._apply_assignment(joined)
            await self._wait_until_rejoin_needed()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Drops every shard group after an unexpected error, since the state of the process is then unknown."""
        if task.cancelled():
            if self._first_assignment is not None:
                self._first_assignment.cancel()
            return
        if (error := task.exception()) is None:
            return
        self.on_ended(OffsetMgrError("managers' group", f"{type(error).__name__}: {error}"))
        if self._first_assignment is not None and not self._first_assignment.done():
            self._first_assignment.set_exception(error)
        else:
            _log.critical("the membership task failed unexpectedly; restart this manager", exc_info=error)

    def _metadata(self, member_id: str) -> bytes:
        self.secret.on_join()
        self._lost.clear()
        self._attempts += 1
        seen, now = self._current, self._clock()
        self._waiting_until = {number: until for number, until in self._waiting_until.items() if until > now}
        metadata = ManagerMetadata(
            *self._address,
            self._parameters,
            dict(self._owned),
            seen.generation if seen else -1,
            seen.all_owners() if seen else {},
            waiting_for=frozenset(self._waiting_until),
            leaving=self._leaving,
        )
        return self.secret.signed(encode_metadata(metadata, self._attempts), "member", member_id)

    async def _apply_assignment(self, joined: Generation) -> None:
        """Applies a new assignment, in the order that the module's docstring describes."""
        self._rejoin_needed.clear()
        try:
            assignment = decode_assignment(self.secret.verified(joined.assignment, "generation", joined.generation))
            if joined.member_id not in {*assignment.nodes, *assignment.rejected}:
                what = "assignment of the managers' group"
                raise OffsetMgrError(what, f"does not name this manager, member {joined.member_id}")
        except OffsetMgrError as error:
            self._set_exclusion(f"this manager rejected the assignment of the group leader: {error}")
            self._drop(self._owned.keys())
            self._current, self._applied = None, -1
            self._on_peers({})
        else:
            why = assignment.rejected.get(joined.member_id)
            self._set_exclusion(why and f"the group leader assigns no shard groups to this manager: {why}")
            self._current = self._last_known = assignment
            self._on_peers({m: node for m, node in assignment.nodes.items() if m != joined.member_id})
            assigned = assignment.shard_groups_of(joined.member_id)
            to_revoke_now = assignment.to_revoke(joined.member_id)
            self._drop(self._owned.keys() - assigned - to_revoke_now)
            await asyncio.sleep(0)  # the runtime has now started to revoke the dropped shard groups
            if self._current is assignment:  # otherwise the membership ended during the sleep
                self._start_generation(assignment, assigned, to_revoke_now, joined.sent)
        if self._first_assignment is not None and not self._first_assignment.done():
            self._first_assignment.set_result(None)

    def _start_generation(
        self, assignment: Assignment, assigned: Set[int], to_revoke_now: Set[int], sent: float
    ) -> None:
        self._applied = assignment.generation
        for shard_group in assignment.unreleased & (assigned | to_revoke_now) - self._owned.keys():
            self._waiting_until[shard_group] = sent + TAKEOVER_WAIT_S
        for shard_group in sorted(assigned - self._owned.keys() - self._lost):
            self._owned[shard_group] = assignment.generation
            self._revocations.assign(
                shard_group,
                self._waiting_until.get(shard_group, float("-inf")),
                partial(self._owned.__contains__, shard_group),
            )
        if self._lost & assigned or to_revoke_now - self._owned.keys():
            self._rejoin_needed.set()  # this process owns fewer shard groups than the assignment says
        self._revoke_and_release(to_revoke_now & self._owned.keys())

    def _set_exclusion(self, why: str | None) -> None:
        """Records an exclusion, and logs it unless the caller of `start` reports it."""
        started = self._first_assignment is not None and self._first_assignment.done()
        if why is not None and why != self.exclusion_reason and started:
            _log.error("%s", why)
        self.exclusion_reason = why

    async def _wait_until_rejoin_needed(self) -> None:
        """Waits until the member has to rejoin."""
        await self._rejoin_needed.wait()
        # If this member rejoins after it has revoked its shard groups, one rebalance is enough instead of two. The wait
        # is limited, because the other members cannot complete their rebalance without this member.
        await self._revocations.wait(self._owned, self._max_revocation_wait_s)
        if not self._lost:
            return
        now = asyncio.get_running_loop().time()
        if now - self._last_loss > _LOSS_RESET_S:
            self._losses = 1
        self._last_loss = now
        if self._losses > 1:
            self._rejoin_needed.clear()
            # A rebalance ends the pause early. (`asyncio.wait_for` could lose the cancellation by `stop`.)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOSS_BACKOFF.pause_s(self._losses - 1)):
                    await self._rejoin_needed.wait()

    # --- the runtime ---------------------------------------------------------------------------------

    def _drop(self, shard_groups: Iterable[int]) -> None:
        """Drops shard groups that this process does not own any more: the next JoinGroup does not report them."""
        dropped = list(shard_groups)
        if dropped:
            _log.warning("dropping shard groups %s: the assignment does not include them", sorted(dropped))
        self._revocations.start(dropped)
        for shard_group in dropped:
            del self._owned[shard_group]

    def _revoke_and_release(self, shard_groups: Iterable[int]) -> None:
        """Revokes shard groups for which other members wait. Until such a shard group is revoked, the JoinGroups of
        this process report it as owned."""
        revoking = [shard_group for shard_group in shard_groups if shard_group not in self._revocations.running()]
        self._revocations.start(revoking)
        for shard_group in revoking:
            self._revocations.when_revoked(
                shard_group, partial(self._release_claim, shard_group, self._owned[shard_group])
            )

    def _release_claim(self, shard_group: int, since: int) -> None:
        if self._owned.get(shard_group) == since:
            del self._owned[shard_group]
        if not any(other in self._owned for other in self._revocations.running()):
            self._rejoin_needed.set()
