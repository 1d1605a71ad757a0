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

    ``quiet_ms``: the time without changes after which a partition counts as idle. ``accept_idle``: partitions without
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
    """The evidence about one partition's owner. ``settled`` False: further observations may change it."""

    partition: TopicPartition
    member: str | None
    ok: bool
    confidence: Confidence
    why: str
    settle: str = ""
    settled: bool = True
    zookeeper: int | None = None
    kafka: int | None = None
    log_end: int | None = None


_SEND_ONE = "send a message to this partition; its commit settles it"


def judge_unowned(seen: Observation, tp: TopicPartition) -> PartitionEvidence:
    """Returns the evidence of a consumed partition without an owner, or whose owner has just changed."""
    return PartitionEvidence(
        tp,
        None,
        ok=False,
        confidence=Confidence.UNKNOWN,
        why="no owner, or the owner is changing",
        settle="wait until the group has rebalanced",
        settled=False,
        zookeeper=_number(offset_or(seen.zookeeper.get(tp))),
        kafka=_number(offset_or(seen.kafka.get(tp))),
    )


def _number(offset: int) -> int | None:
    return None if offset < 0 else offset


def judge_owned(track: PartitionHistory, phase: CommitMode, rules: EvidenceThresholds) -> PartitionEvidence:
    """Returns whether the partition's owner is known to be in the phase."""

    def verdict(ok: bool, known: Confidence, why: str, settle: str = "", *, settled: bool = True) -> PartitionEvidence:
        return PartitionEvidence(
            track.partition,
            track.owned.member,
            ok,
            known,
            why,
            settle,
            settled,
            _number(offset_or(track.zookeeper.last)),
            _number(offset_or(track.kafka.last)),
            None if track.log is None else track.log.end,
        )

    for name, store in (("ZooKeeper", track.zookeeper), ("Kafka", track.kafka)):
        if store.error is not None:
            why = f"{name}'s offset cannot be read: {store.error}"
            return verdict(
                False, Confidence.UNKNOWN, why, "make it readable; it is never treated as absent", settled=False
            )
        if store.lowered is not None:
            why = f"{name} went backwards: {store.lowered}; no consumer does that, so another writer is at work"
            return verdict(False, Confidence.UNKNOWN, why, "stop the other writer, then check again")
    if (track.zookeeper_alone and track.kafka.moves) or (track.kafka_alone and track.zookeeper.moves):
        proof = track.zookeeper_alone or track.kafka_alone
        why = f"{proof}; then the other store moved too, so another client (a mirror?) writes there"
        return verdict(False, Confidence.UNKNOWN, why, "stop the other writer, then check again")
    behaviour = behaviour_of(track)
    if behaviour is not None:
        found, why = behaviour
        return verdict(found is phase, Confidence.SEEN, f"{describe_behaviour(found)}: {why}")
    return _SILENT[phase](track, rules, verdict)


def describe_behaviour(found: CommitMode) -> str:
    """Returns what a member in this phase does with its commits, as text."""
    return {
        CommitMode.ZOOKEEPER: "commits to ZooKeeper alone",
        CommitMode.DUAL: "commits to both",
        CommitMode.KAFKA: "commits to Kafka alone",
    }[found]


def behaviour_of(track: PartitionHistory) -> tuple[CommitMode, str] | None:
    """Returns the phase that the observed commits prove, if they do."""
    if track.zookeeper.moves and track.kafka.moves:
        return CommitMode.DUAL, f"Kafka {track.kafka.moves[-1]}; ZooKeeper {track.zookeeper.moves[-1]}"
    if track.zookeeper_alone:
        return CommitMode.ZOOKEEPER, track.zookeeper_alone
    if track.kafka_alone:
        return CommitMode.KAFKA, track.kafka_alone
    return None


_Verdict = Callable[..., PartitionEvidence]


def _numbers(track: PartitionHistory) -> str:
    end = "unknown" if track.log is None else str(track.log.end)
    return (
        f"ZooKeeper {reading_text(track.zookeeper.last)}, Kafka {reading_text(track.kafka.last)}, log end {end},"
        f" nothing moved for {track.quiet_ms / 1000:.1f} s"
    )


def _waiting(track: PartitionHistory, rules: EvidenceThresholds, verdict: _Verdict) -> PartitionEvidence | None:
    """Returns the result of every phase without observed commits: log end unknown, messages waiting, or not quiet
    yet."""
    if track.unread is None:
        why = (
            f"the log's end cannot be read, so an idle partition cannot be distinguished from a stuck one; "
            f"{_numbers(track)}"
        )
        return verdict(False, Confidence.UNKNOWN, why, "check the brokers of this partition", settled=False)
    if track.unread > 0:
        why = f"{track.unread} messages wait and no commit was seen; {_numbers(track)}"
        settle = "give a --window of at least three auto.commit.interval.ms; if it stays so, the member is stuck"
        return verdict(False, Confidence.UNKNOWN, why, settle, settled=False)
    if track.quiet_ms < rules.quiet_ms:
        return verdict(False, Confidence.UNKNOWN, f"not yet told; {_numbers(track)}", _SEND_ONE, settled=False)
    return None


def _idle(
    track: PartitionHistory, rules: EvidenceThresholds, verdict: _Verdict, *, safe: bool, because: str, unsafe: str
) -> PartitionEvidence:
    """Decides a partition without traffic: it passes only if the caller accepts idle partitions, and only if nothing
    can be lost.

    If the offsets are not safe, the result is not settled, because the next automatic commit may change that.
    """
    if not safe:
        why = f"no traffic; {_numbers(track)}: {unsafe}"
        return verdict(False, Confidence.UNKNOWN, why, _SEND_ONE, settled=False)
    if not rules.accept_idle:
        settle = f"{_SEND_ONE}; or pass --accept-idle: {because}"
        return verdict(False, Confidence.UNKNOWN, f"no traffic; {_numbers(track)}", settle)
    return verdict(True, Confidence.INFERRED, f"no traffic, {because}; {_numbers(track)}")


def _silent_dual(track: PartitionHistory, rules: EvidenceThresholds, verdict: _Verdict) -> PartitionEvidence:
    waiting = _waiting(track, rules, verdict)
    if fresh := track.fresh_kafka_moves:
        why = f"Kafka {fresh[-1]}, ZooKeeper still {reading_text(track.zookeeper.last)}"
        if waiting is not None:
            return verdict(False, Confidence.UNKNOWN, f"one store moved so far: {why}", "wait", settled=False)
        # A dual member repeats a failed write to ZooKeeper with its next commit.
        return verdict(False, Confidence.INFERRED, f"commits to Kafka alone: {why}; {_numbers(track)}", settled=False)
    if track.zookeeper.moves:
        why = f"ZooKeeper {track.zookeeper.moves[-1]}, Kafka {reading_text(track.kafka.last)} has not moved"
        return verdict(False, Confidence.UNKNOWN, why, "wait for the next commit", settled=False)
    if waiting is not None:
        return waiting
    zookeeper, kafka = offset_or(track.zookeeper.last), offset_or(track.kafka.last)
    unsafe = (
        "ZooKeeper is behind and will not catch up by itself (a dual member assumes that the larger offset is "
        "already stored): copy"
        " Kafka's offset there, as `runbook bounce` does before its gate"
        if zookeeper < kafka
        else "Kafka is behind, though a dual member commits idle partitions to Kafka at every interval"
    )
    if zookeeper < kafka and rules.catch_up_later:
        because = "ZooKeeper is behind and Kafka's offset will be copied there before the gate"
        return _idle(track, rules, verdict, safe=True, because=because, unsafe=unsafe)
    return _idle(track, rules, verdict, safe=zookeeper == kafka, because="both stores hold the same", unsafe=unsafe)


def _silent_kafka(track: PartitionHistory, rules: EvidenceThresholds, verdict: _Verdict) -> PartitionEvidence:
    if track.zookeeper.moves:
        return verdict(
            False, Confidence.SEEN, f"still commits to ZooKeeper (dual, or not bounced): {track.zookeeper.moves[-1]}"
        )
    waiting = _waiting(track, rules, verdict)
    if fresh := track.fresh_kafka_moves:
        why = f"Kafka {fresh[-1]}, ZooKeeper still {reading_text(track.zookeeper.last)}"
        if waiting is not None:
            settle = "wait for one more commit: a dual member writes ZooKeeper after Kafka"
            return verdict(False, Confidence.UNKNOWN, f"one commit seen: {why}", settle, settled=False)
        return verdict(True, Confidence.INFERRED, f"commits to Kafka alone: {why}; {_numbers(track)}")
    if waiting is not None:
        return waiting
    zookeeper, kafka = offset_or(track.zookeeper.last), offset_or(track.kafka.last)
    return _idle(
        track,
        rules,
        verdict,
        safe=kafka >= zookeeper,
        because="Kafka holds all of the group's progress",
        unsafe="Kafka is behind ZooKeeper: a member that reads Kafka alone would repeat, or follow auto.offset.reset",
    )


def _silent_zookeeper(track: PartitionHistory, rules: EvidenceThresholds, verdict: _Verdict) -> PartitionEvidence:
    if track.kafka.moves:
        return verdict(
            False, Confidence.SEEN, f"still commits to Kafka (dual, or not bounced): {track.kafka.moves[-1]}"
        )
    if track.zookeeper.moves:
        why = (
            f"ZooKeeper {track.zookeeper.moves[-1]} is not beyond Kafka's {reading_text(track.kafka.last)}: the member"
            " repeats what the group consumed before"
        )
        return verdict(False, Confidence.UNKNOWN, why, "wait until ZooKeeper has passed Kafka", settled=False)
    waiting = _waiting(track, rules, verdict)
    if waiting is not None:
        return waiting
    zookeeper, kafka = offset_or(track.zookeeper.last), offset_or(track.kafka.last)
    return _idle(
        track,
        rules,
        verdict,
        safe=zookeeper >= kafka,
        because="ZooKeeper holds all of the group's progress",
        unsafe="ZooKeeper is behind Kafka: a member that reads ZooKeeper alone repeats, or follows auto.offset.reset",
    )


_SILENT: dict[CommitMode, Callable[[PartitionHistory, EvidenceThresholds, _Verdict], PartitionEvidence]] = {
    CommitMode.ZOOKEEPER: _silent_zookeeper,
    CommitMode.DUAL: _silent_dual,
    CommitMode.KAFKA: _silent_kafka,
}
