#!/usr/bin/env python
"""Compares reading through the relay with reading from the broker: MB/s of the same records with the same client.

One real broker 4.4, a `manager serve --relay` process before it, and confluent-kafka's `consume()`.  Both are warmed
up and then alternate; what counts is the ratio within one run, since everything shares the machine's cores.

    scripts/bench/bench_relay.py [--megabytes 500] [--runs 3] [--least 0.5]

Exits with 1 if the median ratio is below ``--least``, or where a run through the relay reads other bytes.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from offsetmgr.sandbox import KraftBroker

TOPIC = "bench"
PARTITIONS = 4
RECORD_BYTES = 1000
WARM_UP = 1
START_S = 60.0
OFFSETMGR = str(Path(sys.executable).with_name("offsetmgr"))


def fill(bootstrap: str, records: int, topic: str = TOPIC) -> None:
    """Produces records with the same random bytes, which cannot be compressed and are cheap to produce."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
    value = os.urandom(RECORD_BYTES)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        sys.exit("the topic could not be filled")


def read(bootstrap: str, records: int, topic: str = TOPIC) -> tuple[float, int]:
    """Returns the MB/s from the arrival of the first record to that of the last, and the bytes read."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 500_000,
            "fetch.message.max.bytes": 8 * 1024 * 1024,
            "fetch.max.bytes": 64 * 1024 * 1024,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    got = size = 0
    began = 0.0
    while got < records:
        messages = consumer.consume(10_000, 30)
        began = began or time.monotonic()
        if not messages:
            sys.exit(f"only {got} of {records} records came")
        got += len(messages)
        size += sum(len(message) for message in messages)
    seconds = time.monotonic() - began
    consumer.close()
    return size / 1e6 / seconds, size


@contextmanager
def relay(bootstrap: str, log: Path) -> Iterator[str]:
    """Runs a manager as a relay, and yields its address when clients can use it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [OFFSETMGR, "manager", "serve", "--bootstrap-server", bootstrap, "--listen", address, "--relay"],
            stdout=errors, stderr=errors, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await_relay(child, address, log)
            yield address
        finally:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def await_relay(child: subprocess.Popen[bytes], address: str, log: Path) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    deadline = time.monotonic() + START_S
    while True:
        try:
            if len(admin.list_topics(TOPIC, timeout=2).brokers) == 2:
                return
        except KafkaException:
            pass
        if child.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the relay did not start: {log.read_text()}")


def cpu_seconds(parent: int) -> float:
    """Returns the CPU time of the relay processes that ``parent`` has started."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"--relay" in command:
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.5)
    args = parser.parse_args()
    records = args.megabytes * 1_000_000 // RECORD_BYTES
    ratios, right = [], True
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name,
        KraftBroker(Path(name) / "kafka", jvm=("-Xmx1g",)) as broker,
    ):
        fill(broker.bootstrap, records)
        with relay(broker.bootstrap, Path(name) / "relay.log") as address:
            for run in range(WARM_UP + args.runs):
                direct, expected = read(broker.bootstrap, records)
                before = cpu_seconds(os.getpid())
                relayed, size = read(address, records)
                used = cpu_seconds(os.getpid()) - before
                right = right and size == expected
                if run < WARM_UP:
                    continue
                ratios.append(relayed / direct)
                print(
                    f"direct {direct:6.0f} MB/s   relayed {relayed:6.0f} MB/s   ratio {ratios[-1]:.2f}   "
                    f"relay's CPU {used / (size / 1e9):.2f} s/GB",
                    flush=True,
                )
    ratio = statistics.median(ratios)
    good = right and ratio >= args.least
    print(f"median ratio {ratio:.2f} (bound {args.least:g}); the same bytes: {'yes' if right else 'NO'}")
    print("ok" if good else "TOO SLOW" if right else "WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
