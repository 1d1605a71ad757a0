#!/usr/bin/env python
"""Compares `offsetmgr log offsets` with Kafka's DumpLogSegments and its offsets decoder, on the same files.

The result is the number of records per second of the whole process, including its start.

A real broker is given commits until its offsets topic holds as many records as asked for, half of them in commits of 50
partitions and half in commits of one; then it is stopped, and both tools read its directories in turn.  The median of
the rounds counts, after one that warms the page cache up.  Before that the offsets that we find are held against those
that DumpLogSegments' output ends with.

    scripts/bench/bench_segments.py [--records 1000000] [--rounds 3] [--least 1.0]

Exits with 1 if we are less than --least times as fast, or an offset differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit, Guard
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.java import java_command
from offsetmgr.stores.kafka import KafkaStore

PARTITIONS = 50
GROUPS = 500
TOPIC = "orders"
_LINE = re.compile(r"\| offset: \d+ .*? key: (\{.*\}) payload: (.*)")

Offsets = dict[tuple[str, str, int], int]


def fill(bootstrap: str, records: int) -> None:
    """Commits for 500 groups until there are this many records, half in commits of all partitions, half in commits of
    one."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
    with KafkaStore(bootstrap) as store:

        def commits() -> Iterator[GroupEdit]:
            written, turn = 0, 0
            while written < records:
                turn += 1
                for group in range(GROUPS):
                    change = Change(OffsetAndMetadata(1_000 + turn), allow_rewind=True)
                    # Every commit of all partitions is followed by rounds of commits of one.
                    some = range(PARTITIONS) if turn % (PARTITIONS + 1) == 0 else [turn % PARTITIONS]
                    written += len(some)
                    yield GroupEdit(
                        f"group-{group:04}", {TopicPartition(TOPIC, p): change for p in some}, Guard.OVERWRITE
                    )

        for result in store.edit(commits()):
            if result.failures:
                sys.exit(f"not written: {next(iter(result.failures.values()))}")


def dump_command(files: Sequence[Path]) -> list[str]:
    arguments = ["--offsets-decoder", "--files", ",".join(map(str, files))]
    return java_command([jars.resolve("kafka-3.9")], "kafka.tools.DumpLogSegments", arguments, jvm=("-Xmx1g",))


def our_command(directory: Path) -> list[str]:
    return [sys.executable, "-c", "from offsetmgr.cli.app import main; main()", "log", "offsets", str(directory)]


def seconds_of(command: Sequence[str]) -> float:
    """Runs a process, discards its output, and returns its duration in seconds."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def dumped(files: Sequence[Path]) -> tuple[Offsets, int]:
    """Returns the last offset of each key in the output of DumpLogSegments, and the number of its records."""
    found: Offsets = {}
    count = 0
    with subprocess.Popen(dump_command(files), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            record = _LINE.match(line)
            if record is None:
                count += line.startswith("| offset:")
                continue
            count += 1
            key = json.loads(record[1])
            if str(key["type"]) != "1":
                continue
            data, value = key["data"], json.loads(record[2])
            at = data["group"], data["topic"], data["partition"]
            if value is None:
                found.pop(at, None)
            else:
                found[at] = value["data"]["offset"]
    return found, count


def ours(directory: Path) -> Offsets:
    done = subprocess.run([*our_command(directory), "--format", "json"], capture_output=True, text=True, check=True)
    return {(row["group"], row["topic"], row["partition"]): row["offset"] for row in json.loads(done.stdout)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as directory:
        broker = KafkaBroker(Path(directory) / "kafka", zookeeper="", config={"log.cleaner.enable": "false"})
        with ZooKeeperServer(Path(directory) / "zookeeper") as zookeeper:
            broker.zookeeper = f"{zookeeper.connect}/k"
            with broker:
                started = time.perf_counter()
                fill(broker.bootstrap, args.records)
                print(f"filled in {time.perf_counter() - started:.0f} s")
        data = broker.directory / "data"
        files = sorted(data.glob("__consumer_offsets-*/*.log"))
        size = sum(file.stat().st_size for file in files)
        expected, count = dumped(files)
        found = ours(data)
        same = found == expected
        print(f"{count:,} records in {len(files)} segments, {size / 2**20:.0f} MiB; {len(found):,} offsets hold")
        print(f"the same offsets as DumpLogSegments ends with: {'yes' if same else 'NO'}")
        rates: dict[str, float] = {}
        for name, command in (("DumpLogSegments", dump_command(files)), ("log offsets", our_command(data))):
            durations = [seconds_of(command) for _ in range(args.rounds + 1)][1:]
            rates[name] = count / statistics.median(durations)
            print(
                f"{name}: {statistics.median(durations):.2f} s, {rates[name]:,.0f} records/s (median of {args.rounds})"
            )
    times = rates["log offsets"] / rates["DumpLogSegments"]
    good = same and times >= args.least
    print(f"{times:.1f} times as fast on {os.cpu_count()} cores; bound {args.least:g}: {'ok' if good else 'NOT MET'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
