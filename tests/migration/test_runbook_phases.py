"""Phases of a bounce: their settings, the safe changes, and the reasons against direct changes."""

from __future__ import annotations

from itertools import product

import pytest

from offsetmgr.core.commit_mode import SETTINGS, CommitMode, CommitModeChange, require_safe, route
from offsetmgr.core.errors import GateRefused
from offsetmgr.core.model import ABSENT, Committed, TopicPartition

ZOOKEEPER, DUAL, KAFKA = CommitMode.ZOOKEEPER, CommitMode.DUAL, CommitMode.KAFKA
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_each_phase_has_the_exact_consumer_settings() -> None:
    assert SETTINGS[ZOOKEEPER].as_lines() == ["offsets.storage=zookeeper"]
    assert SETTINGS[DUAL].as_lines() == ["offsets.storage=kafka", "dual.commit.enabled=true"]
    # dual.commit.enabled defaults to true with offsets.storage=kafka, so the phase kafka sets it to false.
    assert SETTINGS[KAFKA].as_lines() == ["offsets.storage=kafka", "dual.commit.enabled=false"]


def test_every_pair_of_phases_is_a_safe_change_or_rejected() -> None:
    safe = []
    for start, to in product(CommitMode, CommitMode):
        try:
            safe.append(require_safe(start, to))
        except GateRefused:
            continue
    assert safe == [
        CommitModeChange(ZOOKEEPER, DUAL),
        CommitModeChange(DUAL, ZOOKEEPER),
        CommitModeChange(DUAL, KAFKA),
        CommitModeChange(KAFKA, DUAL),
    ]


@pytest.mark.parametrize(
    ("start", "to", "zookeeper", "kafka", "reason", "now"),
    [
        (
            *(ZOOKEEPER, KAFKA, {T0: Committed(500), T1: Committed(70)}, {T0: ABSENT, T1: Committed(20)}),
            *("reads Kafka alone", "t-0 is at 500, and Kafka has no offset; t-1 is at 70, Kafka at 20: 50 repeated"),
        ),
        (
            *(KAFKA, ZOOKEEPER, {T0: Committed(120)}, {T0: Committed(180)}),
            *("received no commits since Kafka took over", "t-0 is at 180, ZooKeeper at 120: 60 repeated"),
        ),
    ],
)
def test_a_direct_change_is_rejected_with_the_losses_and_repeats(start, to, zookeeper, kafka, reason, now):
    with pytest.raises(GateRefused) as refused:
        require_safe(start, to, zookeeper=zookeeper, kafka=kafka)
    assert refused.value.what == f"bounce {start.value} -> {to.value} directly"
    assert reason in refused.value.why
    assert refused.value.why.endswith(f"now: {now}")
    assert refused.value.hint.startswith("go through dual")


@pytest.mark.parametrize(
    ("start", "to", "changes"),
    [
        (ZOOKEEPER, KAFKA, ["zookeeper -> dual", "dual -> kafka"]),
        (KAFKA, ZOOKEEPER, ["kafka -> dual", "dual -> zookeeper"]),
        (DUAL, KAFKA, ["dual -> kafka"]),
        (ZOOKEEPER, DUAL, ["zookeeper -> dual"]),
        (KAFKA, KAFKA, []),
    ],
)
def test_the_route_between_two_phases_leads_through_dual(start: CommitMode, to: CommitMode, changes: list[str]) -> None:
    assert [str(change) for change in route(start, to)] == changes
