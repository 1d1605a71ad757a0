"""Periods on a real ZooKeeper while members and leaders are killed or frozen and resumed, and ZooKeeper is restarted:
no period is skipped, closed early, closed twice or stuck. `period_log_checker` counts violations in the processes' log.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from period_log_checker import Violations, count_violations

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.period.state_nodes import BarrierStateStore
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession

SOAK = "OFFSETMGR_SOAK" in os.environ
PERIODS, KILLS, STOPS, RESTARTS = (100, 30, 8, 3) if SOAK else (10, 3, 1, 0)
SEED = int(os.environ.get("OFFSETMGR_SEED", "20180508"))
MEMBERS, PARTITIONS = 4, 200
PACE_MS = 120
PROGRAM = Path(__file__).with_name("period_member.py")

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(1200 if SOAK else 900)]


class MemberProcesses:
    """Member processes, one for each shard group of partitions; a successor replaces each killed process."""

    def __init__(self, server: ZooKeeperServer, directory: Path, dice: random.Random) -> None:
        self.server = server
        self.root = "/periods"
        self.directory = directory
        self.log = directory / "lines"
        self.dice = dice
        self.names = [f"m{shard_group}" for shard_group in range(MEMBERS)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started = 0
        self._session: ZookeeperSession | None = None

    def start(self, shard_group: int, name: str) -> None:
        self.started += 1
        arguments = {
            "zookeeper": self.server.connect, "root": self.root, "member": name, "partitions": PARTITIONS,
            "owned": list(range(shard_group, PARTITIONS, MEMBERS)), "log": str(self.log), "pace_ms": PACE_MS,
            "seed": self.dice.random(),
        }  # fmt: skip
        with (self.directory / f"{name}.stderr").open("ab") as errors:
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(arguments)], stderr=errors
            )
        self.names[shard_group] = name

    def stop_member(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(90)

    def read(self) -> BarrierStateStore:
        """The state nodes, through a session of this test."""
        if self._session is None:
            self._session = ZookeeperSession(self.server.connect)
        return BarrierStateStore(self._session, self.root)

    def read_or_none(self, query: Callable[[BarrierStateStore], int | str | None]) -> int | str | None:
        try:
            return query(self.read())
        except OffsetMgrError:
            return None  # ZooKeeper is being restarted; callers retry

    def number(self) -> int:
        found = self.read_or_none(lambda nodes: open_.number if (open_ := nodes.read_open()[0]) else None)
        return found if isinstance(found, int) else -1

    def leader(self) -> str | None:
        found = self.read_or_none(lambda nodes: nodes.read().leader)
        return found if isinstance(found, str) else None

    def wait_for(self, number: int, seconds: float = 180) -> bool:
        deadline = time.monotonic() + seconds
        while self.number() < number:
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not dead, f"ended by itself: {dead}: {self.errors(dead[0])}"
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def errors(self, name: str) -> str:
        return (self.directory / f"{name}.stderr").read_text()[-2_000:]

    # --- faults -------------------------------------------------------------------------------------

    def victim(self, leader: bool) -> int:
        name = self.leader() if leader else None
        return self.names.index(name) if name in self.names else self.dice.randrange(MEMBERS)

    def successor(self, shard_group: int) -> str:
        """The name of a successor. Half of them reuse the old name, which is free only after the old session has
        ended."""
        return self.names[shard_group] if self.dice.random() < 0.5 else f"m{shard_group}-{self.started}"

    def kill(self, leader: bool) -> None:
        shard_group = self.victim(leader)
        self.stop_member(self.names[shard_group])
        self.start(shard_group, self.successor(shard_group))

    def freeze(self, leader: bool) -> None:
        """Freezes a member past its session timeout while a successor does its work, and resumes it alongside the
        successor."""
        shard_group = self.victim(leader)
        frozen = self.names[shard_group]
        self.processes[frozen].send_signal(signal.SIGSTOP)
        self.start(shard_group, f"m{shard_group}-{self.started}")
        before = self.number()
        self.wait_for(before + 2, 120)
        self.processes[frozen].send_signal(signal.SIGCONT)
        self.wait_for(self.number() + 1, 120)
        self.stop_member(frozen)

    def restart_zookeeper(self) -> None:
        self.server.kill()
        self.server.start()

    def stop(self) -> None:
        for name in list(self.processes):
            self.stop_member(name)
        if self._session is not None:
            self._session.close()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[MemberProcesses]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        members = MemberProcesses(server, tmp_path, random.Random(SEED))
        try:
            for shard_group in range(MEMBERS):
                members.start(shard_group, f"m{shard_group}")
            yield members
        finally:
            members.stop()


def test_no_period_is_skipped_closed_early_closed_twice_or_stuck(members: MemberProcesses) -> None:
    faults: list[Callable[[], None]] = [lambda n=n: members.kill(n % 2 == 0) for n in range(KILLS)]  # type: ignore[misc]
    faults += [lambda n=n: members.freeze(n % 2 == 0) for n in range(STOPS)]  # type: ignore[misc]
    faults += [members.restart_zookeeper] * RESTARTS
    members.dice.shuffle(faults)
    begun = time.monotonic()
    for at, fault in enumerate(faults):
        if not members.wait_for(1 + at * (PERIODS - 3) // len(faults)):
            break
        time.sleep(members.dice.random() * PACE_MS / 1000)
        fault()
    members.wait_for(PERIODS)
    took = time.monotonic() - begun
    nodes = members.read()
    view, closed = nodes.read(), nodes.history()
    assert view.seen.open_ is not None and view.open_version is not None
    lines = members.log.read_text().splitlines()
    violations = count_violations(lines, closed, view.open_version, view.seen.open_.number, PERIODS, PARTITIONS)
    leaders = len({(period.leader, period.epoch) for period in closed.values()})
    sys.stdout.write(
        f"\nseed {SEED}: {view.seen.open_.number} periods, {leaders} leaders, {KILLS} kills, {STOPS} freezes, "
        f"{RESTARTS} restarts of ZooKeeper, {took:.1f} s; {violations}\n"
    )
    assert violations == Violations(0, 0, 0, 0)
    assert all(len(frozenset[object]().union(*period.by.values())) == PARTITIONS for period in closed.values())
    assert leaders > 1


def test_the_checker_counts_each_kind_of_violation() -> None:
    good = ["begin 0", "done 0 0", "done 0 1", "begin 1", "done 1 0,1", "begin 2"]
    closed: Any = None  # the checker reads only the numbers
    history = {0: closed, 1: closed}
    assert count_violations(good, history, 2, 2, 2, 2) == Violations()
    assert count_violations([*good[:2], *good[3:]], history, 2, 2, 2, 2).closed_early == 1
    assert count_violations(good, {0: closed}, 2, 2, 2, 2).skipped == 1
    assert count_violations(good, history, 3, 2, 2, 2).closed_twice == 1
    assert count_violations(good, history, 2, 2, 3, 2).stuck == 1
