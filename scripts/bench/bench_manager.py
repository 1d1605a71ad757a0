#!/usr/bin/env python
"""Compares the offset manager with a real broker's group coordinator, with the same confluent-kafka client.

Each side is warmed up by three runs that do not count, then both are measured in turns; the medians are compared.
Commits and fetches: of 50 partitions each, 200 in flight, through the Admin client.  Single commits: one partition, one
at a time, through a consumer.  Manager, broker and client share the machine.

    scripts/bench/bench_manager.py [--rounds 3] [--groups 2000] [--only NAME ...] [--record-format avro|kafka]

Exits with 1 if a result misses its bound.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Semaphore
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.managers import Managers
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port

PARTITIONS = 50
IN_FLIGHT = 200
WARM_UP = 3
SINGLES = 500
LEAST = {"commits": 0.6, "fetches": 0.6}
MAX_P99_MS = 20.0
TOPIC = "bench"


class Side:
    """One server, as its clients see it."""

    def __init__(self, bootstrap: str, groups: int) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 60_000, "log_level": 0})
        self.single = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "single", "enable.auto.commit": False, "log_level": 0}
        )
        self.groups = [f"bench-{n:06}" for n in range(groups)]
        self._offset = 0

    def commits(self) -> float:
        """Offsets a second."""
        self._offset += 1
        requests = [
            ConsumerGroupTopicPartitions(g, [TopicPartition(TOPIC, p, self._offset) for p in range(PARTITIONS)])
            for g in self.groups
        ]
        return self._rate(requests, lambda one: self.admin.alter_consumer_group_offsets([one])[one.group_id])

    def fetches(self) -> float:
        """Offsets a second."""
        requests = [
            ConsumerGroupTopicPartitions(g, [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]) for g in self.groups
        ]
        return self._rate(requests, lambda one: self.admin.list_consumer_group_offsets([one])[one.group_id])

    def _rate(self, requests: Sequence[ConsumerGroupTopicPartitions], ask: Callable[..., Future[Any]]) -> float:
        capacity = Semaphore(IN_FLIGHT)
        futures = []
        started = time.perf_counter()
        for one in requests:
            capacity.acquire()
            future = ask(one)
            future.add_done_callback(lambda _: capacity.release())
            futures.append(future)
        found = [future.result(60) for future in futures]
        duration_s = time.perf_counter() - started
        for one in found:
            if len(one.topic_partitions) != PARTITIONS or any(p.error for p in one.topic_partitions):
                sys.exit(f"{one.group_id}: {one.topic_partitions}")
        return len(requests) * PARTITIONS / duration_s

    def singles(self) -> list[float]:
        """Returns the sorted durations of single commits in milliseconds."""
        durations = []
        for offset in range(SINGLES):
            started = time.perf_counter()
            self.single.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
            durations.append((time.perf_counter() - started) * 1000)
        return sorted(durations)


@contextmanager
def manager(
    bootstrap: str,
    directory: Path,
    *options: str,
    wait: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Runs a manager process, and yields its address; with ``wait``, after the manager serves all shards."""
    address = f"127.0.0.1:{free_port()}"
    with (directory / "manager.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "offsetmgr", "manager", "serve", "--bootstrap-server", bootstrap,
             "--listen", address, *options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 90
            while wait and not _serves(address):
                if time.monotonic() > deadline or child.poll() is not None:
                    sys.exit((directory / "manager.log").read_text())
                time.sleep(0.2)
            yield address
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _serves(address: str) -> bool:
    with Managers(address, ConnectionConfig(timeout_ms=2000)) as managers:
        try:
            (report,) = managers.reports()
        except (OffsetMgrError, ValueError):
            return False
    return report.status is not None and all(s["state"] == "ACTIVE" for s in report.status["shards"])


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """Runs a real broker with a production heap and compiler, and yields its address."""
    with (
        ZooKeeperServer(directory / "zookeeper") as zookeeper,
        KafkaBroker(
            directory / "kafka", zookeeper=f"{zookeeper.connect}/kafka", jvm=("-Xmx2g", "-XX:+UseG1GC")
        ) as kafka,
    ):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        yield kafka.bootstrap


def rates(name: str, broker: Side, manager: Side, rounds: int) -> bool:
    """Prints the ratio of offsets per second. Returns whether it meets its bound."""
    peer, own = getattr(broker, name), getattr(manager, name)
    for _ in range(WARM_UP):
        peer(), own()
    pairs = [(peer(), own()) for _ in range(rounds)]
    at = statistics.median(p for p, _ in pairs), statistics.median(o for _, o in pairs)
    ratio = at[1] / at[0]
    spread = sorted(o / p for p, o in pairs)
    good = ratio >= LEAST[name]
    result = f"(bound {LEAST[name]:g}; pairs {spread[0]:.2f} to {spread[-1]:.2f})  {'ok' if good else 'LOW'}"
    print(f"{name:<16}{at[0]:>12,.0f}/s{at[1]:>12,.0f}/s{ratio:>8.2f}  {result}", flush=True)
    return good


def latencies(broker: Side, manager: Side) -> bool:
    """Prints percentiles of single commits. Returns whether those of the manager meet their bound."""
    broker.singles(), manager.singles()
    found = {"broker": broker.singles(), "manager": manager.singles()}
    for name, durations in found.items():
        at = {q: durations[min(int(len(durations) * q / 100), len(durations) - 1)] for q in (50, 90, 99)}
        print(f"single commit, {name:<8} p50 {at[50]:.1f} ms  p90 {at[90]:.1f} ms  p99 {at[99]:.1f} ms", flush=True)
    good = found["manager"][int(SINGLES * 0.99)] <= MAX_P99_MS
    print(f"{'':<16}bound of manager at p99: {MAX_P99_MS:g} ms  {'ok' if good else 'SLOW'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=["commits", "fetches", "singles"])
    parser.add_argument("--record-format", default="avro")
    args = parser.parse_args()
    chosen = args.only or ["commits", "fetches", "singles"]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offsetmgr-bench-")))
        bootstrap = stack.enter_context(broker(directory))
        address = stack.enter_context(manager(bootstrap, directory, "--record-format", args.record_format))
        broker_side, manager_side = Side(bootstrap, args.groups), Side(address, args.groups)
        print(
            f"{args.groups} groups of {PARTITIONS} partitions, {IN_FLIGHT} in flight, medians of {args.rounds} rounds"
        )
        print(f"{'':<16}{'broker':>14}{'manager':>14}{'ratio':>8}", flush=True)
        good = [
            rates(name, broker_side, manager_side, args.rounds) for name in ("commits", "fetches") if name in chosen
        ]
        if "singles" in chosen:
            good.append(latencies(broker_side, manager_side))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
