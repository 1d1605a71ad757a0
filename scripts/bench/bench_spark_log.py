#!/usr/bin/env python
"""Measures `offsetmgr-log` on a real `__consumer_offsets`: records per second on one core and on two, all columns.

A real broker is given commits (and deletions, whose records are tombstones) until its offsets topic holds as many
records as asked for; then Spark counts them by kind, which decodes every one, on ``local[1]`` and on ``local[2]``. The
first run warms the JVM up, and the median of the others counts.  The number of decoded records is compared with Kafka's
own formatter.

    scripts/bench/bench_spark_log.py [--records 1000000] [--rounds 3] [--least 250000]

Exits with 1 if the rate on two cores is less, or a count differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as sql

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit, Guard
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.java import QUICK_START, java_command
from offsetmgr.spark.table_registration import table_session
from offsetmgr.stores.kafka import KafkaStore

PER_GROUP = 50
GROUPS = 1_000
TOPIC = "orders"


def fill(bootstrap: str, records: int) -> int:
    """Commits for groups of 50 partitions until there are this many records; deletes each tenth of the last ones."""
    rounds = -(-records // (GROUPS * PER_GROUP))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PER_GROUP, 1)])[TOPIC].result(60)
    written = 0
    with KafkaStore(bootstrap) as store:
        for turn in range(rounds):
            last = turn == rounds - 1

            def edits(turn: int = turn, last: bool = last) -> Iterator[GroupEdit]:
                for group in range(GROUPS):
                    change = Change(OffsetAndMetadata(1_000 + turn), allow_rewind=True)
                    if last and group % 10 == 0 and rounds > 1:
                        change = Change(None)
                    partitions = {TopicPartition(TOPIC, p): change for p in range(PER_GROUP)}
                    guard = Guard.LOCK if change.after is None else Guard.OVERWRITE
                    yield GroupEdit(f"group-{group:04}", partitions, guard)

            for result in store.edit(edits()):
                if result.failures:
                    sys.exit(f"not written: {next(iter(result.failures.values()))}")
                written += len(result.outcomes)
    return written


def by_formatter(bootstrap: str) -> Counter[str]:
    """Returns the counts of Kafka's own formatters for the whole topic: offsets, tombstones and groups."""
    found: Counter[str] = Counter()
    for formatter, name in (("OffsetsMessageFormatter", "offset"), ("GroupMetadataMessageFormatter", "group")):
        arguments = ["--bootstrap-server", bootstrap, "--topic", "__consumer_offsets", "--from-beginning"]
        arguments += ["--formatter", f"org.apache.kafka.tools.consumer.{formatter}", "--timeout-ms", "10000"]
        arguments += ["--isolation-level", "read_committed"]
        command = java_command(
            [jars.resolve("kafka-3.9")],
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            arguments,
            jvm=("-Xmx1g", *QUICK_START),
        )
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            text, decoder = "", json.JSONDecoder()
            while chunk := process.stdout.read(1 << 20):
                text = (text + chunk).lstrip()
                at = 0
                while at < len(text):
                    try:
                        record, at = decoder.raw_decode(text, at)
                    except json.JSONDecodeError:
                        break
                    if not record["key"]["data"]["group"].startswith("console-consumer-"):  # the formatter's own
                        found[f"{name}{'' if record['value'] else ' tombstone'}"] += 1
                    while at < len(text) and text[at].isspace():
                        at += 1
                text = text[at:]
    return found


def by_spark(bootstrap: str, master: str, rounds: int) -> tuple[Counter[str], list[float]]:
    """Returns the counts by kind, and the seconds of each round but the first."""
    here = "127.0.0.1"
    spark = table_session("bench", master=master, spark__driver__host=here, spark__driver__bindAddress=here)
    try:
        table = spark.read.format("offsetmgr-log").option("kafka.bootstrap.servers", bootstrap).load()
        seconds, found = [], Counter[str]()
        for _ in range(rounds + 1):
            started = time.perf_counter()
            counted = table.groupBy("kind", "tombstone").agg(sql.count("*").alias("n"), sql.count("error").alias("bad"))
            rows = counted.collect()
            seconds.append(time.perf_counter() - started)
            if any(row.bad for row in rows):
                sys.exit(f"records that could not be read: {rows}")
            found = Counter({f"{row.kind}{' tombstone' if row.tombstone else ''}": row.n for row in rows})
    finally:
        spark.stop()
    return found, seconds[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=int, default=250_000)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as directory,
        ZooKeeperServer(Path(directory) / "zookeeper") as zookeeper,
        KafkaBroker(
            Path(directory) / "kafka", zookeeper=f"{zookeeper.connect}/k", config={"log.cleaner.enable": "false"}
        ) as kafka,
    ):
        started = time.perf_counter()
        print(f"{fill(kafka.bootstrap, args.records):,} commits written in {time.perf_counter() - started:.0f} s")
        rates: dict[int, float] = {}
        for cores in (1, 2):
            found, seconds = by_spark(kafka.bootstrap, f"local[{cores}]", args.rounds)
            total = sum(found.values())
            rates[cores] = total / statistics.median(seconds)
            print(f"local[{cores}]: {total:,} records, {rates[cores]:,.0f} records/s (median of {args.rounds})")
        expected = by_formatter(kafka.bootstrap)
    print(f"two cores are {rates[2] / rates[1]:.2f} times as fast as one")
    print(f"decoded: {dict(sorted(found.items()))}; Kafka's formatters: {dict(sorted(expected.items()))}")
    good = rates[2] >= args.least and found == expected and total >= args.records
    print(f"bound: {args.least:,} records/s on two cores, equal counts: {'ok' if good else 'NOT MET'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
