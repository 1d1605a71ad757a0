"""The evidence of a watched partition about the phase of its owner.

Pure. Every result has a confidence (data rule "verdicts carry evidence"): *seen* (observed commits prove it),
*inferred* (it follows from given numbers under a stated assumption) or *unknown* (with what would resolve it). Unknown
never passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.model import TopicPartition
from offsetmgr.migration.group_snapshot import Observation, reading_text
from offsetmgr.migration.ownership_history import PartitionHistory, offset_or


class Confidence(Enum):
    """How a result is known."""

    SEEN = "seen"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EvidenceThresholds:
    """Evidence that the caller accepts besides observed commits.

    ``unchanged_ms``: the time without changes after which a partition counts as idle. ``accept_idle``: partitions without
    traffic pass if the stores show that nothing can be lost. ``accept_spare``: new members without partitions pass.
    ``catch_up_later``: idle partitions whose ZooKeeper offset is behind pass the dual phase, because the caller copies
    Kafka's offset before the gate that counts.
    """

    accept_idle: bool = False
    accept_spare: bool = False
    catch_up_later: bool = False
    quiet_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """The evidence about one partition's owner. ``final`` False: further observations may change it."""

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


_SEND_MESSAGE = "send a message to this partition; its commit settles it"


def assess_unowned(observation: Observation, tp: TopicPartition) -> PartitionEvidence:
    """Returns the evidence of a consumed partition without an owner, or whose owner has just changed."""
    return PartitionEvidence(
        tp,
        None,
        ok=False,
        confidence=Confidence.UNKNOWN,
        why="no owner, or the owner is changing",
        remedy="wait until the group has rebalanced",
        final=False,
        zookeeper=_offset_or_none(offset_or(observation.zookeeper.get(tp))),
        kafka=_offset_or_none(offset_or(observation.kafka.get(tp))),
    )


def _offset_or_none(offset: int) -> int | None:
    return None if offset < 0 else offset


def assess_owned(history: PartitionHistory, phase: CommitMode, rules: EvidenceThresholds) -> PartitionEvidence:
    """Returns whether the partition's owner is known to be in the phase."""

    def result(ok: bool, known: Confidence, why: str, remedy: str = "", *, final: bool = True) -> PartitionEvidence:
        return PartitionEvidence(
            history.partition,
            history.owned.member,
            ok,
            known,
            why,
            remedy,
            final,
            _offset_or_none(offset_or(history.zookeeper.last)),
            _offset_or_none(offset_or(history.kafka.last)),
            None if history.log is None else history.log.end,
        )

    for name, store in (("ZooKeeper", history.zookeeper), ("Kafka", history.kafka)):
        if store.error is not None:
            why = f"{name}'s offset cannot be read: {store.error}"
            return result(
                False, Confidence.UNKNOWN, why, "make it readable; it is never treated as absent", final=False
            )
        if store.lowered is not None:
            why = f"{name} went backwards: {store.lowered}; no consumer does that, so another writer is at work"
            return result(False, Confidence.UNKNOWN, why, "stop the other writer, then check again")
    if (history.zookeeper_alone and history.kafka.changes) or (history.kafka_alone and history.zookeeper.changes):
        proof = history.zookeeper_alone or history.kafka_alone
        why = f"{proof}; then the other store moved too, so another client (a mirror?) writes there"
        return result(False, Confidence.UNKNOWN, why, "stop the other writer, then check again")
    behaviour = behaviour_of(history)
    if behaviour is not None:
        found, why = behaviour
        return result(found is phase, Confidence.SEEN, f"{describe_behaviour(found)}: {why}")
    return _WITHOUT_PROOF[phase](history, rules, result)


def describe_behaviour(found: CommitMode) -> str:
    """Returns what a member in this phase does with its commits, as text."""
    return {
        CommitMode.ZOOKEEPER: "commits to ZooKeeper alone",
        CommitMode.DUAL: "commits to both",
        CommitMode.KAFKA: "commits to Kafka alone",
    }[found]


def behaviour_of(history: PartitionHistory) -> tuple[CommitMode, str] | None:
    """Returns the phase that the observed commits prove, if they do."""
    if history.zookeeper.changes and history.kafka.changes:
        return CommitMode.DUAL, f"Kafka {history.kafka.changes[-1]}; ZooKeeper {history.zookeeper.changes[-1]}"
    if history.zookeeper_alone:
        return CommitMode.ZOOKEEPER, history.zookeeper_alone
    if history.kafka_alone:
        return CommitMode.KAFKA, history.kafka_alone
    return None


_MakeResult = Callable[..., PartitionEvidence]


def _numbers(history: PartitionHistory) -> str:
    end = "unknown" if history.log is None else str(history.log.end)
    return (
        f"ZooKeeper {reading_text(history.zookeeper.last)}, Kafka {reading_text(history.kafka.last)}, log end {end},"
        f" nothing moved for {history.unchanged_ms / 1000:.1f} s"
    )


def _check_idle(history: PartitionHistory, rules: EvidenceThresholds, result: _MakeResult) -> PartitionEvidence | None:
    """Returns the result of every phase without observed commits: log end unknown, messages waiting, or not quiet
    yet."""
    if history.lag is None:
        why = (
            f"the log's end cannot be read, so an idle partition cannot be distinguished from a stuck one; "
            f"{_numbers(history)}"
        )
        return result(False, Confidence.UNKNOWN, why, "check the brokers of this partition", final=False)
    if history.lag > 0:
        why = f"{history.lag} messages wait and no commit was seen; {_numbers(history)}"
        remedy = "give a --window of at least three auto.commit.interval.ms; if it stays so, the member is stuck"
        return result(False, Confidence.UNKNOWN, why, remedy, final=False)
    if history.unchanged_ms < rules.quiet_ms:
        return result(False, Confidence.UNKNOWN, f"not yet told; {_numbers(history)}", _SEND_MESSAGE, final=False)
    return None


def _assess_idle(
    history: PartitionHistory, rules: EvidenceThresholds, result: _MakeResult, *, safe: bool, because: str, unsafe: str
) -> PartitionEvidence:
    """Decides a partition without traffic: it passes only if the caller accepts idle partitions, and only if nothing
    can be lost.

    If the offsets are not safe, the result is not settled, because the next automatic commit may change that.
    """
    if not safe:
        why = f"no traffic; {_numbers(history)}: {unsafe}"
        return result(False, Confidence.UNKNOWN, why, _SEND_MESSAGE, final=False)
    if not rules.accept_idle:
        remedy = f"{_SEND_MESSAGE}; or pass --accept-idle: {because}"
        return result(False, Confidence.UNKNOWN, f"no traffic; {_numbers(history)}", remedy)
    return result(True, Confidence.INFERRED, f"no traffic, {because}; {_numbers(history)}")


def _unproven_dual(history: PartitionHistory, rules: EvidenceThresholds, result: _MakeResult) -> PartitionEvidence:
    not_idle = _check_idle(history, rules, result)
    if fresh := history.new_kafka_changes:
        why = f"Kafka {fresh[-1]}, ZooKeeper still {reading_text(history.zookeeper.last)}"
        if not_idle is not None:
            return result(False, Confidence.UNKNOWN, f"one store moved so far: {why}", "wait", final=False)
        # A dual member repeats a failed write to ZooKeeper with its next commit.
        return result(False, Confidence.INFERRED, f"commits to Kafka alone: {why}; {_numbers(history)}", final=False)
    if history.zookeeper.changes:
        why = f"ZooKeeper {history.zookeeper.changes[-1]}, Kafka {reading_text(history.kafka.last)} has not moved"
        return result(False, Confidence.UNKNOWN, why, "wait for the next commit", final=False)
    if not_idle is not None:
        return not_idle
    zookeeper, kafka = offset_or(history.zookeeper.last), offset_or(history.kafka.last)
    unsafe = (
        "ZooKeeper is behind and will not catch up by itself (a dual member assumes that the larger offset is "
        "already stored): copy"
        " Kafka's offset there, as `runbook bounce` does before its gate"
        if zookeeper < kafka
        else "Kafka is behind, though a dual member commits idle partitions to Kafka at every interval"
    )
    if zookeeper < kafka and rules.catch_up_later:
        because = "ZooKeeper is behind and Kafka's offset will be copied there before the gate"
        return _assess_idle(history, rules, result, safe=True, because=because, unsafe=unsafe)
    return _assess_idle(
        history, rules, result, safe=zookeeper == kafka, because="both stores hold the same", unsafe=unsafe
    )


def _unproven_kafka(history: PartitionHistory, rules: EvidenceThresholds, result: _MakeResult) -> PartitionEvidence:
    if history.zookeeper.changes:
        return result(
            False,
            Confidence.SEEN,
            f"still commits to ZooKeeper (dual, or not bounced): {history.zookeeper.changes[-1]}",
        )
    not_idle = _check_idle(history, rules, result)
    if fresh := history.new_kafka_changes:
        why = f"Kafka {fresh[-1]}, ZooKeeper still {reading_text(history.zookeeper.last)}"
        if not_idle is not None:
            remedy = "wait for one more commit: a dual member writes ZooKeeper after Kafka"
            return result(False, Confidence.UNKNOWN, f"one commit seen: {why}", remedy, final=False)
        return result(True, Confidence.INFERRED, f"commits to Kafka alone: {why}; {_numbers(history)}")
    if not_idle is not None:
        return not_idle
    zookeeper, kafka = offset_or(history.zookeeper.last), offset_or(history.kafka.last)
    return _assess_idle(
        history,
        rules,
        result,
        safe=kafka >= zookeeper,
        because="Kafka holds all of the group's progress",
        unsafe="Kafka is behind ZooKeeper: a member that reads Kafka alone would repeat, or follow auto.offset.reset",
    )


def _unproven_zookeeper(history: PartitionHistory, rules: EvidenceThresholds, result: _MakeResult) -> PartitionEvidence:
    if history.kafka.changes:
        return result(
            False, Confidence.SEEN, f"still commits to Kafka (dual, or not bounced): {history.kafka.changes[-1]}"
        )
    if history.zookeeper.changes:
        why = (
            f"ZooKeeper {history.zookeeper.changes[-1]} is not beyond Kafka's {reading_text(history.kafka.last)}: the member"
            " repeats what the group consumed before"
        )
        return result(False, Confidence.UNKNOWN, why, "wait until ZooKeeper has passed Kafka", final=False)
    not_idle = _check_idle(history, rules, result)
    if not_idle is not None:
        return not_idle
    zookeeper, kafka = offset_or(history.zookeeper.last), offset_or(history.kafka.last)
    return _assess_idle(
        history,
        rules,
        result,
        safe=zookeeper >= kafka,
        because="ZooKeeper holds all of the group's progress",
        unsafe="ZooKeeper is behind Kafka: a member that reads ZooKeeper alone repeats, or follows auto.offset.reset",
    )


_WITHOUT_PROOF: dict[CommitMode, Callable[[PartitionHistory, EvidenceThresholds, _MakeResult], PartitionEvidence]] = {
    CommitMode.ZOOKEEPER: _unproven_zookeeper,
    CommitMode.DUAL: _unproven_dual,
    CommitMode.KAFKA: _unproven_kafka,
}
