"""Conclusions about the phase of each partition and each member from recorded observations, with planted faults."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from recorded_observations import (
    BASELINE,
    DUAL,
    KAFKA,
    MESSAGE,
    NEW,
    OLD,
    OTHER,
    START_MS,
    T0,
    T1,
    ZOOKEEPER,
    idle,
    new_is_dual_and_other_commits_to_zookeeper,
    observation,
    series,
)

from offsetmgr.core.commit_mode import CommitMode, Confidence, Phase
from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.core.model import Committed
from offsetmgr.migration.evidence import (
    EvidenceThresholds,
    MemberEvidence,
    PartitionEvidence,
    PhaseReport,
    assess_phase,
    infer_phase,
)
from offsetmgr.migration.observation import (
    GroupHistory,
    Observation,
    PartitionOwner,
    RegisteredMember,
    from_json,
    to_json,
)


def report_of(
    observations: list[Observation] | GroupHistory,
    phase: CommitMode = DUAL,
    baseline: Observation | None = BASELINE,
    only: list[str] | None = None,
    **rules: Any,
) -> PhaseReport:
    history = observations if isinstance(observations, GroupHistory) else GroupHistory(observations)
    thresholds = EvidenceThresholds(**{"quiet_ms": 2000, **rules})
    return assess_phase(history, phase, baseline=baseline, rules=thresholds, only=only)


def moving(*members: RegisteredMember, seconds: int = 3, **options: Any) -> list[Observation]:
    """The owner of the partition commits to both stores in each second."""
    options |= {"members": members} if members else {}
    return [
        observation(n, zookeeper={0: (10 + n, n)}, kafka={0: 10 + n}, ends={0: 99}, **options) for n in range(seconds)
    ]


def assessment(observations: list[Observation], phase: CommitMode, **rules: Any) -> tuple[bool, Confidence, bool]:
    report = report_of(observations, phase, **rules)
    (partition,) = report.partitions
    assert report.passed is partition.ok
    return partition.ok, partition.confidence, partition.final


SEEN_OK, SEEN_WRONG = (True, Confidence.SEEN, True), (False, Confidence.SEEN, True)
PENDING = (False, Confidence.UNKNOWN, False)
STOPPED = (False, Confidence.UNKNOWN, True)
"""No longer watch can decide: the partition is idle, or another client commits."""
INFERRED_OK = (True, Confidence.INFERRED, True)
RETURNED = [
    observation(n, zookeeper={0: (10 + 4 * n, 1 + n)}, kafka={0: 10 + 4 * n}, ends={0: 99}, owners={0: (NEW, 100 + n)})
    for n in range(2)
]
"""The member owns its partition again."""
NO_IDLE, COPY_LATER = {"accept_idle": True}, {"accept_idle": True, "catch_up_later": True}


@pytest.mark.parametrize(
    ("observations", "rules", "expected"),
    [
        # both stores moved under one owner
        (series([(10, 1), (14, 2)], [10, 14]), {}, {ZOOKEEPER: SEEN_WRONG, DUAL: SEEN_OK, KAFKA: SEEN_WRONG}),
        # A dual member would have written 14 to Kafka before, and Kafka was read after ZooKeeper.
        (series([(10, 1), (14, 2)], [None, None]), {}, {ZOOKEEPER: SEEN_OK, DUAL: SEEN_WRONG, KAFKA: SEEN_WRONG}),
        # A dual member writes ZooKeeper after Kafka: after one commit it may be between the two.
        (series([(10, 1)] * 2, [10, 14]), {}, {ZOOKEEPER: SEEN_WRONG, DUAL: PENDING, KAFKA: PENDING}),
        # A second commit to Kafka proves it only after another read of ZooKeeper.
        (series([(10, 1)] * 3, [10, 14, 18]), {}, {KAFKA: PENDING}),
        (series([(10, 1)] * 4, [10, 14, 18, 18]), {}, {ZOOKEEPER: SEEN_WRONG, DUAL: SEEN_WRONG, KAFKA: SEEN_OK}),
        # The member started from ZooKeeper's 20 (the larger), committed it to Kafka and assumes that ZooKeeper has it.
        (series([(20, 1)] * 4, [10, 20, 24, 24]), {}, {DUAL: PENDING, KAFKA: PENDING}),
        # a member that reads ZooKeeper behind Kafka, and reprocesses
        (series([(10, 1), (14, 2)], [30, 30]), {}, {ZOOKEEPER: PENDING}),
        (RETURNED, {}, {DUAL: PENDING}),
        # an offset that decreases comes from another writer, and a mirror does not count as dual
        (series([(10, 1), (14, 2), (14, 2)], [10, 14, 3]), {}, {DUAL: STOPPED}),
        (series([(10, 1), (14, 2), (14, 2)], [10, 10, 14]), {}, {DUAL: STOPPED}),
        (idle((10, 1), 10, end=25), NO_IDLE, {DUAL: PENDING}),  # with waiting messages it is stuck and not idle
        (series([(10, 1)] * 2, [10] * 2, end=10), NO_IDLE, {DUAL: PENDING}),  # not quiet for long enough
        # an offset that the next automatic commit may raise
        (idle((10, 1), 5), NO_IDLE, {DUAL: PENDING, KAFKA: PENDING}),
        # an idle partition that is behind in ZooKeeper may wait for the copy
        (idle((5, 1), 10), NO_IDLE, {ZOOKEEPER: PENDING}),
        (idle((5, 1), 10), COPY_LATER, {ZOOKEEPER: PENDING, DUAL: INFERRED_OK, KAFKA: INFERRED_OK}),
    ],
)
def test_commits_prove_a_phase_exclude_it_or_leave_it_open(observations, rules, expected):
    assert {phase: assessment(observations, phase, **rules) for phase in expected} == expected


def test_a_zookeeper_commit_in_phase_kafka_names_the_member_as_still_dual() -> None:
    report = report_of(series([(10, 1), (14, 2)], [10, 14]), KAFKA)
    assert (report.passed, report.wrong) == (False, (NEW.id,))
    (member,) = report.members
    assert member.why == (
        "new since 2023-11-14T22:13:20Z (registered 2023-11-14T22:13:20Z); t-0: commits to both: Kafka 10 -> 14 at"
        " 22:13:22.000; ZooKeeper 10 -> 14 (version 1 -> 2) at 22:13:22.000"
    )


def test_a_member_that_registered_before_the_bounce_has_not_bounced() -> None:
    report = report_of(moving(OLD, seconds=2, owners={0: (OLD, 5)}))
    assert report.not_bounced == (OLD.id,)
    assert [p.ok for p in report.partitions] == [True]  # it commits to both, but it may still run with its old settings
    assert not report.passed


def test_commits_across_a_change_of_owner_count_for_no_member() -> None:
    former, later = moving(NEW, OTHER, seconds=1, owners={0: (OTHER, 90)}), moving(NEW, OTHER, seconds=2)[1:]
    assert infer_phase(GroupHistory(former + later)).confidence is Confidence.UNKNOWN


def test_a_gate_stays_closed_without_an_owner_without_members_or_with_an_unreadable_node() -> None:
    unowned = [observation(n, zookeeper={0: (10, 1)}, kafka={0: 10}, ends={0: 10}, owners={}) for n in range(2)]
    report = report_of(unowned, accept_idle=True, accept_spare=True, quiet_ms=0)
    assert (report.passed, report.final) == (False, False)
    assert report.partitions[0].why == "no owner, or the owner is changing"
    empty = observation(0, zookeeper={0: (1, 1)}, kafka={0: 1}, ends={0: 1}, owners={}, members=())
    assert not report_of([empty], baseline=None, accept_idle=True).passed
    unreadable = replace(moving()[-1], unreadable=("/consumers/g/ids/x",))
    report = report_of([*moving()[:-1], unreadable])
    problem = "ZooKeeper node /consumers/g/ids/x cannot be read: its content is unknown"
    assert (report.passed, report.problems) == (False, (problem,))


def test_a_missing_coordinator_is_unreadable_and_never_absent() -> None:
    gone = CoordinatorNotAvailable("offsets of group g", "no coordinator")
    observations = [observation(n, zookeeper={0: (10 + n, 1 + n)}, kafka={0: gone}, ends={0: 99}) for n in range(3)]
    assert {assessment(observations, phase) for phase in CommitMode} == {PENDING}
    # The coordinator is back. The observations of ZooKeeper from the meantime still count.
    observations += [observation(3, zookeeper={0: (13, 4)}, kafka={0: 13}, ends={0: 99})]
    observations += [observation(4, zookeeper={0: (14, 5)}, kafka={0: 14}, ends={0: 99})]
    assert assessment(observations, DUAL) == SEEN_OK


@pytest.mark.parametrize(
    ("phase", "zookeeper", "kafka"),
    [(ZOOKEEPER, [1, 2, 3, 4], [0] * 4), (DUAL, [1, 2, 3, 4], [1, 2, 3, 4]), (KAFKA, [1] * 4, [1, 2, 3, 4])],
)
def test_an_idle_partition_is_unknown_and_passes_only_when_accepted(phase, zookeeper, kafka):
    assert assessment(idle((10, 1), 10), phase) == STOPPED
    busy = [
        observation(n, zookeeper={0: (10, 1), 1: (z, z)}, kafka={0: 10, 1: k}, ends={0: 10, 1: 99})
        for n, (z, k) in enumerate(zip(zookeeper, kafka, strict=True))
    ]
    strict = report_of(busy, phase)
    assert [(p.ok, p.confidence) for p in strict.partitions] == [(False, Confidence.UNKNOWN), (True, Confidence.SEEN)]
    assert "or pass accept_idle=" in strict.partitions[0].remedy
    accepted = report_of(busy, phase, accept_idle=True)
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
def test_idle_partitions_are_accepted_only_if_no_message_can_be_lost(zookeeper, kafka, passes):
    observations = idle(zookeeper, kafka)
    assert {phase for phase in CommitMode if assessment(observations, phase, accept_idle=True) == INFERRED_OK} == passes


def test_one_commit_to_kafka_alone_does_not_end_the_watch_of_the_dual_phase() -> None:
    """A dual member whose write to ZooKeeper failed repeats it at its next automatic commit."""
    watch = GroupHistory(series([(10, 1)] * 4, [10, 14, 14, 14], end=14))
    early = report_of(watch, accept_idle=True)
    assert (early.passed, early.final, early.cannot_pass, early.wrong) == (False, False, False, (NEW.id,))
    watch.add(observation(4, zookeeper={0: (14, 2)}, kafka={0: 14}, ends={0: 14}))
    assert report_of(watch, accept_idle=True).passed


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
def test_a_change_in_either_store_or_of_the_log_begins_the_quiet_time_again(zookeeper, kafka, end, unchanged_ms):
    later = [observation(n, zookeeper={0: zookeeper}, kafka={0: kafka}, ends={0: end}) for n in (1, 2, 3)]
    history = GroupHistory([observation(0, zookeeper={0: (10, 1)}, kafka={0: 10}, ends={0: 12}), *later])
    assert history.partitions[T0].unchanged_ms == unchanged_ms


@pytest.mark.parametrize(
    ("observations", "phase", "expected", "why", "remedy", "offsets"),
    [
        (
            *(series([(10, 1), (14, 2)], [10, 14]), DUAL, SEEN_OK),
            "commits to both: Kafka 10 -> 14 at 22:13:22.000; ZooKeeper 10 -> 14 (version 1 -> 2) at 22:13:22.000",
            *("", (14, 14, 1000)),
        ),
        (
            *(series([None, (0, 1)], [None, None]), DUAL, SEEN_WRONG),
            "commits to ZooKeeper alone: ZooKeeper no offset -> 0 (version none -> 1) at 22:13:22.000, Kafka"
            " read afterwards: no offset",
            *("", (0, None, 1000)),
        ),
        (
            *(series([(10, 1), (14, 2)], [30, 30]), KAFKA, SEEN_WRONG),
            "still commits to ZooKeeper (dual, or not bounced): 10 -> 14 (version 1 -> 2) at 22:13:22.000",
            *("", (14, 30, 1000)),
        ),
        (
            *(series([(30, 1)] * 2, [10, 20]), ZOOKEEPER, SEEN_WRONG),
            *("still commits to Kafka (dual, or not bounced): 10 -> 20 at 22:13:22.000", "", (30, 20, 1000)),
        ),
        (
            *(series([(10, 1), (14, 2), (14, 2)], [10, 10, 14]), DUAL, STOPPED),
            "ZooKeeper 10 -> 14 (version 1 -> 2) at 22:13:22.000, Kafka read afterwards: 10; then the other store"
            " changed too, so another client (a mirror?) writes there",
            *("stop the other client, then check again", (14, 14, 1000)),
        ),
        (
            *(idle((10, 1), 10, end=25), ZOOKEEPER, PENDING),
            "15 messages are waiting and no commit was seen; ZooKeeper 10, Kafka 10, log end 25, no change for 3.0 s",
            "use a window= of at least three times auto.commit.interval.ms; if that does not help, the member is stuck",
            (10, 10, 25),
        ),
        (
            *(series([(10, 1)] * 2, [10] * 2, end=10), ZOOKEEPER, PENDING),
            "idle for too short a time; ZooKeeper 10, Kafka 10, log end 10, no change for 1.0 s",
            *(MESSAGE, (10, 10, 10)),
        ),
        (
            *(idle((10, 1), 5), KAFKA, PENDING),
            "no traffic; ZooKeeper 10, Kafka 5, log end 10, no change for 3.0 s: Kafka is behind ZooKeeper: a member"
            " that reads Kafka alone repeats messages or uses auto.offset.reset",
            *(MESSAGE, (10, 5, 10)),
        ),
        (
            [observation(0, zookeeper={0: (10, 1)}, kafka={0: None}, ends={0: 10}, owners={})],
            *(DUAL, PENDING, "no owner, or the owner is changing", "wait until the group has rebalanced"),
            (10, None, None),
        ),
    ],
)
def test_the_evidence_has_the_reason_the_offsets_and_the_remedy(observations, phase, expected, why, remedy, offsets):
    member = NEW.id if observations[0].owners else None
    ok, known, final = expected
    evidence = PartitionEvidence(T0, member, ok, known, why, remedy, final, *offsets)
    assert report_of(observations, phase).partitions == (evidence,)


CONFIGURED = RegisteredMember("g_reader-1", None, START_MS - 5000, czxid=1, session=1, topics=("t",))


NEW_SINCE = "new since 2023-11-14T22:13:20Z (registered 2023-11-14T22:13:20Z)"
SPARE = (
    f"{NEW_SINCE}; it owns no partition, so its commits cannot be seen; no registration and no owner has changed for"
    " 1.0 s"
)
RUN_FEWER = "run fewer members than partitions, or pass accept_spare= (then its settings are not checked)"


@pytest.mark.parametrize(
    ("first", "second", "accept_spare", "expected", "why", "remedy"),
    [  # two observations, each with the offsets of t-0 and t-1 in ZooKeeper and in Kafka; the logs end at 14 and 10
        (  # commits of another phase are final, although t-1 is pending
            *([(10, 9), (10, 10)], [(14, 9), (10, 10)], False, SEEN_WRONG),
            f"{NEW_SINCE}; t-0: commits to ZooKeeper alone: ZooKeeper 10 -> 14 at 22:13:22.000, Kafka read"
            " afterwards: 9 (and 1 more)",
            "restart it with the phase's settings",
        ),
        (
            *([(10, 10), (10, 10)], [(14, 14), (10, 10)], False, PENDING),
            f"{NEW_SINCE}; t-1: idle for too short a time; ZooKeeper 10, Kafka 10, log end 10, no change for 1.0 s",
            MESSAGE,
        ),
        (
            *([(10, 10), (9, 9)], [(14, 14), (10, 10)], False, SEEN_OK),
            *(f"{NEW_SINCE}; commits of the phase seen on 2 of its 2 partitions", ""),
        ),
        ([], [], False, PENDING, SPARE, RUN_FEWER),
        ([], [], True, PENDING, SPARE, "wait until the group has rebalanced"),
    ],
)
def test_the_evidence_about_a_member_has_the_reason_and_the_remedy(first, second, accept_spare, expected, why, remedy):
    observations = [
        observation(
            n,
            zookeeper={at: zookeeper for at, (zookeeper, _) in enumerate(offsets)},
            kafka={at: kafka for at, (_, kafka) in enumerate(offsets)},
            ends={at: (14, 10)[at] for at in range(len(offsets))},
        )
        for n, offsets in enumerate([first, second])
    ]
    report = report_of(observations, accept_spare=accept_spare)
    partitions = (T0, T1) if first else ()
    ok, known, final = expected
    details = {"final": final, "wrong": expected == SEEN_WRONG, "partitions": partitions}
    assert report.members == (MemberEvidence(NEW.id, "h1", ok, known, why, remedy, **details),)
    assert (report.began_ms, report.ended_ms) == (START_MS + 1000, START_MS + 2000)


@pytest.mark.parametrize("baseline", [BASELINE, None])
@pytest.mark.parametrize("accept_spare", [False, True])
def test_a_member_without_partitions_is_assessed_only_after_the_group_has_rebalanced(baseline, accept_spare):
    """NEW owns both partitions when OTHER registers. The rebalance that assigns one of them to OTHER comes later."""

    def at(second: float, owners: Mapping[int, tuple[RegisteredMember, int]]) -> Observation:
        offsets = {n: (10 + int(second), int(second)) for n in (0, 1)}
        kafka = {n: 10 + int(second) for n in (0, 1)}
        ends = {0: 99, 1: 99}
        return observation(second, zookeeper=offsets, kafka=kafka, ends=ends, owners=owners, members=(NEW, OTHER))

    alone, shared = {0: (NEW, 100), 1: (NEW, 100)}, {0: (NEW, 110), 1: (OTHER, 111)}
    watch = GroupHistory()
    for seen in (at(0, alone), at(1, alone)):
        watch.add(seen)
        early = report_of(watch, DUAL, baseline, [OTHER.id], accept_spare=accept_spare)
        assert (early.passed, early.final, early.cannot_pass) == (False, False, False)
    for seen in (at(2, shared), at(3, shared)):
        watch.add(seen)
    assert report_of(watch, DUAL, baseline, [OTHER.id], accept_spare=accept_spare).passed


def test_a_spare_member_is_named_and_accepted_only_after_a_quiet_time() -> None:
    observations = moving(NEW, OTHER)
    assert not report_of(observations[:2], accept_spare=True).passed
    strict, report = report_of(observations), report_of(observations, accept_spare=True)
    states = [(m.member, m.ok, m.confidence) for m in strict.members]
    assert states == [(NEW.id, True, Confidence.SEEN), (OTHER.id, False, Confidence.UNKNOWN)]
    assert (report.passed, report.final) == (True, True)
    spare = next(m for m in report.members if m.member == OTHER.id)
    assert spare.why.endswith(
        "it owns no partition, so its commits cannot be seen; no registration and no owner has changed for 2.0 s"
    )


def test_without_a_baseline_a_member_is_assessed_by_its_commits_alone() -> None:
    found = report_of(moving(), baseline=None)
    assert (found.passed, found.members[0].confidence) == (True, Confidence.INFERRED)
    still = report_of(idle((10, 1), 10), baseline=None, accept_idle=True)
    assert (still.passed, still.members[0].confidence) == (False, Confidence.UNKNOWN)


def configured(czxid: int, active: bool) -> list[Observation]:
    member = RegisteredMember(CONFIGURED.id, None, START_MS, czxid=czxid, session=czxid, topics=("t",))
    if active:
        return moving(member, seconds=4, owners={0: (member, 100)})
    return [
        replace(one, members={member.id: member}, owners={T0: PartitionOwner(member.id, 100)})
        for one in idle((10, 1), 10)
    ]


@pytest.mark.parametrize(
    ("czxid", "moving", "ok", "known"),
    [
        (1, True, False, Confidence.SEEN),  # the same registration: the same process
        (70, True, True, Confidence.INFERRED),  # registered again, and its commits are those of the phase
        (70, False, False, Confidence.UNKNOWN),  # registered again, which an expired session does too
    ],
)
def test_a_configured_consumer_id_proves_nothing_so_session_and_commits_decide(czxid, moving, ok, known):
    before = observation(
        -1, zookeeper={0: (9, 0)}, kafka={0: 9}, ends={0: 10}, owners={0: (CONFIGURED, 2)}, members=(CONFIGURED,)
    )
    (member,) = report_of(configured(czxid, moving), baseline=before, accept_idle=True).members
    assert (member.ok, member.confidence) == (ok, known)
    assert "a configured consumer.id" in member.why


def test_the_gate_of_one_step_assesses_only_the_restarted_member() -> None:
    observations = new_is_dual_and_other_commits_to_zookeeper()
    assert report_of(observations, only=[NEW.id]).passed
    whole = report_of(observations)
    assert (whole.passed, whole.wrong) == (False, (OTHER.id,))


def test_the_gate_out_of_dual_accepts_members_that_are_already_in_the_next_phase() -> None:
    history = GroupHistory(new_is_dual_and_other_commits_to_zookeeper())
    assert assess_phase(history, DUAL, also=ZOOKEEPER).passed
    assert not assess_phase(history, DUAL, also=KAFKA).passed


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
def test_the_phase_is_inferred_from_commits_then_from_the_stores(zookeeper, kafka, phase, known):
    found = infer_phase(GroupHistory(series(zookeeper, kafka)))
    assert (found.phase.mode, found.confidence) == (phase, known)


def test_an_offset_that_only_one_store_has_shows_no_phase_if_both_stores_hold_offsets() -> None:
    seen = observation(0, zookeeper={0: (10, 1), 1: (10, 1)}, kafka={0: 10}, ends={0: 10, 1: 10})
    found = infer_phase(GroupHistory([seen]))
    assert (found.phase, found.confidence) == (Phase.UNKNOWN, Confidence.UNKNOWN)


def test_members_in_different_phases_are_named_with_their_commits() -> None:
    found = infer_phase(GroupHistory(new_is_dual_and_other_commits_to_zookeeper()))
    assert (found.phase, found.confidence, found.members) == (Phase.UNKNOWN, Confidence.SEEN, {ZOOKEEPER, DUAL})
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
    assert str(again.kafka[T1]) == "offset of t-1: offsets: moved"
    assert replace(again, kafka=seen.kafka) == seen
    assert again.kafka[T0] == Committed(10)
