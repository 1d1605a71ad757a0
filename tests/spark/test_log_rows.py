"""Raw records as columns, and the division of a log among tasks. No Spark and no server."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import EncodedRecord, GroupValue
from offsetmgr.records.kafka import KafkaRecordFormat
from offsetmgr.spark.log_rows import RowDecoder, decode_rows
from offsetmgr.spark.log_source import split_ranges
from offsetmgr.spark.range_reader import Range

NOW = 1_700_000_000_000
KAFKA, AVRO = KafkaRecordFormat(), AvroRecordFormat()


def rows(records: list[tuple[bytes | None, bytes | None]]) -> list[dict[str, Any]]:
    count = len(records)
    keys, values = [key for key, _ in records], [value for _, value in records]
    batch = RowDecoder().batch([7] * count, list(range(count)), [NOW] * count, keys, values)
    return batch.to_pylist()


def known_values(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a row that are not null, without its position in the log."""
    return {name: value for name, value in row.items() if value is not None and not name.startswith("log_")}


def test_both_formats_in_one_batch() -> None:
    records: list[EncodedRecord] = [
        *KAFKA.encode_commit("g", "orders", [(0, 42, 3, "by hand"), (1, 43, -1, "")], NOW, None),
        *KAFKA.encode_commit("g", "orders", [(2, 44, -1, "")], NOW, NOW + 1),
        *AVRO.encode_commit("ü", "orders", [(0, 45, -1, "")], NOW, None),
        KAFKA.encode_group("g", GroupValue(NOW + 2)),
        AVRO.encode_group("ü", GroupValue(NOW + 3)),
    ]

    found = rows([*records])

    kafka = {"format": "kafka", "kind": "offset", "key_version": 1, "group": "g", "topic": "orders", "tombstone": False}
    avro = {"format": "avro", "kind": "offset", "key_version": 0x4F00, "group": "ü", "topic": "orders"}
    when = {"commit_timestamp": NOW}
    assert [known_values(row) for row in found] == [
        kafka | when | {"partition": 0, "offset": 42, "leader_epoch": 3, "metadata": "by hand"},
        kafka | when | {"partition": 1, "offset": 43, "metadata": ""},
        kafka | when | {"partition": 2, "offset": 44, "metadata": "", "expire_timestamp": NOW + 1},
        avro | when | {"partition": 0, "offset": 45, "metadata": "", "tombstone": False},
        {"format": "kafka", "kind": "group", "key_version": 2, "group": "g", "tombstone": False}
        | {"members": 0, "group_timestamp": NOW + 2},
        {"format": "avro", "kind": "group", "key_version": 0x4F10, "group": "ü", "tombstone": False}
        | {"group_timestamp": NOW + 3},
    ]
    assert [row["log_offset"] for row in found] == [0, 1, 2, 3, 4, 5]
    assert {row["log_partition"] for row in found} == {7}


def test_a_tombstone_keeps_its_key_and_has_no_offset() -> None:
    (key, _), *_ = KAFKA.encode_commit("g", "orders", [(5, 42, -1, "")], NOW, None)

    (row,) = rows([(key, None)])

    assert (row["group"], row["topic"], row["partition"], row["tombstone"]) == ("g", "orders", 5, True)
    assert row["offset"] is None
    assert row["error"] is None


def test_an_unreadable_record_is_a_row_with_its_error_and_the_others_are_read() -> None:
    ((key, value),) = KAFKA.encode_commit("g", "orders", [(5, 42, -1, "")], NOW, None)
    assert value is not None
    later = (99).to_bytes(2, "big") + value[2:]

    found = rows([(None, b"x"), (b"\x7f\xff?", b"x"), (key[:-1], value), (key, later), (key, value)])

    assert [row["kind"] for row in found] == ["other", "other", "other", "offset", "offset"]
    assert found[0]["error"] == "the record has no key"
    assert found[1]["error"] == "the key has an unknown format"
    assert "it ends within partition" in found[2]["error"]
    assert "version 99" in found[3]["error"]
    assert (found[3]["group"], found[3]["partition"], found[3]["offset"]) == ("g", 5, None)
    assert (found[4]["offset"], found[4]["error"]) == (42, None)


def test_groups_of_the_new_protocol_are_named_and_unknown_keys_are_not_errors() -> None:
    state = b"\x00\x03" + b"\x00\x01g"
    share_group = b"\x00\x0b" + b"\x00\x01s"

    found = rows([(state, b"\x00\x00whatever"), (share_group, b"x")])

    assert [(row["kind"], row["key_version"], row["group"], row["error"]) for row in found] == [
        ("state", 3, "g", None),
        ("other", 11, None, None),
    ]


def test_small_chunks_are_decoded_together_and_only_the_rows_of_the_groups_remain() -> None:
    chunks: list[list[list[Any]]] = []
    for group, count in (("g", 15_000), ("h", 5_001), ("g", 2)):
        ((key, value),) = KAFKA.encode_commit(group, "orders", [(5, 42, -1, "")], NOW, None)
        chunks.append([[7] * count, [*range(count)], [NOW] * count, [key] * count, [value] * count])

    assert [batch.num_rows for batch in decode_rows(chunks, [])] == [20_001, 2]
    assert [batch.num_rows for batch in decode_rows(chunks, ["g"])] == [15_000, 2]
    assert list(decode_rows(chunks[:0], [])) == []


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 2_000_000)), max_size=60), st.integers(1, 40))
def test_every_offset_is_in_one_share_and_no_share_is_large(sizes: list[tuple[int, int]], tasks: int) -> None:
    ranges = [Range(number, start, start + size) for number, (start, size) in enumerate(sizes)]

    shares = split_ranges(ranges, tasks)

    total = sum(size for _, size in sizes)
    assert len(shares) >= min(tasks, total) or total < tasks * tasks
    joined: dict[int, list[Range]] = {}
    for part in shares:
        assert len({one.partition for one in part}) == len(part)
        assert 0 < sum(end - start for _, start, end in part) <= 250_000
        for one in part:
            joined.setdefault(one.partition, []).append(one)
    assert set(joined) == {one.partition for one in ranges}
    for one in ranges:
        parts = joined[one.partition]
        assert (parts[0].start, parts[-1].end) == (one.start, one.end)
        assert all(left.end == right.start for left, right in pairwise(parts))
