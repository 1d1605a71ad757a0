"""Periods on a real ZooKeeper while members and leaders are killed or frozen and resumed, and ZooKeeper is restarted:
no period is skipped, closed early, closed twice or stuck. `count_violations` counts them in the processes' log.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import KazooException
from kazoo_client import connected
from processes import run_command

from offsetmgr.sandbox import ZooKeeperServer

SOAK = "OFFSETMGR_SOAK" in os.environ
PERIODS, KILLS, STOPS, RESTARTS = (100, 30, 8, 3) if SOAK else (10, 3, 1, 0)
SEED = int(os.environ.get("OFFSETMGR_SEED", "20180508"))
MEMBERS, PARTITIONS = 4, 200
PACE_MS = 120
PROGRAM = Path(__file__).with_name("period_member.py")

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(1200 if SOAK else 900)]


class MemberProcesses:
    """Member processes, one for each shard group of partitions; a successor replaces each killed process."""

    def __init__(self, server: ZooKeeperServer, client: Any, directory: Path, dice: random.Random) -> None:
        self.server = server
        self.root = "/periods"
        self.directory = directory
        self.log = directory / "lines"
        self.dice = dice
        self.names = [f"m{shard_group}" for shard_group in range(MEMBERS)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started = 0
        self._client = client

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

    def read(self, node: str = "coordinator") -> tuple[dict[str, Any], int]:
        data, stat = self._client.get(f"{self.root}/{node}")
        return json.loads(data), stat.version

    def number(self) -> int:
        try:
            return int(self.read()[0]["period"])
        except KazooException:
            return -1  # no period is open yet, or ZooKeeper is being restarted; callers retry

    def leader(self) -> str | None:
        try:
            return str(self.read()[0]["leader"])
        except KazooException:
            return None

    def history(self) -> Counter[int]:
        ways = ("--root", self.root, "--zookeeper", self.server.connect, "--format", "json")
        return Counter(row["period"] for row in json.loads(run_command("period", "history", *ways).stdout))

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


@pytest.fixture
def members(tmp_path: Path) -> Iterator[MemberProcesses]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server, connected(server.connect) as client:
        members = MemberProcesses(server, client, tmp_path, random.Random(SEED))
        try:
            for shard_group in range(MEMBERS):
                members.start(shard_group, f"m{shard_group}")
            yield members
        finally:
            members.stop()


@dataclass
class Violations:
    skipped: int = 0
    closed_early: int = 0
    closed_twice: int = 0
    stuck: int = 0


def count_violations(
    lines: Iterable[str], closed: Collection[int], advances: int, open_now: int, expected: int, partitions: int
) -> Violations:
    """Counts the violations. ``lines`` are in the order of writing; ``advances`` is how often the open period
    changed."""
    begun: set[int] = set()
    done: Counter[int] = Counter()
    seen: set[tuple[int, int]] = set()
    early: set[int] = set()
    for line in lines:
        event, number_text, *rest = line.split()
        number = int(number_text)
        if event == "done":
            new = {(number, int(text)) for text in rest[0].split(",")} - seen
            seen |= new
            done[number] += len(new)
        elif event == "begin" and number not in begun:
            begun.add(number)
            if number and done[number - 1] < partitions:
                early.add(number - 1)
    skipped = {number for number in range(open_now) if number not in begun or number not in closed}
    return Violations(len(skipped), len(early), max(0, advances - open_now), max(0, expected - open_now))


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
    for name in list(members.processes):
        members.stop_member(name)
    (open_, advances), rows = members.read(), members.history()
    lines = members.log.read_text().splitlines()
    violations = count_violations(lines, rows.keys(), advances, open_["period"], PERIODS, PARTITIONS)
    closed = [members.read(f"history/{number}")[0] for number in rows]
    leaders = len({(period["leader"], period["epoch"]) for period in closed})
    sys.stdout.write(
        f"\nseed {SEED}: {open_['period']} periods, {leaders} leaders, {KILLS} kills, {STOPS} freezes, "
        f"{RESTARTS} restarts of ZooKeeper, {took:.1f} s; {violations}\n"
    )
    assert violations == Violations(0, 0, 0, 0)
    assert set(rows.values()) == {PARTITIONS}
    assert leaders > 1


def test_the_checker_counts_each_kind_of_violation() -> None:
    good = ["begin 0", "done 0 0", "done 0 1", "begin 1", "done 1 0,1", "begin 2"]
    history = [0, 1]
    assert count_violations(good, history, 2, 2, 2, 2) == Violations()
    assert count_violations([*good[:2], *good[3:]], history, 2, 2, 2, 2).closed_early == 1
    assert count_violations(good, [0], 2, 2, 2, 2).skipped == 1
    assert count_violations(good, history, 3, 2, 2, 2).closed_twice == 1
    assert count_violations(good, history, 2, 2, 3, 2).stuck == 1
