#!/usr/bin/env python
"""Compares the rate and peak memory of ``zk check`` with the same check that reads one node per request.

A real ZooKeeper holds the groups, each with offsets; one in ten is live, with a member that owns all partitions; one in
a hundred has a fault. ``offsetmgr zk check --all-groups`` runs as a separate process, in turns with its peer: the same
command with a session that cannot use multi-reads, so that it pipelines single reads as most clients do. The peer
checks only a tenth of the groups, because it takes so long. Both must find all faults, and rates are per group. The
first round warms them up; the median of the others counts.

    scripts/bench/bench_zk_check.py [--groups 20000] [--partitions 50] [--rounds 2]

Exits with 1 if the check needs more than 300 MB, prints no progress, misses a fault, or is less than 3 times as fast as
its peer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState, TransactionOperation

TOPIC: Final = "bench"
MAX_MB: Final = 300.0
MIN_GAIN: Final = 3.0
TIMEOUT_S: Final = 600
OPERATIONS: Final = 400
OFFSETMGR: Final = (str(Path(sys.executable).with_name("offsetmgr")),)
SINGLE_READS: Final = (
    sys.executable,
    "-c",
    "from offsetmgr.zookeeper.client.session import ZookeeperSession\n"
    "ZookeeperSession._can_multi_read = lambda self: False\n"
    "from offsetmgr.cli.app import main\n"
    "main()\n",
)


@dataclass
class Way:
    """One of the two commands, and the resource usage of its runs."""

    name: str
    command: tuple[str, ...]
    chosen: tuple[str, ...]
    """The options that select its groups."""
    groups: range | list[int]
    """The groups that the options select."""
    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    found: Counter[str] = field(default_factory=Counter)
    progress: int = 0

    def run(self, zookeeper: str, directory: Path) -> None:
        out, err = directory / "out", directory / "err"
        arguments = ("zk", "check", "--zookeeper", zookeeper, *self.chosen, "--settle", "0", "--format", "json")
        started = time.perf_counter()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen([*self.command, *arguments], stdout=stdout, stderr=stderr)
            deadline = started + TIMEOUT_S
            while True:
                # wait() would not return the resources that the process used.
                pid, status, used = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                if time.perf_counter() > deadline:
                    child.kill()
                    deadline = float("inf")
                time.sleep(0.005)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.seconds.append(time.perf_counter() - started)
        if child.returncode != 1:  # the groups have faults
            sys.exit(f"{self.name} exited {child.returncode}:\n{err.read_text()[-1500:]}")
        self.peak_mb = max(self.peak_mb, used.ru_maxrss / 1024)
        self.found = Counter(row["code"] for row in json.loads(out.read_text()))
        self.progress = sum(line.startswith("checking:") for line in err.read_text().splitlines())

    @property
    def rate(self) -> float:
        """Groups per second, as the median of all rounds but the first."""
        return len(self.groups) / statistics.median(self.seconds[1:])

    @property
    def right(self) -> bool:
        """Whether it found exactly the faults that `nodes` created."""
        return self.found == Counter({"no-owner": sum(group % 100 == 0 for group in self.groups)})


def nodes(group: int, partitions: int) -> Iterator[Create]:
    """One group's nodes, parents first."""
    name = f"bench-{group:06}"
    root = f"/consumers/{name}"
    member = f"{name}_host-1700000000000-1a2b3c4d"
    yield Create(root)
    for directory in ("ids", "owners", "offsets"):
        yield Create(f"{root}/{directory}")
    yield Create(f"{root}/offsets/{TOPIC}")
    for partition in range(partitions):
        yield Create(f"{root}/offsets/{TOPIC}/{partition}", b"%d" % (group + partition))
    if group % 10 == 0:
        registration = {"version": 1, "subscription": {TOPIC: 1}, "pattern": "static", "timestamp": "1700000000000"}
        yield Create(f"{root}/ids/{member}", json.dumps(registration).encode(), ephemeral=True)
        yield Create(f"{root}/owners/{TOPIC}")
        # In one of ten of the live groups one partition has no owner.
        for partition in range(1 if group % 100 == 0 else 0, partitions):
            yield Create(f"{root}/owners/{TOPIC}/{partition}", f"{member}-0".encode(), ephemeral=True)


def fill(session: ZookeeperSession, groups: int, partitions: int) -> None:
    assignment = {str(partition): [0] for partition in range(partitions)}
    topic = json.dumps({"version": 1, "partitions": assignment}).encode()
    roots = [Create(path) for path in ("/consumers", "/brokers", "/brokers/topics")]
    pending: list[TransactionOperation] = [*roots, Create(f"/brokers/topics/{TOPIC}", topic)]
    batches: list[list[TransactionOperation]] = []

    def send() -> None:
        if any(outcome.state is not OperationState.COMMITTED for outcome in session.transactions(batches)):
            sys.exit("the groups could not be written")
        batches.clear()

    for group in range(groups):
        pending += nodes(group, partitions)
        while len(pending) >= OPERATIONS:
            batches.append(pending[:OPERATIONS])
            pending = pending[OPERATIONS:]
        if len(batches) >= 20:
            send()
    batches.append(pending)
    send()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20_000)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    some = [group for group in range(args.groups) if group // 1000 % 10 == 0]
    ways = [
        Way("zk check", OFFSETMGR, ("--all-groups",), range(args.groups)),
        Way("one node a request", SINGLE_READS, ("--group", "bench-??0???"), some),
    ]
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name,
        ZooKeeperServer(Path(name) / "zookeeper", jvm=("-Xmx3g",)) as server,
        ZookeeperSession(server.connect) as session,
    ):
        fill(session, args.groups, args.partitions)
        for _ in range(args.rounds + 1):
            for way in ways:
                way.run(server.connect, Path(name))
    quick, slow = ways
    gain = quick.rate / slow.rate
    print(f"{args.groups} groups of {args.partitions} partitions; medians of {args.rounds} rounds after one discarded")
    for way in ways:
        print(
            f"{way.name:<20} {len(way.groups):6} groups {statistics.median(way.seconds[1:]):7.1f} s "
            f"{way.rate:8,.0f} groups/s {way.rate * args.partitions:10,.0f} offsets/s {way.peak_mb:5.0f} MB, "
            f"{way.progress} lines of progress, {'found what is there' if way.right else f'found {dict(way.found)}'}"
        )
    said = quick.progress > 0 or quick.seconds[-1] < 2  # progress begins after a second
    good = quick.right and slow.right and gain >= MIN_GAIN and quick.peak_mb <= MAX_MB and said
    print(f"bounds: {MAX_MB:.0f} MB, {MIN_GAIN:g} times the peer: {gain:.1f} times: {'ok' if good else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
