"""The phase check of a whole group: what its watched partitions show about each member, and about all.

Pure. A group passes only if every live member is known to have been restarted and to commit where the phase requires.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Absent, TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.evidence import (
    Confidence,
    EvidenceThresholds,
    PartitionEvidence,
    behaviour_of,
    describe_behaviour,
    judge_owned,
    judge_unowned,
)
from offsetmgr.migration.group_snapshot import Observation, RegisteredMember, at
from offsetmgr.migration.ownership_history import GroupHistory, PartitionHistory


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    """The evidence about one member: whether it was restarted, and whether its commits fit the phase.

    ``settled`` False: further observations may change it. ``wrong``: it is known to be in another phase, or not to have
    been restarted.
    """

    member: str
    host: str | None
    ok: bool
    confidence: Confidence
    why: str
    settle: str = ""
    settled: bool = True
    wrong: bool = False
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """The result of the phase check. ``passed`` only if every member and partition in scope is known to fit."""

    group: str
    phase: CommitMode
    passed: bool
    settled: bool
    began_ms: int
    ended_ms: int
    members: tuple[MemberVerdict, ...]
    partitions: tuple[PartitionEvidence, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def not_bounced(self) -> tuple[str, ...]:
        """Returns the members of the start of the bounce that are still there."""
        return tuple(m.member for m in self.members if m.wrong and m.why.startswith(_NOT_BOUNCED))

    @property
    def wrong(self) -> tuple[str, ...]:
        """Returns the members that are known to be in another phase, or not to have been restarted."""
        return tuple(m.member for m in self.members if m.wrong)

    @property
    def hopeless(self) -> bool:
        """Returns whether a member is wrong in a way that further observations cannot change."""
        return any(m.wrong and m.settled for m in self.members)


_NOT_BOUNCED = "not bounced"


def assess_phase(
    watch: GroupHistory,
    phase: CommitMode,
    *,
    baseline: Observation | None = None,
    rules: EvidenceThresholds | None = None,
    only: Iterable[str] | None = None,
    also: CommitMode | None = None,
) -> PhaseReport:
    """Checks a watched group against a phase.

    ``only`` restricts the check to these members (the gate of one step of a rolling bounce); without it every live
    member and every partition counts. ``also`` is a second accepted phase: members may be in either.
    """
    rules = rules or EvidenceThresholds()
    seen = watch.latest
    if seen is None or watch.began_ms is None:
        raise ValueError("nothing has been observed")
    scope = set(seen.members) if only is None else set(only)
    parts = tuple(_judge_either(watch.tracks[tp], phase, also, rules) for tp in sorted(watch.tracks))
    parts = tuple(v for v in parts if v.member in scope)
    members = tuple(
        _judge_member(seen.members[m], [v for v in parts if v.member == m], baseline, rules, watch.steady_ms)
        for m in sorted(scope & set(seen.members))
    )
    unowned = tuple(judge_unowned(seen, tp) for tp in seen.partitions if tp not in seen.owners)
    problems = _problems(seen, scope, only is None)
    settled = bool(members) and not problems
    settled = settled and all(v.settled for v in (*parts, *unowned)) and all(m.settled for m in members)
    return PhaseReport(
        group=seen.group,
        phase=phase,
        passed=bool(members) and not problems and all(v.ok for v in (*parts, *unowned)) and all(m.ok for m in members),
        settled=settled,
        began_ms=watch.began_ms,
        ended_ms=seen.at_ms,
        members=members,
        partitions=tuple(sorted((*parts, *unowned), key=lambda v: v.partition)),
        problems=problems,
        notes=_notes(seen, baseline),
    )


def _judge_either(
    track: PartitionHistory, phase: CommitMode, also: CommitMode | None, rules: EvidenceThresholds
) -> PartitionEvidence:
    verdict = judge_owned(track, phase, rules)
    if verdict.ok or also is None:
        return verdict
    other = judge_owned(track, also, rules)
    return other if other.ok or not other.settled else verdict


def _problems(seen: Observation, scope: set[str], whole_group: bool) -> tuple[str, ...]:
    problems = [f"ZooKeeper node {node} cannot be read: its content is unknown" for node in seen.unreadable]
    if not seen.members:
        problems.append("no live member is registered: nothing can be seen of the group's phase")
    foreign_owners = sorted({o.member for o in seen.owners.values()} - set(seen.members))
    problems += [f"{m} owns partitions but is not registered: the group is still rebalancing" for m in foreign_owners]
    if not whole_group:
        problems += [f"{m} is no longer registered" for m in sorted(scope - set(seen.members))]
    return tuple(problems)


def _notes(seen: Observation, baseline: Observation | None) -> tuple[str, ...]:
    notes = []
    if baseline is None:
        notes.append("without a baseline no id can be compared: a member counts as restarted only by its commits")
    if seen.unconsumed:
        named = ", ".join(str(tp) for tp in seen.unconsumed[:5]) + (" ..." if len(seen.unconsumed) > 5 else "")
        notes.append(f"no live member subscribes to {named}: those offsets are not judged and move with `migrate`")
    return tuple(notes)


# --- members -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Restart:
    """Whether a member is a new process: ``ok`` is None if only its commits can show it."""

    ok: bool | None
    confidence: Confidence
    why: str


def _restart(member: RegisteredMember, baseline: Observation | None) -> _Restart:
    if baseline is None:
        return _Restart(None, Confidence.UNKNOWN, "no baseline to compare its id with")
    before = baseline.members.get(member.id)
    if before is None:
        return _Restart(
            True, Confidence.SEEN, f"new since {at(baseline.at_ms)} (registered {at(member.registered_at_ms)})"
        )
    same = f"its id was there at {at(baseline.at_ms)}"
    if member.host is not None:
        return _Restart(False, Confidence.SEEN, f"{_NOT_BOUNCED}: {same}, and every start makes a new id")
    if before.czxid == member.czxid:
        return _Restart(
            False, Confidence.SEEN, f"{_NOT_BOUNCED}: {same} (a configured consumer.id), in the same session"
        )
    return _Restart(
        None,
        Confidence.UNKNOWN,
        f"{same} (a configured consumer.id, so it reveals nothing); it registered again since, which a restart"
        " does, and an expired session too",
    )


def _judge_member(
    member: RegisteredMember,
    owned: list[PartitionEvidence],
    baseline: Observation | None,
    rules: EvidenceThresholds,
    steady_ms: int,
) -> MemberVerdict:
    restart = _restart(member, baseline)
    tps = tuple(v.partition for v in owned)

    def verdict(
        ok: bool, known: Confidence, why: str, settle: str = "", *, settled: bool = True, wrong: bool = False
    ) -> MemberVerdict:
        return MemberVerdict(member.id, member.host, ok, known, why, settle, settled, wrong, tps)

    if restart.ok is False:
        return verdict(False, restart.confidence, restart.why, "restart it with the phase's settings", wrong=True)
    if not owned:
        # A rebalance may still give it partitions, because owners follow registrations.
        for_so_long = f"no registration and no owner has changed for {steady_ms / 1000:.1f} s"
        if rules.accept_spare and restart.ok and steady_ms >= rules.quiet_ms:
            why = f"{restart.why}; it owns no partition, so its commits cannot be seen; {for_so_long}"
            return verdict(True, Confidence.INFERRED, why)
        settle = "run fewer members than partitions, or pass --accept-spare (its settings are then taken on trust)"
        if rules.accept_spare and restart.ok:
            settle = "wait until the group has rebalanced"
        why = f"{restart.why}; it owns no partition, so nothing can be seen of its commits; {for_so_long}"
        return verdict(False, Confidence.UNKNOWN, why, settle, settled=False)
    bad = [v for v in owned if not v.ok]
    if bad:
        worst = next((v for v in bad if v.confidence is Confidence.SEEN), bad[0])
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        wrong = any(v.confidence is not Confidence.UNKNOWN for v in bad)
        settled = any(v.confidence is not Confidence.UNKNOWN and v.settled for v in bad) or all(
            v.settled for v in owned
        )
        why = f"{restart.why}; {worst.partition}: {worst.why}{more}"
        settle = worst.settle or ("restart it with the phase's settings" if wrong else "")
        return verdict(False, worst.confidence, why, settle, settled=settled, wrong=wrong)
    witnessed = [v for v in owned if v.confidence is Confidence.SEEN]
    if restart.ok is None and not witnessed:
        why = f"{restart.why}; and none of its partitions has traffic"
        return verdict(False, Confidence.UNKNOWN, why, "send a message to one of its partitions")
    best = Confidence.SEEN if restart.ok and len(witnessed) == len(owned) else Confidence.INFERRED
    commits = f"commits of the phase seen on {len(witnessed)} of its {count_of(len(owned), 'partition')}"
    return verdict(True, best, f"{restart.why}; {commits}")


# --- the phase of the group --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InferredPhase:
    """The inferred phase of a group; ``phase`` is None if the evidence is not sufficient, or members differ.

    ``members`` are the phases of single members.
    """

    phase: CommitMode | None
    confidence: Confidence
    why: str
    members: frozenset[CommitMode] = frozenset()


def infer_phase(watch: GroupHistory) -> InferredPhase:
    """Infers the phase of a watched group from observed commits, else from the stores' offsets."""
    proven: dict[CommitMode, list[str]] = {}
    for tp, track in sorted(watch.tracks.items()):
        if (behaviour := behaviour_of(track)) is not None:
            proven.setdefault(behaviour[0], []).append(f"{tp} ({track.owned.member}): {behaviour[1]}")
    if len(proven) == 1:
        ((phase, whys),) = proven.items()
        return InferredPhase(
            phase,
            Confidence.SEEN,
            f"{describe_behaviour(phase)}, seen on {count_of(len(whys), 'partition')}; {whys[0]}",
            frozenset(proven),
        )
    if proven:
        mixed = "; ".join(f"{phase.value}: {whys[0]}" for phase, whys in proven.items())
        return InferredPhase(None, Confidence.SEEN, f"members are in different phases: {mixed}", frozenset(proven))
    return _phase_by_offsets(watch)


def _phase_by_offsets(watch: GroupHistory) -> InferredPhase:
    seen = watch.latest
    if seen is None:
        raise ValueError("nothing has been observed")
    every = sorted({*seen.zookeeper, *seen.kafka})
    unreadable = [tp for tp in every if isinstance(seen.zookeeper.get(tp), OffsetMgrError | None)]
    unreadable += [tp for tp in every if isinstance(seen.kafka.get(tp), OffsetMgrError | None)]
    if unreadable:
        return InferredPhase(None, Confidence.UNKNOWN, f"the offset of {unreadable[0]} cannot be read")
    here = [tp for tp in every if not isinstance(seen.zookeeper[tp], Absent)]
    there = [tp for tp in every if not isinstance(seen.kafka[tp], Absent)]
    if here and not there:
        return InferredPhase(
            CommitMode.ZOOKEEPER, Confidence.INFERRED, f"{count_of(len(here), 'offset')} in ZooKeeper and none in Kafka"
        )
    if there and not here:
        return InferredPhase(
            CommitMode.KAFKA, Confidence.INFERRED, f"{count_of(len(there), 'offset')} in Kafka and none in ZooKeeper"
        )
    if not every or not here:
        return InferredPhase(
            None, Confidence.UNKNOWN, "the group has no offsets in either store, and no commit was seen"
        )
    return InferredPhase(None, Confidence.UNKNOWN, "both stores hold offsets and no commit was seen in the window")
