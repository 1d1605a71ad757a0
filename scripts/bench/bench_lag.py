#!/usr/bin/env python
"""Compares `offsets lag --all-groups --totals` with `kafka-consumer-groups --describe --all-groups`.

Both commands read the offsets of the same groups from one broker of the newest release, in turns.  Group n has
committed in all partitions of topic n mod 20.  Every 50th group uses the consumer protocol (KIP-848): a member joined
with ConsumerGroupHeartbeat and so converted the empty classic group.  In half of these groups the member has left; in
the others it remains, because its session lasts for an hour.

    scripts/bench/bench_lag.py [--groups 20000] [--partitions 50] [--rounds 1] [--rows] [--least 40]

The kernel reports the processor time and the peak memory of each process when the process ends.  Exits with 1 if a
command fails, if the ratio of the durations is below --least, or if offsetmgr needs more than 300 MB.  A small run has
a small ratio, because both sides spend most of their time on their start.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import uuid
from operator import attrgetter
from pathlib import Path

from bench_memory import MAX_MB, RECORDS, Measured, fill_topic, measured
from migrating import CONSUMER_GROUPS, OFFSETMGR, TOOL_JVM, compiled

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.errors import checked
from offsetmgr.kafka.protocol.requests import consumer_heartbeat
from offsetmgr.sandbox import KraftBroker, jars
from offsetmgr.sandbox.broker import KRAFT_JARS, NEWEST_VERSION
from offsetmgr.sandbox.java import java_command

TOPICS = [f"bench-{number:02}" for number in range(20)]
CONSUMER_PROTOCOL = 50
"""Every such group uses the consumer protocol."""
ROUND = ("--totals", "--totals", "--format csv", "kafka-consumer-groups", "--totals")
"""The order of the runs. The run of Kafka's tool is long, so those of offsetmgr are before and after it."""
HOUR_MS = 3_600_000
CONFIG = {
    "offsets.topic.num.partitions": 50,
    "group.consumer.session.timeout.ms": HOUR_MS,
    "group.consumer.max.session.timeout.ms": HOUR_MS,
}


def fill(bootstrap: str, groups: int, partitions: int) -> None:
    """Runs in a process of its own: see `fill_topic`."""
    for topic in TOPICS:
        fill_topic(bootstrap, partitions, topic)
    names = [f"bench-{number:06}" for number in range(groups)]
    edits = (
        GroupEdit(
            name,
            {
                TopicPartition(TOPICS[number % len(TOPICS)], p): Change(
                    OffsetAndMetadata(1 + (number * 31 + p * 7) % (RECORDS - 10)), allow_rewind=True
                )
                for p in range(partitions)
            },
        )
        for number, name in enumerate(names)
    )
    with open_store(f"kafka://{bootstrap}") as store:
        for result in store.edit(edits):
            if result.failures:
                sys.exit(f"cannot fill the groups: {result.failures}")
    asyncio.run(convert(bootstrap, names[::CONSUMER_PROTOCOL]))


async def convert(bootstrap: str, groups: list[str]) -> None:
    """Converts groups to the consumer protocol. The member of every second group leaves again."""
    client = Client(bootstrap, Security())
    deadline = asyncio.get_running_loop().time() + 120
    for number, group in enumerate(groups):
        member = str(uuid.uuid4())
        coordinator = await client.coordinator(group, deadline)
        for epoch in (0, -1)[: 1 + number % 2]:
            request = consumer_heartbeat(group, member, epoch, TOPICS[:1], {})
            checked(await client.call(coordinator, request, deadline), f"group {group}")
    await client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20_000)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", action="store_true", help="also measure --format csv without --totals")
    parser.add_argument("--least", type=float, default=40.0, help="the minimum ratio of the durations")
    args = parser.parse_args()
    compiled()
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name,
        KraftBroker(Path(name) / "kafka", jvm=("-Xmx2g", "-XX:+UseG1GC"), config=CONFIG) as kafka,
    ):
        filling = multiprocessing.get_context("spawn").Process(
            target=fill, args=(kafka.bootstrap, args.groups, args.partitions)
        )
        filling.start()
        filling.join()
        if filling.exitcode:
            sys.exit("the groups could not be created")
        print(f"{args.groups} groups of {args.partitions} partitions on Kafka {kafka.version}", flush=True)
        return compare(kafka.bootstrap, Path(name), args)


def compare(bootstrap: str, directory: Path, args: argparse.Namespace) -> int:
    """Runs both sides in turns, prints the resources of each run and the ratios, and returns the exit code."""
    jar_sets = map(jars.resolve, KRAFT_JARS[NEWEST_VERSION])
    arguments = ("--bootstrap-server", bootstrap, "--timeout", "600000", "--describe", "--all-groups")
    own = [OFFSETMGR, "offsets", "lag", "--bootstrap-server", bootstrap, "--all-groups"]
    commands = {"--totals": [*own, "--totals"]} | ({"--format csv": [*own, "--format", "csv"]} if args.rows else {})
    commands["kafka-consumer-groups"] = java_command(jar_sets, CONSUMER_GROUPS, arguments, jvm=TOOL_JVM)
    runs: dict[str, list[Measured]] = {name: [] for name in commands}
    for name in ROUND * args.rounds:
        if name not in commands:
            continue
        run = measured(commands[name], directory)
        figures = f"{run.seconds:7.1f} s, processor {run.cpu_seconds:6.1f} s, {run.peak_mb:5.0f} MB"
        print(f"{name:<22} {figures}", flush=True)
        if run.code:
            sys.exit(f"{name} exited {run.code}:\n{run.errors}")
        runs[name].append(run)
    peer, totals = runs["kafka-consumer-groups"], runs["--totals"]
    ratio, processor = (
        statistics.median(map(figure, peer)) / statistics.median(map(figure, totals))
        for figure in (attrgetter("seconds"), attrgetter("cpu_seconds"))
    )
    peak = max(run.peak_mb for run in totals)
    good = ratio >= args.least and peak <= MAX_MB
    print(
        f"--totals is {ratio:.1f} times as fast (bound {args.least:g}); processor time {processor:.1f} times;", end=" "
    )
    print(f"peak {peak:.0f} MB (bound {MAX_MB:g})  {'ok' if good else 'TOO SLOW OR TOO LARGE'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
