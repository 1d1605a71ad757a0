"""The texts of `finalize` and `groups where` make no claim without an observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from one_migration import Migration, commit
from recorded_observations import NEW, observation

from offsetmgr.cli.migrate_output import gates_text
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import MalformedData, UnknownTopicOrPartition
from offsetmgr.core.model import Committed, GroupDescription, GroupMember, LogRange, TopicPartition
from offsetmgr.migration.evidence import Confidence, EvidenceThresholds
from offsetmgr.migration.finalize import GroupGate
from offsetmgr.migration.finalize_gates import OldConsumerGate
from offsetmgr.migration.group_location import GroupPhase, GroupSample, MigratedGroup, StoreSample, locate
from offsetmgr.migration.group_locator import ConfiguredStore, GroupLocator
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.plan import GroupPlan, PlanOptions
from offsetmgr.migration.plan_run import append_to_journal
from offsetmgr.migration.verify_rules import VerifyEvidence

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
BUSY, IDLE = [10, 11, 12, 13], [50, 50, 50, 50]


def gate(evidence: VerifyEvidence, accepted: str = "") -> GroupGate:
    return GroupGate("shop", True, evidence, "", accepted=accepted)


def test_finalize_counts_the_groups_by_evidence_and_by_acceptance() -> None:
    seen, inferred = gate(VerifyEvidence.SEEN), gate(VerifyEvidence.INFERRED)
    accepted = gate(VerifyEvidence.INFERRED, "1 partition without traffic (--accept-idle): t-1")
    assert gates_text([seen]) == "no member found that commits to the source alone (seen for 1 group)"
    assert gates_text([seen, inferred, accepted]) == (
        "no member found that commits to the source alone (seen for 1 group, inferred for 2 groups, "
        "with partitions accepted by --accept-idle in 1 group)"
    )


@pytest.mark.parametrize(
    ("second", "accepted"), [(BUSY, ""), (IDLE, "1 partition without traffic (--accept-idle): t-1")]
)
def test_a_gate_names_the_partitions_that_an_option_accepted(second: list[int], accepted: str) -> None:
    seconds = range(4)
    offsets: Mapping[int, list[int]] = {0: BUSY, 1: second}
    history = GroupHistory(
        [
            observation(
                at * 2,
                zookeeper={n: (moves[at], moves[at]) for n, moves in offsets.items()},
                kafka={n: moves[at] for n, moves in offsets.items()},
                ends={n: moves[-1] for n, moves in offsets.items()},
            )
            for at in seconds
        ]
    )
    rules = EvidenceThresholds(accept_idle=True, quiet_ms=2000)
    checked = OldConsumerGate(None, CommitMode.KAFKA, False, rules, ObservationWindow(1))._gate(  # type: ignore[arg-type]
        GroupPlan("g", "g", ()), history
    )
    assert (checked.passed, checked.accepted) == (True, accepted)
    assert checked.detail == "the only member commits as phase dual does"


def sample(*stores: StoreSample, plan: MigratedGroup | None = None) -> GroupSample:
    return GroupSample("shop", stores, {T0: LogRange(0, 100)}, plan=plan)


def test_a_partition_without_a_topic_has_the_reason_of_its_unknown_lag() -> None:
    gone = UnknownTopicOrPartition("topic t", "does not exist in this Kafka cluster")
    (partition,) = locate(GroupSample("shop", (held("zookeeper", 10),), {T0: gone})).partitions
    assert (partition.lag, partition.note) == (None, "log unknown: does not exist in this Kafka cluster")


def held(name: str, offset: int, *members: str) -> StoreSample:
    live = tuple(GroupMember(member, "", "", None) for member in members)
    return StoreSample(name, f"{name}://h", {T0: Committed(offset)}, live)


def test_live_members_in_both_stores_make_no_claim_about_their_commits() -> None:
    found = locate(sample(held("zookeeper", 10, NEW.id), held("kafka", 20, "m-1"))).phase
    assert found.phase is GroupPhase.UNKNOWN
    assert found.why == ("1 old consumer in ZooKeeper and 1 member in Kafka are live; their commits were not watched")


MOVED = MigratedGroup(
    "p.json",
    "shop",
    "shop",
    "finalized",
    "zookeeper",
    "kafka",
    "zookeeper://h",
    "kafka://h",
    finalized_at=1_700_000_000_000,
)


def test_the_lag_of_a_moved_group_comes_from_the_target() -> None:
    found = locate(sample(held("zookeeper", 10), held("kafka", 20), plan=MOVED))
    assert (found.phase.phase, found.lag) == (GroupPhase.MOVED, 80)


@pytest.mark.parametrize("others", [(), (held("manager", 70),)])
def test_the_lag_of_a_moved_group_is_unknown_if_the_target_was_not_read(others: tuple[StoreSample, ...]) -> None:
    for plan in (MOVED, replace(MOVED, target=None)):
        found = locate(sample(held("zookeeper", 10), *others, plan=plan))
        assert (found.phase.phase, found.lag) == (GroupPhase.MOVED, None)
        assert found.partitions[0].note == "lag unknown, because the target kafka://h was not read"


@pytest.mark.parametrize("unread", ["zookeeper", "kafka"])
def test_a_partition_that_cannot_be_read_makes_no_claim_that_the_group_has_moved(unread: str) -> None:
    broken = MalformedData("znode /offsets/1", "is not a number")
    stores = [held("zookeeper", 10), held("kafka", 20)]
    stores = [replace(s, offsets={**s.offsets, T1: broken}) if s.name == unread else s for s in stores]
    found = locate(sample(*stores, plan=MOVED)).phase
    assert found.phase is GroupPhase.UNKNOWN
    assert found.why.endswith(f"cannot be read: {broken}")


@pytest.mark.parametrize(("left", "phase"), [(20, GroupPhase.MOVED), (21, GroupPhase.UNKNOWN)])
@pytest.mark.parametrize("name", ["a/b", "a-b"])
def test_each_side_of_a_renamed_group_is_read_under_its_own_name(
    tmp_path: Path, name: str, left: int, phase: GroupPhase
) -> None:
    migration = Migration(tmp_path, options=PlanOptions(rename={"a/b": "a-b"}))
    commit(migration.source, "a/b", 20)
    plan = migration.plan()
    migration.apply()
    finalized = {"kind": "group-finalized", "group": "a/b", "verified": 1, "left_out": 0, "gate": ["seen", ""]}
    append_to_journal(plan, [finalized])
    commit(migration.source, "a/b", left)
    sides = {"kafka": migration.source, "zookeeper": migration.target}
    empty = GroupDescription("", "EMPTY")
    locator = GroupLocator(
        [ConfiguredStore(kind, sides[kind], lambda names: dict.fromkeys(names, empty)) for kind in sorted(sides)], None
    )
    locator.add_plan(migration.path)
    (found,) = locator.locate([name])
    assert found.phase.phase is phase, found.phase.why
    assert (found.phase.confidence is Confidence.SEEN) is (phase is GroupPhase.MOVED)
