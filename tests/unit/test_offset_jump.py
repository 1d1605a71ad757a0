"""A change to dual is refused if the larger offset would skip messages."""

from __future__ import annotations

import pytest
from recorded_observations import (
    DUAL,
    KAFKA,
    ZOOKEEPER,
    new_is_dual_and_other_commits_to_zookeeper,
    observation,
    series,
)

from offsetmgr.core.commit_mode import CommitModeChange
from offsetmgr.core.errors import GateRefused
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import assess_phase
from offsetmgr.migration.precheck import reject_offset_jump


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
