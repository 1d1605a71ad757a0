"""Conclusions about the phase of each member from recorded observations."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from recorded_observations import (
    BASELINE,
    DUAL,
    MESSAGE,
    NEW,
    OTHER,
    START_MS,
    T0,
    T1,
    idle,
    new_is_dual_and_other_commits_to_zookeeper,
    observation,
    series,
)

from offsetmgr.migration.evidence import Confidence, EvidenceThresholds
from offsetmgr.migration.observation import Observation, RegisteredMember
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import MemberEvidence, PhaseReport, assess_phase

CONFIGURED = RegisteredMember("g_reader-1", None, START_MS - 5000, czxid=1, session=1, topics=("t",))


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


def test_the_gate_of_one_step_assesses_only_the_restarted_member() -> None:
    observations = new_is_dual_and_other_commits_to_zookeeper()
    assert assess_phase(GroupHistory(observations), DUAL, baseline=BASELINE, only=[NEW.id]).passed
    whole = assess_phase(GroupHistory(observations), DUAL, baseline=BASELINE)
    assert (whole.passed, whole.wrong) == (False, (OTHER.id,))
