"""The implementation of `scripts/demo spark`, in three parts.

A streaming job (`demo_spark_job.py`) with its offsets in a consumer group is killed. It then starts again with an empty
checkpoint, so that only the group's offsets determine where it begins. After that, two applications process periods in
step (`demo_periods`). The last part is an audit (`demo_audit`).
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import demo_audit
import demo_periods
from confluent_kafka import Producer
from demo_stage import BOLD, PLAIN, chapter, check, create_topics, offsetmgr, say, script

from offsetmgr.sandbox import KraftBroker, ZooKeeperServer, tool

TOPIC: Final = "orders"
GROUP: Final = "orders-job"
PARTITIONS: Final = 4
RECORDS: Final = 2_000
UNREAD: Final = 500
"""Number of records that are produced after the job has ended."""
BATCH: Final = 200
KILLED_IN_BATCH: Final = 3
JOB: Final = Path(__file__).with_name("demo_spark_job.py")
DESCRIBE: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int


def produce(bootstrap: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        producer.produce(TOPIC, f"order {number}", partition=number % PARTITIONS)
    check(producer.flush(60) == 0, "not all records could be produced")


def lag(bootstrap: str) -> int:
    """Prints the group with Kafka's own tool. Returns the sum of the lags that the tool prints."""
    print(f"\n{BOLD}$ kafka-consumer-groups --describe --group {GROUP}{PLAIN}", flush=True)
    done = tool.java_tool("kafka-4.4", DESCRIBE, ["--bootstrap-server", bootstrap, "--describe", "--group", GROUP])
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(GROUP)]
    check(len(rows) == PARTITIONS, f"the tool shows {len(rows)} partitions:\n{done.stdout}{done.stderr}")
    for row in [["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"], *rows]:
        say("".join(f"{cell:<16}" for cell in row[:6]))
    return sum(int(row[5]) for row in rows)


def run_job(bootstrap: str, directory: Path, checkpoint: str, *options: str) -> int:
    command = [str(JOB), "--bootstrap-server", bootstrap, "--group", GROUP, "--topic", TOPIC]
    command += ["--checkpoint", str(directory / checkpoint), "--output", str(directory / "output.jsonl")]
    command += ["--batch-size", str(BATCH), *options]
    with script(command, directory / "job.log") as job:
        return job.wait(600)


def written(directory: Path) -> list[list[Record]]:
    """The sink's content: the records of each batch, in the order of writing."""
    lines = (directory / "output.jsonl").read_text(encoding="utf-8").splitlines()
    return [[Record(*row[:3]) for row in json.loads(line)["records"]] for line in lines]


def show(bootstrap: str, directory: Path) -> None:
    chapter("A streaming job reads a topic; its group follows")
    produce(bootstrap, 0, RECORDS)
    say(f"{RECORDS} records in {PARTITIONS} partitions; the job takes {BATCH} a batch. Its driver is killed (SIGKILL)")
    say(f"in its batch {KILLED_IN_BATCH}, after the batch's output and before Spark or the group records it")
    ended = run_job(bootstrap, directory, "checkpoint-1", "--die-in", str(KILLED_IN_BATCH))
    check(ended == -signal.SIGKILL, f"the job ended with {ended}, see {directory / 'job.log'}")
    before = written(directory)
    done = sum(len(batch) for batch in before[:-1])
    say(f"written: {sum(map(len, before))} records in {len(before)} batches")
    behind = lag(bootstrap)
    check(behind == RECORDS - done, f"the lag is {behind}, but {RECORDS - done} records are in no finished batch")
    say(f"the lag is {behind}: all but the {done} records of the finished batches")

    chapter("The checkpoint is lost; the job starts from the group's offsets alone")
    say("a new run, with a new and empty checkpoint")
    ended = run_job(bootstrap, directory, "checkpoint-2", "--until", str(RECORDS))
    check(ended == 0, f"the job ended with {ended}, see {directory / 'job.log'}")
    check(lag(bootstrap) == 0, "there is lag left")

    chapter("The content of the sink")
    times = Counter(record for batch in written(directory) for record in batch)
    everything = {Record(TOPIC, n % PARTITIONS, n // PARTITIONS) for n in range(RECORDS)}
    twice = {record for record, count in times.items() if count > 1}
    check(set(times) == everything, f"{len(everything - set(times))} records are lost")
    check(twice == set(before[-1]), "records of finished batches were written twice")
    check(max(times.values()) <= 2, "a record was written more than twice")
    say(f"a sink that appends: {sum(times.values())} rows; 0 lost, {len(twice)} written twice: the unfinished batch")
    say(f"a sink keyed by topic, partition and offset: {len(times)} rows; 0 lost, 0 written twice")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="offsetmgr-demo-") as name, ExitStack() as servers:
        os.environ["XDG_STATE_HOME"] = str(Path(name) / "state")
        directory, kept = Path(name), Path(tempfile.mkdtemp(prefix="offsetmgr-audit-"))
        chapter("A real Kafka broker, and a ZooKeeper")
        broker = servers.enter_context(KraftBroker(directory / "kafka"))
        zookeeper = servers.enter_context(ZooKeeperServer(directory / "zookeeper"))
        create_topics(broker.bootstrap, {TOPIC: PARTITIONS})
        show(broker.bootstrap, directory)
        before = directory / "before.avro"
        offsetmgr("offsets", "export", str(before), "--bootstrap-server", broker.bootstrap, "--all-groups", show=False)
        demo_periods.show(broker.bootstrap, zookeeper.connect, directory)
        produce(broker.bootstrap, RECORDS, UNREAD)
        demo_audit.show(broker.bootstrap, before, kept / "audit", {GROUP: UNREAD})
    chapter("Done, and nothing is left running")


if __name__ == "__main__":
    main()
