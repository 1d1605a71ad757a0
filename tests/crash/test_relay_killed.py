"""A relaying manager that is killed (SIGKILL) and restarted under running Java and librdkafka consumers.

The consumers reconnect and resume from their offsets, and the real coordinator never stores an offset of theirs.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from manager_cluster import Manager, managers_of, served
from processes import run_command, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed
from offsetmgr.sandbox import jars
from offsetmgr.sandbox.java import QUICK_START, java_command
from offsetmgr.stores.uri import open_store

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
LIBRDKAFKA = """
import sys
from confluent_kafka import Consumer
c = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[3], "auto.offset.reset": "earliest",
              "auto.commit.interval.ms": 300, "session.timeout.ms": 6000, "log_level": 0})
c.subscribe([sys.argv[2]])
while True:
    message = c.poll(0.2)
    if message is not None and message.error() is None:
        print(message.value().decode(), flush=True)
"""
SETTINGS = ("session.timeout.ms=6000", "auto.commit.interval.ms=300", "auto.offset.reset=earliest")


def java_consumer(release: str, bootstrap: str, topic: str, group: str) -> list[str]:
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group]
    for setting in SETTINGS:
        arguments += ["--consumer-property", setting]
    return java_command([jars.resolve(release)], CONSOLE, arguments, jvm=("-Xmx128m", *QUICK_START))


@contextmanager
def running(command: list[str], output: Path) -> Iterator[Path]:
    with output.open("wb") as file, output.with_suffix(".errors").open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=errors)
    try:
        yield output
        assert process.poll() is None, "the consumer has ended"
    finally:
        process.kill()
        process.wait()


def received(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines() if line.isdigit()]


def test_consumers_resume_after_a_relaying_manager_was_killed(kafka, make_topic, tmp_path, unique) -> None:
    make_topic(unique, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "log_level": 0})
    sent = 0

    def send(count: int) -> int:
        nonlocal sent
        for _ in range(count):
            producer.produce(unique, str(sent).encode(), partition=sent % 2)
            sent += 1
        assert producer.flush(30) == 0
        return sent

    with managers_of(tmp_path, [kafka], 1, "--relay", "--offsets-topic", f"{unique}.offsets") as (manager,):
        groups = {name: f"{unique}-{name}" for name in ("java39", "java44", "librdkafka")}
        commands = {
            "java39": java_consumer("kafka-3.9", manager.address, unique, groups["java39"]),
            "java44": java_consumer("kafka-4.4", manager.address, unique, groups["java44"]),
            "librdkafka": [sys.executable, "-c", LIBRDKAFKA, manager.address, unique, groups["librdkafka"]],
        }
        with ExitStack() as stack:
            files = [stack.enter_context(running(command, tmp_path / name)) for name, command in commands.items()]
            send(100)
            wait_for(lambda: all(set(received(f)) == set(range(sent)) for f in files), "all have 100 messages")
            wait_for(lambda: all(committed(manager, g) == sent for g in groups.values()), "all have committed them")
            kills: list[tuple[list[int], int]] = []
            for _ in range(2):
                kills.append(([len(received(f)) for f in files], sent))
                manager.kill()
                send(50)
                manager.start()
                send(50)
                wait_for(lambda: all(set(received(f)) == set(range(sent)) for f in files), "all continue")
                wait_for(lambda: all(committed(manager, g) == sent for g in groups.values()), "all commit again", 90)
            # No consumer reads records again that it committed before a kill. It does read later records again: a
            # manager that is down for longer than the session timeout costs the members their membership, as with
            # Kafka.
            for counts, committed_then in kills:
                for file, count in zip(files, counts, strict=True):
                    assert min(received(file)[count:]) >= committed_then
        with open_store(f"kafka://{kafka.bootstrap}") as real:
            assert [dict(real.fetch(group)) for group in groups.values()] == [{}] * 3
        wait_for(lambda: served(manager.address, 1), "all shards are served")
        status = ("manager", "status", "--bootstrap-server", manager.address)
        assert run_command(*status).stderr == ""

        # The manager reports a commit that bypasses it. (No ACL denies that commit here.)
        stray = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": groups["java39"], "log_level": 0})
        wait_for(lambda: commit_at_the_broker(stray, unique), "the real coordinator accepts a commit")
        stray.close()
        wait_for(
            lambda: (now := run_command(*status, code=None)).returncode == 1 and groups["java39"] in now.stderr,
            "manager status names the group that has offsets in both stores",
        )


def commit_at_the_broker(client: Consumer, topic: str) -> bool:
    try:
        return not client.commit(asynchronous=False, offsets=[TopicPartition(topic, 0, 5)])[0].error
    except KafkaException:
        return False


def committed(manager: Manager, group: str) -> int:
    """The sum of the group's offsets over both partitions; -1 while the manager does not answer."""
    try:
        with open_store(f"manager://{manager.address}", ConnectionConfig(timeout_ms=3000)) as store:
            return sum(found.offset for found in store.fetch(group).values() if isinstance(found, Committed))
    except OffsetMgrError:
        return -1
