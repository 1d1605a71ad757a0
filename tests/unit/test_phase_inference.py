"""The phase that a group is in, inferred from recorded observations."""

from __future__ import annotations

import pytest
from recorded_observations import (
    DUAL,
    KAFKA,
    NEW,
    OTHER,
    ZOOKEEPER,
    new_is_dual_and_other_commits_to_zookeeper,
    observation,
    series,
)

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.migration.evidence import Confidence
from offsetmgr.migration.observation import from_json, to_json
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import infer_phase


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
    found = infer_phase(GroupHistory(new_is_dual_and_other_commits_to_zookeeper()))
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
