#!/usr/bin/env python
"""Loading, memory, failover, and the cost of more groups: the offset manager on a real broker.

load      the same records (three for each offset) in `__consumer_offsets` and in our topic, in Kafka's own format: what
          the broker logs about loading them after a restart, against the seconds from a manager's first claim until all
          shards are served; memory that the offsets take; the responses to fetches meanwhile:
          COORDINATOR_LOAD_IN_PROGRESS, then the right offsets, and never anything else
takeover  a standby that holds the same offsets gets shard groups: seconds until it serves them
groups    commits and fetches of 50-offset groups among an increasing number of others, and memory per offset

    scripts/bench/bench_manager_load.py [--offsets 1000000] [--only load takeover groups]

Exits with 1 if a result misses its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from manager_servers import manager
from offset_client import OffsetClient

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import ErrorCode, OffsetMgrError, value_of
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.manager.log.base import shard_group_count, shard_group_of
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.manager.results import CommitRequest, FetchRequest
from offsetmgr.manager.runtime import ManagerRuntime
from offsetmgr.manager.runtime.process_settings import after_load, tune_process
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.registry import record_format
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

SHARDS = 50
PER_GROUP = 50
TIMES = 3
OURS, THEIRS = "bench-offsets", "__consumer_offsets"
RECORDS_PER_BATCH = 1000
FETCHED_GROUPS = 64
"""Number of groups that are fetched during the load."""
MIN_LOAD = 0.75
MAX_TAKEOVER_S = 1.0
MAX_BYTES = 120
_LOADED = re.compile(
    r"Finished loading offsets and group metadata from __consumer_offsets-\d+ in (\d+) milliseconds for epoch \d+, "
    r"of which (\d+) milliseconds"
)


class Always:
    """A lease that is always valid, for a process without others."""

    def valid(self) -> bool:
        return True

    def on_fenced(self, shard_group: int, why: str) -> None:
        sys.exit(f"shard group {shard_group}: {why}")


def resident() -> int:
    """Bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def records(offsets: int, per_group: int, times: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields shard, key and value of records: each offset several times, the newest last."""
    form, now = record_format("kafka"), int(time.time() * 1000)
    for time_ in range(1, times + 1):
        for number in range(offsets // per_group):
            group = f"bench-{number:07}"
            shard = shard_for(group, SHARDS)
            for key, value in form.encode_commit(
                group, "orders", [(p, time_, -1, "") for p in range(per_group)], now, None
            ):
                yield shard, key, value or b""


def fill(bootstrap: str, topic: str, what: Iterator[tuple[int, bytes, bytes]], **settings: str) -> int:
    """Writes records. Returns their number."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 500_000, **settings}
    )
    count = 0
    for shard, key, value in what:
        while True:
            try:
                producer.produce(topic, value, key, shard)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
        if count % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        sys.exit("the records could not be written")
    return count


async def fill_as_manager(bootstrap: str, topic: str, what: Iterator[tuple[int, bytes, bytes]]) -> None:
    """Claims all shard groups and writes records, as a manager does. Managers ignore the records of other programs."""
    log = KafkaLog(bootstrap, topic, SHARDS)
    writers = [log.writer(shard_group) for shard_group in range(shard_group_count(SHARDS))]
    waiting: dict[int, list[EncodedRecord]] = {shard: [] for shard in range(SHARDS)}

    async def append(shard: int) -> None:
        records, waiting[shard] = waiting[shard], []
        if records:
            value_of((await writers[shard_group_of(shard, SHARDS)].append({shard: records}, 60))[shard])

    for writer in writers:
        await writer.claim(60)
    for shard, key, value in what:
        waiting[shard].append((key, value))
        if len(waiting[shard]) >= RECORDS_PER_BATCH:
            await append(shard)
    for shard in range(SHARDS):
        await append(shard)
    for writer in writers:
        writer.close()
    log.close()


async def serve(log: KafkaLog, form: str, shard_groups: Sequence[int], standby: bool) -> ManagerRuntime:
    runtime = ManagerRuntime(log, record_format(form), Always(), ManagerSettings(standby=standby, lag_interval_s=0.2))
    await runtime.start()
    await take(runtime, shard_groups)
    return runtime


async def take(runtime: ManagerRuntime, shard_groups: Sequence[int]) -> float:
    """Returns the seconds until all these shard groups are served."""
    started = time.perf_counter()
    for shard_group in shard_groups:
        runtime.on_assigned(shard_group)
    await until(lambda: all(s.state == "active" for s in runtime.status() if s.shard_group in shard_groups), 120)
    return time.perf_counter() - started


async def until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


# --- child processes: each measures itself ----------------------------------------------------------


async def child_load(bootstrap: str) -> dict[str, float]:
    tune_process()
    log = KafkaLog(bootstrap, OURS, SHARDS)
    before = resident()
    started = time.perf_counter()
    runtime = await serve(log, "kafka", range(8), standby=False)
    duration_s = time.perf_counter() - started
    after_load()
    held = sum(status.offsets for status in runtime.status())
    grown = resident() - before
    await runtime.close()
    return {"seconds": duration_s, "offsets": held, "bytes": grown / held}


async def child_takeover(bootstrap: str) -> dict[str, float]:
    tune_process()
    owner = await serve(KafkaLog(bootstrap, OURS, SHARDS), "kafka", range(8), standby=False)
    standby = ManagerRuntime(
        KafkaLog(bootstrap, OURS, SHARDS), record_format("kafka"), Always(), ManagerSettings(lag_interval_s=0.2)
    )
    await standby.start()
    await until(lambda: standby.caught_up, 120)
    request = CommitRequest("bench-0000000", [("orders", [(0, 99, -1, "")])])
    assert (await owner.commit(request)).error == 0
    await asyncio.gather(*(owner.on_revoked(shard_group) for shard_group in range(8)))
    one = await take(standby, [shard_for("bench-0000000", SHARDS) % 8])
    found = standby.fetch(FetchRequest("bench-0000000", [("orders", [0])]))
    if found.topics[0][1][0][1] != 99:
        sys.exit(f"the last commit is not there: {found}")
    rest = await take(standby, range(8))
    await standby.close()
    await owner.close()
    return {"one": one, "rest": rest}


# --- output ---------------------------------------------------------------------------------


def in_child(what: str, bootstrap: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", what, bootstrap], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def broker_rate(kafka: KafkaBroker, count: int) -> float:
    """Restarts the broker. Returns the records per second according to the broker's log."""
    kafka.stop()
    kafka.start()
    probe = AdminClient({"bootstrap.servers": kafka.bootstrap})
    deadline = time.monotonic() + 120
    while len(found := _LOADED.findall(kafka.log_of_this_run().decode())) < SHARDS:
        if time.monotonic() > deadline:
            sys.exit(f"the broker has loaded {len(found)} of {SHARDS} partitions")
        probe.list_topics(timeout=10)
        time.sleep(0.2)
    return count / (sum(int(total) - int(waited) for total, waited in found) / 1000)


def load(kafka: KafkaBroker, directory: Path, offsets: int) -> bool:
    starter = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "first"})
    starter.commit(offsets=[TopicPartition(OURS, 0, 1)], asynchronous=False)  # makes the broker create its topic
    starter.close()
    count = fill(kafka.bootstrap, THEIRS, records(offsets, PER_GROUP, TIMES), **{"client.id": "__admin_client"})
    broker_rates = [broker_rate(kafka, count) for _ in range(3)]
    manager_rates = [in_child("load", kafka.bootstrap) for _ in range(4)][1:]
    rate = sorted(count / found["seconds"] for found in manager_rates)[1]
    peer = sorted(broker_rates)[1]
    bytes_ = max(found["bytes"] for found in manager_rates)
    fine = rate / peer >= MIN_LOAD, bytes_ <= MAX_BYTES
    print(f"load of {count:,} records for {offsets:,} offsets: broker {peer:,.0f}/s, manager {rate:,.0f}/s", flush=True)
    print(f"  ratio {rate / peer:.2f} (bound {MIN_LOAD:g})  {'ok' if fine[0] else 'LOW'}")
    print(f"  memory {bytes_:.0f} bytes an offset (bound {MAX_BYTES})  {'ok' if fine[1] else 'HIGH'}", flush=True)
    return fetch_during_load(kafka, directory) and all(fine)


def fetch_during_load(kafka: KafkaBroker, directory: Path) -> bool:
    """Fetches while a manager loads the full topic, and prints the responses until it has loaded everything."""
    began = time.perf_counter()
    options = ("--offsets-topic", OURS, "--record-format", "kafka")
    with manager(kafka.bootstrap, directory, *options, wait=False) as server, ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(wait_for_offsets, server.address, began)
        answers, wrong = asyncio.run(asyncio.wait_for(fetches_until_loaded(server.address), 180))
        right, seconds, rejected = waiting.result()
    print(
        f"  a client that asked at once had {'the right' if right else 'WRONG'} offsets after "
        f"{seconds:.1f} s; calls that ended with a retriable error before: {rejected}",
        flush=True,
    )
    said = ", ".join(f"{count:,} with error {code}" for code, count in sorted(answers.items()) if code)
    loading = answers[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] > 0
    print(
        f"  fetches until all was loaded: {said or 'none with an error'}; {answers[0] - wrong:,} right, {wrong} wrong"
        f" (bound: 0 wrong, some still loading)  {'ok' if loading and not wrong else 'WRONG'}",
        flush=True,
    )
    return right and loading and not wrong


def wait_for_offsets(address: str, began: float) -> tuple[bool, float, int]:
    """Fetches with an unmodified client. Returns whether the offsets are right, the seconds until it gets them, and the
    number of errors."""
    client = Consumer({"bootstrap.servers": address, "group.id": "bench-0000000", "log_level": 0})
    rejected = 0
    while True:
        try:
            found = client.committed([TopicPartition("orders", p) for p in range(PER_GROUP)], timeout=60)
            break
        except Exception as error:
            rejected += 1
            if time.perf_counter() - began > 120:
                sys.exit(f"still refused: {error}")
    client.close()
    return all(f.offset == TIMES and f.error is None for f in found), time.perf_counter() - began, rejected


async def fetches_until_loaded(address: str) -> tuple[Counter[int], int]:
    """Fetches groups of all shard groups repeatedly, until each returns its offsets; counts how often each
    error was returned, and how many responses without an error were wrong (another offset, or none)."""
    answers: Counter[int] = Counter()
    wrong, groups = 0, [f"bench-{number:07}" for number in range(FETCHED_GROUPS)]
    while True:
        try:
            connection = await BrokerConnection.open(Address.parse(address), Security(), 5)
        except OffsetMgrError:
            await asyncio.sleep(0.02)  # the manager does not listen yet
            continue
        try:
            while True:
                served = 0
                for group in groups:
                    parts = list(range(PER_GROUP))
                    message = {"group_id": group, "topics": [{"name": "orders", "partition_indexes": parts}]}
                    answer = await connection.call(
                        Request(ApiKey.OFFSET_FETCH, 7, message | {"require_stable": False}), 10
                    )
                    answers[answer["error_code"]] += 1
                    if answer["error_code"] == 0:
                        (topic,) = answer["topics"]
                        right = [(p["committed_offset"], p["error_code"]) for p in topic["partitions"]]
                        wrong += right != [(TIMES, 0)] * PER_GROUP
                        served += 1
                if served == len(groups):
                    return answers, wrong
                await asyncio.sleep(0.002)
        except OffsetMgrError:
            await asyncio.sleep(0.02)  # the manager closes connections before it can serve requests
        finally:
            await connection.close()


def takeover(kafka: KafkaBroker) -> bool:
    found = [in_child("takeover", kafka.bootstrap) for _ in range(3)]
    one, rest = sorted(f["one"] for f in found)[1], sorted(f["rest"] for f in found)[1]
    good = max(one, rest) < MAX_TAKEOVER_S
    print(
        f"a standby serves a shard group after {one:.2f} s, the other seven together after {rest:.2f} s"
        f" (bound {MAX_TAKEOVER_S:g})  {'ok' if good else 'SLOW'}",
        flush=True,
    )
    return good


def groups(kafka: KafkaBroker, directory: Path, most: int) -> bool:
    print(f"{'groups':>10}{'start s':>9}{'commits/s':>12}{'fetches/s':>12}{'MB resident':>13}", flush=True)
    number = 1_000
    while number <= most:
        topic = f"bench-groups-{number}"
        ensure_topic(kafka.bootstrap, {}, topic, partitions=SHARDS)
        asyncio.run(fill_as_manager(kafka.bootstrap, topic, records(number, 1, 1)))
        began = time.perf_counter()
        options = ("--offsets-topic", topic, "--record-format", "kafka")
        with manager(kafka.bootstrap, directory, *options) as server:
            loaded = time.perf_counter() - began
            side = OffsetClient(server.address, 500)
            side.commits(), side.fetches()
            commits, fetches = max(side.commits() for _ in range(3)), max(side.fetches() for _ in range(3))
            size = server.resident_bytes / 1e6
        print(f"{number:>10,}{loaded:>9.1f}{commits:>12,.0f}{fetches:>12,.0f}{size:>13.0f}", flush=True)
        number *= 10
    return True


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        work = {"load": child_load, "takeover": child_takeover}[sys.argv[2]]
        print(json.dumps(asyncio.run(work(sys.argv[3]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offsets", type=int, default=1_000_000)
    parser.add_argument("--most-groups", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", choices=["load", "takeover", "groups"])
    args = parser.parse_args()
    chosen = args.only or ["load", "takeover", "groups"]
    with (
        tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name,
        ZooKeeperServer(Path(name) / "zookeeper") as zookeeper,
        KafkaBroker(
            Path(name) / "kafka",
            zookeeper=f"{zookeeper.connect}/kafka",
            config={"log.cleaner.enable": "false"},  # both sides load every record that was written
            jvm=("-Xmx2g", "-XX:+UseG1GC"),
        ) as kafka,
    ):
        good = []
        if {"load", "takeover"} & set(chosen):
            ensure_topic(kafka.bootstrap, {}, OURS, partitions=SHARDS)
            asyncio.run(fill_as_manager(kafka.bootstrap, OURS, records(args.offsets, PER_GROUP, TIMES)))
        if "load" in chosen:
            good.append(load(kafka, Path(name), args.offsets))
        if "takeover" in chosen:
            good.append(takeover(kafka))
        if "groups" in chosen:
            good.append(groups(kafka, Path(name), args.most_groups))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
