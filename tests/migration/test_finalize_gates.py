"""The gates of `finalize`: which groups pass, with which evidence, and what the report says about the others."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from one_migration import Migration, commit
from recorded_observations import NEW, observation
from scripted_group import ScriptedGroup, member

from offsetmgr.app.connections import SourceAndTarget, connect
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.model import Committed, GroupDescription, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.migration import finalize
from offsetmgr.migration.evidence import EvidenceThresholds, assess_phase
from offsetmgr.migration.finalize import ACCEPT_IDLE, OldConsumerGate, closed_gate, coordinator_gate, no_members_gate
from offsetmgr.migration.observation import GroupHistory, ObservationWindow, PartitionOwner
from offsetmgr.migration.plan import GroupPlan, StoreEndpoint
from offsetmgr.stores.uri import parse_uri
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.testing.memory import MemoryStore

RULES = EvidenceThresholds(quiet_ms=2000)
ACCEPTED = "1 partition without traffic (accept_idle=): t-1"


def test_finalize_counts_the_groups_by_evidence_and_by_acceptance(tmp_path: Path) -> None:
    migration = Migration(tmp_path)
    for name in ("accepted", "inferred", "seen"):
        commit(migration.source, name, 5)
    migration.plan()
    migration.apply()

    def gate(groups: list[GroupPlan]) -> Iterator[Any]:
        for found in no_members_gate(groups):
            kind = type(found.evidence)("seen" if found.group == "seen" else "inferred")
            yield replace(found, evidence=kind, accepted=ACCEPTED if found.group == "accepted" else "")

    with patch.object(SourceAndTarget, "member_gate", lambda *_: gate):
        assert migration.run("finalize", "--yes").endswith(
            "; no member found that commits to the source alone (seen for 1 group, inferred for 2 groups, "
            "with partitions accepted by --accept-idle in 1 group)\n"
        )


@pytest.mark.parametrize(("moves", "accepted"), [(True, ""), (False, ACCEPTED)])
def test_a_gate_names_the_partitions_that_an_option_accepted(moves: bool, accepted: str) -> None:
    def offset(partition: int, second: float) -> int:
        return 10 + int(second) if moves or partition == 0 else 50

    only = member("h1", 7)
    owners = {n: PartitionOwner(only.id, 100) for n in range(2)}
    group = ScriptedGroup(lambda _: [only], lambda _: owners, offset, offset, by_partition=True, log_end=50)
    rules = EvidenceThresholds(accept_idle=True, quiet_ms=2000)
    gate = OldConsumerGate(group.view(), CommitMode.KAFKA, False, rules, ObservationWindow(30))
    (checked,) = gate([GroupPlan("g", "g", ())])
    assert (checked.passed, checked.accepted) == (True, accepted), checked.detail
    assert checked.detail == "the only member commits as phase dual does"


def test_moving_byte_positions_of_kafka_0_7_close_the_gate() -> None:
    positions, tp = iter((5, 6)), TopicPartition("t", 0)
    uris = "zookeeper://127.0.0.1:1?layout=0.7", "kafka://127.0.0.1:1"
    ends = [StoreEndpoint(uri, parse_uri(uri).kind, "", "") for uri in uris]
    plan = cast("Any", SimpleNamespace(header=SimpleNamespace(source=ends[0], target=ends[1], end=CommitMode.KAFKA)))
    with (
        connect() as connections,
        patch.object(ZookeeperStore, "scan", lambda *_: [GroupOffsets("g", {tp: Committed(next(positions))})]),
        patch.object(finalize, "members_many", lambda *_: iter(())),
    ):
        gate = SourceAndTarget(connections, *uris).member_gate(plan, False, RULES, ObservationWindow(0))
        (checked,) = gate([GroupPlan("g", "g", ())])
    assert (checked.passed, checked.detail) == (False, "a client commits to the source: t-0 changed while watched")


BUSY, IDLE = [10, 11, 12, 13], [50, 50, 50, 50]
BOTH = (CommitMode.KAFKA, CommitMode.DUAL)
NOT_SEEN = f"not seen in phase kafka or dual: member {NEW.id}: "


@pytest.mark.parametrize(
    ("zookeeper", "kafka", "phases", "exclusive", "detail", "hint"),
    [
        (
            *({0: BUSY, 1: IDLE, 2: IDLE}, {0: BUSY, 1: IDLE, 2: IDLE}, BOTH, False),
            *("no commit of phase dual was seen on 2 partitions without traffic: t-1, t-2", ACCEPT_IDLE),
        ),
        ({0: [10, 20, 30, 40]}, {0: [5] * 4}, BOTH, False, f"{NOT_SEEN}t-0: commits to ZooKeeper alone", ""),
        (
            *({0: BUSY}, {0: BUSY}, (CommitMode.KAFKA,), True),
            *(f"not seen in phase kafka (required by --delete-source): member {NEW.id}: t-0: commits to both", ""),
        ),
        (
            *({0: IDLE}, {0: IDLE}, BOTH, False),
            *(f"{NOT_SEEN}no baseline to compare its id with; and none of its partitions has traffic", ""),
        ),
    ],
)
def test_the_report_names_the_phase_the_member_or_the_partitions_and_the_option_that_lets_them_pass(
    zookeeper, kafka, phases, exclusive, detail, hint
):
    """The gate after one observation a second. Each partition's log ends at the last offset in Kafka."""
    ends = {number: moves[-1] for number, moves in kafka.items()}
    watch = GroupHistory()
    for second in range(4):
        in_zookeeper = {number: (moves[second], moves[second]) for number, moves in zookeeper.items()}
        in_kafka = {number: moves[second] for number, moves in kafka.items()}
        watch.add(observation(second, zookeeper=in_zookeeper, kafka=in_kafka, ends=ends))
    reports = [assess_phase(watch, phase, rules=RULES) for phase in phases]
    assert not any(report.passed for report in reports)
    gate = closed_gate("shop", watch, reports, RULES, exclusive=exclusive)
    assert for_command_line(gate.detail).startswith(detail), gate.detail
    assert gate.hint == hint
    assert "accept_idle" in ACCEPT_IDLE and "accept_idle" not in gate.detail


class Brokers082:
    """A Kafka 0.8.2 cluster and a clock. ``meanwhile`` is the offset that is committed while the gate waits."""

    def __init__(self, meanwhile: int, *, membership: bool) -> None:
        self.store = MemoryStore(data={"shop": {TopicPartition("t", 0): Committed(5)}})
        self.meanwhile, self.membership = meanwhile, membership

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        return dict.fromkeys(groups, GroupDescription("shop", "UNKNOWN", membership=self.membership))

    def sleep(self, seconds: float) -> None:
        self.store.data["shop"][TopicPartition("t", 0)] = Committed(self.meanwhile)


NO_MEMBERS = "the source's brokers (Kafka 0.8.2) have no group members"


@pytest.mark.parametrize(
    ("meanwhile", "membership", "passed", "evidence", "detail"),
    [
        (5, False, True, "inferred", f"{NO_MEMBERS}, and no offset changed in 2 s"),
        (6, False, False, "seen", "a client commits to the source: t-0 changed while watched"),
        (5, True, False, "seen", "active in the source: UNKNOWN"),  # a state that is unknown for another reason
    ],
)
def test_brokers_without_group_members_pass_only_if_no_offset_changes(meanwhile, membership, passed, evidence, detail):
    brokers = Brokers082(meanwhile, membership=membership)
    plans, both = [GroupPlan("shop", "shop", ())], cast("Any", brokers)
    (gate,) = coordinator_gate(brokers.store, both, ObservationWindow(2), both, plans)
    assert (gate.passed, gate.evidence.value, gate.detail) == (passed, evidence, detail)
