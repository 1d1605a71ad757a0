#!/usr/bin/env python
"""Compares moves of many groups from ZooKeeper to brokers before 3.0 with Kafka's own tools.

Whole processes from start to exit are measured: `migrate plan`, `apply` and `verify` against ExportZkOffsets and
kafka-consumer-groups of 3.9.1 with `--reset-offsets --from-file`. Where that tool does not speak to the broker, the
bench prints the tool's error, and the peer is ExportZkOffsets and ImportZkOffsets, which only write to ZooKeeper. Every
round runs each side once, in turns; the first round warms both up and does not count; the bench compares the medians of
the others. After each run the bench checks that Kafka holds every offset.

    scripts/bench/bench_old_brokers.py [--groups 1000] [--partitions 50] [--rounds 3] [--only RELEASE ...]

Exits with 1 if a ratio is below its bound.
"""

from __future__ import annotations

import argparse
import sys
import time

from migrating import CONSUMER_GROUPS, TOPIC, Bench, Comparison, Side, compiled, servers

from offsetmgr import TopicPartition, open_store
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.sandbox import java_tool

BOUNDS = {"0.10.2.2": 4.0, "2.8.2": 9.0}
"""The releases, and the least allowed ratio of the peer's median time to ours on each."""
CONFIG = {"offsets.retention.check.interval.ms": 1000}
"""The broker 0.10.2.2 cannot delete groups. The bench lets the offsets of the last run expire, so the broker must look
for expired offsets often."""
EXPIRY_TIMEOUT_S = 120


def in_kafka(bench: Bench) -> dict[str, dict[TopicPartition, int]]:
    """The groups that have offsets in Kafka, and those offsets."""
    found: dict[str, dict[TopicPartition, int]] = {}
    with open_store(bench.kafka_uri) as store:
        for group in store.scan(bench.groups):
            if group.error or group.errors:
                sys.exit(f"cannot read group {group.name}: {group.error or group.errors}")
            if group.offsets:
                found[group.name] = {tp: committed.offset for tp, committed in group.offsets.items()}
    return found


def check(bench: Bench) -> None:
    """Exits if Kafka does not have exactly ZooKeeper's offsets. Kafka's own tools exit with 0 after many failures."""
    expected = {
        group: {TopicPartition(TOPIC, p): bench.offset(number, p) for p in range(bench.partitions)}
        for number, group in enumerate(bench.groups)
    }
    if in_kafka(bench) != expected:
        sys.exit("after the run, Kafka does not hold the offsets of ZooKeeper")


def empty(bench: Bench) -> None:
    """Deletes the groups' offsets from Kafka, or lets them expire, and waits until they are gone."""
    with open_store(bench.kafka_uri) as store:
        changes = {TopicPartition(TOPIC, p): Change(None, allow_rewind=True) for p in range(bench.partitions)}
        for result in store.edit(GroupEdit(group, changes) for group in in_kafka(bench)):
            if result.failures:
                sys.exit(f"cannot delete the offsets of group {result.group}: {result.failures}")
    deadline = time.monotonic() + EXPIRY_TIMEOUT_S
    while in_kafka(bench):
        if time.monotonic() > deadline:
            sys.exit(f"Kafka still holds deleted offsets after {EXPIRY_TIMEOUT_S} s")
        time.sleep(1)


def reset_error(bench: Bench) -> str:
    """Returns the error of kafka-consumer-groups 3.9.1 on this broker, or "" if the tool can reset offsets there."""
    csv = bench.fresh(".csv")
    csv.write_text(f"{TOPIC},0,1\n")
    done = java_tool(
        "kafka-3.9", CONSUMER_GROUPS,
        ["--bootstrap-server", bench.kafka.bootstrap, "--reset-offsets", "--from-file", str(csv), "--dry-run",
         "--group", bench.groups[0]],
    )  # fmt: skip
    lines = done.stdout.splitlines() + done.stderr.splitlines()
    return next((line for line in lines if line.startswith("Error")), "")


def comparison(bench: Bench, release: str) -> Comparison:
    """The move to a broker of this release, next to the peer that works there."""

    def export_and_import() -> None:
        exported = bench.fresh(".zk")
        bench.export_zk(exported)
        bench.import_zk(exported)

    mine = Side("migrate", bench.migrate, lambda: check(bench))
    error = reset_error(bench)
    if error:
        print(f"{release}: kafka-consumer-groups 3.9.1 does not speak to this broker: {error}")
        print(f"{release}: the peer is ExportZkOffsets and ImportZkOffsets, which only write to ZooKeeper")
        peer = Side("ExportZkOffsets, ImportZkOffsets", export_and_import)
    else:
        print(f"{release}: the peer is ExportZkOffsets and kafka-consumer-groups 3.9.1")
        peer = Side("ExportZkOffsets, --from-file", bench.migrate_with_tools, lambda: check(bench))
    return Comparison(f"ZooKeeper to Kafka {release}", BOUNDS[release], peer, mine, lambda: empty(bench))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(BOUNDS), default=list(BOUNDS))
    args = parser.parse_args()
    compiled()
    print(f"{args.groups} groups of {args.partitions} partitions; medians of {args.rounds} rounds after one discarded")
    print(f"{'':<28} {'peer':>10}  {'ours':>9}  {'ratio':>7}")
    good = []
    for release in args.only:
        with servers(args.groups, args.partitions, release, CONFIG) as bench:
            good.append(comparison(bench, release).measure(args.rounds))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
