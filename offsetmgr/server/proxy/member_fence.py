"""`MemberFence`: who may commit to which group, by what passed between clients and the real coordinator; pure.

The real coordinator C knows the members; this process M keeps the offsets.  Kafka's rule to be kept: *once any client
has been given generation g, no commit of an older generation, of a replaced member, or of no member at all takes
effect.*  A client that was given a generation fetches offsets next, and the fetched offset must not change afterwards.

M's guarantees.  While M owns a group's shard (one *tenure*), every JoinGroup of the group passes through M,
since its clients find no other coordinator; and C answers a request after it was sent.

Evidence.  C said "valid" (Heartbeat answered 0 or 27, SyncGroup answered 0) or "no members" (DescribeGroups) to a
request that M sent at time s.  It is used at a time u to accept a commit, in the same step in which the commit is
handed to the backend, and only if

1. M has owned the group since before s (same tenure), and no JoinGroup answer that ends earlier memberships has
   reached M between s and u (same *serial*): a newer generation, or one for a static member, whose predecessor is
   fenced without a new generation;
2. u - s is shorter than the session timeout, within which C throws no member out that it has just heard.

Commits between two steps.  Let C create generation g+1 and answer a JoinGroup with it:

- Before M reads that answer no client knows g+1; commits of g are accepted, as if they had come before it.
- When M reads it, `joined` drops all evidence, in one step: from now on g is refused (ILLEGAL_GENERATION).  A
  Heartbeat of g that is still on its way back may say "valid" and is not believed (the serial has changed).
- Then the relay waits until the commits begun before have ended (`Backend.await_commits`), asks once more whether M owns
  the group, and only then passes the answer on.  So a client that knows g+1 fetches after the last commit of g.  (After
  a commit that was answered as failed while the outcome was unknown: it may still take effect, before any later one.
  Its member was valid, and gets the same error as from Kafka.)
- If M has lost the group by then, the client gets NOT_COORDINATOR instead, knows no g+1, and joins again through
  the new owner.  If M is frozen between that question and the answer's way out, g+1 was C's generation before M
  lost the group: the new owner M' begins with no evidence, and to whatever it asks in its tenure C answers that g
  is over.
- A commit that M accepted by evidence of its own while it was already losing the group is fenced at the log.

The evidence of a Heartbeat.  A coordinator that is still loading its groups answers every Heartbeat 0 without looking,
and a broker that was frozen, and no longer coordinates the group, answers from outdated state.  So a Heartbeat only
*prolongs* what is known of a member, without a gap as long as a session.  It begins with a SyncGroup answered 0, which
C has written to its log, or a *proof* (see `proof`): DescribeGroups, which a loading coordinator refuses, then a
Heartbeat on the same connection, then another broker's word that C is still the coordinator.

Between a new generation and its first SyncGroup answered 0 its commits get REBALANCE_IN_PROGRESS, as from C itself:
until then C has not written the generation to its log.
"""

from __future__ import annotations

import itertools
from typing import Final

from offsetmgr.core.error_code import ErrorCode

FRESH_S: Final = 2.0
"""How long evidence of a member lasts: less than half of Kafka's shortest session (group.min.session.timeout.ms, 6 s);
half of the session if a shorter one is seen."""
EMPTY_S: Final = 1.0
"""How long "no members", or "members", is believed. Joins pass through the relay, so longer would be safe, but not for
clients that bypass it."""

_FIRST_SWEEP: Final = 10_000
_NEVER: Final = float("-inf")


class _Group:
    """The known facts about one group in one tenure."""

    __slots__ = ("empty", "fresh", "members", "newest", "occupied", "ownership_epoch", "serial", "syncing")

    def __init__(self, tenure: int, serial: int) -> None:
        self.ownership_epoch = tenure
        self.serial = serial
        self.newest: int | None = None
        self.syncing = False
        self.members: dict[str, float] = {}
        """When members of the newest generation were last confirmed."""
        self.empty = _NEVER
        self.occupied = _NEVER
        self.fresh = FRESH_S

    def prolongs(self, generation: int, member_id: str, sent: float) -> bool:
        return generation == self.newest and sent - self.members.get(member_id, _NEVER) < 2 * self.fresh

    def drop_evidence(self, serial: int) -> None:
        self.serial = serial
        self.members.clear()
        self.empty = self.occupied = _NEVER


class MemberFence:
    """See the module's docstring. Times are seconds of one clock that continues while the process is frozen."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._serials = itertools.count(1)
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._groups)

    # --- judgements ----------------------------------------------------------------------------------

    def check_commit(self, group: str, tenure: int, generation: int, member_id: str, now: float) -> int | None:
        """Judges a commit: 0 if it is allowed, an error code, or None: C must be asked."""
        known = self._groups.get(group)
        if known is None or known.ownership_epoch != tenure:
            return None
        if generation < 0:
            if now - known.empty < EMPTY_S:
                return 0
            return ErrorCode.UNKNOWN_MEMBER_ID if not member_id and now - known.occupied < EMPTY_S else None
        if known.newest is None or generation > known.newest:
            return None
        if generation < known.newest:
            return ErrorCode.ILLEGAL_GENERATION
        if known.syncing:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return 0 if now - known.members.get(member_id, _NEVER) < known.fresh else None

    def epoch(self, group: str, tenure: int) -> int:
        """Read it before C is asked, and pass it with C's answer."""
        return self._group(group, tenure).serial

    def prolongs(self, group: str, tenure: int, generation: int, member_id: str, sent: float) -> bool:
        """Whether a Heartbeat sent at that time is enough for this member; otherwise a proof is needed."""
        known = self._groups.get(group)
        return known is not None and known.ownership_epoch == tenure and known.prolongs(generation, member_id, sent)

    # --- observations --------------------------------------------------------------------------------

    def session(self, group: str, tenure: int, seconds: float) -> None:
        """A member joins with this session timeout."""
        known = self._group(group, tenure)
        known.fresh = min(known.fresh, max(seconds / 2, 0.0))

    def joined(self, group: str, tenure: int, generation: int, *, static: bool) -> None:
        """C answered a JoinGroup without error; call it before the response is passed on."""
        known = self._group(group, tenure)
        if known.newest is None or generation > known.newest:
            known.drop_evidence(next(self._serials))
            known.newest, known.syncing = generation, True
        elif static:
            known.drop_evidence(next(self._serials))

    def synced(self, group: str, tenure: int, serial: int, generation: int, member_id: str, sent: float) -> None:
        """C answered a SyncGroup without error."""
        known = self._groups.get(group)
        if known is not None and known.ownership_epoch == tenure and known.newest == generation:
            known.syncing = False
            if known.serial == serial:
                self._valid(known, member_id, sent)

    def observe(self, group: str, tenure: int, serial: int, generation: int, member_id: str, sent: float) -> None:
        """C answered a Heartbeat, of a client or of ours, with 0 or 27."""
        known = self._groups.get(group)
        current = known is not None and known.ownership_epoch == tenure and known.serial == serial
        if known is not None and current and known.prolongs(generation, member_id, sent):
            self._valid(known, member_id, sent)

    def left(self, group: str) -> None:
        """Members leave, or are removed, so all must be confirmed again. Called before the request is forwarded and
        after."""
        known = self._groups.get(group)
        if known is not None:
            known.drop_evidence(next(self._serials))

    # --- answers to our requests ---------------------------------------------------------------------

    def confirm(self, group: str, tenure: int, serial: int, generation: int, member_id: str, sent: float) -> bool:
        """A proof, begun at ``sent``, shows that a member is valid. Returns False if it is too late to count."""
        known = self._groups.get(group)
        if known is None or known.ownership_epoch != tenure or known.serial != serial:
            return False
        if known.newest is None or generation > known.newest:
            # Newer than the joins seen here: a client bypassed the relay, or joined in an earlier tenure.
            known.drop_evidence(next(self._serials))
            known.newest, known.syncing = generation, False
        if generation == known.newest:
            self._valid(known, member_id, sent)
        return True

    def described(self, group: str, tenure: int, serial: int, *, empty: bool, sent: float) -> bool:
        """A proof, begun at ``sent``, shows whether the group has members. Returns False if it is too late to count."""
        known = self._groups.get(group)
        if known is None or known.ownership_epoch != tenure or known.serial != serial:
            return False
        if empty:
            known.members.clear()
            known.empty, known.occupied = sent, _NEVER
        else:
            known.empty, known.occupied = _NEVER, sent
        return True

    # --- memory --------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Beyond a limit, forgets groups without fresh evidence: asking C again is always correct."""
        if len(self._groups) < self._sweep_at:
            return
        for name in [name for name, known in self._groups.items() if _stale(known, now)]:
            del self._groups[name]
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._groups))

    def _group(self, group: str, tenure: int) -> _Group:
        known = self._groups.get(group)
        if known is None or known.ownership_epoch != tenure:
            known = self._groups[group] = _Group(tenure, next(self._serials))
        return known

    @staticmethod
    def _valid(known: _Group, member_id: str, sent: float) -> None:
        known.members[member_id] = max(sent, known.members.get(member_id, _NEVER))
        known.empty = _NEVER


def _stale(known: _Group, now: float) -> bool:
    newest = max(known.empty, known.occupied, max(known.members.values(), default=_NEVER))
    return now - newest > 60.0
