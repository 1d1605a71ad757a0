#!/usr/bin/env python
"""Compares the translation of positions between two clusters with one consumer that reads the same logs once.

Two brokers of the newest release hold equal records in topics of equal names, at offsets that differ.  One process
translates 20 positions of each partition; many groups may share a position, and share its translation.  Another reads
all records of both clusters with confluent-kafka, and leaves them as they are.  The processes run in turns.

    scripts/bench/bench_translation.py [--partitions 500] [--records 20000] [--most 4]

Exits with 1 if a translation is not the right one, if the translation takes more than --most times as long as the
consumer, or if it needs more than 500 MB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr import KafkaCluster, TopicPartition
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.sandbox import KraftBroker
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import PositionTranslator

TOPIC = "bench"
SHIFT = 300
"""The number of other records that the target's logs hold before the copies."""
PLACES = 20
MAX_MB = 500
BATCH = 10_000


def fill(bootstraps: tuple[str, str], partitions: int, records: int) -> None:
    now_ms = int(time.time() * 1000)
    for shift, bootstrap in zip((0, SHIFT), bootstraps, strict=True):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result()
        settings = {"linger.ms": 50, "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True}
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        for partition in range(partitions):
            for number in range(-shift, records):
                value = f"record {number} of partition {partition}".encode().ljust(100, b".")
                producer.produce(TOPIC, value, b"%d" % (number % 1000), partition, timestamp=now_ms + number)
            producer.poll(0)
            producer.flush() if partition % 20 == 19 else None
        producer.flush()


def translated(bootstraps: tuple[str, str], partitions: int, records: int) -> str:
    """Translates, and returns a description of the first wrong answer; empty if none is wrong."""
    step = records // PLACES
    positions = {TopicPartition(TOPIC, one): range(0, records, step) for one in range(partitions)}
    with KafkaCluster(bootstraps[0]) as source, KafkaCluster(bootstraps[1]) as target:
        for found in PositionTranslator(source, target, TranslationRules()).translate(positions):
            if found.error is not None:
                return f"{found.source}: {found.error}"
            for position, one in found.translations.items():
                if one.verdict is not Verdict.SEEN or one.offset != position + SHIFT:
                    return f"{found.source} at {position}: {one}"
    return ""


def consumed(bootstraps: tuple[str, str], partitions: int, records: int) -> str:
    for shift, bootstrap in zip((0, SHIFT), bootstraps, strict=True):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
        consumer.assign([Partition(TOPIC, one, OFFSET_BEGINNING) for one in range(partitions)])
        left = partitions * (records + shift)
        while left:
            left -= len(consumer.consume(min(BATCH, left), 5))
        consumer.close()
    return ""


def in_process(work: Callable[..., str], pipe: Connection, *arguments: Any) -> None:
    started = time.monotonic()
    outcome = work(*arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    pipe.send((outcome, time.monotonic() - started, peak))


def run(work: Callable[..., str], *arguments: Any) -> tuple[float, float]:
    """Runs a function in a process of its own. Returns its duration in seconds and its peak memory in MB."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=in_process, args=(work, theirs, *arguments))
    process.start()
    theirs.close()
    outcome, seconds, peak = ours.recv()
    process.join()
    print(f"{work.__name__:<12} {seconds:7.1f} s, {peak:5.0f} MB", flush=True)
    if outcome:
        sys.exit(f"{work.__name__}: {outcome}")
    return seconds, peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=500)
    parser.add_argument("--records", type=int, default=20_000, help="in each partition")
    parser.add_argument("--most", type=float, default=4.0, help="the maximum ratio of the durations")
    args = parser.parse_args()
    jvm = ("-Xmx1g", "-XX:+UseG1GC")
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name,
        KraftBroker(Path(name) / "a", jvm=jvm) as a,
        KraftBroker(Path(name) / "b", jvm=jvm) as b,
    ):
        arguments = ((a.bootstrap, b.bootstrap), args.partitions, args.records)
        filling = multiprocessing.get_context("spawn").Process(target=fill, args=arguments)
        filling.start()
        filling.join()
        if filling.exitcode:
            sys.exit("the topics could not be filled")
        run(consumed, *arguments)  # the first one reads from the disk
        peers, ours, peak = [], [], 0.0
        for _ in range(2):
            seconds, memory = run(translated, *arguments)
            ours.append(seconds)
            peak = max(peak, memory)
            peers.append(run(consumed, *arguments)[0])
    ratio = min(ours) / min(peers)
    good = ratio <= args.most and peak <= MAX_MB
    outcome = "ok" if good else "too slow or too large"
    print(
        f"translation takes {ratio:.1f} times as long (bound {args.most:g}), {peak:.0f} MB (bound {MAX_MB})  {outcome}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
