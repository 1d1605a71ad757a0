"""Conclusions about the phase of a partition from recorded observations, with planted faults."""

from __future__ import annotations

import pytest
from recorded_observations import (
    BASELINE,
    DUAL,
    KAFKA,
    MESSAGE,
    NEW,
    OLD,
    OTHER,
    T0,
    ZOOKEEPER,
    idle,
    observation,
    series,
)

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.migration.evidence import Confidence, EvidenceThresholds, PartitionEvidence
from offsetmgr.migration.observation import Observation
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import assess_phase, infer_phase


def assessment(observations: list[Observation], phase: CommitMode, **rules: bool) -> tuple[bool, Confidence, bool]:
    report = assess_phase(
        GroupHistory(observations), phase, baseline=BASELINE, rules=EvidenceThresholds(**rules, quiet_ms=2000)
    )
    (partition,) = report.partitions
    assert report.passed is partition.ok
    return partition.ok, partition.confidence, partition.final


SEEN_OK, SEEN_WRONG = (True, Confidence.SEEN, True), (False, Confidence.SEEN, True)
PENDING = (False, Confidence.UNKNOWN, False)


def phases_of(observations: list[Observation]) -> dict[str, tuple[bool, Confidence, bool]]:
    return {phase.value: assessment(observations, phase) for phase in CommitMode}


def test_both_stores_moved_under_one_owner_is_dual() -> None:
    observations = series([(10, 1), (14, 2)], [10, 14])
    assert phases_of(observations) == {"zookeeper": SEEN_WRONG, "dual": SEEN_OK, "kafka": SEEN_WRONG}


def test_zookeeper_ahead_of_kafka_is_zookeeper_alone() -> None:
    # A dual member would have written 14 to Kafka before, and Kafka was read after ZooKeeper.
    observations = series([(10, 1), (14, 2)], [None, None])
    assert phases_of(observations) == {"zookeeper": SEEN_OK, "dual": SEEN_WRONG, "kafka": SEEN_WRONG}


def test_one_commit_to_kafka_does_not_prove_that_zookeeper_is_left_out() -> None:
    # A dual member writes ZooKeeper after Kafka: it may be between the two.
    observations = series([(10, 1), (10, 1)], [10, 14])
    assert phases_of(observations) == {"zookeeper": SEEN_WRONG, "dual": PENDING, "kafka": PENDING}


def test_a_second_commit_to_kafka_proves_it_only_after_another_read_of_zookeeper() -> None:
    two = series([(10, 1)] * 3, [10, 14, 18])
    assert assessment(two, KAFKA) == PENDING
    three = series([(10, 1)] * 4, [10, 14, 18, 18])
    assert phases_of(three) == {"zookeeper": SEEN_WRONG, "dual": SEEN_WRONG, "kafka": SEEN_OK}


def test_kafka_rising_to_the_earlier_offset_of_zookeeper_proves_nothing() -> None:
    # The member started from ZooKeeper's 20 (the larger), committed it to Kafka and assumes that ZooKeeper has it.
    observations = series([(20, 1)] * 4, [10, 20, 24, 24])
    assert assessment(observations, DUAL) == PENDING
    assert assessment(observations, KAFKA) == PENDING


def test_a_zookeeper_commit_in_phase_kafka_names_the_member_as_still_dual() -> None:
    report = assess_phase(GroupHistory(series([(10, 1), (14, 2)], [10, 14])), KAFKA, baseline=BASELINE)
    assert (report.passed, report.wrong) == (False, (NEW.id,))
    (member,) = report.members
    assert member.why == (
        "new since 2023-11-14T22:13:20Z (registered 2023-11-14T22:13:20Z); t-0: commits to both: Kafka 10 -> 14 at"
        " 22:13:22.000; ZooKeeper 10 -> 14 (version 1 -> 2) at 22:13:22.000"
    )


def test_a_kafka_commit_in_phase_zookeeper_closes_the_gate() -> None:
    observations = series([(10, 1)] * 2, [10, 14])
    assert assessment(observations, ZOOKEEPER) == SEEN_WRONG


def test_a_member_that_reads_zookeeper_behind_kafka_reprocesses_and_does_not_pass() -> None:
    observations = series([(10, 1), (14, 2)], [30, 30])
    assert assessment(observations, ZOOKEEPER) == PENDING


def test_a_member_that_registered_before_the_bounce_has_not_bounced() -> None:
    observations = [
        observation(
            n, zookeeper={0: (10 + n, n)}, kafka={0: 10 + n}, ends={0: 99}, owners={0: (OLD, 5)}, members=(OLD,)
        )
        for n in range(2)
    ]
    report = assess_phase(GroupHistory(observations), DUAL, baseline=BASELINE)
    assert report.not_bounced == (OLD.id,)
    assert [p.ok for p in report.partitions] == [True]  # it commits to both, but it may still run with its old settings
    assert not report.passed


def test_commits_across_a_change_of_owner_count_for_no_member() -> None:
    observations = [
        observation(
            0, zookeeper={0: (10, 1)}, kafka={0: 10}, ends={0: 99}, owners={0: (OTHER, 90)}, members=(NEW, OTHER)
        ),
        observation(
            1, zookeeper={0: (14, 2)}, kafka={0: 14}, ends={0: 99}, owners={0: (NEW, 100)}, members=(NEW, OTHER)
        ),
    ]
    assert infer_phase(GroupHistory(observations)).confidence is Confidence.UNKNOWN


def test_a_member_that_owns_a_partition_again_begins_a_new_track() -> None:
    observations = [
        observation(0, zookeeper={0: (10, 1)}, kafka={0: 10}, ends={0: 99}, owners={0: (NEW, 100)}),
        observation(1, zookeeper={0: (14, 2)}, kafka={0: 14}, ends={0: 99}, owners={0: (NEW, 101)}),
    ]
    assert assessment(observations, DUAL) == PENDING


def test_a_partition_without_an_owner_keeps_the_gate_closed() -> None:
    observations = [observation(n, zookeeper={0: (10, 1)}, kafka={0: 10}, ends={0: 10}, owners={}) for n in range(2)]
    report = assess_phase(
        GroupHistory(observations),
        DUAL,
        baseline=BASELINE,
        rules=EvidenceThresholds(accept_idle=True, accept_spare=True, quiet_ms=0),
    )
    assert (report.passed, report.final) == (False, False)
    assert report.partitions[0].why == "no owner, or the owner is changing"


def test_a_missing_coordinator_is_unreadable_and_never_absent() -> None:
    gone = CoordinatorNotAvailable("offsets of group g", "no coordinator")
    observations = [observation(n, zookeeper={0: (10 + n, 1 + n)}, kafka={0: gone}, ends={0: 99}) for n in range(3)]
    assert phases_of(observations) == {"zookeeper": PENDING, "dual": PENDING, "kafka": PENDING}
    # The coordinator is back. The observations of ZooKeeper from the meantime still count.
    observations += [observation(3, zookeeper={0: (13, 4)}, kafka={0: 13}, ends={0: 99})]
    observations += [observation(4, zookeeper={0: (14, 5)}, kafka={0: 14}, ends={0: 99})]
    assert assessment(observations, DUAL) == SEEN_OK


def test_an_offset_that_decreases_comes_from_another_writer() -> None:
    assert assessment(series([(10, 1), (14, 2), (14, 2)], [10, 14, 3]), DUAL) == (False, Confidence.UNKNOWN, True)


def test_a_mirror_with_a_zookeeper_member_does_not_count_as_dual() -> None:
    observations = series([(10, 1), (14, 2), (14, 2)], [10, 10, 14])
    assert assessment(observations, DUAL) == (False, Confidence.UNKNOWN, True)


def test_an_unreadable_node_keeps_the_gate_closed() -> None:
    observations = series([(10, 1), (14, 2)], [10, 14])
    observations.append(
        observation(2, zookeeper={0: (14, 2)}, kafka={0: 14}, ends={0: 99}, unreadable=("/consumers/g/ids/x",))
    )
    report = assess_phase(GroupHistory(observations), DUAL, baseline=BASELINE)
    assert (report.passed, report.problems) == (
        False,
        ("ZooKeeper node /consumers/g/ids/x cannot be read: its content is unknown",),
    )


def test_a_group_without_members_never_passes() -> None:
    seen = observation(0, zookeeper={0: (1, 1)}, kafka={0: 1}, ends={0: 1}, owners={}, members=())
    assert not assess_phase(GroupHistory([seen]), DUAL, rules=EvidenceThresholds(accept_idle=True)).passed


INFERRED_OK, UNKNOWN = (True, Confidence.INFERRED, True), (False, Confidence.UNKNOWN, True)


@pytest.mark.parametrize("phase", list(CommitMode))
def test_an_idle_partition_is_unknown_and_passes_only_when_accepted(phase: CommitMode) -> None:
    observations = idle((10, 1), 10)
    busy = [
        observation(n, zookeeper={0: (10, 1), 1: z}, kafka={0: 10, 1: k}, ends={0: 10, 1: 99})
        for n, (z, k) in enumerate(
            {
                ZOOKEEPER: [((1, 1), 0), ((2, 2), 0), ((3, 3), 0), ((4, 4), 0)],
                DUAL: [((1, 1), 1), ((2, 2), 2), ((3, 3), 3), ((4, 4), 4)],
                KAFKA: [((1, 1), 1), ((1, 1), 2), ((1, 1), 3), ((1, 1), 4)],
            }[phase]
        )
    ]
    assert assessment(observations, phase) == UNKNOWN
    strict = assess_phase(GroupHistory(busy), phase, baseline=BASELINE, rules=EvidenceThresholds(quiet_ms=2000))
    assert [(p.ok, p.confidence) for p in strict.partitions] == [(False, Confidence.UNKNOWN), (True, Confidence.SEEN)]
    assert "or pass --accept-idle" in strict.partitions[0].remedy
    accepted = assess_phase(
        GroupHistory(busy), phase, baseline=BASELINE, rules=EvidenceThresholds(accept_idle=True, quiet_ms=2000)
    )
    assert [(p.ok, p.confidence) for p in accepted.partitions] == [(True, Confidence.INFERRED), (True, Confidence.SEEN)]
    assert [(m.ok, m.confidence) for m in accepted.members] == [(True, Confidence.INFERRED)]


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "passes"),
    [
        ((10, 1), 10, {DUAL, KAFKA, ZOOKEEPER}),
        ((5, 1), 10, {KAFKA}),  # in dual, ZooKeeper would never catch up; ZooKeeper alone would reprocess
        ((10, 1), 5, {ZOOKEEPER}),
        ((10, 1), None, {ZOOKEEPER}),
        (None, 10, {KAFKA}),
    ],
)
def test_idle_partitions_are_accepted_only_if_no_message_can_be_lost(
    zookeeper: tuple[int, int] | None, kafka: int | None, passes: set[CommitMode]
) -> None:
    observations = idle(zookeeper, kafka)
    assert {phase for phase in CommitMode if assessment(observations, phase, accept_idle=True) == INFERRED_OK} == passes


def test_an_idle_partition_behind_in_zookeeper_may_wait_for_the_copy() -> None:
    observations = idle((5, 1), 10)
    assert assessment(observations, DUAL, accept_idle=True, catch_up_later=True) == INFERRED_OK
    assert assessment(observations, KAFKA, accept_idle=True, catch_up_later=True) == INFERRED_OK
    assert assessment(observations, ZOOKEEPER, accept_idle=True, catch_up_later=True) == PENDING


@pytest.mark.parametrize(
    ("phase", "zookeeper", "kafka"), [(DUAL, (10, 1), 5), (KAFKA, (10, 1), 5), (ZOOKEEPER, (5, 1), 10)]
)
def test_an_offset_that_the_next_automatic_commit_may_raise_keeps_the_result_pending(
    phase: CommitMode, zookeeper: tuple[int, int], kafka: int
) -> None:
    assert assessment(idle(zookeeper, kafka), phase, accept_idle=True) == PENDING


def test_one_commit_to_kafka_alone_does_not_end_the_watch_of_the_dual_phase() -> None:
    """A dual member whose write to ZooKeeper failed repeats it at its next automatic commit."""
    observations = series([(10, 1)] * 4, [10, 14, 14, 14], end=14)
    watch = GroupHistory(observations)
    early = assess_phase(watch, DUAL, baseline=BASELINE, rules=EvidenceThresholds(accept_idle=True, quiet_ms=2000))
    assert (early.passed, early.final, early.cannot_pass, early.wrong) == (False, False, False, (NEW.id,))
    watch.add(observation(4, zookeeper={0: (14, 2)}, kafka={0: 14}, ends={0: 14}))
    assert assess_phase(
        watch, DUAL, baseline=BASELINE, rules=EvidenceThresholds(accept_idle=True, quiet_ms=2000)
    ).passed


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "end", "unchanged_ms"),
    [
        ((10, 1), 10, 12, 3000),
        ((11, 2), 10, 12, 2000),
        ((10, 2), 10, 12, 2000),  # the same offset, written again
        ((10, 1), 11, 12, 2000),
        ((10, 1), 10, 13, 2000),
    ],
)
def test_a_change_in_either_store_or_of_the_log_begins_the_quiet_time_again(
    zookeeper: tuple[int, int], kafka: int, end: int, unchanged_ms: int
) -> None:
    later = [observation(n, zookeeper={0: zookeeper}, kafka={0: kafka}, ends={0: end}) for n in (1, 2, 3)]
    history = GroupHistory([observation(0, zookeeper={0: (10, 1)}, kafka={0: 10}, ends={0: 12}), *later])
    assert history.partitions[T0].unchanged_ms == unchanged_ms


def test_waiting_messages_make_a_partition_stuck_and_not_idle() -> None:
    observations = idle((10, 1), 10, end=25)
    assert assessment(observations, DUAL, accept_idle=True) == PENDING


def test_a_partition_is_idle_only_after_it_was_quiet_long_enough() -> None:
    observations = series([(10, 1)] * 2, [10] * 2, end=10)
    assert assessment(observations, DUAL, accept_idle=True) == PENDING


ANOTHER_CLIENT = "stop the other client, then check again"


@pytest.mark.parametrize(
    ("observations", "phase", "ok", "known", "final", "why", "remedy", "offsets"),
    [
        pytest.param(
            series([(10, 1), (14, 2)], [10, 14]),
            *(DUAL, True, Confidence.SEEN, True),
            "commits to both: Kafka 10 -> 14 at 22:13:22.000; ZooKeeper 10 -> 14 (version 1 -> 2) at 22:13:22.000",
            "",
            (14, 14, 1000),
            id="proof",
        ),
        pytest.param(
            series([None, (0, 1)], [None, None]),
            *(DUAL, False, Confidence.SEEN, True),
            "commits to ZooKeeper alone: ZooKeeper no offset -> 0 (version none -> 1) at 22:13:22.000, Kafka"
            " read afterwards: no offset",
            "",
            (0, None, 1000),
            id="proof-of-another-phase",
        ),
        pytest.param(
            series([(10, 1), (14, 2)], [30, 30]),
            *(KAFKA, False, Confidence.SEEN, True),
            "still commits to ZooKeeper (dual, or not bounced): 10 -> 14 (version 1 -> 2) at 22:13:22.000",
            "",
            (14, 30, 1000),
            id="a-commit-that-phase-kafka-excludes",
        ),
        pytest.param(
            series([(30, 1)] * 2, [10, 20]),
            *(ZOOKEEPER, False, Confidence.SEEN, True),
            "still commits to Kafka (dual, or not bounced): 10 -> 20 at 22:13:22.000",
            "",
            (30, 20, 1000),
            id="a-commit-that-phase-zookeeper-excludes",
        ),
        pytest.param(
            series([(10, 1), (14, 2), (14, 2)], [10, 10, 14]),
            *(DUAL, False, Confidence.UNKNOWN, True),
            "ZooKeeper 10 -> 14 (version 1 -> 2) at 22:13:22.000, Kafka read afterwards: 10; then the other store"
            " changed too, so another client (a mirror?) writes there",
            ANOTHER_CLIENT,
            (14, 14, 1000),
            id="a-mirror",
        ),
        pytest.param(
            idle((10, 1), 10, end=25),
            *(ZOOKEEPER, False, Confidence.UNKNOWN, False),
            "15 messages are waiting and no commit was seen; ZooKeeper 10, Kafka 10, log end 25, no change for 3.0 s",
            "use a --window of at least three times auto.commit.interval.ms;"
            " if that does not help, the member is stuck",
            (10, 10, 25),
            id="waiting-messages",
        ),
        pytest.param(
            series([(10, 1)] * 2, [10] * 2, end=10),
            *(ZOOKEEPER, False, Confidence.UNKNOWN, False),
            "idle for too short a time; ZooKeeper 10, Kafka 10, log end 10, no change for 1.0 s",
            MESSAGE,
            (10, 10, 10),
            id="not-idle-yet",
        ),
        pytest.param(
            idle((10, 1), 5),
            *(KAFKA, False, Confidence.UNKNOWN, False),
            "no traffic; ZooKeeper 10, Kafka 5, log end 10, no change for 3.0 s: Kafka is behind ZooKeeper: a member"
            " that reads Kafka alone repeats messages or uses auto.offset.reset",
            MESSAGE,
            (10, 5, 10),
            id="idle-and-behind",
        ),
        pytest.param(
            [observation(0, zookeeper={0: (10, 1)}, kafka={0: None}, ends={0: 10}, owners={})],
            *(DUAL, False, Confidence.UNKNOWN, False),
            "no owner, or the owner is changing",
            "wait until the group has rebalanced",
            (10, None, None),
            id="no-owner",
        ),
    ],
)
def test_the_evidence_has_the_reason_the_offsets_and_the_remedy(
    observations: list[Observation],
    phase: CommitMode,
    ok: bool,
    known: Confidence,
    final: bool,
    why: str,
    remedy: str,
    offsets: tuple[int | None, int | None, int | None],
) -> None:
    report = assess_phase(GroupHistory(observations), phase, baseline=BASELINE, rules=EvidenceThresholds(quiet_ms=2000))

    member = NEW.id if observations[0].owners else None
    assert report.partitions == (PartitionEvidence(T0, member, ok, known, why, remedy, final, *offsets),)


def test_equal_offsets_of_an_idle_partition_need_no_copy() -> None:
    observations = idle((10, 1), 10)
    rules = EvidenceThresholds(accept_idle=True, catch_up_later=True, quiet_ms=2000)
    (partition,) = assess_phase(GroupHistory(observations), DUAL, baseline=BASELINE, rules=rules).partitions
    assert partition.why.startswith("no traffic, both stores hold the same; ")
