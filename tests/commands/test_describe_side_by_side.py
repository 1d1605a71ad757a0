"""``groups describe`` shows the rows of ``kafka-consumer-groups --describe`` for 30 groups in assorted states, and fits
terminals with 80 and with 200 columns."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from processes import close_consumers, fill, wait_for
from terminal import Terminal

from offsetmgr.core.model import GroupDescription
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker, java_tool

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS: Final = 30
BEYOND: Final = 0
"""The number of the group with an offset beyond the log's end. It has no member."""
Row = tuple[str, ...]


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    entries = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    deadline = time.monotonic() + 120
    while True:
        try:
            consumer.commit(offsets=entries, asynchronous=False)
            break
        except KafkaException:  # the broker is still creating its offsets topic
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    consumer.close()


def member(bootstrap: str, group: str, client_id: str, *topics: str, **settings: str) -> Consumer:
    own = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "client.id": client_id, "enable.auto.commit": False} | own
    )
    consumer.subscribe(list(topics))
    return consumer


class Setup(NamedTuple):
    """A broker, the releases of Kafka's tool, and the settings of all members."""

    broker: str
    tools: tuple[str, ...]
    settings: Mapping[str, str] = {}


SETUPS: Final = {
    "classic": Setup("kafka", ("kafka-3.9",)),
    "consumer-protocol": Setup("kraft", ("kafka-3.9", "kafka-4.4"), {"group_protocol": "consumer"}),
}


@pytest.fixture(params=SETUPS)
def setup(request: pytest.FixtureRequest) -> Setup:
    return SETUPS[request.param]


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest, setup: Setup) -> str:
    return str(request.getfixturevalue(setup.broker).bootstrap)


@pytest.fixture
def groups(bootstrap: str, setup: Setup, make_topic: MakeTopic, unique: str) -> Iterator[list[str]]:
    """The names of 30 groups: empty, live, without commits, with idle and static members, with several topics, with a
    lag of 0, with commits in a deleted topic, and with an offset beyond the log's end."""
    sizes = (("w", 3), ("n", 1), ("g", 1))
    wide, narrow, gone = (make_topic(f"{unique[-8:]}-{name}", count, bootstrap=bootstrap) for name, count in sizes)
    fill(bootstrap, wide, 40, 40, 40)
    fill(bootstrap, narrow, 10)
    names = [f"{unique[-8:]}-{number:02}" for number in range(GROUPS)]
    with ExitStack() as stack:
        consumers: list[Consumer] = []
        stack.callback(close_consumers, consumers)
        members: dict[str, int] = {}
        for number, name in enumerate(names):
            if number % 5 != 4:  # the others never commit
                offsets = {(wide, partition): (number * 7 + partition) % 41 for partition in range(1 + number % 3)}
                if number % 4 == 1:
                    offsets[narrow, 0] = number % 11
                if number % 7 == 3:
                    offsets[gone, 0] = number
                commit(bootstrap, name, offsets)
            if number % 5 == 4 or number % 6 == 2:  # live: with more members than partitions in some groups
                members[name] = 1 + number % 3
                for index in range(members[name]):
                    static = {"group_instance_id": f"static-{index}"} if number % 4 == 0 else {}
                    topics = (wide, narrow) if number % 3 == 0 else (wide if number % 2 else narrow,)
                    consumer = member(bootstrap, name, f"client-{number}-{index}", *topics, **static, **setup.settings)
                    consumers.append(consumer)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([gone])[gone].result(60)
        cluster = stack.enter_context(KafkaCluster(bootstrap))

        def settled() -> bool:
            for consumer in consumers:
                consumer.poll(0.02)
            found = cluster.describe_groups(members)
            return gone not in admin.list_topics(timeout=60).topics and all(
                isinstance(one, GroupDescription) and (one.state, len(one.members)) == ("STABLE", members[name])
                for name, one in found.items()
            )

        wait_for(settled, "all members have their partitions, and the topic is deleted")
        commit(bootstrap, names[BEYOND], {(narrow, 0): 1_000})  # as a topic that was recreated leaves behind
        yield names


def rows_of_kafka(release: str, bootstrap: str, names: list[str]) -> set[Row]:
    """The rows of Kafka's tool: group, topic, partition, offset, log end, lag, member id, host, client id."""
    arguments = ["--bootstrap-server", bootstrap, "--timeout", "60000", "--describe"]
    selected = [word for name in names for word in ("--group", name)]
    done = java_tool(release, TOOL, [*arguments, *selected], timeout_s=180)
    rows = (row_of_kafka(line) for line in done.stdout.splitlines())
    return {row for row in rows if row and row[0] in names}


def row_of_kafka(line: str) -> Row:
    """The columns of a line. Java prints a slash before a host. A member id of librdkafka may begin with one, too."""
    return tuple(re.sub(r" /(?=[0-9.]+ )", " ", line).split())


def rows_of_offsetmgr(bootstrap: str, names: list[str]) -> set[Row]:
    command = [sys.executable, "-m", "offsetmgr", "groups", "describe", *names, "--bootstrap-server", bootstrap]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=120, check=False)
    columns = ("group", "topic", "partition", "offset", "log_end_offset", "lag", "member_id", "host", "client_id")
    rows = (tuple("-" if row[name] is None else str(row[name]) for name in columns) for row in json.loads(done.stdout))
    return {row for row in rows if row[1] != "-" or row[6] != "-"}


def test_the_same_rows_as_kafkas_tool(bootstrap: str, setup: Setup, groups: list[str]) -> None:
    ours = rows_of_offsetmgr(bootstrap, groups)
    for release in setup.tools:
        compare(rows_of_kafka(release, bootstrap, groups), ours, groups, setup)


def compare(theirs: set[Row], ours: set[Row], groups: list[str], setup: Setup) -> None:
    assert len(theirs) > GROUPS
    # Kafka's tool prints a negative lag. offsetmgr prints none, because no number of records is outstanding.
    negative = {row for row in theirs if row[5].startswith("-") and row[5] != "-"}
    assert {row[0] for row in negative} == {groups[BEYOND]}
    theirs = theirs - negative | {(*row[:5], "-", *row[6:]) for row in negative}
    assert sorted(ours - theirs) == []
    assert sorted(theirs - ours) == []
    columns = list(zip(*theirs, strict=True))
    assert {"0", "-"} <= set(columns[5])  # a lag of 0, and an unknown lag
    assert {"-"} < set(columns[3])  # partitions without an offset
    assert {"-"} < set(columns[6])  # partitions without a member
    if not setup.settings:  # the id of a static member of the consumer protocol does not contain the instance id
        assert any(member.startswith("static-") for member in columns[6])


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_fits_the_terminal(kafka: KafkaBroker, make_topic: MakeTopic, unique: str, columns: int) -> None:
    cluster = kafka.bootstrap
    topic, group = make_topic(f"{unique[-8:]}-t", bootstrap=cluster), f"{unique[-8:]}-billing"
    fill(cluster, topic, 10)
    commit(cluster, group, {(topic, 0): 3})
    consumer = member(cluster, group, "billing-service-with-a-long-name", topic)
    try:
        wait_for(lambda: [consumer.poll(0.1)] and consumer.assignment(), "the consumer has its partition")
        command = [sys.executable, "-m", "offsetmgr", "groups", "describe", group, "--bootstrap-server", cluster]
        environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
        with Terminal(command, environ, columns=columns) as terminal:
            assert terminal.exit_code() == 0
            shown = terminal.text
        assert max(len(line) for line in shown.splitlines()) <= columns, shown
        assert re.search(rf"^{group} +STABLE +{topic} +0 +3 +10 +7 ", shown, re.MULTILINE), shown
        assert ("HOST" in shown.partition("GROUP")[2]) is (columns == 200), shown
    finally:
        consumer.close()
