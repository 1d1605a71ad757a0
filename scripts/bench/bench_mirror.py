#!/usr/bin/env python
"""`migrate mirror` towards Kafka, with many groups that all commit every second in ZooKeeper.

The broker delays the first join of every group by 3 s, as brokers do by default. One after the other, 1,000 groups
would take 50 minutes.  The written offset is the number of the second, so a group's offset in Kafka shows how many
seconds the mirror is behind.  The mirror is a separate process, on one real ZooKeeper and one real broker.

    scripts/bench/bench_mirror.py [--groups 1000] [--partitions 4] [--seconds 30]

Exits with 1 if the mirror copies less than it must to keep up, is more than 3 seconds behind in the median, takes
more than 2 minutes to take the groups, or does not end with the target equal to the source.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.offset_store import Change, GroupEdit, OffsetStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

TOPIC = "bench"
MIN_COPIED = 0.9
MAX_BEHIND_S = 3.0
OFFSETMGR = str(Path(sys.executable).with_name("offsetmgr"))
TAKING_S = 120.0
"""Maximum seconds until the mirror has locked all groups."""


def commit_everywhere(store: OffsetStore, groups: list[str], partitions: int, offset: int) -> None:
    """Commits ``offset`` in all partitions of every group."""
    changes = {TopicPartition(TOPIC, p): Change(OffsetAndMetadata(offset)) for p in range(partitions)}
    for result in store.edit(GroupEdit(group, changes) for group in groups):
        if result.failures:
            sys.exit(f"{result.group}: {result.failures}")


def held(store: OffsetStore, groups: list[str]) -> list[int]:
    """Returns the lowest offset of each group, or 0 for a group without offsets."""
    return [min((c.offset for c in found.offsets.values()), default=0) for found in store.scan(groups)]


def make_topic(bootstrap: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(60)


@contextmanager
def mirror(zk: str, kafka: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [OFFSETMGR, "migrate", "mirror", "--yes", "--from", zk, "--to", kafka, "--all-groups"],
            stdout=subprocess.DEVNULL, stderr=errors, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
                try:
                    child.wait(60)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def follow(zk: OffsetStore, kafka: OffsetStore, groups: list[str], partitions: int, seconds: int) -> list[float]:
    """Commits once a second. Returns by how many seconds Kafka was behind before each, as the median of the groups."""
    behind: list[float] = []
    started = time.monotonic()
    for second in range(2, seconds + 2):
        commit_everywhere(zk, groups, partitions, second)
        time.sleep(max(0.0, started + second - 1 - time.monotonic()))
        behind.append(second - statistics.median(held(kafka, groups)))
    return behind


def until(store: OffsetStore, groups: list[str], offset: int, limit: float, child: subprocess.Popen[bytes]) -> float:
    """Returns the seconds until every group has ``offset``."""
    started = time.monotonic()
    while min(held(store, groups)) < offset:
        if time.monotonic() > started + limit or child.poll() is not None:
            sys.exit(f"offset {offset} has not arrived everywhere after {time.monotonic() - started:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=30)
    args = parser.parse_args()
    groups = [f"bench-{n:05}" for n in range(args.groups)]
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name,
        ZooKeeperServer(Path(name) / "zookeeper", jvm=("-Xmx1g",)) as zookeeper,
        KafkaBroker(
            Path(name) / "kafka",
            zookeeper=f"{zookeeper.connect}/kafka",
            config={"group.initial.rebalance.delay.ms": 3000},  # a broker's default: each group's first join waits
            jvm=("-Xmx1g",),
        ) as broker,
    ):
        make_topic(broker.bootstrap, args.partitions)
        zk_uri, kafka_uri = f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{broker.bootstrap}"
        log = Path(name) / "mirror.log"
        with open_store(zk_uri) as zk, open_store(kafka_uri) as kafka:
            commit_everywhere(zk, groups, args.partitions, 1)
            with mirror(zk_uri, kafka_uri, log) as child:
                taking = until(kafka, groups, 1, TAKING_S, child)
                before = os.times()
                behind = follow(zk, kafka, groups, args.partitions, args.seconds)
                copied = sum(args.partitions * (offset - 1) for offset in held(kafka, groups))
                catching_up = until(kafka, groups, args.seconds + 1, 60, child)
            cpu = os.times().children_user + os.times().children_system - before.children_user - before.children_system
    written = args.groups * args.partitions * args.seconds
    print(f"{args.groups} groups of {args.partitions} partitions, all committed once a second for {args.seconds} s")
    print(f"taken and copied first after {taking:.1f} s; mirror's CPU {cpu:.1f} s in all")
    print(f"copied to the second: {copied / written:.2f} of the commits (bound {MIN_COPIED:g})")
    print(
        f"behind: median {statistics.median(behind):.1f} s, most {max(behind):.1f} s (bound of the median"
        f" {MAX_BEHIND_S:g}); all arrived {catching_up:.1f} s after the last commit"
    )
    good = copied >= MIN_COPIED * written and statistics.median(behind) <= MAX_BEHIND_S
    print("ok" if good else "TOO SLOW")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
