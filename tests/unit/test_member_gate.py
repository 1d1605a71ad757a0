"""What `finalize` says of a group that may not pass: the phase, the member or the partitions, and the way on."""

from __future__ import annotations

from test_runbook_evidence import NEW, look

from offsetmgr.migration.evidence import Rules
from offsetmgr.migration.finalize import GroupGate
from offsetmgr.migration.membergate import ACCEPT_IDLE, closed_gate
from offsetmgr.migration.phasecheck import judge
from offsetmgr.migration.phases import Phase
from offsetmgr.migration.watch import Watch

RULES = Rules(quiet_ms=2000)


def gate_of(
    zookeeper: dict[int, list[int]], kafka: dict[int, list[int]], *phases: Phase, asked_by: str = ""
) -> GroupGate:
    """The gate after one look a second; every partition's log ends where Kafka's last offset stands."""
    seconds = range(len(next(iter(kafka.values()))))
    ends = {number: moves[-1] for number, moves in kafka.items()}
    watch = Watch(
        [
            look(
                second,
                zookeeper={number: (moves[second], moves[second]) for number, moves in zookeeper.items()},
                kafka={number: moves[second] for number, moves in kafka.items()},
                ends=ends,
            )
            for second in seconds
        ]
    )
    reports = [judge(watch, phase, rules=RULES) for phase in phases]
    assert not any(report.passed for report in reports)
    return closed_gate("shop", watch, reports, RULES, asked_by)


BUSY, IDLE = [10, 11, 12, 13], [50, 50, 50, 50]


def test_idle_partitions_of_a_dual_group_are_named_with_the_option_that_lets_them_pass() -> None:
    offsets = {0: BUSY, 1: IDLE, 2: IDLE}
    gate = gate_of(offsets, offsets, Phase.KAFKA, Phase.DUAL)
    assert gate.detail == "of 2 partitions without traffic no commit of phase dual can be seen: t-1, t-2"
    assert gate.hint == ACCEPT_IDLE
    assert "--accept-idle" in gate.hint


def test_a_member_that_commits_to_zookeeper_alone_is_named_and_must_be_bounced() -> None:
    gate = gate_of({0: [10, 20, 30, 40]}, {0: [5, 5, 5, 5]}, Phase.KAFKA, Phase.DUAL)
    assert gate.detail.startswith(f"not seen in phase kafka or dual: member {NEW.id}: t-0: commits to ZooKeeper alone")
    assert gate.hint == ""


def test_the_phase_that_a_removal_asks_for_is_named_with_the_option() -> None:
    gate = gate_of({0: BUSY}, {0: BUSY}, Phase.KAFKA, asked_by="--delete-source")
    assert gate.detail.startswith("not seen in phase kafka (which --delete-source asks for): member ")
    assert "t-0: commits to both" in gate.detail
    assert gate.hint == ""


def test_a_member_without_any_traffic_is_not_said_to_pass_with_idle_partitions_accepted() -> None:
    gate = gate_of({0: IDLE}, {0: IDLE}, Phase.KAFKA, Phase.DUAL)
    assert "none of its partitions has traffic" in gate.detail
    assert "--accept-idle" not in gate.detail + gate.hint
