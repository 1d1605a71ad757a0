"""A bounce over scripted observations: a gate waits for its observation window before it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import GateRefused, OffsetMgrError, Unreachable
from offsetmgr.core.model import ABSENT, Committed, LogRange, TopicPartition
from offsetmgr.migration.bounce import bounce
from offsetmgr.migration.bounce_plan import BounceOutcome, BounceSpec
from offsetmgr.migration.evidence import EvidenceThresholds
from offsetmgr.migration.group_observer import GroupView, ObservationWindow, RegistryView, watch_group
from offsetmgr.migration.observation import Observation, PartitionOwner, RegisteredMember
from offsetmgr.migration.precheck import find_start
from offsetmgr.migration.restart_command import CommandResult

START_MS = 1_700_000_000_000
RULES = EvidenceThresholds(quiet_ms=2000)
WINDOW = ObservationWindow(duration_s=30, poll_s=1)


@dataclass
class ScriptedClock:
    """A clock that advances only in `sleep`."""

    seconds: float = 0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return START_MS + int(self.seconds * 1000)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class ScriptedGroup:
    """A group whose members, owners and offsets depend on the second of the observation."""

    members_at: Callable[[float], list[RegisteredMember]]
    owners_at: Callable[[float], Mapping[int, PartitionOwner]]
    zookeeper_at: Callable[[float], int]
    kafka_at: Callable[[float], int | None]
    partitions: int = 2
    clock: ScriptedClock = field(default_factory=ScriptedClock)

    @property
    def uri(self) -> str:
        return "scripted:"

    @property
    def zookeeper(self) -> ScriptedGroup:
        return self

    @property
    def kafka(self) -> ScriptedGroup:
        return self

    @property
    def registry(self) -> ScriptedGroup:
        return self

    @property
    def cluster(self) -> ScriptedGroup:
        return self

    def topics(self) -> Iterable[str]:
        return ["t"]

    def members(self, _group: str, _existing: object) -> RegistryView:
        return RegistryView({m.id: m for m in self.members_at(self.clock.seconds)}, {})

    def observe(self, group: str, *, tolerant: bool = False) -> Observation:
        second = self.clock.seconds
        tps = [TopicPartition("t", n) for n in range(self.partitions)]
        kafka = self.kafka_at(second)
        return Observation(
            group=group,
            at_ms=self.clock.now_ms(),
            members={m.id: m for m in self.members_at(second)},
            owners={tps[n]: owned for n, owned in self.owners_at(second).items()},
            partitions=tuple(tps),
            zookeeper={tp: Committed(self.zookeeper_at(second), version=self.zookeeper_at(second)) for tp in tps},
            kafka={tp: ABSENT if kafka is None else Committed(kafka) for tp in tps},
            logs={tp: LogRange(0, 1000) for tp in tps},
        )

    def store_ids(self) -> dict[str, str]:
        return {"zookeeper": "c1", "kafka": "c1"}

    def require_stores(self, what: str, baseline: Observation) -> None:
        assert baseline.stores == self.store_ids(), what

    def view(self) -> GroupView:
        return cast("GroupView", self)


def member(name: str, czxid: int) -> RegisteredMember:
    return RegisteredMember(f"g_{name}-1700000000000-{czxid:08x}", name, START_MS, czxid, czxid, ("t",))


def test_an_observation_reports_the_time_that_remains() -> None:
    group = ScriptedGroup(lambda _: [member("h1", 1)], lambda _: {}, lambda _: 10, lambda _: 10)
    remaining: list[float] = []
    watch_group(group.view(), "g", ObservationWindow(3, 1, remaining.append), enough=lambda _: False)
    assert remaining == [3, 2, 1]


def test_a_watch_of_commits_is_announced_after_three_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, times = LockWait(), iter((10.0, 10.0, 12.0, 13.0, 20.0, 20.0, 23.0))
    monkeypatch.setattr("offsetmgr.cli.lock_wait.time.monotonic", lambda: next(times))
    for left in (6.0, 4.0, 2.4):
        wait.for_commits(left)
    assert capsys.readouterr().err == "watching commits for up to 2 s\n"
    wait.for_commits(6.0)
    assert capsys.readouterr().err == ""
    wait.for_commits(3.0)
    assert capsys.readouterr().err == "watching commits for up to 3 s\n"


def test_the_gate_after_a_restart_waits_for_the_rebalance(tmp_path: Path) -> None:
    """After the restart, the other member owns all partitions for 3 s. Then the successor owns its part."""
    old, other, new = member("h1", 1), member("h2", 2), member("h1", 50)
    restarted_at: list[float] = []

    def since() -> float | None:
        return group.clock.seconds - restarted_at[0] if restarted_at else None

    def owners(_: float) -> Mapping[int, PartitionOwner]:
        passed = since()
        if passed is None:
            return {0: PartitionOwner(old.id, 5), 1: PartitionOwner(other.id, 6)}
        return (
            {0: PartitionOwner(other.id, 60), 1: PartitionOwner(other.id, 61)}
            if passed < 3
            else {0: PartitionOwner(new.id, 70), 1: PartitionOwner(other.id, 71)}
        )

    def run(command: str, log: Path, timeout_s: float, started: object = None) -> CommandResult:
        restarted_at.append(group.clock.seconds)
        return CommandResult(0 if len(restarted_at) == 1 else 1)

    group = ScriptedGroup(
        members_at=lambda _: [old, other] if since() is None else [new, other],
        owners_at=owners,
        zookeeper_at=lambda second: 10 + int(second),
        kafka_at=lambda second: 10 + int(second),
    )
    spec = BounceSpec("g", CommitMode.DUAL, "restart {member}", CommitMode.ZOOKEEPER, rules=RULES, window=WINDOW)
    result = bounce(group.view(), spec, tmp_path / "state.json", run=run)
    assert result.steps[0].status.value == "passed", result.why
    assert result.steps[0].successors == [new.id]
    assert result.steps[1].status.value == "command-failed"  # here the test ends the bounce


def test_a_member_whose_session_expired_is_restarted_when_it_has_registered_again(tmp_path: Path) -> None:
    old, again = member("h1", 1), RegisteredMember(member("h1", 1).id, "h1", START_MS, 40, 40, ("t",))
    commands: list[str] = []
    expired_at: list[float] = []

    def members(second: float) -> list[RegisteredMember]:
        if not expired_at:
            return [old]
        return [] if second < expired_at[0] + 4 else [again]

    def report_progress(line: str) -> None:
        if line.startswith("step 1"):
            expired_at.append(group.clock.seconds)

    def run(command: str, log: Path, timeout_s: float, started: object = None) -> CommandResult:
        commands.append(command)
        return CommandResult(1)

    group = ScriptedGroup(
        members_at=members,
        owners_at=lambda second: {n: PartitionOwner(old.id, 5) for n in (0, 1)} if members(second) else {},
        zookeeper_at=lambda second: 10 + int(second),
        kafka_at=lambda _: None,
    )
    spec = BounceSpec("g", CommitMode.DUAL, "restart {member}", CommitMode.ZOOKEEPER, rules=RULES, window=WINDOW)
    result = bounce(group.view(), spec, tmp_path / "state.json", run=run, progress=report_progress)
    assert (result.outcome, commands) == (BounceOutcome.FAILED, [f"restart {old.id}"])
    assert result.steps[0].before == {again.id: 40}


def between_two_writes(catches_up: bool) -> ScriptedGroup:
    """A member in dual mode, observed between its write to Kafka and its write to ZooKeeper 2 s later."""
    only = member("h1", 1)
    return ScriptedGroup(
        members_at=lambda _: [only],
        owners_at=lambda _: {n: PartitionOwner(only.id, 5) for n in (0, 1)},
        zookeeper_at=lambda second: 14 if catches_up and second >= 2 else 10,
        kafka_at=lambda _: 14,
    )


def test_a_commit_between_its_two_writes_is_no_jump() -> None:
    start = find_start(between_two_writes(True).view(), "g", CommitMode.DUAL, start=CommitMode.ZOOKEEPER, window=WINDOW)
    assert start.change.start is CommitMode.ZOOKEEPER


def test_a_store_that_stays_ahead_is_refused_when_the_window_is_over() -> None:
    group = between_two_writes(False)
    with pytest.raises(GateRefused, match="Kafka is ahead of ZooKeeper"):
        find_start(group.view(), "g", CommitMode.DUAL, start=CommitMode.ZOOKEEPER, window=WINDOW)
    assert group.clock.seconds >= WINDOW.duration_s


def test_one_dual_member_does_not_show_that_the_whole_group_is_dual() -> None:
    """The bounce is half done, without a state file. The ZooKeeper-only member commits 5 s after the dual member."""
    dual, old = member("h1", 50), member("h2", 2)

    class HalfBounced(ScriptedGroup):
        def observe(self, group: str, *, tolerant: bool = False) -> Observation:
            seen = super().observe(group, tolerant=tolerant)
            second = self.clock.seconds
            one, two = (TopicPartition("t", n) for n in (0, 1))
            late = 10 + int(second) if second >= 5 else 10
            zookeeper = {one: seen.zookeeper[one], two: Committed(late, version=late)}
            return Observation(
                group=seen.group,
                at_ms=seen.at_ms,
                members=seen.members,
                owners=seen.owners,
                partitions=seen.partitions,
                zookeeper=zookeeper,
                kafka={one: seen.kafka[one], two: Committed(10)},
                logs=seen.logs,
            )

    group = HalfBounced(
        members_at=lambda _: [dual, old],
        owners_at=lambda _: {0: PartitionOwner(dual.id, 60), 1: PartitionOwner(old.id, 5)},
        zookeeper_at=lambda second: 10 + int(second),
        kafka_at=lambda second: 10 + int(second),
    )
    assert find_start(group.view(), "g", CommitMode.DUAL, window=WINDOW).change.start is CommitMode.ZOOKEEPER


class Outage(ScriptedGroup):
    """A group whose servers do not respond from one second to another."""

    begins, ends = 0.0, 0.0

    def observe(self, group: str, *, tolerant: bool = False) -> Observation:
        if self.begins <= self.clock.seconds < self.ends:
            raise Unreachable("ZooKeeper at h:2181", "no connection")
        return super().observe(group, tolerant=tolerant)


@pytest.mark.parametrize("begins", [0, 5])
@pytest.mark.parametrize(("ends", "tolerant", "survives"), [(20, True, True), (40, True, False), (20, False, False)])
def test_an_outage_is_waited_for_within_the_window(begins: int, ends: int, tolerant: bool, survives: bool) -> None:
    group = Outage(lambda _: [member("h1", 1)], lambda _: {}, int, lambda _: 10)
    group.begins, group.ends = begins, ends
    errors: list[OffsetMgrError] = []
    window = replace(WINDOW, failed=errors.append)

    def watch() -> float:
        watch_group(group.view(), "g", window, enough=lambda _: group.clock.seconds >= 25, tolerant=tolerant)
        return group.clock.seconds

    if survives:
        assert (watch(), len(errors)) == (25, ends - begins)
        return
    with pytest.raises(Unreachable):
        watch()
    assert group.clock.seconds == (WINDOW.duration_s if tolerant else begins)
