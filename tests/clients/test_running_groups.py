"""Edits of groups at random moments under load: every kind of consumer goes on exactly at the edit.

The consumers report every record that they receive and every partition that they are assigned. The oracle compares
these reports with the log of ``__consumer_offsets``: after the commit of an edit, the first record of a newly assigned
partition is the edited offset, and no commit of a member has an offset that it did not receive after the edit.
"""

import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import pytest
from conftest import MakeTopic
from processes import until, wait_for
from running_consumers import (
    Deliveries,
    Delivery,
    Edited,
    FranzMember,
    JavaMember,
    Member,
    PythonMember,
    RdkafkaMember,
    anomalies,
    between,
    commits_of,
    longest_pause,
)
from steady_load import Load

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, LogRange, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
EDITS = int(os.environ.get("OFFSETMGR_RUNNING_EDITS", "40" if SOAK else "2"))
"""The number of edits of each kind of group."""
PARTITIONS = 6
RECORDS_PER_S = int(os.environ.get("OFFSETMGR_RUNNING_RECORDS_PER_S", "300" if SOAK else "100"))
AT_ONCE = int(os.environ.get("OFFSETMGR_RUNNING_GROUPS", "5" if SOAK else "3"))
"""The number of groups that are edited side by side."""
PAUSE_S = 3.0
MAX_REWIND = 1000
SEED = os.environ.get("OFFSETMGR_SEED", "0")
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
RDKAFKA_COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER_PROTOCOL = {"group.protocol": "consumer"}


class Kind(NamedTuple):
    """The members of a group: their class and settings. ``broker`` is the fixture with the broker."""

    members: tuple[tuple[type[Member], Mapping[str, Any]], ...]
    broker: str = "kafka"


def three(member: type[Member], **config: Any) -> Any:
    return ((member, config),) * 3


def static(member: type[Member], **config: Any) -> Any:
    return tuple((member, {**config, "group.instance.id": f"instance-{n}"}) for n in range(3))


def with_slow(member: type[Member], work_s: float, **config: Any) -> Any:
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
    "java-range-on-4.4": Kind(three(JavaMember), "kraft"),
    "librdkafka-cooperative-on-4.4": Kind(three(RdkafkaMember, **RDKAFKA_COOPERATIVE), "kraft"),
    "mixed": Kind((*three(JavaMember, release="kafka-3.9")[:2], *three(RdkafkaMember)[:1])),
    "java-exactly-once": Kind(three(JavaMember, commit="transaction", release="kafka-3.9")),
    "kafka-python-range": Kind(three(PythonMember, package="kafka-python")),
    "kafka-python-sync": Kind(three(PythonMember, package="kafka-python", commit="sync")),
    "aiokafka": Kind(three(PythonMember, package="aiokafka")),
    "aiokafka-explicit": Kind(with_slow(PythonMember, 2.0, package="aiokafka")),
    "franz-go-range": Kind(three(FranzMember, balancer="range")),
    "franz-go-cooperative": Kind(three(FranzMember)),
    "kip848-librdkafka": Kind(three(RdkafkaMember, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-java": Kind(three(JavaMember, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-static": Kind(static(RdkafkaMember, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-java-static": Kind(static(JavaMember, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-slow": Kind(with_slow(RdkafkaMember, 6.0, **CONSUMER_PROTOCOL), "kraft"),
    "kip848-mixed": Kind((*three(JavaMember, **CONSUMER_PROTOCOL)[:2], *three(RdkafkaMember)[:1]), "kraft"),
}


IN_MATRIX = (
    "librdkafka-cooperative",
    "java-static",
    "java-exactly-once",
    "kafka-python-range",
    "aiokafka",
    "franz-go-cooperative",
    "mixed",
    "kip848-librdkafka",
    "kip848-static",
    "kip848-mixed",
)
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


class Report(NamedTuple):
    """The edits of one group, and everything that the oracle found."""

    name: str
    edits: int
    partitions: int
    anomalies: list[str]
    failures: list[str]
    """The errors of edits that wrote nothing, which the command reports."""
    pauses: list[float]
    group_pauses: list[float]
    repeats: list[int]
    errors: list[str]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.edits} edits, {self.partitions} partitions, {len(self.anomalies)} anomalies,"
            f" {len(self.failures)} failed; edited partitions paused {percentiles(self.pauses)} s,"
            f" the whole group {percentiles(self.group_pauses)} s;"
            f" {percentiles(self.repeats)} records repeated on other partitions; {len(self.errors)} errors of members"
        )


def percentiles(numbers: Sequence[float]) -> str:
    """The median, the 95th percentile and the maximum."""
    if not numbers:
        return "-"
    ordered = sorted(numbers)
    return " / ".join(f"{ordered[round(share * (len(ordered) - 1))]:.1f}" for share in (0.5, 0.95, 1))


def make_edits(name: str, bootstrap: str, group: str, seed: str) -> Report:
    """Edits one group at random moments under load."""
    kind, moments = KINDS[name], random.Random(f"{seed} {name}")
    deliveries, listener = Deliveries(), Listener()
    edits: list[Edited] = []
    failures: list[str] = []
    with (
        Load(bootstrap, group, [*range(PARTITIONS)] * 2, 2 * PARTITIONS / RECORDS_PER_S),
        KafkaStore(bootstrap) as store,
        running(kind, bootstrap, group, deliveries) as members,
    ):
        names = {one.name for one in members}
        wait_for(lambda: {one.member for one in deliveries.found} == names, "every member has received records")
        for number in range(EDITS):
            time.sleep(moments.uniform(0, PAUSE_S))  # the moment of the edit is random
            ends = store.logs().log_ranges([TopicPartition(group, p) for p in range(PARTITIONS)])
            chosen = moments.sample(range(PARTITIONS), moments.choice([1, 2, PARTITIONS]))
            offsets = {p: near_end(moments, log_end(ends[TopicPartition(group, p)])) for p in chosen}
            made = edit(store, group, f"edit-{number}", offsets, listener)
            if isinstance(made, Edited):
                edits.append(made)
            else:
                failures.append(f"{name}, edit-{number}: {made}")
        until(lambda: any(d.at > edits[-1].ended + 2 for d in deliveries.found[-50:]) if edits else True)
        end = time.time()
    found = [f"{name}, {one}" for one in anomalies(edits, deliveries, commits_of(bootstrap, group), end)]
    every = sorted(deliveries.found)
    by_partition = {p: [d for d in every if d.partition == p] for p in range(PARTITIONS)}
    return Report(
        name,
        EDITS,
        sum(len(one.offsets) for one in edits),
        found,
        failures,
        [longest_pause(by_partition[p], one.began, one.ended + 5) for one in edits for p in one.offsets],
        [longest_pause(every, one.began, one.ended) for one in edits],
        [repeats(one, every) for one in edits],
        [f"{one.name}: {error}" for one in members for error in one.errors],
    )


def near_end(moments: random.Random, end: int) -> int:
    """An offset among the last `MAX_REWIND` ones, so that the group has caught up before the next edits."""
    return moments.randrange(max(0, end - MAX_REWIND), end + 1)


@pytest.mark.timeout(3600 if SOAK else 900)
def test_the_group_goes_on_exactly_at_each_edit(request, unique: str, make_topic: MakeTopic) -> None:
    """Edits several groups side by side, because most of the time of an edit is a wait for consumers."""
    named = os.environ.get("OFFSETMGR_RUNNING_KINDS", "")
    chosen = named.split(",") if named else [name for name in KINDS if SOAK or name in IN_MATRIX]
    brokers = {broker: request.getfixturevalue(broker).bootstrap for broker in {KINDS[name].broker for name in chosen}}

    def run(number: int, name: str) -> Report:
        bootstrap = brokers[KINDS[name].broker]
        group = make_topic(f"{unique[-30:]}-{number}", PARTITIONS, bootstrap=bootstrap)
        report = make_edits(name, bootstrap, group, SEED)
        sys.stdout.write(f"{report}\n")
        sys.stdout.flush()
        return report

    sys.stdout.write(f"seed {SEED}, {len(chosen)} kinds, {EDITS} edits each\n")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        started = [threads.submit(run, number, name) for number, name in enumerate(chosen)]
    reports = [one.result() for one in started if one.exception() is None]
    broken = [f"{name}: {one.exception()!r}" for name, one in zip(chosen, started, strict=True) if one.exception()]
    nothing = Report("", 0, 0, [], [], [], [], [], [])
    total = Report("all", *(reduce(add, column) for column in list(zip(nothing, *reports, strict=True))[1:]))
    sys.stdout.write(f"{total}\n")
    assert not [*total.anomalies, *total.failures, *broken], "\n".join([*total.anomalies, *total.failures, *broken])


def log_end(log: LogRange | OffsetMgrError) -> int:
    assert isinstance(log, LogRange), log
    return log.end


def edit(store: KafkaStore, group: str, mark: str, offsets: Mapping[int, int], listener: Listener) -> Edited | str:
    """Makes an edit. Returns the error if the edit fails."""
    changes = {
        TopicPartition(group, p): Change(OffsetAndMetadata(offset, mark), allow_rewind=True)
        for p, offset in offsets.items()
    }
    began = time.time()
    (result,) = store.edit_running([GroupEdit(group, changes)], listener, wait_s=30, conditional=False)
    sys.stdout.write(f"{group} {mark} {dict(offsets)}: {result.how}\n")
    statuses = {outcome.status for outcome in result.outcomes.values()}
    if statuses != {EditStatus.WRITTEN}:
        return f"{statuses}: {result.failures}"
    assert listener.before.keys() == changes.keys()
    assert all(not isinstance(one, Committed) or one.offset >= 0 for one in listener.before.values())
    return Edited(mark, dict(offsets), began, time.time())


def repeats(edit: Edited, deliveries: Sequence[Delivery]) -> int:
    """The number of records of partitions without an edit that the group received again during an edit."""
    seen = {(d.partition, d.offset) for d in between(deliveries, edit.began - 5, edit.began)}
    total = 0
    for one in between(deliveries, edit.began, edit.ended):
        if one.partition not in edit.offsets:
            total += (one.partition, one.offset) in seen
            seen.add((one.partition, one.offset))
    return total
