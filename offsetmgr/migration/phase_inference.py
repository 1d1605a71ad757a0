"""Checks and infers the phase of a whole group from the evidence that the watched partitions give about each member.

Pure. A group passes only if every live member is known to have been restarted and to commit where the phase requires.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Absent, TopicPartition
from offsetmgr.core.phase import Confidence, Phase, PhaseEvidence
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.evidence import (
    EvidenceThresholds,
    PartitionEvidence,
    assess_owned,
    assess_unowned,
    behaviour_behind,
    behaviour_of,
    describe_behaviour,
)
from offsetmgr.migration.observation import Observation, RegisteredMember, at
from offsetmgr.migration.ownership_history import GroupHistory, PartitionHistory


@dataclass(frozen=True, slots=True)
class MemberEvidence:
    """The evidence about one member: whether it was restarted, and whether its commits fit the phase.

    ``remedy`` is what the operator can do if the member does not pass. ``final`` is False if further observations may
    change the result. ``wrong`` is True if the member is known to be in another phase, or not to have been restarted.
    """

    member: str
    host: str | None
    ok: bool
    confidence: Confidence
    why: str
    remedy: str = ""
    final: bool = True
    wrong: bool = False
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """The result of the phase check. ``passed`` is True only if every checked member and partition is known to fit the
    phase. ``final`` is False if further observations may change the result."""

    group: str
    phase: CommitMode
    passed: bool
    final: bool
    began_ms: int
    ended_ms: int
    members: tuple[MemberEvidence, ...]
    partitions: tuple[PartitionEvidence, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def not_bounced(self) -> tuple[str, ...]:
        """The members that were registered before the bounce and have not been restarted."""
        return tuple(m.member for m in self.members if m.wrong and m.why.startswith(_NOT_BOUNCED))

    @property
    def wrong(self) -> tuple[str, ...]:
        """The members that are known to be in another phase, or not to have been restarted."""
        return tuple(m.member for m in self.members if m.wrong)

    @property
    def cannot_pass(self) -> bool:
        """Whether the check can no longer pass, because the result of a ``wrong`` member is final."""
        return any(m.wrong and m.final for m in self.members)


_NOT_BOUNCED = "not bounced"


def assess_phase(
    history: GroupHistory,
    phase: CommitMode,
    *,
    baseline: Observation | None = None,
    rules: EvidenceThresholds | None = None,
    only: Iterable[str] | None = None,
    also: CommitMode | None = None,
) -> PhaseReport:
    """Checks a watched group against a phase.

    ``only`` limits the check to these members; the gate after one restart of a rolling bounce uses this limit. Without
    ``only``, every live member and every partition is checked. If ``also`` is given, members in the phase ``also`` pass
    too.
    """
    rules = rules or EvidenceThresholds()
    observation = history.latest
    if observation is None or history.began_ms is None:
        raise ValueError("nothing has been observed")
    scope = set(observation.members) if only is None else set(only)
    owned_partitions = tuple(
        _assess_either_phase(history.partitions[tp], phase, also, rules) for tp in sorted(history.partitions)
    )
    owned_partitions = tuple(v for v in owned_partitions if v.member in scope)
    members = tuple(
        _assess_member(
            observation.members[m], [v for v in owned_partitions if v.member == m], baseline, rules, history.steady_ms
        )
        for m in sorted(scope & set(observation.members))
    )
    unowned = tuple(assess_unowned(observation, tp) for tp in observation.partitions if tp not in observation.owners)
    problems = _problems(observation, scope, only is None)
    final = bool(members) and not problems
    final = final and all(v.final for v in (*owned_partitions, *unowned)) and all(m.final for m in members)
    return PhaseReport(
        group=observation.group,
        phase=phase,
        passed=bool(members)
        and not problems
        and all(v.ok for v in (*owned_partitions, *unowned))
        and all(m.ok for m in members),
        final=final,
        began_ms=history.began_ms,
        ended_ms=observation.at_ms,
        members=members,
        partitions=tuple(sorted((*owned_partitions, *unowned), key=lambda v: v.partition)),
        problems=problems,
        notes=_notes(observation, baseline),
    )


def _assess_either_phase(
    partition: PartitionHistory, phase: CommitMode, also: CommitMode | None, rules: EvidenceThresholds
) -> PartitionEvidence:
    result = assess_owned(partition, phase, rules)
    if result.ok or also is None:
        return result
    other = assess_owned(partition, also, rules)
    return other if other.ok or not other.final else result


def _problems(observation: Observation, scope: set[str], whole_group: bool) -> tuple[str, ...]:
    problems = [f"ZooKeeper node {node} cannot be read: its content is unknown" for node in observation.unreadable]
    if not observation.members:
        problems.append("no live member is registered, so the group's phase cannot be observed")
    foreign_owners = sorted({o.member for o in observation.owners.values()} - set(observation.members))
    problems += [f"{m} owns partitions but is not registered: the group is still rebalancing" for m in foreign_owners]
    if not whole_group:
        problems += [f"{m} is no longer registered" for m in sorted(scope - set(observation.members))]
    return tuple(problems)


def _notes(observation: Observation, baseline: Observation | None) -> tuple[str, ...]:
    notes = []
    if baseline is None:
        notes.append(
            "there is no baseline to compare member ids with, so only a member's commits show that it was restarted"
        )
    if observation.unconsumed:
        named = ", ".join(str(tp) for tp in observation.unconsumed[:5]) + (
            " ..." if len(observation.unconsumed) > 5 else ""
        )
        notes.append(
            f"no live member subscribes to {named}: those offsets are not checked; `offsetmgr migrate` moves them"
        )
    return tuple(notes)


# --- members -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Restart:
    """The evidence whether a member was restarted. ``ok`` is None if only the member's commits can show that the member
    was restarted."""

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
    same = f"its id was registered at {at(baseline.at_ms)}"
    if member.host is not None:
        return _Restart(False, Confidence.SEEN, f"{_NOT_BOUNCED}: {same}, and every start makes a new id")
    if before.czxid == member.czxid:
        return _Restart(
            False, Confidence.SEEN, f"{_NOT_BOUNCED}: {same} (a configured consumer.id), in the same session"
        )
    return _Restart(
        None,
        Confidence.UNKNOWN,
        f"{same} (a configured consumer.id, so the id shows no restart); it has registered again since, after a"
        " restart or after its session had expired",
    )


def _assess_member(
    member: RegisteredMember,
    owned: list[PartitionEvidence],
    baseline: Observation | None,
    rules: EvidenceThresholds,
    steady_ms: int,
) -> MemberEvidence:
    restart = _restart(member, baseline)
    tps = tuple(v.partition for v in owned)

    def result(
        ok: bool, known: Confidence, why: str, remedy: str = "", *, final: bool = True, wrong: bool = False
    ) -> MemberEvidence:
        return MemberEvidence(member.id, member.host, ok, known, why, remedy, final, wrong, tps)

    if restart.ok is False:
        return result(False, restart.confidence, restart.why, "restart it with the phase's settings", wrong=True)
    if not owned:
        # The rebalance that follows a registration may still assign partitions to this member.
        unchanged_for = f"no registration and no owner has changed for {steady_ms / 1000:.1f} s"
        if rules.accept_spare and restart.ok and steady_ms >= rules.quiet_ms:
            why = f"{restart.why}; it owns no partition, so its commits cannot be seen; {unchanged_for}"
            return result(True, Confidence.INFERRED, why)
        remedy = "run fewer members than partitions, or pass --accept-spare (then its settings are not checked)"
        if rules.accept_spare and restart.ok:
            remedy = "wait until the group has rebalanced"
        why = f"{restart.why}; it owns no partition, so its commits cannot be seen; {unchanged_for}"
        return result(False, Confidence.UNKNOWN, why, remedy, final=False)
    bad = [v for v in owned if not v.ok]
    if bad:
        worst = next((v for v in bad if v.confidence is Confidence.SEEN), bad[0])
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        wrong = any(v.confidence is not Confidence.UNKNOWN for v in bad)
        final = any(v.confidence is not Confidence.UNKNOWN and v.final for v in bad) or all(v.final for v in owned)
        why = f"{restart.why}; {worst.partition}: {worst.why}{more}"
        remedy = worst.remedy or ("restart it with the phase's settings" if wrong else "")
        return result(False, worst.confidence, why, remedy, final=final, wrong=wrong)
    proven = [v for v in owned if v.confidence is Confidence.SEEN]
    if restart.ok is None and not proven:
        why = f"{restart.why}; and none of its partitions has traffic"
        return result(False, Confidence.UNKNOWN, why, "send a message to one of its partitions")
    best = Confidence.SEEN if restart.ok and len(proven) == len(owned) else Confidence.INFERRED
    commits = f"commits of the phase seen on {len(proven)} of its {count_of(len(owned), 'partition')}"
    return result(True, best, f"{restart.why}; {commits}")


# --- the phase of the group --------------------------------------------------------------------------


def infer_phase(history: GroupHistory) -> PhaseEvidence:
    """Infers the phase of a watched group from the observed commits. If the commits prove no phase, infers the phase
    from the offsets in both stores."""
    proven: dict[CommitMode, list[str]] = {}
    for tp, partition in sorted(history.partitions.items()):
        if (behaviour := behaviour_of(partition) or behaviour_behind(partition)) is not None:
            proven.setdefault(behaviour[0], []).append(f"{tp} ({partition.owned.member}): {behaviour[1]}")
    if len(proven) == 1:
        ((phase, whys),) = proven.items()
        return PhaseEvidence(
            Phase.of(phase),
            Confidence.SEEN,
            f"{describe_behaviour(phase)}, seen on {count_of(len(whys), 'partition')}; {whys[0]}",
            frozenset(proven),
        )
    if proven:
        mixed = "; ".join(f"{phase.value}: {whys[0]}" for phase, whys in proven.items())
        return PhaseEvidence(
            Phase.UNKNOWN, Confidence.SEEN, f"members are in different phases: {mixed}", frozenset(proven)
        )
    return _phase_by_offsets(history)


def _phase_by_offsets(history: GroupHistory) -> PhaseEvidence:
    observation = history.latest
    if observation is None:
        raise ValueError("nothing has been observed")
    every = sorted({*observation.zookeeper, *observation.kafka})
    unreadable = [tp for tp in every if isinstance(observation.zookeeper.get(tp), OffsetMgrError | None)]
    unreadable += [tp for tp in every if isinstance(observation.kafka.get(tp), OffsetMgrError | None)]
    if unreadable:
        return PhaseEvidence(Phase.UNKNOWN, Confidence.UNKNOWN, f"the offset of {unreadable[0]} cannot be read")
    in_zookeeper = [tp for tp in every if not isinstance(observation.zookeeper[tp], Absent)]
    in_kafka = [tp for tp in every if not isinstance(observation.kafka[tp], Absent)]
    if in_zookeeper and not in_kafka:
        return PhaseEvidence(
            Phase.ZOOKEEPER,
            Confidence.INFERRED,
            f"{count_of(len(in_zookeeper), 'offset')} in ZooKeeper and none in Kafka",
        )
    if in_kafka and not in_zookeeper:
        return PhaseEvidence(
            Phase.KAFKA, Confidence.INFERRED, f"{count_of(len(in_kafka), 'offset')} in Kafka and none in ZooKeeper"
        )
    if not every or not in_zookeeper:
        return PhaseEvidence(
            Phase.UNKNOWN, Confidence.UNKNOWN, "the group has no offsets in either store, and no commit was seen"
        )
    return PhaseEvidence(
        Phase.UNKNOWN, Confidence.UNKNOWN, "both stores hold offsets and no commit was seen in the window"
    )
