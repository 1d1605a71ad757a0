"""`MemberFence`: decides which commits come from current members. The decision is based on the real coordinator's
responses. Pure.

The real coordinator C manages the members; this manager M stores the offsets. The fence keeps Kafka's guarantee: *once
any client has received generation g, no commit of an older generation, of a replaced member, or without a member takes
effect.* A client that has received a generation fetches the offsets next; after that fetch, members of older
generations must not change the offsets.

Assumptions. While M owns a group's shard (one *ownership epoch*), every JoinGroup of the group passes through M,
because the group's clients find no other coordinator. A response of C reflects C's state at a time after M sent the
request.

Evidence. C has answered "valid" (Heartbeat with NONE or REBALANCE_IN_PROGRESS, SyncGroup with NONE) or "no members"
(DescribeGroups) to a request that M sent at time s. At a time u, M accepts a commit on this evidence only if the two
conditions below are met. M checks them in the same step in which it passes the commit to the backend.

1. M has owned the group since before s (the same ownership epoch), and between s and u M has received no JoinGroup
   response that ends earlier memberships (the same *evidence epoch*). A JoinGroup response ends earlier memberships in
   two cases: if it contains a newer generation, and if it is for a static member. The second case is necessary because
   C fences the predecessor of a static member without a new generation.
2. u - s is shorter than the session timeout: C does not remove a member within the session timeout after a response to
   that member.

Commits during a rebalance. Let C create generation g+1 and answer a JoinGroup with it:

- Before M reads that response, no client knows g+1. During this time M still accepts commits of g, as if these commits
  had arrived before C created g+1.
- When M reads the JoinGroup response, `on_join_response` drops all evidence in one step: from now on M rejects commits
  of g with ILLEGAL_GENERATION. If a Heartbeat of g is still in flight, a response "valid" to this Heartbeat no longer
  counts as evidence, because the evidence epoch has changed.
- The relay then waits until all commits that have already started have ended (`Backend.wait_for_commits`). After this
  wait, the relay checks again whether M owns the group. If M owns the group, the relay passes the JoinGroup response to
  the client. Therefore the last commit of g has ended before any client that knows g+1 fetches the offsets. (Exception:
  a commit that failed with an unknown outcome may still take effect, but only before all later commits. The member that
  sent this commit was valid, and gets the same error as it would get from Kafka.)
- If this check shows that M has lost the group, the client gets NOT_COORDINATOR instead of the JoinGroup response. The
  client does not know g+1, and joins again through the new owner M'. If M freezes after the check and before it sends
  the response, C has created g+1 before M loses the group. The new owner M' starts without evidence, and C answers all
  requests of M' about g with the error that g has ended.
- If M accepts a commit on its own evidence while M is losing the group, the write of that commit to the log fails,
  because M has been fenced.

Heartbeats as evidence. A coordinator that is still loading its groups answers every Heartbeat with NONE, without a
check. A broker that was frozen, and is no longer the group's coordinator, answers from outdated state. So a Heartbeat
only *prolongs* existing evidence about a member, and only if that evidence is more recent than a session timeout. The
first evidence about a member must be of one of two kinds. It may be C's response NONE to a SyncGroup, because C sends
this response only after it has written the generation to its log. Otherwise it must be a *proof*
(`Coordinators.prove_member`). A proof consists of DescribeGroups, which a loading coordinator rejects; then a Heartbeat
on the same connection; then another broker's confirmation that C is still the coordinator.

Until C has answered a SyncGroup of a new generation with NONE, M rejects the commits of that generation with
REBALANCE_IN_PROGRESS, as C itself would: C has not yet written the generation to its log.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.errors import ErrorCode

EVIDENCE_LIFETIME_S: Final = 2.0
"""How long evidence about a member is valid. The value is less than half of the default of group.min.session.timeout.ms
(6 s). If a member joins with a shorter session timeout, the group's evidence is valid for at most half of that
timeout."""
EMPTY_GROUP_LIFETIME_S: Final = 1.0
"""How long evidence about whether the group has members is valid. A longer time would be safe for clients of the relay,
but not for clients that bypass the relay."""

_MIN_GROUPS_TO_SWEEP: Final = 10_000
_NEVER: Final = float("-inf")


@dataclass(slots=True, eq=False)
class _GroupEvidence:
    """The evidence about one group in one ownership epoch."""

    ownership_epoch: int
    evidence_epoch: int
    latest_generation: int | None = None
    syncing: bool = False
    members: dict[str, float] = field(default_factory=dict)
    """When each member of the latest generation was last confirmed."""
    empty_at: float = _NEVER
    occupied_at: float = _NEVER
    evidence_lifetime_s: float = EVIDENCE_LIFETIME_S

    def heartbeat_suffices(self, generation: int, member_id: str, sent: float) -> bool:
        return (
            generation == self.latest_generation
            and sent - self.members.get(member_id, _NEVER) < 2 * self.evidence_lifetime_s
        )

    def drop_evidence(self, evidence_epoch: int) -> None:
        self.evidence_epoch = evidence_epoch
        self.members.clear()
        self.empty_at = self.occupied_at = _NEVER


class MemberFence:
    """The evidence about all groups. Times are in seconds, by a clock that also runs while the process is frozen."""

    def __init__(self) -> None:
        self._groups: dict[str, _GroupEvidence] = {}
        self._evidence_epochs = itertools.count(1)
        self._sweep_size = _MIN_GROUPS_TO_SWEEP

    def __len__(self) -> int:
        return len(self._groups)

    # --- decisions -----------------------------------------------------------------------------------

    def check_commit(self, group: str, ownership_epoch: int, generation: int, member_id: str, now: float) -> int | None:
        """Returns 0 (`ErrorCode.NONE`) if the commit is allowed. Returns the error code for the client if the commit is
        not allowed. Returns None if C must be asked first."""
        known = self._current(group, ownership_epoch)
        if known is None:
            return None
        if generation < 0:
            if now - known.empty_at < EMPTY_GROUP_LIFETIME_S:
                return 0
            occupied = now - known.occupied_at < EMPTY_GROUP_LIFETIME_S
            return ErrorCode.UNKNOWN_MEMBER_ID if occupied and not member_id else None
        if known.latest_generation is None or generation > known.latest_generation:
            return None
        if generation < known.latest_generation:
            return ErrorCode.ILLEGAL_GENERATION
        if known.syncing:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return 0 if now - known.members.get(member_id, _NEVER) < known.evidence_lifetime_s else None

    def evidence_epoch(self, group: str, ownership_epoch: int) -> int:
        """Returns the group's evidence epoch. Callers must read the evidence epoch before they send a request to C.
        They pass this value to the method that records C's response."""
        return self._group(group, ownership_epoch).evidence_epoch

    def heartbeat_suffices(
        self, group: str, ownership_epoch: int, generation: int, member_id: str, sent: float
    ) -> bool:
        """Whether a Heartbeat that is sent at ``sent`` is sufficient evidence for this member; otherwise a proof is
        needed."""
        known = self._current(group, ownership_epoch)
        return known is not None and known.heartbeat_suffices(generation, member_id, sent)

    # --- forwarded requests and responses ------------------------------------------------------------

    def on_join_request(self, group: str, ownership_epoch: int, seconds: float) -> None:
        """Records a member's session timeout, in seconds."""
        known = self._group(group, ownership_epoch)
        known.evidence_lifetime_s = min(known.evidence_lifetime_s, max(seconds / 2, 0.0))

    def on_join_response(self, group: str, ownership_epoch: int, generation: int, *, static: bool) -> None:
        """Records a successful JoinGroup response. Call this method before the response is passed to the client."""
        known = self._group(group, ownership_epoch)
        if known.latest_generation is None or generation > known.latest_generation:
            known.drop_evidence(next(self._evidence_epochs))
            known.latest_generation, known.syncing = generation, True
        elif static:
            known.drop_evidence(next(self._evidence_epochs))

    def on_sync_response(
        self, group: str, ownership_epoch: int, evidence_epoch: int, generation: int, member_id: str, sent: float
    ) -> None:
        """Records a successful SyncGroup response."""
        known = self._current(group, ownership_epoch)
        if known is not None and known.latest_generation == generation:
            known.syncing = False
            if known.evidence_epoch == evidence_epoch:
                self._confirm(known, member_id, sent)

    def on_heartbeat_response(
        self, group: str, ownership_epoch: int, evidence_epoch: int, generation: int, member_id: str, sent: float
    ) -> None:
        """Records C's response NONE or REBALANCE_IN_PROGRESS to a Heartbeat. The Heartbeat was sent by a client or by
        the manager itself."""
        known = self._current(group, ownership_epoch, evidence_epoch)
        if known is not None and known.heartbeat_suffices(generation, member_id, sent):
            self._confirm(known, member_id, sent)

    def on_leave(self, group: str) -> None:
        """Drops the evidence about all members of the group, because some of them leave or are removed. For a
        LeaveGroup, call this method before the request is forwarded, and again after C has responded."""
        known = self._groups.get(group)
        if known is not None:
            known.drop_evidence(next(self._evidence_epochs))

    # --- responses to the manager's requests ---------------------------------------------------------

    def on_member_proof(
        self, group: str, ownership_epoch: int, evidence_epoch: int, generation: int, member_id: str, sent: float
    ) -> None:
        """Records that a member is valid, according to a proof that started at ``sent``, unless the proof is
        outdated."""
        known = self._current(group, ownership_epoch, evidence_epoch)
        if known is None:
            return
        if known.latest_generation is None or generation > known.latest_generation:
            # This manager has not forwarded the JoinGroup of that generation: the member bypassed the relay, or joined
            # in an earlier ownership epoch.
            known.drop_evidence(next(self._evidence_epochs))
            known.latest_generation, known.syncing = generation, False
        if generation == known.latest_generation:
            self._confirm(known, member_id, sent)

    def on_group_proof(
        self, group: str, ownership_epoch: int, evidence_epoch: int, *, empty: bool, sent: float
    ) -> None:
        """Records whether the group has members, according to a proof that started at ``sent``, unless the proof is
        outdated."""
        known = self._current(group, ownership_epoch, evidence_epoch)
        if known is None:
            return
        if empty:
            known.members.clear()
            known.empty_at, known.occupied_at = sent, _NEVER
        else:
            known.empty_at, known.occupied_at = _NEVER, sent

    # --- memory --------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """If there is evidence about many groups, removes the groups whose evidence is old. This is safe, because C is
        asked again at the next commit of a removed group."""
        if len(self._groups) < self._sweep_size:
            return
        for name in [name for name, known in self._groups.items() if _is_stale(known, now)]:
            del self._groups[name]
        self._sweep_size = max(_MIN_GROUPS_TO_SWEEP, 2 * len(self._groups))

    def _current(self, group: str, ownership_epoch: int, evidence_epoch: int | None = None) -> _GroupEvidence | None:
        """Returns the evidence about a group; None if it is of another ownership epoch, or of another evidence epoch
        than ``evidence_epoch``."""
        known = self._groups.get(group)
        if known is None or known.ownership_epoch != ownership_epoch:
            return None
        return known if evidence_epoch in (None, known.evidence_epoch) else None

    def _group(self, group: str, ownership_epoch: int) -> _GroupEvidence:
        known = self._current(group, ownership_epoch)
        if known is None:
            known = self._groups[group] = _GroupEvidence(ownership_epoch, next(self._evidence_epochs))
        return known

    @staticmethod
    def _confirm(known: _GroupEvidence, member_id: str, sent: float) -> None:
        known.members[member_id] = max(sent, known.members.get(member_id, _NEVER))
        known.empty_at = _NEVER


def _is_stale(known: _GroupEvidence, now: float) -> bool:
    latest = max(known.empty_at, known.occupied_at, max(known.members.values(), default=_NEVER))
    return now - latest > 60.0
