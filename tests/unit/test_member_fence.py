"""The report of `finalize` about a group that does not pass: the phase, the member or the partitions, and a hint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from recorded_observations import NEW, observation

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.model import Committed, GroupDescription, GroupMember, TopicPartition
from offsetmgr.groups.members_source import merged_describer
from offsetmgr.migration.evidence import EvidenceThresholds
from offsetmgr.migration.finalize import GroupGate
from offsetmgr.migration.finalize_gates import ACCEPT_IDLE, CoordinatorGate, closed_gate
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import assess_phase
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.migration.verify_rules import VerifyEvidence
from offsetmgr.testing.memory import MemoryStore

RULES = EvidenceThresholds(quiet_ms=2000)


def gate_of(
    zookeeper: dict[int, list[int]], kafka: dict[int, list[int]], *phases: CommitMode, required_by: str = ""
) -> GroupGate:
    """Returns the gate after one observation a second. Each partition's log ends at the last offset in Kafka."""
    seconds = range(len(next(iter(kafka.values()))))
    ends = {number: moves[-1] for number, moves in kafka.items()}
    watch = GroupHistory(
        [
            observation(
                second,
                zookeeper={number: (moves[second], moves[second]) for number, moves in zookeeper.items()},
                kafka={number: moves[second] for number, moves in kafka.items()},
                ends=ends,
            )
            for second in seconds
        ]
    )
    reports = [assess_phase(watch, phase, rules=RULES) for phase in phases]
    assert not any(report.passed for report in reports)
    return closed_gate("shop", watch, reports, RULES, required_by)


BUSY, IDLE = [10, 11, 12, 13], [50, 50, 50, 50]


def test_idle_partitions_of_a_dual_group_are_named_with_the_option_that_lets_them_pass() -> None:
    offsets = {0: BUSY, 1: IDLE, 2: IDLE}
    gate = gate_of(offsets, offsets, CommitMode.KAFKA, CommitMode.DUAL)
    assert gate.detail == "no commit of phase dual was seen on 2 partitions without traffic: t-1, t-2"
    assert gate.hint == ACCEPT_IDLE
    assert "--accept-idle" in gate.hint


def test_a_member_that_commits_only_to_zookeeper_is_named() -> None:
    gate = gate_of({0: [10, 20, 30, 40]}, {0: [5, 5, 5, 5]}, CommitMode.KAFKA, CommitMode.DUAL)
    assert gate.detail.startswith(f"not seen in phase kafka or dual: member {NEW.id}: t-0: commits to ZooKeeper alone")
    assert gate.hint == ""


def test_the_phase_that_a_removal_requires_is_named_with_the_option() -> None:
    gate = gate_of({0: BUSY}, {0: BUSY}, CommitMode.KAFKA, required_by="--delete-source")
    assert gate.detail.startswith("not seen in phase kafka (required by --delete-source): member ")
    assert "t-0: commits to both" in gate.detail
    assert gate.hint == ""


def test_accept_idle_is_not_offered_for_a_member_without_any_traffic() -> None:
    gate = gate_of({0: IDLE}, {0: IDLE}, CommitMode.KAFKA, CommitMode.DUAL)
    assert "none of its partitions has traffic" in gate.detail
    assert "--accept-idle" not in gate.detail + gate.hint


WITHOUT_MEMBERSHIP = GroupDescription("shop", "UNKNOWN", membership=False)
"""A group as a broker of Kafka 0.8.2 describes it."""


class Brokers082:
    """A Kafka 0.8.2 cluster and a clock. ``meanwhile`` is the offset that is committed while the gate waits."""

    def __init__(self, meanwhile: int) -> None:
        self.store = MemoryStore(data={"shop": {TopicPartition("t", 0): Committed(5)}})
        self.meanwhile = meanwhile

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        return dict.fromkeys(groups, WITHOUT_MEMBERSHIP)

    def sleep(self, seconds: float) -> None:
        self.store.data["shop"][TopicPartition("t", 0)] = Committed(self.meanwhile)

    def gate(self) -> GroupGate:
        gate = CoordinatorGate(self.store, cast("Any", self), ObservationWindow(2), cast("Any", self))
        (found,) = gate([GroupPlan("shop", "shop", ())])
        return found


def test_brokers_without_group_members_pass_if_no_offset_changes() -> None:
    gate = Brokers082(meanwhile=5).gate()
    assert (gate.passed, gate.evidence) == (True, VerifyEvidence.INFERRED)
    assert gate.detail == "the source's brokers (Kafka 0.8.2) have no group members, and no offset changed in 2 s"


def test_brokers_without_group_members_do_not_pass_if_an_offset_changes() -> None:
    gate = Brokers082(meanwhile=6).gate()
    assert (gate.passed, gate.evidence) == (False, VerifyEvidence.SEEN)


def test_a_state_that_is_unknown_for_another_reason_does_not_pass() -> None:
    brokers = Brokers082(meanwhile=5)
    described = GroupDescription("shop", "UNKNOWN")
    brokers.describe_groups = lambda groups: dict.fromkeys(groups, described)  # type: ignore[method-assign]
    assert not brokers.gate().passed


def test_members_in_the_registry_give_a_group_of_brokers_without_members_its_state() -> None:
    member = GroupMember("shop_host-1", "", "host")
    describer = merged_describer(
        lambda groups: dict.fromkeys(groups, WITHOUT_MEMBERSHIP),
        lambda groups: {group: GroupDescription(group, "STABLE", members=(member,)) for group in groups},
    )
    found = describer(["shop"])["shop"]
    assert isinstance(found, GroupDescription)
    assert (found.state, found.members) == ("STABLE", (member,))
