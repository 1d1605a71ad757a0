"""Edits of groups at random moments under load: every kind of consumer goes on exactly at the edit.

The consumers report every record that they receive and every partition that they are assigned. The oracle compares
these reports with the log of ``__consumer_offsets``: after the commit of an edit, the first record of a newly assigned
partition is the edited offset, and no commit of a member has an offset that it did not receive after the edit.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from conftest import MakeTopic
from running_consumers import (
    Deliveries,
    Edited,
    JavaMember,
    Load,
    RdkafkaMember,
    anomalies,
    commits_of,
    longest_pause,
    until,
)

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, LogRange, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
EDITS = int(os.environ.get("OFFSETMGR_RUNNING_EDITS", "40" if SOAK else "2"))
"""The number of edits of each kind of group."""
PARTITIONS = 6
RECORDS_PER_S = 500
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
RDKAFKA_COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER_PROTOCOL = {"group.protocol": "consumer"}


class Kind(NamedTuple):
    """The members of a group: their class and settings. ``broker`` is the fixture with the broker."""

    members: tuple[tuple[type[RdkafkaMember] | type[JavaMember], Mapping[str, Any]], ...]
    broker: str = "kafka"
    timeout_s: float = 0.0


def three(member: type[RdkafkaMember] | type[JavaMember], **config: Any) -> Any:
    return ((member, config),) * 3


def static(member: type[RdkafkaMember] | type[JavaMember], **config: Any) -> Any:
    return tuple((member, {**config, "group.instance.id": f"instance-{n}"}) for n in range(3))


def with_slow(member: type[RdkafkaMember] | type[JavaMember], work_s: float, **config: Any) -> Any:
    """Three members, of which the first one processes each batch for a long time and commits its offsets then."""
    return ((member, {**config, "commit": "explicit", "work_s": work_s}), *three(member, **config)[1:])


KINDS = {
    "librdkafka-range": Kind(three(RdkafkaMember)),
    "librdkafka-range-sync": Kind(three(RdkafkaMember, commit="sync")),
    "librdkafka-cooperative": Kind(three(RdkafkaMember, **RDKAFKA_COOPERATIVE)),
    "librdkafka-static": Kind(static(RdkafkaMember, **RDKAFKA_COOPERATIVE)),
    "librdkafka-slow": Kind(with_slow(RdkafkaMember, 6.0)),
    "librdkafka-cooperative-slow": Kind(with_slow(RdkafkaMember, 6.0, **RDKAFKA_COOPERATIVE)),
    "java-range": Kind(
        three(
            JavaMember,
            release="kafka-3.9",
            **{"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"},
        )
    ),
    "java-cooperative": Kind(three(JavaMember, **{"partition.assignment.strategy": COOPERATIVE})),
    "java-static": Kind(static(JavaMember, release="kafka-3.9")),
    "java-slow": Kind(with_slow(JavaMember, 6.0, release="kafka-3.9")),
    "java-range-on-4.1": Kind(three(JavaMember), "kraft"),
    "librdkafka-cooperative-on-4.1": Kind(three(RdkafkaMember, **RDKAFKA_COOPERATIVE), "kraft"),
    "mixed": Kind((*three(JavaMember, release="kafka-3.9")[:2], *three(RdkafkaMember)[:1])),
    "kip848-librdkafka": Kind(three(RdkafkaMember, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-java": Kind(three(JavaMember, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-static": Kind(static(RdkafkaMember, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-slow": Kind(with_slow(RdkafkaMember, 6.0, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-mixed": Kind((*three(JavaMember, **CONSUMER_PROTOCOL)[:2], *three(RdkafkaMember)[:1]), "kraft"),
}


IN_MATRIX = ("librdkafka-cooperative", "java-static", "mixed", "kip848-librdkafka", "kip848-mixed")
"""The kinds that the matrix runs. The soak runs all."""


class Listener:
    """Keeps the before-images of the last edit."""

    def __init__(self) -> None:
        self.before: Mapping[TopicPartition, Offset] = {}

    def on_before(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        assert group
        self.before = offsets

    def on_step(self, text: str) -> None:
        assert text


@contextmanager
def running(kind: Kind, bootstrap: str, group: str, deliveries: Deliveries) -> Iterator[list[Any]]:
    members: list[Any] = []
    try:
        for number, (member, config) in enumerate(kind.members):
            members.append(member(bootstrap, group, group, deliveries, name=f"member-{number}", **config))
        yield members
    finally:
        for one in members:
            one.stop()


@pytest.mark.timeout(3000 if SOAK else 400)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_MATRIX else pytest.mark.soak) for name in KINDS]
)
def test_the_group_goes_on_exactly_at_each_edit(
    name: str, request: pytest.FixtureRequest, unique: str, make_topic: MakeTopic
) -> None:
    kind, moments = KINDS[name], random.Random(name)
    bootstrap = request.getfixturevalue(kind.broker).bootstrap
    group = make_topic(unique, PARTITIONS, bootstrap=bootstrap)
    deliveries, listener = Deliveries(), Listener()
    edits: list[Edited] = []
    with (
        Load(bootstrap, group, PARTITIONS, RECORDS_PER_S),
        KafkaStore(bootstrap) as store,
        running(kind, bootstrap, group, deliveries) as members,
    ):
        until(lambda: {one.member for one in deliveries.found} == {one.name for one in members}, 180)
        for number in range(EDITS):
            time.sleep(moments.uniform(0, 4))
            ends = store.logs().log_ranges([TopicPartition(group, p) for p in range(PARTITIONS)])
            chosen = moments.sample(range(PARTITIONS), moments.choice([1, 2, PARTITIONS]))
            offsets = {p: moments.randrange(log_end(ends[TopicPartition(group, p)]) + 1) for p in chosen}
            edits.append(edit(store, group, f"edit-{number}", offsets, listener))
        time.sleep(5)
        end = time.time()
    found = anomalies(edits, deliveries, commits_of(bootstrap, group), end)
    pauses = [
        longest_pause([d for d in deliveries.found if d.partition == p], one.began, one.ended + 5)
        for one in edits
        for p in one.offsets
    ]
    others = [longest_pause(deliveries.found, one.began, one.ended) for one in edits]
    sys.stdout.write(
        f"{name}: {len(edits)} edits, {sum(len(one.offsets) for one in edits)} partitions, {len(found)} anomalies;"
        f" edited partitions paused {sorted(pauses)[len(pauses) // 2]:.1f} s (median), {max(pauses):.1f} s (longest);"
        f" whole group paused {max(others):.1f} s (longest);"
        f" {repeats(edits, deliveries) / len(edits):.0f} records repeated on other partitions at each edit\n"
    )
    for one in members:
        sys.stdout.write(f"{one.name}: {len(one.errors)} errors {sorted(set(one.errors))[:3]}\n")
    assert not found, "\n".join(found)


def log_end(log: LogRange | OffsetMgrError) -> int:
    assert isinstance(log, LogRange), log
    return log.end


def edit(store: KafkaStore, group: str, mark: str, offsets: Mapping[int, int], listener: Listener) -> Edited:
    changes = {
        TopicPartition(group, p): Change(OffsetAndMetadata(offset, mark), allow_rewind=True)
        for p, offset in offsets.items()
    }
    began = time.time()
    (result,) = store.edit_running([GroupEdit(group, changes)], listener, wait_s=30, conditional=False)
    sys.stdout.write(f"{mark} {dict(offsets)}: {result.how}\n")
    assert {tp: outcome.status for tp, outcome in result.outcomes.items()} == dict.fromkeys(
        changes, EditStatus.WRITTEN
    ), result.failures
    assert listener.before.keys() == changes.keys()
    assert all(not isinstance(one, Committed) or one.offset >= 0 for one in listener.before.values())
    return Edited(mark, dict(offsets), began, time.time())


def repeats(edits: list[Edited], deliveries: Deliveries) -> int:
    """The number of records of partitions without an edit that the group received again during an edit."""
    total = 0
    for one in edits:
        before = {(d.partition, d.offset) for d in deliveries.between(one.began - 5, one.began)}
        during: set[tuple[int, int]] = set()
        for d in deliveries.between(one.began, one.ended):
            if d.partition not in one.offsets:
                total += (d.partition, d.offset) in before or (d.partition, d.offset) in during
                during.add((d.partition, d.offset))
    return total
