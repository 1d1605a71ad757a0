"""Positions of one real cluster are translated into those of another, and it does not matter who copied the records."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from processes import delete_topic

from offsetmgr import KafkaCluster, TopicPartition
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import produce
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.segments.raw_batches import raw_batches
from offsetmgr.translation import translator as module
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import PositionTranslator, TranslatedOffset, TranslatedPartition, Translations

pytestmark = pytest.mark.servers

SEEN = Verdict.SEEN
OTHERS = 30
"""The number of other records that the target holds before the copies."""

SETTINGS: dict[str, Any] = {"linger.ms": 5, "enable.idempotence": True, "batch.num.messages": 100}


class Clusters:
    """Kafka 3.9.1, and Kafka 4.4.0 with the copies, in topics of one name."""

    def __init__(self, a: str, b: str, topic: str, make_topic: MakeTopic) -> None:
        self.a, self.b, self.topic, self._make_topic = a, b, topic, make_topic

    def make(self, partitions: int = 1, in_target: int = 0, **config_of_target: str) -> None:
        self._make_topic(self.topic, partitions, bootstrap=self.a)
        self.make_in_target(in_target or partitions, **config_of_target)

    def make_in_target(self, partitions: int, **config_of_target: str) -> None:
        config = {name.replace("_", "."): value for name, value in config_of_target.items()}
        self._make_topic(self.topic, partitions, bootstrap=self.b, config=config)

    def produce(self, bootstrap: str, values: Sequence[bytes], partition: int = 0, *, idempotent: bool = True) -> None:
        producer = Producer({**SETTINGS, "bootstrap.servers": bootstrap, "enable.idempotence": idempotent})
        for value in values:
            producer.produce(self.topic, value, b"key of " + value[5:], partition)
        assert producer.flush(60) == 0

    def transact(self, bootstrap: str, values: Sequence[bytes], *, end: str) -> Producer:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{self.topic}-{end}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(60) == 0
        if end == "commit":
            producer.commit_transaction(60)
        elif end == "abort":
            producer.abort_transaction(60)
        return producer

    def records(self, isolation: str = "read_uncommitted") -> list[Message]:
        """All records of the source."""
        settings = {"bootstrap.servers": self.a, "group.id": "copier", "enable.auto.commit": False}
        consumer = Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
        consumer.assign([Position(self.topic, 0, OFFSET_BEGINNING)])
        found: list[Message] = []
        while (message := consumer.poll(60)) is not None and message.error() is None:
            found.append(message)
        consumer.close()
        return found

    def copy(self, records: Sequence[Message], header: str = "") -> None:
        producer = Producer({**SETTINGS, "bootstrap.servers": self.b})
        for one in records:
            headers: dict[str, str | bytes | None] = {header: str(one.offset())} if header else {}
            producer.produce(self.topic, one.value(), one.key(), 0, timestamp=one.timestamp()[1], headers=headers)
        assert producer.flush(60) == 0

    def append(self, data: bytes) -> None:
        """Appends batches to the target as they are."""

        async def append() -> None:
            client = Client(self.b, Security())
            connection = await client.any_connection(asyncio.get_running_loop().time() + 60)
            for one in raw_batches(data):  # a broker accepts only batches with a base offset of 0
                (result,) = (
                    await produce(connection, self.topic, {0: bytes(8) + data[one.start + 8 : one.end]}, 60)
                ).values()
                assert not result.error_code
            await client.close()

        asyncio.run(append())

    def translated(
        self, *positions: int, partition: int = 0, earliest: int | None = None, **options: Any
    ) -> TranslatedPartition:
        with KafkaCluster(self.a) as source, KafkaCluster(self.b) as target:
            translator = PositionTranslator(source, target, TranslationRules(**options))
            tp = TopicPartition(self.topic, partition)
            (found,) = translator.translate({tp: positions}, earliest={} if earliest is None else {tp: earliest})
        return found

    def answers(self, *positions: int, **options: Any) -> list[tuple[str, int | None]]:
        found = self.translated(*positions, **options)
        assert found.error is None
        return [(str(one.verdict), one.offset) for one in found.translations.values()]


@pytest.fixture
def clusters(kafka: KafkaBroker, kraft: KraftBroker, unique: str, make_topic: MakeTopic) -> Clusters:
    return Clusters(kafka.bootstrap, kraft.bootstrap, unique, make_topic)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs are read in pieces of few records."""
    monkeypatch.setattr(module, "_FIRST_OFFSETS", 3)
    monkeypatch.setattr(module, "_MARGIN", 1)


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


def test_copies_lie_behind_other_records(clusters: Clusters) -> None:
    clusters.make()
    clusters.produce(clusters.b, [b"other"] * OTHERS)
    clusters.produce(clusters.a, values(500))
    clusters.copy(clusters.records())
    found = clusters.answers(0, 1, 250, 499, 500)
    assert found == [("seen", OTHERS + position) for position in (0, 1, 250, 499, 500)]


def test_positions_in_small_pieces_of_transactions(clusters: Clusters, small_pieces: None) -> None:
    """The copier read uncommitted records. Markers take offsets at A, and aborted records are ordinary ones at B."""
    clusters.make()
    clusters.produce(clusters.a, values(10))
    clusters.transact(clusters.a, values(5, 10), end="abort")
    clusters.transact(clusters.a, values(5, 15), end="commit")
    clusters.produce(clusters.a, values(5, 20))
    clusters.copy(clusters.records())
    assert clusters.answers(9, 10, 12, 15, 16, 18, 22) == [
        ("seen", 9),
        *[("seen", 15)] * 4,  # after ten records come five aborted ones and their marker
        ("seen", 17),
        ("seen", 20),
    ]


def test_records_of_an_open_transaction_of_the_target_are_not_there_yet(clusters: Clusters) -> None:
    clusters.make()
    clusters.produce(clusters.a, values(10))
    records = clusters.records()
    clusters.copy(records[:5])
    open_ = clusters.transact(clusters.b, values(5, 5), end="stay open")
    assert clusters.answers(3, 5, 7) == [("seen", 3), ("seen", 5), ("not yet", None)]
    open_.abort_transaction(60)


def test_a_stretch_that_was_copied_twice(clusters: Clusters, small_pieces: None) -> None:
    clusters.make()
    clusters.produce(clusters.a, values(100))
    records = clusters.records()
    clusters.copy(records[:80])
    assert clusters.answers(70, 79, 80, 90) == [("seen", 70), ("seen", 79), ("seen", 80), ("not yet", None)]
    clusters.copy(records[50:60])  # the copier was restarted, and has not caught up
    assert {verdict for verdict, _ in clusters.answers(40, 55, 70)} == {"not yet"}
    clusters.copy(records[60:])
    assert clusters.answers(40, 49, 50, 70, 100) == [("seen", at) for at in (40, 49, 80, 100, 130)]
    found = clusters.translated(70, earliest=70)
    assert [found.difference(70, committed) for committed in (100, 90, 110, 70)] == [(0, 0), (10, 0), (0, 10), (30, 0)]
    assert clusters.translated(70).difference(70, 20) is None  # the records there were not read


def test_time_stamps_tell_equal_records_apart_only_where_the_target_keeps_them(clusters: Clusters) -> None:
    clusters.make()
    producer, now_ms = Producer({"bootstrap.servers": clusters.a}), int(1000 * time.time())
    for number in range(50):
        producer.produce(clusters.topic, b"equal", partition=0, timestamp=now_ms - 1000 * number)
    assert producer.flush(60) == 0
    clusters.copy(clusters.records())
    assert clusters.answers(10, 49) == [("seen", 10), ("seen", 49)]


def test_a_target_with_its_own_time_stamps(clusters: Clusters) -> None:
    clusters.make(message_timestamp_type="LogAppendTime")
    clusters.produce(clusters.a, [*values(20), *[b"equal"] * 10, *values(20, 20)])
    clusters.copy(clusters.records())
    assert clusters.answers(5, 45) == [("seen", 5), ("seen", 45)]


def test_ids_of_schemas_may_differ(clusters: Clusters) -> None:
    clusters.make()
    avro = [b"\0" + bytes([0, 0, 0, 7]) + value for value in values(20)]
    clusters.produce(clusters.a, avro)
    clusters.produce(clusters.b, [value[:4] + b"\x09" + value[5:] for value in avro])
    found = clusters.translated(7)
    assert found.translations[7][:2] == (SEEN, 7)
    assert found.note == "compared by key and value without schema ids"


def test_equal_logs_are_recognised_by_their_batches(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in linked clusters. Nothing else is read."""
    clusters.make()
    for first in range(0, 90, 30):
        clusters.produce(clusters.a, values(30, first), idempotent=False)
    with KafkaCluster(clusters.a) as source:
        found = source.read_log(TopicPartition(clusters.topic, 0), 0, 1 << 20)
    assert not isinstance(found, OffsetMgrError)
    clusters.append(found)
    monkeypatch.delattr(module._AlignedLogs, "align")
    assert clusters.answers(*range(91), max_read=5 * len(found)) == [("seen", at) for at in range(91)]
    digest = clusters.translated(0).digest
    monkeypatch.setattr(module, "_FETCH_BYTES", 1)
    assert clusters.translated(0).digest == digest  # the size of the pieces does not matter
    # Equal ends alone prove nothing
    monkeypatch.undo()
    assert all(one.verdict != SEEN for one in clusters.translated(0, max_read=10).translations.values())


def test_a_place_is_inferred_if_the_logs_are_larger_than_what_may_be_read(clusters: Clusters) -> None:
    clusters.make()
    clusters.produce(clusters.b, [b"other"] * OTHERS)
    clusters.produce(clusters.a, values(20_000))
    records = clusters.records()
    clusters.copy(records, header="x-original-offset")
    few = 2_000_000  # bytes; each record counts as at least 128
    assert clusters.answers(4_000, max_read=few) == [("inferred", 4_000 + OTHERS)]
    clusters.copy(records[3_000:])  # now the distances to the end differ
    assert clusters.answers(4_000, max_read=few) == [("unknown", None)]
    found = clusters.translated(4_000, max_read=few)
    command = Translations(cast("Any", None), TranslationRules())
    command.partitions[found.source] = found
    unsure = command.get(found.source, 4_000)
    assert isinstance(unsure, TranslatedOffset) and few < found.enough < 50_000_000
    assert for_command_line(unsure.problem).endswith(f"; --max-read {found.enough // 10**6}MB reads far enough")
    assert clusters.answers(4_000, max_read=found.enough) == clusters.answers(4_000) == [("seen", 21_000 + OTHERS)]


@pytest.mark.parametrize("in_batch", [1, 10_000])
def test_enough_for_batches_of_any_size(clusters: Clusters, monkeypatch: pytest.MonkeyPatch, in_batch: int) -> None:
    monkeypatch.setitem(SETTINGS, "batch.num.messages", in_batch)
    monkeypatch.setitem(SETTINGS, "linger.ms", 1_000)
    clusters.make()
    clusters.produce(clusters.b, [b"other"])
    clusters.produce(clusters.a, values(10_000))
    clusters.copy(clusters.records())
    few, enough = 1_000_000, clusters.translated(2_000, max_read=1_000_000).enough
    assert few < enough < 10_000_000 and clusters.answers(2_000, max_read=enough) == [("seen", 2_001)]


def test_equal_contents_that_repeat_are_not_inferred(clusters: Clusters) -> None:
    """The target lacks the last dump of a table, and has no time stamps of the source."""
    clusters.make(message_timestamp_type="LogAppendTime")
    clusters.produce(clusters.a, values(1_500) * 14)
    clusters.copy(clusters.records()[:-1_500])
    assert clusters.answers(5_000, max_read=2_000_000) == [("unknown", None)]


def test_few_equal_records_do_not_decide_how_the_others_are_compared(clusters: Clusters) -> None:
    """Records without a value are equal, and the others have other ids of schemas."""
    clusters.make()
    clusters.produce(clusters.a, [b"\0\0\0\0\7" + value for value in values(400)])
    records = clusters.records()
    clusters.copy(records[:1])
    clusters.produce(clusters.b, [b"\0\0\0\0\x09" + value for value in values(399, 1)])
    assert clusters.answers(1, 200, 400) == [("seen", at) for at in (1, 200, 400)]


def test_a_record_that_lies_in_many_partitions_does_not_show_another_copier(clusters: Clusters) -> None:
    clusters.make(partitions=2)
    for partition in (0, 1):
        clusters.produce(clusters.a, [b"heartbeat", *values(40, 100 * partition)], partition)
    clusters.produce(clusters.b, [b"heartbeat", *values(40, 100)], partition=1)
    assert clusters.answers(10) == [("not yet", None)]


def test_a_target_of_equal_batches_that_lacks_some_is_no_equal_log(clusters: Clusters) -> None:
    clusters.make()
    for number in range(30):
        clusters.produce(clusters.a, values(1, number), idempotent=False)
    with KafkaCluster(clusters.a) as source:
        data = source.read_log(TopicPartition(clusters.topic, 0), 0, 1 << 20)
    assert isinstance(data, bytes)
    batches = [data[one.start : one.end] for one in raw_batches(data)]
    clusters.append(b"".join([*batches[:15], *batches[16:25], *batches[24:]]))  # lacks 15, has 24 twice
    assert clusters.answers(3, 20)[0][0] == "missing"


def test_a_stale_offset_in_the_target_takes_no_answer_from_others(clusters: Clusters, small_pieces: None) -> None:
    clusters.make()
    clusters.produce(clusters.a, values(100))
    clusters.copy(clusters.records()[:40])
    found = clusters.translated(90, 20, earliest=-5)
    assert [one.verdict for one in found.translations.values()] == [Verdict.NOT_YET, SEEN]


@pytest.mark.parametrize("kept", [0, 10])
def test_a_copier_that_chose_other_partitions_is_named(clusters: Clusters, kept: int) -> None:
    clusters.make(partitions=3)
    clusters.produce(clusters.a, values(50))
    clusters.produce(clusters.b, [*values(40)[::4], *values(10, 40)][: 2 * kept])
    clusters.produce(clusters.b, values(40)[1::2], partition=1)
    clusters.produce(clusters.b, values(40)[2::4], partition=2)
    error = clusters.translated(10).error
    assert f"its records lie in {clusters.topic}-1, {clusters.topic}-2 of the target" in str(error)


def test_a_topic_that_is_recreated_meanwhile_is_no_answer(clusters: Clusters, make_topic: MakeTopic) -> None:
    clusters.make(partitions=2)
    for partition in (0, 1):
        clusters.produce(clusters.a, values(10), partition)
        clusters.produce(clusters.b, values(10), partition)
    with KafkaCluster(clusters.a) as source, KafkaCluster(clusters.b) as target:
        positions = {TopicPartition(clusters.topic, partition): [5] for partition in (0, 1)}
        found = PositionTranslator(source, target, TranslationRules()).translate(positions)
        assert next(found).error is None
        delete_topic(AdminClient({"bootstrap.servers": clusters.b}), clusters.topic)
        clusters.make_in_target(2)
        clusters.produce(clusters.b, values(10), 1)
        assert "recreated" in str(next(found).error)


def test_the_way_back_leads_from_a_copy_to_the_original(
    clusters: Clusters, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier stopped after 80 of 100 records, and had copied some of them twice."""
    clusters.make()
    clusters.produce(clusters.a, values(100))
    records = clusters.records()
    clusters.produce(clusters.b, [b"other"] * OTHERS)
    clusters.copy([*records[:60], *records[50:80]])
    with KafkaCluster(clusters.a) as original, KafkaCluster(clusters.b) as copy:
        translator = PositionTranslator(copy, original, TranslationRules(back=True))
        # When more is copied after the end of one of the logs was read
        ends = original.log_ranges

        def copying(partitions: Iterable[TopicPartition]) -> Any:
            found = ends(partitions)
            clusters.produce(clusters.a, values(1, 100))
            clusters.copy(clusters.records()[80:])
            return found

        monkeypatch.setattr(original, "log_ranges", copying)
        found = next(translator.translate({TopicPartition(clusters.topic, 0): range(OTHERS, OTHERS + 91)}))
    right = [*range(50), *[50] * 10, *range(50, 81)]
    assert [one[:2] for one in found.translations.values()] == [(SEEN, at) for at in right]
    assert found.lacking == 0
    assert found.difference(OTHERS + 40, 30) == (10, 0)
