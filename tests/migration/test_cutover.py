"""``migrate cutover``: groups, and then the producers of their topics, move to another cluster. Two real clusters, with
a copier that does what replicators do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import committed
from confluent_kafka import Consumer, Producer
from in_process import command
from two_clusters import RECORDS, TwoClusters

pytestmark = pytest.mark.servers


class Operator:
    """A person who runs the cutover of group ``group`` with one topic, and starts and stops its consumers."""

    def __init__(self, clusters: TwoClusters, group: str, home: Path) -> None:
        self.clusters, self.group, self.home = clusters, group, home
        self.state = home / "cutover.json"
        self.sides = ("--from", f"kafka://{clusters.a}", "--to", f"kafka://{clusters.b}")

    def arguments(self, *words: object, state: Path | None = None, back: bool = False) -> list[object]:
        uris = (self.sides[3], self.sides[1]) if back else (self.sides[1], self.sides[3])
        files = ("--state", state or self.state, "--interval", 0.3, "--yes")
        selected = () if "--all-groups" in words else ("--group", self.group)
        return ["migrate", "cutover", *selected, "--from", uris[0], "--to", uris[1], *files, *words]

    def look(self, *words: object, code: int = 1, **options: Any) -> dict[str, tuple[str, str]]:
        """The step and the obstacle of each group and topic."""
        shown = command(*self.arguments(*words, **options), "--format", "json", code=code)
        assert shown.stdout, shown.stderr
        return {row["name"]: (row["step"], row["held_up_by"] or "") for row in json.loads(shown.stdout)}

    def run(self, *words: object, code: int = 1, **options: Any) -> tuple[str, str]:
        """Executes what is possible. Returns the step and the obstacle of the group."""
        return self.look("--execute", *words, code=code, **options)[self.group]

    def topic(self, *words: object, code: int = 1, **options: Any) -> tuple[str, str]:
        return self.look("--execute", *words, code=code, **options)[self.group + "-t"]


@contextmanager
def consumer(bootstrap: str, group: str, topic: str, records: int, **settings: Any) -> Iterator[list[bytes]]:
    """A member that has read and committed so many records."""
    options = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings}
    member = Consumer({"bootstrap.servers": bootstrap, **options})
    member.subscribe([topic])
    values: list[bytes] = []
    while not member.assignment():
        first = member.poll(0.1)
        values += [first.value() or b""] if first is not None and records else []
    while len(values) < records:
        values += [one.value() or b"" for one in member.consume(records - len(values), 1)]
    if records:
        member.commit(asynchronous=False)
    yield values
    member.close()


@pytest.fixture
def operator(clusters: TwoClusters, unique: str, tmp_path: Path) -> Operator:
    """The topic has one partition, whose copy lies behind 7 foreign records. The group has committed 50."""
    topic = clusters.topic(f"{unique}-t")
    clusters.foreign(topic, 7)
    clusters.copy(topic)
    clusters.commit(unique, topic, {0: 50})
    return Operator(clusters, unique, tmp_path)


def test_a_group_and_its_topic_move_step_by_step(clusters: TwoClusters, operator: Operator) -> None:
    group, topic, b = operator.group, f"{operator.group}-t", clusters.b
    # Without --execute, nothing is changed
    assert operator.look()[group] == ("4 written", "nothing")
    assert not operator.state.exists()
    assert committed(f"kafka://{b}", group) == {}
    # Then the offsets are written, and the consumers are the next to start
    assert operator.run() == ("5 started at the target", "no consumer at the target")
    assert committed(f"kafka://{b}", group) == {0: 57}
    assert operator.run() == ("5 started at the target", "no consumer at the target")
    # A consumer that has not committed is not moving
    with consumer(b, group, topic, 0):
        assert operator.run() == ("6 moving", f"no commit at the target beyond the written one in {topic}-0")
    with consumer(b, group, topic, 50) as values:
        assert values[0] == b"record 50"
        found = operator.look("--execute")
    assert found[group] == ("through", "")
    # The producers are next: first nothing is written at the source any more, then all is copied
    assert found[topic] == ("9 replicator stopped", "you have not said that the replicator is stopped")
    producer = Producer({"bootstrap.servers": clusters.a})
    producer.produce(topic, "late")
    producer.flush()
    assert operator.topic() == ("8 copied to the end", f"1 record of {topic}-0 not at the target")
    clusters.copy(topic, RECORDS, RECORDS + 1)
    assert operator.topic("--replicator-stopped") == ("10 producers at the target", "no new record at the target")
    producer = Producer({"bootstrap.servers": b})
    producer.produce(topic, "first at the target")
    producer.flush()
    assert operator.topic(code=0) == ("through", "")
