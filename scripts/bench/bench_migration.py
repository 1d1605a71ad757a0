#!/usr/bin/env python
"""Compares moves, exports and imports of many groups, and the description of one, with Kafka's own tools.

Whole processes from start to exit are measured, on one real ZooKeeper and one real broker.  Every round runs each side
once, in turns; the first round warms both up and does not count; the median of the others is compared.

    scripts/bench/bench_migration.py [--groups 1000] [--partitions 50] [--rounds 3] [--only NAME ...]

Exits with 1 if a ratio is below its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from migrating import CONSUMER_GROUPS, Bench, Comparison, Side, compiled, run_offsetmgr, servers, tool


def migration(bench: Bench) -> Comparison:
    return Comparison(
        "ZooKeeper to Kafka", 15,
        Side("tools", bench.migrate_with_tools), Side("migrate", bench.migrate), bench.empty_kafka,
    )  # fmt: skip


def export(bench: Bench) -> Comparison:
    return Comparison(
        "export from ZooKeeper", 12,
        Side("ExportZkOffsets", lambda: bench.export_zk(bench.fresh(".zk"))),
        Side("offsets export", lambda: run_offsetmgr(
            "offsets", "export", "--store", bench.zk, "--all-groups", str(bench.fresh(".zk"))
        )),
    )  # fmt: skip


def import_(bench: Bench) -> Comparison:
    exported = bench.fresh(".zk")
    bench.export_zk(exported)
    # All offsets are moved back by one before each run, so that both tools write every node.
    lines = exported.read_text().splitlines()
    moved = bench.fresh(".zk")
    moved.write_text("".join(f"{p}:{int(o) + 1000}\n" for p, _, o in (x.rpartition(":") for x in lines if x)))

    def mine() -> None:
        run_offsetmgr(
            "offsets", "import", str(moved), "--store", bench.zk, "--execute", "--yes",
            "--before-image", str(bench.fresh(".avro")),
        )  # fmt: skip

    return Comparison(
        "import to ZooKeeper", 12,
        Side("ImportZkOffsets", lambda: bench.import_zk(moved)), Side("offsets import", mine),
        lambda: bench.fill(bench.zk),
    )  # fmt: skip


def describe_one(bench: Bench) -> Comparison:
    bench.empty_kafka()
    bench.fill(bench.kafka_uri)
    group = bench.groups[len(bench.groups) // 2]
    return Comparison(
        "describe one group", 5,
        Side("--describe --group", lambda: tool(
            "kafka-3.9", CONSUMER_GROUPS,
            "--bootstrap-server", bench.kafka.bootstrap, "--describe", "--group", group,
        )),
        Side("groups describe", lambda: run_offsetmgr(
            "groups", "describe", "--bootstrap-server", bench.kafka.bootstrap, "--group", group
        )),
    )  # fmt: skip


def fsync_ms(directory: Path) -> float:
    """Returns the milliseconds that the disk needs to sync a record. A tool that writes node by node waits for each."""
    durations = []
    with (directory / "fsync").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"x" * 100)
            started = time.perf_counter()
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - started)
    return statistics.median(durations) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    names = {"migrate": migration, "export": export, "import": import_, "describe": describe_one}
    parser.add_argument("--only", nargs="+", choices=list(names), default=list(names))
    args = parser.parse_args()
    compiled()
    print(f"{args.groups} groups of {args.partitions} partitions; medians of {args.rounds} rounds after one discarded")
    with tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name:
        print(f"this disk keeps a record in {fsync_ms(Path(name)):.2f} ms; the slower, the larger the ratio of imports")
    print(f"{'':<28} {'peer':>10}  {'ours':>9}  {'ratio':>7}")
    with servers(args.groups, args.partitions) as bench:
        good = [names[name](bench).measure(args.rounds) for name in args.only]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"largest_child_process_mb": round(peak / 1024)}))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
