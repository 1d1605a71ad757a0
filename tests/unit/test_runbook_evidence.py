"""Conclusions about a group's phase from recorded observations, with planted faults."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.errors import CoordinatorNotAvailable, GateRefused
from offsetmgr.core.model import ABSENT, Committed, LogRange, TopicPartition
from offsetmgr.migration.evidence import Confidence, EvidenceThresholds, PartitionEvidence
from offsetmgr.migration.observation import (
    Observation,
    OffsetReadResult,
    PartitionOwner,
    RegisteredMember,
    from_json,
    to_json,
)
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import MemberEvidence, PhaseReport, assess_phase, infer_phase
from offsetmgr.migration.precheck import reject_offset_jump

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ZOOKEEPER, DUAL, KAFKA = CommitMode.ZOOKEEPER, CommitMode.DUAL, CommitMode.KAFKA
START_MS = 1_700_000_000_000
OLD = RegisteredMember("g_h1-1699999999999-aaaaaaaa", "h1", START_MS - 5000, czxid=1, session=1, topics=("t",))
NEW = RegisteredMember("g_h1-1700000000001-bbbbbbbb", "h1", START_MS + 100, czxid=50, session=2, topics=("t",))
OTHER = RegisteredMember("g_h2-1700000000002-cccccccc", "h2", START_MS + 200, czxid=60, session=3, topics=("t",))
CONFIGURED = RegisteredMember("g_reader-1", None, START_MS - 5000, czxid=1, session=1, topics=("t",))

Offsets = Mapping[int, OffsetReadResult | tuple[int, int] | int | None]
"""Partition -> (offset, version), offset, an error, or None for absent."""


def reading(found: OffsetReadResult | tuple[int, int] | int | None) -> OffsetReadResult:
    if found is None:
        return ABSENT
    if isinstance(found, int):
        return Committed(found)
    if isinstance(found, Committed) or not isinstance(found, tuple):
        return found
    return Committed(found[0], version=found[1])


def observation(
    second: float,
    *,
    zookeeper: Offsets,
    kafka: Offsets,
    ends: Mapping[int, int],
    owners: Mapping[int, tuple[RegisteredMember, int]] | None = None,
    members: tuple[RegisteredMember, ...] = (NEW,),
    unreadable: tuple[str, ...] = (),
) -> Observation:
    """An observation ``second`` seconds after the start; by default NEW owns every partition, since czxid 100."""
    tps = {n: TopicPartition("t", n) for n in ends}
    owned = dict.fromkeys(ends, (NEW, 100)) if owners is None else owners
    return Observation(
        group="g",
        at_ms=START_MS + 1000 + int(second * 1000),
        members={m.id: m for m in members},
        owners={tps[n]: PartitionOwner(m.id, czxid) for n, (m, czxid) in owned.items()},
        partitions=tuple(tps.values()),
        zookeeper={tps[n]: reading(z) for n, z in zookeeper.items()},
        kafka={tps[n]: reading(k) for n, k in kafka.items()},
        logs={tps[n]: LogRange(0, end) for n, end in ends.items()},
        unreadable=unreadable,
    )


BASELINE = observation(-1, zookeeper={0: (10, 1)}, kafka={0: None}, ends={0: 10}, owners={0: (OLD, 5)}, members=(OLD,))


def series(zookeeper: list[tuple[int, int] | None], kafka: list[int | None], end: int = 1000) -> list[Observation]:
    """Observations of one partition, one a second."""
    pairs = zip(zookeeper, kafka, strict=True)
    return [observation(n, zookeeper={0: z}, kafka={0: k}, ends={0: end}) for n, (z, k) in enumerate(pairs)]


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


# --- planted faults ------------------------------------------------------------------------------


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


# --- partitions without traffic ------------------------------------------------------------------


def idle(zookeeper: tuple[int, int] | None, kafka: int | None, end: int = 10) -> list[Observation]:
    return series([zookeeper] * 4, [kafka] * 4, end)


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


# --- the whole evidence of a partition -----------------------------------------------------------

MESSAGE = "send a message to this partition: its commit shows the phase"
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


# --- members -------------------------------------------------------------------------------------


def members_of(observations: list[Observation], baseline: Observation | None, **rules: bool) -> PhaseReport:
    return assess_phase(
        GroupHistory(observations), DUAL, baseline=baseline, rules=EvidenceThresholds(**rules, quiet_ms=2000)
    )


def test_a_member_without_partitions_is_named_and_passes_only_when_accepted() -> None:
    observations = [
        observation(n, zookeeper={0: (10 + n, n)}, kafka={0: 10 + n}, ends={0: 99}, members=(NEW, OTHER))
        for n in range(3)
    ]
    report = members_of(observations, BASELINE)
    assert [(m.member, m.ok, m.confidence) for m in report.members] == [
        (NEW.id, True, Confidence.SEEN),
        (OTHER.id, False, Confidence.UNKNOWN),
    ]
    assert members_of(observations, BASELINE, accept_spare=True).passed


NEW_SINCE = "new since 2023-11-14T22:13:20Z (registered 2023-11-14T22:13:20Z)"
SPARE = (
    f"{NEW_SINCE}; it owns no partition, so its commits cannot be seen; no registration and no owner has changed for"
)


@pytest.mark.parametrize(
    ("first", "second", "accept_spare", "expected"),
    [  # two observations, each with the offsets of t-0 and t-1 in ZooKeeper and in Kafka; the logs end at 14 and 10
        pytest.param(
            [(10, 9), (10, 10)],
            [(14, 9), (10, 10)],
            False,
            MemberEvidence(
                *(NEW.id, "h1", False, Confidence.SEEN),
                f"{NEW_SINCE}; t-0: commits to ZooKeeper alone: ZooKeeper 10 -> 14 at 22:13:22.000, Kafka read"
                " afterwards: 9 (and 1 more)",
                "restart it with the phase's settings",
                final=True,
                wrong=True,
                partitions=(T0, T1),
            ),
            id="commits-of-another-phase-are-final-although-t-1-is-pending",
        ),
        pytest.param(
            [(10, 10), (10, 10)],
            [(14, 14), (10, 10)],
            False,
            MemberEvidence(
                *(NEW.id, "h1", False, Confidence.UNKNOWN),
                f"{NEW_SINCE}; t-1: idle for too short a time; ZooKeeper 10, Kafka 10, log end 10, no change for 1.0 s",
                MESSAGE,
                final=False,
                partitions=(T0, T1),
            ),
            id="one-partition-is-pending",
        ),
        pytest.param(
            [(10, 10), (9, 9)],
            [(14, 14), (10, 10)],
            False,
            MemberEvidence(
                *(NEW.id, "h1", True, Confidence.SEEN),
                f"{NEW_SINCE}; commits of the phase seen on 2 of its 2 partitions",
                partitions=(T0, T1),
            ),
            id="every-partition-has-proof",
        ),
        pytest.param(
            [],
            [],
            False,
            MemberEvidence(
                *(NEW.id, "h1", False, Confidence.UNKNOWN),
                f"{SPARE} 1.0 s",
                "run fewer members than partitions, or pass --accept-spare (then its settings are not checked)",
                final=False,
            ),
            id="no-partition",
        ),
        pytest.param(
            [],
            [],
            True,
            MemberEvidence(
                *(NEW.id, "h1", False, Confidence.UNKNOWN),
                f"{SPARE} 1.0 s",
                "wait until the group has rebalanced",
                final=False,
            ),
            id="no-partition-yet",
        ),
    ],
)
def test_the_evidence_about_a_member_has_the_reason_and_the_remedy(
    first: list[tuple[int, int]], second: list[tuple[int, int]], accept_spare: bool, expected: MemberEvidence
) -> None:
    observations = [
        observation(
            n,
            zookeeper={at: zookeeper for at, (zookeeper, _) in enumerate(offsets)},
            kafka={at: kafka for at, (_, kafka) in enumerate(offsets)},
            ends={at: (14, 10)[at] for at in range(len(offsets))},
        )
        for n, offsets in enumerate([first, second])
    ]
    report = members_of(observations, BASELINE, accept_spare=accept_spare)

    assert report.members == (expected,)
    assert (report.began_ms, report.ended_ms) == (START_MS + 1000, START_MS + 2000)


@pytest.mark.parametrize("baseline", [BASELINE, None])
@pytest.mark.parametrize("accept_spare", [False, True])
def test_a_member_without_partitions_is_assessed_only_after_the_group_has_rebalanced(
    baseline: Observation | None, accept_spare: bool
) -> None:
    """NEW owns both partitions when OTHER registers. The rebalance that assigns one of them to OTHER comes later."""

    def at(second: float, owners: Mapping[int, tuple[RegisteredMember, int]]) -> Observation:
        offsets = {n: (10 + int(second), int(second)) for n in (0, 1)}
        kafka = {n: 10 + int(second) for n in (0, 1)}
        ends = {0: 99, 1: 99}
        return observation(second, zookeeper=offsets, kafka=kafka, ends=ends, owners=owners, members=(NEW, OTHER))

    alone, shared = {0: (NEW, 100), 1: (NEW, 100)}, {0: (NEW, 110), 1: (OTHER, 111)}
    rules = EvidenceThresholds(accept_spare=accept_spare, quiet_ms=2000)
    watch = GroupHistory()
    for seen in (at(0, alone), at(1, alone)):
        watch.add(seen)
        early = assess_phase(watch, DUAL, baseline=baseline, rules=rules, only=[OTHER.id])
        assert (early.passed, early.final, early.cannot_pass) == (False, False, False)
    for seen in (at(2, shared), at(3, shared)):
        watch.add(seen)
    assert assess_phase(watch, DUAL, baseline=baseline, rules=rules, only=[OTHER.id]).passed


def test_a_spare_member_is_accepted_only_after_a_quiet_time() -> None:
    observations = [
        observation(n, zookeeper={0: (10 + n, n)}, kafka={0: 10 + n}, ends={0: 99}, members=(NEW, OTHER))
        for n in range(3)
    ]
    assert not members_of(observations[:2], BASELINE, accept_spare=True).passed
    report = members_of(observations, BASELINE, accept_spare=True)
    assert (report.passed, report.final) == (True, True)
    spare = next(m for m in report.members if m.member == OTHER.id)
    assert spare.why.endswith(
        "it owns no partition, so its commits cannot be seen; no registration and no owner has changed for 2.0 s"
    )


def test_without_a_baseline_a_member_is_assessed_by_its_commits_alone() -> None:
    moving = members_of(series([(10, 1), (14, 2)], [10, 14]), None)
    assert (moving.passed, moving.members[0].confidence) == (True, Confidence.INFERRED)
    still = members_of(idle((10, 1), 10), None, accept_idle=True)
    assert (still.passed, still.members[0].confidence) == (False, Confidence.UNKNOWN)


def configured(czxid: int, moving: bool) -> list[Observation]:
    member = RegisteredMember(CONFIGURED.id, None, START_MS, czxid=czxid, session=czxid, topics=("t",))
    step = 1 if moving else 0
    return [
        observation(
            n,
            zookeeper={0: (10 + n * step, n * step)},
            kafka={0: 10 + n * step},
            ends={0: 99 if moving else 10},
            owners={0: (member, 100)},
            members=(member,),
        )
        for n in range(4)
    ]


@pytest.mark.parametrize(
    ("czxid", "moving", "ok", "known"),
    [
        (1, True, False, Confidence.SEEN),  # the same registration: the same process
        (70, True, True, Confidence.INFERRED),  # registered again, and its commits are those of the phase
        (70, False, False, Confidence.UNKNOWN),  # registered again, which an expired session does too
    ],
)
def test_a_configured_consumer_id_proves_nothing_so_session_and_commits_decide(
    czxid: int, moving: bool, ok: bool, known: Confidence
) -> None:
    before = observation(
        -1, zookeeper={0: (9, 0)}, kafka={0: 9}, ends={0: 10}, owners={0: (CONFIGURED, 2)}, members=(CONFIGURED,)
    )
    (member,) = members_of(configured(czxid, moving), before, accept_idle=True).members
    assert (member.ok, member.confidence) == (ok, known)
    assert "a configured consumer.id" in member.why


def new_is_dual_and_other_commits_to_zookeeper() -> list[Observation]:
    """Two observations. NEW has been bounced into the dual phase; OTHER has not been bounced."""
    return [
        observation(
            n,
            zookeeper={0: (10 + n, n), 1: (10 + n, n)},
            kafka={0: 10 + n, 1: None},
            ends={0: 99, 1: 99},
            owners={0: (NEW, 100), 1: (OTHER, 101)},
            members=(NEW, OTHER),
        )
        for n in range(2)
    ]


def test_the_gate_of_one_step_assesses_only_the_restarted_member() -> None:
    observations = new_is_dual_and_other_commits_to_zookeeper()
    assert assess_phase(GroupHistory(observations), DUAL, baseline=BASELINE, only=[NEW.id]).passed
    whole = assess_phase(GroupHistory(observations), DUAL, baseline=BASELINE)
    assert (whole.passed, whole.wrong) == (False, (OTHER.id,))


# --- the phase that a group is in ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "phase", "known"),
    [
        ([(10, 1), (14, 2)], [None, None], ZOOKEEPER, Confidence.SEEN),
        ([(10, 1), (14, 2)], [10, 14], DUAL, Confidence.SEEN),
        ([(10, 1)] * 4, [11, 14, 18, 18], KAFKA, Confidence.SEEN),
        ([(10, 1)], [None], ZOOKEEPER, Confidence.INFERRED),
        ([None], [10], KAFKA, Confidence.INFERRED),
        ([(10, 1)], [10], None, Confidence.UNKNOWN),
        ([None], [None], None, Confidence.UNKNOWN),
    ],
)
def test_the_phase_is_inferred_from_commits_then_from_the_stores(
    zookeeper: list[tuple[int, int] | None], kafka: list[int | None], phase: CommitMode | None, known: Confidence
) -> None:
    found = infer_phase(GroupHistory(series(zookeeper, kafka)))
    assert (found.phase, found.confidence) == (phase, known)


def test_members_in_different_phases_are_named_with_their_commits() -> None:
    observations = [
        observation(
            n,
            zookeeper={0: (10 + n, n), 1: (10 + n, n)},
            kafka={0: 10 + n, 1: None},
            ends={0: 99, 1: 99},
            owners={0: (NEW, 100), 1: (OTHER, 101)},
            members=(NEW, OTHER),
        )
        for n in range(2)
    ]
    found = infer_phase(GroupHistory(observations))
    assert (found.phase, found.confidence, found.members) == (None, Confidence.SEEN, {ZOOKEEPER, DUAL})
    assert found.why == (
        f"members are in different phases: dual: t-0 ({NEW.id}): Kafka 10 -> 11 at 22:13:22.000; ZooKeeper 10 -> 11"
        f" (version 0 -> 1) at 22:13:22.000; zookeeper: t-1 ({OTHER.id}): ZooKeeper 10 -> 11 (version 0 -> 1) at"
        " 22:13:22.000, Kafka read afterwards: no offset"
    )


def test_an_observation_survives_json() -> None:
    error = CoordinatorNotAvailable("offsets", "moved")
    seen = observation(
        0, zookeeper={0: (10, 1), 1: None}, kafka={0: 10, 1: error}, ends={0: 10, 1: 3}, unreadable=("/x",)
    )
    again = from_json(to_json(seen), where="baseline")
    assert again.members == seen.members
    assert again.owners == seen.owners
    assert again.zookeeper == seen.zookeeper
    assert again.kafka[TopicPartition("t", 0)] == Committed(10)
    assert str(again.kafka[TopicPartition("t", 1)]) == "offset of t-1: offsets: moved"
    assert (again.partitions, again.logs, again.unreadable, again.at_ms) == (
        seen.partitions,
        seen.logs,
        seen.unreadable,
        seen.at_ms,
    )


# --- changes to dual: the larger offset must not skip messages ----------------------------------------


def test_a_stale_kafka_offset_ahead_of_a_zookeeper_group_blocks_the_change_to_dual() -> None:
    # A dual member would start at the larger offset, 500, and never consume 300 to 499.
    watch = GroupHistory(
        [observation(0, zookeeper={0: (300, 1), 1: (9, 1)}, kafka={0: 500, 1: 9}, ends={0: 900, 1: 9})]
    )
    with pytest.raises(GateRefused, match=r"would never be consumed \(t-0: ZooKeeper 300, Kafka 500\)"):
        reject_offset_jump(CommitModeChange(ZOOKEEPER, DUAL), watch)


def test_a_zookeeper_offset_ahead_of_a_kafka_group_blocks_the_change_to_dual() -> None:
    watch = GroupHistory([observation(0, zookeeper={0: (500, 1)}, kafka={0: 300}, ends={0: 900})])
    with pytest.raises(GateRefused, match=r"ZooKeeper is ahead of Kafka"):
        reject_offset_jump(CommitModeChange(KAFKA, DUAL), watch)


def test_a_change_to_dual_passes_if_the_store_in_use_is_ahead() -> None:
    reject_offset_jump(
        CommitModeChange(ZOOKEEPER, DUAL),
        GroupHistory([observation(0, zookeeper={0: (5, 1)}, kafka={0: None}, ends={0: 9})]),
    )
    reject_offset_jump(
        CommitModeChange(KAFKA, DUAL), GroupHistory([observation(0, zookeeper={0: (5, 1)}, kafka={0: 7}, ends={0: 9})])
    )


def test_a_member_that_is_dual_already_may_be_between_its_two_writes() -> None:
    # Resumed manually, without the state file. The member writes Kafka first, so Kafka is ahead for a moment.
    observations = series([(10, 1), (14, 2), (14, 2)], [10, 14, 18])
    reject_offset_jump(CommitModeChange(ZOOKEEPER, DUAL), GroupHistory(observations))


def test_the_gate_out_of_dual_accepts_members_that_are_already_in_the_next_phase() -> None:
    # The gate to zookeeper passes, the gate to kafka does not.
    observations = new_is_dual_and_other_commits_to_zookeeper()
    assert assess_phase(GroupHistory(observations), DUAL, also=ZOOKEEPER).passed
    assert not assess_phase(GroupHistory(observations), DUAL, also=KAFKA).passed
