#!/usr/bin/env python
"""Compares the latency of a period change and its load on ZooKeeper with the original's scheme, rebuilt here.

Four processes share the partitions of one real ZooKeeper and go through periods with nothing to do in them. A *turn* is
from the last member's call of `current_period_complete` until the last of them is released. ZooKeeper's operations are
the packets that the server itself has counted (``mntr``), less what as many members cause while they merely wait.

The peer is the original's scheme as its document describes it: every consuming thread has one partition, writes its
time into one shared ``progress`` node, and polls ``coordinator``; the leader asks for
``progress`` again and again. It asks every 100 ms here, which the document leaves open, and writes with the version
that it read, for without that its writes lose one another. Both schemes run in turns, on one server.

    scripts/bench/bench_period.py [--periods 60] [--rounds 2]

Exits with 1 if the median turn with 4 members and 200 partitions takes over 50 ms, or where operations grow with
partitions: more than 1.2 times as many for 800 as for 50.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.model import TopicPartition
from offsetmgr.period.coordinator import PeriodCoordinator
from offsetmgr.period.leader import CoordinatorOptions
from offsetmgr.period.records import parse_limit
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.sandbox import ZooKeeperServer, ports
from offsetmgr.zookeeper.client.session import ZookeeperSession, ensure_nodes
from offsetmgr.zookeeper.client.transactions import Create, OperationState, SetData

MAX_TURN_MS: Final = 50.0
MAX_GROWTH: Final = 1.2
POLL_S: Final = 0.1
WARM: Final = 5
"""Number of first periods that do not count."""
SCHEDULE: Final = PeriodSchedule(1_000, 1_000)


# --- one member, as a process -------------------------------------------------------------------


def partitions_of(settings: dict[str, Any]) -> list[TopicPartition]:
    return [TopicPartition("t", n) for n in range(settings["partitions"])]


def ours(settings: dict[str, Any]) -> list[list[float]]:
    everything = partitions_of(settings)
    mine = everything[settings["shard_group"] :: settings["members"]]
    times: list[list[float]] = []
    with PeriodCoordinator(
        settings["zookeeper"],
        settings["root"],
        f"m{settings['shard_group']}",
        SCHEDULE,
        lambda: everything,
        owned=mine,
        options=CoordinatorOptions(session_timeout_ms=30_000),
    ) as coordinator:
        handshake()
        for _ in range(settings["periods"]):
            called = time.monotonic()
            coordinator.current_period_complete(mine, timeout_s=120)
            times.append([called, time.monotonic()])
        handshake()
    return times


def original(settings: dict[str, Any]) -> list[list[float]]:
    """Runs one thread for each partition, as the document demands."""
    everything = partitions_of(settings)
    mine = everything[settings["shard_group"] :: settings["members"]]
    session = ZookeeperSession(settings["zookeeper"])
    old = Original(session, settings["root"], len(everything))
    limit = old.limit()
    called: list[dict[int, float]] = [{} for _ in range(settings["periods"])]
    released: list[dict[int, float]] = [{} for _ in range(settings["periods"])]
    failures: list[BaseException] = []

    def consume(at: int, partition: TopicPartition) -> None:
        try:
            for number in range(settings["periods"]):
                end_ms = limit + number * SCHEDULE.length_ms
                called[number][at] = time.monotonic()
                old.write(partition, end_ms)
                while old.limit() < end_ms + SCHEDULE.length_ms:
                    if settings["shard_group"] == 0 and at == 0:
                        old.lead(end_ms)
                    time.sleep(POLL_S)
                released[number][at] = time.monotonic()
        except BaseException as error:
            failures.append(error)

    handshake()
    threads = [threading.Thread(target=consume, args=(at, partition)) for at, partition in enumerate(mine)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    handshake()
    session.close()
    return [[max(c.values()), max(r.values())] for c, r in zip(called, released, strict=True)]


class Original:
    """The original's nodes, in its text format."""

    def __init__(self, session: ZookeeperSession, root: str, partitions: int) -> None:
        self._session = session
        self._limit = f"{root}/coordinator"
        self._progress = f"{root}/progress"
        self._partitions = partitions

    def limit(self) -> int:
        node = self._session.get(self._limit)
        assert node is not None
        return parse_limit(node.data) or 0

    def write(self, partition: TopicPartition, time_ms: int) -> None:
        while True:
            node = self._session.get(self._progress)
            assert node is not None
            progress = {**progress_of(node.data), partition: time_ms}
            text = "".join(f"{tp.topic}.{tp.partition}:{at};" for tp, at in sorted(progress.items()))
            outcome = self._session.transaction([SetData(self._progress, text.encode(), node.version)])
            if outcome.state is OperationState.COMMITTED:
                return

    def lead(self, target: int) -> None:
        node = self._session.get(self._progress)
        assert node is not None
        progress = progress_of(node.data)
        if sum(at >= target for at in progress.values()) == self._partitions:
            limit = self._session.get(self._limit)
            assert limit is not None
            data = str(target + SCHEDULE.length_ms).encode()
            self._session.transaction([SetData(self._limit, data, limit.version)])


def progress_of(data: bytes) -> dict[TopicPartition, int]:
    """The time of each partition in ``a.0:time;a.1:time;``."""
    items = (item.rpartition(":") for item in data.decode().split(";") if item)
    return {TopicPartition(name.rpartition(".")[0], int(name.rpartition(".")[2])): int(time) for name, _, time in items}


def handshake() -> None:
    """Reports that this process has reached this point, and waits for the others."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


# --- all members --------------------------------------------------------------------------------


@dataclass
class Measured:
    turns_ms: list[float]
    operations: float
    """A period."""


def packets(server: ZooKeeperServer) -> int:
    for line in ports.four_letter_word(server.connect, "mntr").splitlines():
        name, _, value = line.partition("\t")
        if name == "zk_packets_received":
            return int(value)
    raise SystemExit("ZooKeeper does not tell how many packets it has received")


def measure(server: ZooKeeperServer, scheme: str, members: int, partitions: int, periods: int) -> Measured:
    root = f"/{scheme}-{members}-{partitions}-{time.time_ns()}"
    if scheme == "original":
        with ZookeeperSession(server.connect) as session:
            ensure_nodes(session, [root])
            session.transaction([Create(f"{root}/coordinator", b"1000"), Create(f"{root}/progress", b"")])
    processes = []
    for shard_group in range(members):
        settings = {
            "scheme": scheme, "zookeeper": server.connect, "root": root, "shard_group": shard_group, "members": members,
            "partitions": partitions, "periods": periods,
        }  # fmt: skip
        command = [sys.executable, __file__, "--member", json.dumps(settings)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    try:
        together(processes)
        idle_from, before = time.monotonic(), packets(server)
        time.sleep(3)
        idle_rate = (packets(server) - before) / (time.monotonic() - idle_from)
        began, before = time.monotonic(), packets(server)
        release(processes)
        together(processes)
        used = packets(server) - before - idle_rate * (time.monotonic() - began)
        release(processes)
        times = [json.loads(line_of(process)) for process in processes]
    finally:
        for process in processes:
            process.stdin.close()  # type: ignore[union-attr]
            process.terminate()
            process.wait(20)
    turns = [
        1000 * (max(of[n][1] for of in times) - max(of[n][0] for of in times))
        for n in range(min(WARM, periods), periods)
    ]
    return Measured(turns, used / periods)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a member has failed; see above")
    return line


def together(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        line_of(process)


def release(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--periods", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        settings = json.loads(options.member)
        scheme: Callable[[dict[str, Any]], list[list[float]]] = ours if settings["scheme"] == "ours" else original
        sys.stdout.write(json.dumps(scheme(settings)) + "\n")
        return 0
    with tempfile.TemporaryDirectory() as directory, ZooKeeperServer(Path(directory)) as server:
        measure(server, "ours", 4, 200, 10)  # warms the server up
        return report(server, options.periods, options.rounds)


def report(server: ZooKeeperServer, periods: int, rounds: int) -> int:
    turns: dict[str, list[float]] = {"ours": [], "original": []}
    operations: dict[str, list[float]] = {"ours": [], "original": []}
    for _ in range(rounds):
        for scheme, count in (("ours", periods), ("original", WARM + 5)):
            found = measure(server, scheme, 4, 200, count)
            turns[scheme] += found.turns_ms
            operations[scheme].append(found.operations)
    for scheme, durations in turns.items():
        median, worst = statistics.median(durations), max(durations)
        rate = statistics.median(operations[scheme])
        print(
            f"{scheme}: 4 members, 200 partitions: turn {median:.1f} ms at the median, {worst:.1f} at most "
            f"({len(durations)} turns); {rate:.1f} requests a period"
        )
    sizes = {}
    for members, partitions in ((2, 200), (8, 200), (4, 50), (4, 800)):
        found = measure(server, "ours", members, partitions, periods)
        sizes[members, partitions] = found.operations
        print(f"ours: {members} members, {partitions} partitions: {found.operations:.1f} requests a period")
    ours_ms, theirs_ms = statistics.median(turns["ours"]), statistics.median(turns["original"])
    growth = sizes[4, 800] / sizes[4, 50]
    ratio = statistics.median(operations["original"]) / statistics.median(operations["ours"])
    print(f"the original takes {theirs_ms / ours_ms:.1f} times as long and {ratio:.1f} times the requests")
    print(f"16 times the partitions: {growth:.2f} times the requests; 4 times the members: ", end="")
    print(f"{sizes[8, 200] / sizes[2, 200]:.2f} times")
    return 0 if ours_ms <= MAX_TURN_MS and growth <= MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
