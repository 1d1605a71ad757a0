"""A real MirrorMaker 2 from Kafka 3.9.1 to 4.4.0: each group's right record, whatever MirrorMaker did.

Each record's value holds its number, which tells the oracle which record of the target is the copy of which.
"""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import pytest
from committed_offsets import commit, committed
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from in_process import command, rows
from processes import finish, produce, start_command, until
from record_oracle import Log, Oracle

from offsetmgr import KafkaCluster, TopicPartition
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.sandbox import KafkaBroker, KraftBroker, MirrorMaker
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import PositionTranslator, TranslatedPartition

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

RENAME = ("--rename-topic", r"(.*)=A.\1")
SEEN = Verdict.SEEN
OTHERS = 300
"""The number of other records that the target holds before the copies."""


class Mirrored:
    """Both clusters, and the running MirrorMaker."""

    def __init__(self, a: str, b: str, maker: MirrorMaker, prefix: str, make_topic: MakeTopic) -> None:
        self.a, self.b, self.maker, self.prefix, self._make_topic = a, b, maker, prefix, make_topic
        self._ends = Consumer({"bootstrap.servers": b, "group.id": "ends", "log_level": 0})

    def topic(self, name: str) -> str:
        return self._make_topic(f"{self.prefix}{name}", bootstrap=self.a)

    def produce(self, topic: str, first: int, stop: int, **settings: str) -> None:
        for start in range(first, stop, 50_000):  # librdkafka queues at most 100,000 records
            values = (b"record %d" % number for number in range(start, min(start + 50_000, stop)))
            produce(self.a, topic, values, **settings)

    def transact(self, topic: str, first: int, stop: int, *, commit: bool, codec: str) -> None:
        settings = {"transactional.id": topic, "compression.type": codec, "linger.ms": 5, "log_level": 0}
        producer = Producer({"bootstrap.servers": self.a, **settings})
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(first, stop):
            producer.produce(topic, b"record %d" % number, partition=0)
        assert producer.flush(60) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(60)

    def delete_records(self, topic: str, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.a})
        (deleted,) = admin.delete_records([Position(topic, 0, before)]).values()
        assert deleted.result(60).low_watermark == before

    def end(self, topic: str) -> int:
        """The end of the copy; 0 if there is none, or it has no leader yet."""
        if f"A.{topic}" in self._ends.list_topics(timeout=60).topics:
            with suppress(KafkaException):
                return self._ends.get_watermark_offsets(Position(f"A.{topic}", 0), 60)[1]
        return 0

    def wait_for_copies(self, topic: str, end: int) -> None:
        until(lambda: self.end(topic) >= end)
        assert self.end(topic) == end

    def store_positions(self) -> None:
        """Lets MirrorMaker store up to where it has copied. A new topic makes it restart its task."""
        topic = self.topic(f"new-{uuid.uuid4().hex[:8]}")
        self.produce(topic, 0, 1)
        self.wait_for_copies(topic, 1)

    def oracle(self, topic: str, aborted: Collection[int] = ()) -> Oracle:
        return Oracle(Log.read(self.a, topic), Log.read(self.b, f"A.{topic}"), aborted)

    def translated(self, topic: str, positions: Collection[int], earliest: int | None = None) -> TranslatedPartition:
        with KafkaCluster(self.a) as source, KafkaCluster(self.b) as target:
            translator, tp = PositionTranslator(source, target, TranslationRules()), TopicPartition(topic, 0)
            (found,) = translator.translate(
                {tp: positions}, "A.{}".format, None if earliest is None else {tp: earliest}
            )
        assert found.error is None and found.note == ""
        return found

    def answers(self, topic: str, positions: Collection[int]) -> dict[int, tuple[Verdict, int | None]]:
        return {at: one[:2] for at, one in self.translated(topic, positions).translations.items()}

    def assert_seen(self, topic: str, oracle: Oracle, positions: Collection[int]) -> None:
        assert self.answers(topic, positions) == {at: (SEEN, oracle.right(at)) for at in positions}


@pytest.fixture(scope="module")
def maker(
    kafka: KafkaBroker, kraft: KraftBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MirrorMaker, str]]:
    """A MirrorMaker that stores its positions each minute, as it does by default, and whenever its task stops; and the
    prefix of the topics and groups that it copies."""
    prefix = f"mirrored-{uuid.uuid4().hex[:8]}-"
    options: dict[str, Any] = {"topics": f"{prefix}.*", "groups": f"{prefix}.*", "policy": "default"}
    options |= {"interval_s": 1, "config": {"B.offset.flush.interval.ms": 60_000}}
    directory = tmp_path_factory.mktemp("maker")
    with MirrorMaker(directory, source=kafka.bootstrap, target=kraft.bootstrap, **options) as running:
        yield running, prefix


@pytest.fixture
def mirrored(kafka: KafkaBroker, kraft: KraftBroker, maker: tuple[MirrorMaker, str], make_topic: MakeTopic) -> Mirrored:
    running, prefix = maker
    running.start()
    return Mirrored(kafka.bootstrap, kraft.bootstrap, running, prefix, make_topic)


def test_groups_with_lags_that_mirror_maker_translated(mirrored: Mirrored, make_topic: MakeTopic) -> None:
    # Given a target that is ahead, and groups whose offsets MirrorMaker has translated
    records, lags = 200_000, (0, 5, 100, 1_000, 50_000, 100_000)
    topic = f"{mirrored.prefix}lags"
    make_topic(f"A.{topic}", bootstrap=mirrored.b)
    produce(mirrored.b, f"A.{topic}", [b"other -1"] * OTHERS)
    mirrored.topic("lags")
    mirrored.produce(topic, 0, records)
    mirrored.wait_for_copies(topic, OTHERS + records)
    mirrored.store_positions()  # and the pairs of offsets by which it translates
    groups = {lag: f"{mirrored.prefix}lag-{lag}" for lag in lags}
    for lag, group in groups.items():
        commit(f"kafka://{mirrored.a}", group, topic, {0: records - lag})
    until(lambda: committed(f"kafka://{mirrored.b}", groups[0]) == {0: OTHERS + records})
    until(lambda: all(committed(f"kafka://{mirrored.b}", group) for group in groups.values()))
    # When the offsets are compared
    sides = ("--from", f"kafka://{mirrored.a}", "--to", f"kafka://{mirrored.b}", "--translate", "auto", *RENAME)
    found = {row["group"]: row for row in rows("offsets", "diff", f"{mirrored.prefix}lag-*", *sides, code=1)}
    # Then each right record is known, and how many records MirrorMaker's own offsets repeat
    oracle = mirrored.oracle(topic)
    table = ["lag | MirrorMaker repeats | the answer repeats"]
    for lag, group in groups.items():
        position = records - lag
        (of_maker,) = committed(f"kafka://{mirrored.b}", group).values()
        # A group without a row is at the right record.
        row = found.get(group, {"right_offset": of_maker, "repeats": 0, "skips": 0, "verdict": "seen"})
        right = row["right_offset"]
        (repeats, skips), ours = (oracle.difference(position, at) for at in (of_maker, right))
        table.append(f"{lag} | {repeats} | {ours[0]}")
        assert (row["verdict"], ours) == ("seen", (0, 0))
        assert oracle.b.number_at(right) == oracle.a.number_at(position)
        assert (row["repeats"], row["skips"]) == (repeats, skips)
        assert skips == 0
        assert repeats > 0 or lag < 50_000
    sys.stdout.write("\n".join([*table, ""]))


def test_transactions_and_compressed_batches(mirrored: Mirrored) -> None:
    """MirrorMaker copies the records of aborted transactions too."""
    topic = mirrored.topic("transactions")
    aborted = set[int]()
    for first, codec in zip(range(0, 400, 100), ("gzip", "snappy", "lz4", "zstd"), strict=True):
        mirrored.produce(topic, first, first + 30, **{"compression.type": codec})
        mirrored.transact(topic, first + 30, first + 50, commit=True, codec=codec)
        mirrored.transact(topic, first + 50, first + 70, commit=False, codec=codec)
        aborted.update(range(first + 50, first + 70))
        mirrored.transact(topic, first + 70, first + 100, commit=True, codec=codec)
    mirrored.wait_for_copies(topic, 400)
    oracle = mirrored.oracle(topic, aborted)
    assert oracle.a.end == 400 + 12  # the markers
    mirrored.assert_seen(topic, oracle, range(oracle.a.end + 1))


def test_records_that_expired_before_mirror_maker_copied_them(mirrored: Mirrored) -> None:
    topic = mirrored.topic("hole")
    mirrored.produce(topic, 0, 1_000)
    mirrored.wait_for_copies(topic, 1_000)
    mirrored.maker.stop()
    mirrored.produce(topic, 1_000, 3_000)
    mirrored.delete_records(topic, 2_000)
    mirrored.maker.start()
    mirrored.wait_for_copies(topic, 2_000)
    oracle = mirrored.oracle(topic)
    assert oracle.right(2_001) == 1_001
    mirrored.assert_seen(topic, oracle, [2_001, 2_500, 2_999, 3_000])
    # Time stamps show that no copy of a deleted record follows the start, and a lost position has no place.
    found = mirrored.translated(topic, [1_500, 2_000]).translations
    assert found[2_000][:2] == (Verdict.SEEN, 1_000)
    assert found[1_500].why == "1500 is below the start 2000 of the source's log; there auto.offset.reset decides"


def test_a_stretch_that_a_killed_mirror_maker_copied_twice(mirrored: Mirrored) -> None:
    # Given a MirrorMaker that is killed long after it has stored its position
    first, middle, records = 5_000, 20_000, 80_000
    topic = mirrored.topic("twice")
    mirrored.produce(topic, 0, first)
    mirrored.wait_for_copies(topic, first)
    mirrored.store_positions()
    mirrored.produce(topic, first, 60_000)
    until(lambda: mirrored.end(topic) >= middle)
    mirrored.maker.kill()
    mirrored.produce(topic, 60_000, records)
    copied = mirrored.end(topic)
    positions = [1_000, first - 1, first, first + 1, middle, copied - 1, copied]
    assert mirrored.answers(topic, positions) == {at: (SEEN, at) for at in positions}
    # When it copies again, and has not caught up
    mirrored.maker.start()
    until(lambda: mirrored.end(topic) > copied)
    mirrored.maker.freeze()
    answers, end = mirrored.answers(topic, positions), mirrored.end(topic)
    caught_up = copied + copied - first
    assert end >= caught_up or {verdict for verdict, _ in answers.values()} == {Verdict.NOT_YET}
    mirrored.maker.thaw()
    meanwhile = []
    while end < caught_up + records - copied:
        answers, end = mirrored.answers(topic, positions), mirrored.end(topic)
        meanwhile.append((answers, end))
    # Then no answer was wrong, and afterward each position in the stretch is in the second copy
    oracle = mirrored.oracle(topic)
    right = {at: (SEEN, oracle.right(at)) for at in positions}
    for answers, end in meanwhile:
        assert (answers == right and end >= caught_up) or {one[0] for one in answers.values()} == {Verdict.NOT_YET}
    assert [oracle.right(at) for at in (first - 1, first)] == [first - 1, copied]
    positions += [copied + 1, 30_000, records]
    mirrored.assert_seen(topic, oracle, positions)
    found = mirrored.translated(topic, positions, earliest=0)
    for offset in (10, first, middle, copied + 7, caught_up, oracle.b.end):
        assert found.difference(middle, offset) == oracle.difference(middle, offset)


def test_a_mirror_stops_at_a_group_to_which_mirror_maker_writes(mirrored: Mirrored) -> None:
    # Given a group that MirrorMaker has moved to the target, with a lag
    records, position = 60_000, 20_000
    topic = mirrored.topic("followed")
    mirrored.produce(topic, 0, records)
    mirrored.wait_for_copies(topic, records)
    mirrored.store_positions()
    group, a, b = f"{mirrored.prefix}followed", f"kafka://{mirrored.a}", f"kafka://{mirrored.b}"
    commit(a, group, topic, {0: position})
    until(lambda: committed(b, group))
    assert committed(b, group)[0] < position
    # Then a mirror stops at the group, and names the other writer
    sides = ("--from", a, "--to", b, "--translate", "auto", *RENAME, "--group", group, "--interval", "500", "--yes")
    (row,) = rows("migrate", "mirror", *sides, "--once", code=1)
    assert row["state"] == "rejected"
    assert "MirrorMaker with sync.group.offsets.enabled=true" in row["detail"]
    # When MirrorMaker's offset is gone, and the group is mirrored while it moves, MirrorMaker cannot write to it
    mirrored.maker.stop()
    command("offsets", "delete", group, "--store", b, "--all-topics", "--yes", "--execute")
    process = start_command("migrate", "mirror", *sides)
    until(lambda: committed(b, group) == {0: position})
    mirrored.maker.start()
    commit(a, group, topic, {0: position + 10_001})
    until(lambda: committed(b, group) == {0: position + 10_001})
    process.send_signal(signal.SIGINT)
    finish(process)
