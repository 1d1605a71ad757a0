"""The evidence that a watched partition gives about the phase of its owner.

Pure. Every result has a confidence (data rule "verdicts carry evidence"): *seen* (observed commits prove it),
*inferred* (it follows from the stated numbers and a stated assumption) or *unknown* (in this case the result names a
remedy). An unknown result never passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.advice import Advice, for_command_line
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, Confidence, Phase, PhaseEvidence
from offsetmgr.core.model import Committed, GroupMember, TopicPartition
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.groups.last_writes import KnownWrite, last_writer
from offsetmgr.migration.location import GroupLocation, GroupSample, NextStep, StoreSample, infer_by_offsets
from offsetmgr.migration.observation import (
    GroupHistory,
    Observation,
    OffsetReadResult,
    PartitionHistory,
    RegisteredMember,
    at,
    clock_time,
    offset_or,
    reading_text,
)
from offsetmgr.stores.dual_policy import partitions_ahead


@dataclass(frozen=True, slots=True)
class EvidenceThresholds:
    """The kinds of evidence that the caller accepts in addition to observed commits.

    ``quiet_ms`` is the time without changes after which a partition counts as idle. With ``accept_idle``, partitions
    without traffic pass if the stores' offsets show that nothing can be lost. With ``accept_spare``, new members
    without partitions pass. With ``catch_up_later``, idle partitions whose ZooKeeper offset is below Kafka's pass the
    check of the dual phase, because the caller copies Kafka's offset to ZooKeeper before it checks the phase for the
    last time.

    >>> EvidenceThresholds(accept_idle=True, quiet_ms=60_000).accept_spare
    False
    """

    accept_idle: bool = False
    accept_spare: bool = False
    catch_up_later: bool = False
    quiet_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """The evidence about one partition's owner. ``remedy`` is what the operator can do if the partition does not pass.
    ``final`` is False if further observations may change the result."""

    partition: TopicPartition
    member: str | None
    ok: bool
    confidence: Confidence
    why: str
    remedy: str = ""
    final: bool = True
    zookeeper: int | None = None
    kafka: int | None = None
    log_end: int | None = None


_STOP_OTHER = "stop the other client, then check again"
_SEND_MESSAGE = "send a message to this partition: its commit shows the phase"


def assess_unowned(observation: Observation, tp: TopicPartition) -> PartitionEvidence:
    """Returns the evidence about a consumed partition that has no owner, or whose owner is changing."""
    why, remedy = "no owner, or the owner is changing", "wait until the group has rebalanced"
    offsets = _offset_or_none(observation.zookeeper.get(tp)), _offset_or_none(observation.kafka.get(tp))
    return PartitionEvidence(tp, None, False, Confidence.UNKNOWN, why, remedy, False, *offsets)


def _offset_or_none(reading: OffsetReadResult | None) -> int | None:
    return reading.offset if isinstance(reading, Committed) else None


_BEHAVIOUR: Final = {
    CommitMode.ZOOKEEPER: "commits to ZooKeeper alone",
    CommitMode.DUAL: "commits to both",
    CommitMode.KAFKA: "commits to Kafka alone",
}
"""The stores to which a member in each phase commits, as text."""


def _other_client(history: PartitionHistory) -> str:
    """Returns the proof that another client than the owner commits too; empty if there is none."""
    proof = history.zookeeper_alone if history.kafka.changes else None
    proof = proof or (history.kafka_alone if history.zookeeper.changes else None)
    return f"{proof}; then the other store changed too, so another client (a mirror?) writes there" if proof else ""


def behaviour_of(history: PartitionHistory) -> tuple[CommitMode, str] | None:
    """Returns the phase that the observed commits prove, with the proof; None if the commits prove no phase."""
    if history.zookeeper.changes and history.kafka.changes:
        return CommitMode.DUAL, f"Kafka {history.kafka.changes[-1]}; ZooKeeper {history.zookeeper.changes[-1]}"
    if history.zookeeper_alone:
        return CommitMode.ZOOKEEPER, history.zookeeper_alone
    if history.kafka_alone:
        return CommitMode.KAFKA, history.kafka_alone
    return None


def behaviour_behind(history: PartitionHistory) -> tuple[CommitMode, str] | None:
    """Returns the phase that is proved if only the store with the smaller offset changed; otherwise None. A dual member
    would have started from the larger offset. (A gate does not use this proof: the member repeats messages.)"""
    zookeeper, kafka = history.zookeeper, history.kafka
    if any(store.last is None or store.error or store.lowered for store in (zookeeper, kafka)):
        return None
    old = KnownWrite("ZooKeeper", offset_or(zookeeper.last), changed="; ".join(map(str, zookeeper.changes)))
    new = KnownWrite("Kafka", offset_or(kafka.last), changed="; ".join(map(str, kafka.changes)))
    if bool(old.changed) is bool(new.changed) or old.offset == new.offset:
        return None
    store, why, _ = last_writer(old, new, None)
    if store is old and old.offset < new.offset:  # Kafka was read after ZooKeeper
        return CommitMode.ZOOKEEPER, why
    read_since = store is new and kafka.changes[0].at_ms < history.until_ms
    return (CommitMode.KAFKA, why) if read_since and new.offset < old.offset else None


@dataclass(frozen=True, slots=True)
class _OwnerCheck:
    """The evidence for or against the assumption that a partition's owner is in ``phase``."""

    history: PartitionHistory
    phase: CommitMode
    rules: EvidenceThresholds

    def assess(self) -> PartitionEvidence:
        history = self.history
        for name, store in (("ZooKeeper", history.zookeeper), ("Kafka", history.kafka)):
            if store.error is not None:
                remedy = "make it readable (an unreadable offset never counts as absent)"
                return self._undecided(f"{name}'s offset cannot be read: {store.error}", remedy)
            if store.lowered is not None:
                why = f"{name} went backwards: {store.lowered}; no consumer does that, so another client writes there"
                return self._result(False, Confidence.UNKNOWN, why, _STOP_OTHER)
        if why := _other_client(history):
            return self._result(False, Confidence.UNKNOWN, why, _STOP_OTHER)
        if (behaviour := behaviour_of(history)) is not None:
            found, why = behaviour
            return self._result(found is self.phase, Confidence.SEEN, f"{_BEHAVIOUR[found]}: {why}")
        return self._unproven_dual() if self.phase is CommitMode.DUAL else self._unproven_alone()

    def _result(
        self, ok: bool, known: Confidence, why: str, remedy: str = "", *, final: bool = True
    ) -> PartitionEvidence:
        history = self.history
        offsets = _offset_or_none(history.zookeeper.last), _offset_or_none(history.kafka.last)
        end = None if history.log is None else history.log.end
        owned = (history.partition, history.owned.member)
        return PartitionEvidence(*owned, ok, known, why, remedy, final, *offsets, end)

    def _undecided(self, why: str, remedy: str) -> PartitionEvidence:
        """Returns the result if further observations may decide."""
        return self._result(False, Confidence.UNKNOWN, why, remedy, final=False)

    @property
    def _numbers(self) -> str:
        history = self.history
        end = "unknown" if history.log is None else str(history.log.end)
        offsets = f"ZooKeeper {reading_text(history.zookeeper.last)}, Kafka {reading_text(history.kafka.last)}"
        return f"{offsets}, log end {end}, no change for {history.unchanged_ms / 1000:.1f} s"

    def _check_idle(self) -> PartitionEvidence | None:
        """Returns None if the partition is idle. If the partition is not known to be idle, returns a result with the
        reason: the log end is unknown, messages are waiting, or an offset or the log end has changed during the last
        ``quiet_ms``."""
        lag = self.history.lag
        if lag is None:
            why = "the log's end cannot be read, so an idle partition cannot be distinguished from a stuck one"
            return self._undecided(f"{why}; {self._numbers}", "check the brokers of this partition")
        if lag > 0:
            why = f"{lag} messages are waiting and no commit was seen; {self._numbers}"
            longer = "use a {window} of at least three times auto.commit.interval.ms"
            return self._undecided(why, Advice(f"{longer}; if that does not help, the member is stuck"))
        if self.history.unchanged_ms < self.rules.quiet_ms:
            return self._undecided(f"idle for too short a time; {self._numbers}", _SEND_MESSAGE)
        return None

    def _assess_idle(self, *, safe: bool, because: str, unsafe: str) -> PartitionEvidence:
        """Returns the result for a partition without traffic. The partition passes only if the offsets show that
        nothing can be lost (``safe``), and if the caller accepts idle partitions.

        If ``safe`` is False, the result is not final, because the next automatic commit may change the offsets.
        """
        if not safe:
            return self._undecided(f"no traffic; {self._numbers}: {unsafe}", _SEND_MESSAGE)
        if not self.rules.accept_idle:
            remedy = Advice("{}; or pass {accept_idle}: {}", _SEND_MESSAGE, because)
            return self._result(False, Confidence.UNKNOWN, f"no traffic; {self._numbers}", remedy)
        return self._result(True, Confidence.INFERRED, f"no traffic, {because}; {self._numbers}")

    def _unproven_dual(self) -> PartitionEvidence:
        history, not_idle = self.history, self._check_idle()
        if fresh := history.new_kafka_changes:
            why = f"Kafka {fresh[-1]}, ZooKeeper still {reading_text(history.zookeeper.last)}"
            if not_idle is not None:
                return self._undecided(f"one store changed so far: {why}", "wait for the next commit")
            # The result is not final: if a dual member's write to ZooKeeper has failed, the member writes ZooKeeper
            # again with its next commit.
            why = f"commits to Kafka alone: {why}; {self._numbers}"
            return self._result(False, Confidence.INFERRED, why, final=False)
        if history.zookeeper.changes:
            why = f"ZooKeeper {history.zookeeper.changes[-1]}, Kafka {reading_text(history.kafka.last)} has not changed"
            return self._undecided(why, "wait for the next commit")
        if not_idle is not None:
            return not_idle
        zookeeper, kafka = offset_or(history.zookeeper.last), offset_or(history.kafka.last)
        if zookeeper < kafka and self.rules.catch_up_later:
            because = "ZooKeeper is behind and Kafka's offset will be copied there before the gate"
            return self._assess_idle(safe=True, because=because, unsafe="")
        unsafe = (
            "ZooKeeper is behind and will not catch up by itself, because a dual member starts from the larger offset, "
            "assumes that both stores have it, and does not write it again: copy Kafka's offset to ZooKeeper, as "
            "`runbook bounce` does before its gate"
            if zookeeper < kafka
            else "Kafka is behind, though a dual member commits idle partitions to Kafka at every interval"
        )
        return self._assess_idle(safe=zookeeper == kafka, because="both stores hold the same", unsafe=unsafe)

    def _unproven_alone(self) -> PartitionEvidence:
        """Returns the result for the phase kafka or zookeeper."""
        history, is_kafka = self.history, self.phase is CommitMode.KAFKA
        stores = {"Kafka": history.kafka, "ZooKeeper": history.zookeeper}
        (used, its), (other, theirs) = stores.items() if is_kafka else reversed(stores.items())
        if theirs.changes:
            why = f"still commits to {other} (dual, or not bounced): {theirs.changes[-1]}"
            return self._result(False, Confidence.SEEN, why)
        if not is_kafka and its.changes:
            begin = f"ZooKeeper {its.changes[-1]} is not beyond Kafka's {reading_text(theirs.last)}"
            why = f"{begin}: the member consumes again what the group has already consumed"
            return self._undecided(why, "wait until ZooKeeper has passed Kafka")
        not_idle = self._check_idle()
        if is_kafka and (fresh := history.new_kafka_changes):
            why = f"Kafka {fresh[-1]}, ZooKeeper still {reading_text(theirs.last)}"
            if not_idle is not None:
                remedy = "wait for one more commit: a dual member writes ZooKeeper after Kafka"
                return self._undecided(f"one commit seen: {why}", remedy)
            return self._result(True, Confidence.INFERRED, f"commits to Kafka alone: {why}; {self._numbers}")
        if not_idle is not None:
            return not_idle
        repeats = "alone repeats messages or uses auto.offset.reset"
        return self._assess_idle(
            safe=offset_or(its.last) >= offset_or(theirs.last),
            because=f"{used} holds all of the group's progress",
            unsafe=f"{used} is behind {other}: a member that reads {'Kafka' if is_kafka else 'it'} {repeats}",
        )


# Checks and infers the phase of a whole group from the evidence that the watched partitions give about each member.
# Pure. A group passes only if every live member is known to have been restarted and to commit where the phase
# requires.


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
    phase. ``final`` is False if further observations may change the result.

    ``seen`` is the phase that this check and the observed commits show; None if they show none. ``location`` is where
    the group is, and ``next`` is the next step there. The gate of a bounce has none of the three."""

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
    seen: PhaseEvidence | None = None
    location: GroupLocation | None = None
    next: NextStep | None = None

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

    @property
    def missing(self) -> str:
        """The evidence that a closed gate lacks, in one line."""
        lacks = list(self.problems)
        lacks += [f"{m.member}: {m.why}" for m in self.members if not m.ok]
        lacks += [f"{p.partition}: {p.why}" for p in self.partitions if not p.ok and p.member is None]
        if not lacks:
            return "no member was checked"
        return list_of(lacks, 3, "; ")

    @property
    def results(self) -> list[tuple[str, object, MemberEvidence | PartitionEvidence]]:
        """The result of each member and partition, after its kind and its name."""
        members = [("member", m.member, m) for m in self.members]
        return [*members, *(("partition", p.partition, p) for p in self.partitions)]

    def lines(self) -> list[str]:
        """Returns the lines of the report: the answer, the problems, then every result with its remedy."""
        seconds = (self.ended_ms - self.began_ms) / 1000
        lines = [
            f"phase {self.phase.value} of group {self.group}: {'PASSED' if self.passed else 'NOT PASSED'}"
            f" (watched for {seconds:.1f} s, {clock_time(self.began_ms)} to {clock_time(self.ended_ms)} UTC on"
            f" {at(self.ended_ms)[:10]})",
            *(f"problem: {p}" for p in self.problems),
            *(f"note: {n}" for n in self.notes),
        ]
        for _, name, one in sorted(self.results, key=lambda result: (result[0], result[2].ok)):
            lines.append(f"{'ok' if one.ok else 'NO':<3} {name} ({one.confidence.value}): {one.why}")
            if one.remedy:
                lines.append(f"      remedy: {for_command_line(one.remedy)}")
        if self.location is not None and self.next is not None:
            lines += [f"note: {for_command_line(note)}"] if (note := self.next.note) else []
            found = self.location.evidence.known_phase
            lines.append(f"group {self.group}: phase {found}; next: {self.next.text()}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON values. Unknown and absent offsets are null."""
        return {
            "group": self.group,
            "phase": self.phase.value,
            "passed": self.passed,
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
            "not_bounced": list(self.not_bounced),
            "problems": list(self.problems),
            "notes": list(self.notes),
            "members": [
                {"member": m.member, "host": m.host, **_result_json(m), "partitions": list(map(str, m.partitions))}
                for m in self.members
            ],
            "partitions": [
                {
                    "topic": p.partition.topic,
                    "partition": p.partition.partition,
                    "member": p.member,
                    **_result_json(p),
                    "zookeeper": p.zookeeper,
                    "kafka": p.kafka,
                    "log_end_offset": p.log_end,
                }
                for p in self.partitions
            ],
            **self._location_json(),
        }

    def _location_json(self) -> dict[str, Any]:
        if (found := self.location) is None or self.next is None:
            return {}
        evidence = {"phase": found.phase.value, "confidence": found.confidence.value, "evidence": found.why}
        return {"location": {**evidence, "next": self.next.to_json()}}


def _result_json(one: MemberEvidence | PartitionEvidence) -> dict[str, Any]:
    return {
        "ok": one.ok,
        "known": one.confidence.value,
        "why": one.why,
        "remedy": for_command_line(one.remedy),
    }


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
    problems = tuple(_problems(observation, scope, only is None))
    partitions = tuple(sorted((*owned_partitions, *unowned), key=lambda v: v.partition))
    is_complete = bool(members) and not problems
    results: list[PartitionEvidence | MemberEvidence] = [*partitions, *members]
    return PhaseReport(
        group=observation.group,
        phase=phase,
        passed=is_complete and all(one.ok for one in results),
        final=is_complete and all(one.final for one in results),
        began_ms=history.began_ms,
        ended_ms=observation.at_ms,
        members=members,
        partitions=partitions,
        problems=problems,
        notes=tuple(_notes(observation, baseline)),
    )


def _assess_either_phase(
    partition: PartitionHistory, phase: CommitMode, also: CommitMode | None, rules: EvidenceThresholds
) -> PartitionEvidence:
    result = _OwnerCheck(partition, phase, rules).assess()
    if result.ok or also is None:
        return result
    other = _OwnerCheck(partition, also, rules).assess()
    return other if other.ok or not other.final else result


def _problems(observation: Observation, scope: set[str], whole_group: bool) -> Iterator[str]:
    for node in observation.unreadable:
        yield f"ZooKeeper node {node} cannot be read: its content is unknown"
    if not observation.members:
        yield "no live member is registered, so the group's phase cannot be observed"
    for member in sorted({owner.member for owner in observation.owners.values()} - set(observation.members)):
        yield f"{member} owns partitions but is not registered: the group is still rebalancing"
    for member in () if whole_group else sorted(scope - set(observation.members)):
        yield f"{member} is no longer registered"


def _notes(observation: Observation, baseline: Observation | None) -> Iterator[str]:
    if baseline is None:
        yield "there is no baseline to compare member ids with, so only a member's commits show that it was restarted"
    if unconsumed := observation.unconsumed:
        named = list_of(unconsumed, 5)
        yield f"no live member subscribes to {named}: those offsets are not checked; `offsetmgr migrate` moves them"


# --- members -----------------------------------------------------------------------------------------


def _restart(member: RegisteredMember, baseline: Observation | None) -> tuple[bool | None, Confidence, str]:
    """Returns the evidence whether a member was restarted. The first value is None if only the member's commits can
    show this."""
    if baseline is None:
        return None, Confidence.UNKNOWN, "no baseline to compare its id with"
    before = baseline.members.get(member.id)
    if before is None:
        registered = f"(registered {at(member.registered_at_ms)})"
        return True, Confidence.SEEN, f"new since {at(baseline.at_ms)} {registered}"
    same = f"its id was registered at {at(baseline.at_ms)}"
    if member.host is not None:
        return False, Confidence.SEEN, f"{_NOT_BOUNCED}: {same}, and every start makes a new id"
    if before.czxid == member.czxid:
        return False, Confidence.SEEN, f"{_NOT_BOUNCED}: {same} (a configured consumer.id), in the same session"
    why = "it has registered again since, after a restart or after its session had expired"
    return None, Confidence.UNKNOWN, f"{same} (a configured consumer.id, so the id shows no restart); {why}"


def _assess_member(
    member: RegisteredMember,
    owned: list[PartitionEvidence],
    baseline: Observation | None,
    rules: EvidenceThresholds,
    steady_ms: int,
) -> MemberEvidence:
    is_restarted, known_by_id, restarted = _restart(member, baseline)
    tps = tuple(v.partition for v in owned)

    def result(
        ok: bool, known: Confidence, why: str, remedy: str = "", *, final: bool = True, wrong: bool = False
    ) -> MemberEvidence:
        return MemberEvidence(member.id, member.host, ok, known, why, remedy, final, wrong, tps)

    if is_restarted is False:
        return result(False, known_by_id, restarted, "restart it with the phase's settings", wrong=True)
    if not owned:
        # The rebalance that follows a registration may still assign partitions to this member.
        unchanged_for = f"no registration and no owner has changed for {steady_ms / 1000:.1f} s"
        why = f"{restarted}; it owns no partition, so its commits cannot be seen; {unchanged_for}"
        if not (rules.accept_spare and is_restarted):
            run = "run fewer members than partitions, or pass {accept_spare} (then its settings are not checked)"
            return result(False, Confidence.UNKNOWN, why, Advice(run), final=False)
        if steady_ms < rules.quiet_ms:
            return result(False, Confidence.UNKNOWN, why, "wait until the group has rebalanced", final=False)
        return result(True, Confidence.INFERRED, why)
    bad = [v for v in owned if not v.ok]
    if bad:
        worst = next((v for v in bad if v.confidence is Confidence.SEEN), bad[0])
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        wrong = any(v.confidence is not Confidence.UNKNOWN for v in bad)
        final = any(v.confidence is not Confidence.UNKNOWN and v.final for v in bad) or all(v.final for v in owned)
        why = f"{restarted}; {worst.partition}: {worst.why}{more}"
        remedy = worst.remedy or ("restart it with the phase's settings" if wrong else "")
        return result(False, worst.confidence, why, remedy, final=final, wrong=wrong)
    proven = [v for v in owned if v.confidence is Confidence.SEEN]
    if is_restarted is None and not proven:
        why = f"{restarted}; and none of its partitions has traffic"
        return result(False, Confidence.UNKNOWN, why, "send a message to one of its partitions")
    best = Confidence.SEEN if is_restarted and len(proven) == len(owned) else Confidence.INFERRED
    commits = f"commits of the phase seen on {len(proven)} of its {count_of(len(owned), 'partition')}"
    return result(True, best, f"{restarted}; {commits}")


# --- the phase of the group --------------------------------------------------------------------------


def infer_phase(history: GroupHistory) -> PhaseEvidence:
    """Infers the phase of a watched group from the observed commits. If the commits prove no phase, infers the phase
    from the offsets in both stores."""
    proven: dict[CommitMode, list[str]] = {}
    for tp, partition in sorted(history.partitions.items()):
        if why := _other_client(partition):
            return PhaseEvidence(Phase.UNKNOWN, Confidence.SEEN, f"{tp}: {why}")
        if (behaviour := behaviour_of(partition) or behaviour_behind(partition)) is not None:
            proven.setdefault(behaviour[0], []).append(f"{tp} ({partition.owned.member}): {behaviour[1]}")
    if len(proven) == 1:
        ((phase, whys),) = proven.items()
        return PhaseEvidence(
            Phase.of(phase),
            Confidence.SEEN,
            f"{_BEHAVIOUR[phase]}, seen on {count_of(len(whys), 'partition')}; {whys[0]}",
            frozenset(proven),
        )
    if proven:
        mixed = "; ".join(f"{phase.value}: {whys[0]}" for phase, whys in proven.items())
        return PhaseEvidence(
            Phase.UNKNOWN, Confidence.SEEN, f"members are in different phases: {mixed}", frozenset(proven)
        )
    return _phase_by_offsets(history)


def remedy_of(found: PhaseEvidence) -> str:
    """Returns what the operator can do if another client hides the phase; otherwise an empty text."""
    return _STOP_OTHER if found.confidence is Confidence.SEEN and not found.members else ""


def seen_phase(history: GroupHistory) -> PhaseEvidence | None:
    """Returns the phase that the observed commits prove; None if they prove no phase."""
    found = infer_phase(history)
    return found if found.confidence is Confidence.SEEN else None


def phase_of_group(history: GroupHistory, check: PhaseReport | None = None) -> PhaseEvidence:
    """Infers the phase as `infer_phase` does. A phase that the commits show for a part of the group is only inferred
    for the group. A passed ``check`` of the whole group shows its phase also without commits."""
    found = infer_phase(history)
    mode = found.phase.mode if found.confidence is Confidence.SEEN else None
    if check is not None and check.passed and check.phase is not mode:
        why = f"every member and partition passes the check: {check.results[0][2].why}"
        return PhaseEvidence(Phase.of(check.phase), Confidence.INFERRED, why)
    if mode is None:
        return found
    if check is None or check.phase is not mode:
        check = assess_phase(history, mode, rules=EvidenceThresholds(accept_idle=True))
    if check.passed:
        return found
    why = f"{found.why}; not known for the whole group: {check.missing}"
    return found._replace(confidence=Confidence.INFERRED, why=why)


def _phase_by_offsets(history: GroupHistory) -> PhaseEvidence:
    """Infers the phase from the offsets. Without a commit, it is unknown if both stores hold offsets: an offset that
    only one store has may be old, and a bounce would start from the phase."""
    seen = history.latest
    members = tuple(GroupMember(member) for member in seen.members)
    stores = StoreSample("zookeeper", "", seen.zookeeper, members), StoreSample("kafka", "", seen.kafka)
    found = infer_by_offsets(GroupSample(seen.group, stores))
    if found.phase is not Phase.UNKNOWN and all(store.committed for store in stores):
        why = "both stores hold offsets and no commit was seen in the window"
        return PhaseEvidence(Phase.UNKNOWN, Confidence.UNKNOWN, why)
    return found


# --- the change of a phase ---------------------------------------------------------------------------


def used_and_other_store(change: CommitModeChange) -> tuple[str, str]:
    """Returns the name of the store that the group uses before a change into dual, and the name of the other store."""
    return ("ZooKeeper", "Kafka") if change.start is CommitMode.ZOOKEEPER else ("Kafka", "ZooKeeper")


def jumps(change: CommitModeChange, history: GroupHistory) -> Mapping[TopicPartition, tuple[int | None, int]]:
    """Returns the partitions in which the unused store is ahead before a change into dual, with the offset of the used
    store and the larger one. Partitions whose owner commits to both stores are left out."""
    observation = history.latest
    if change.start is CommitMode.DUAL:
        return {}
    in_use, unused = observation.zookeeper, observation.kafka
    if change.start is CommitMode.KAFKA:
        in_use, unused = unused, in_use
    partitions = history.partitions
    compared = {
        tp: unused[tp]
        for tp in observation.partitions
        if tp in unused
        and (tp not in partitions or not (partitions[tp].zookeeper.changes and partitions[tp].kafka.changes))
    }
    return partitions_ahead(in_use, compared)
