"""``log dump``: the selection and the format of messages, and the treatment of damaged entries."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from end_of_transaction import end_of_transaction
from in_process import command, rows

from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import GroupValue
from offsetmgr.records.kafka import KafkaRecordFormat
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import GZIP, LZ4
from offsetmgr.segments.log_appender import LogAppender, RollPolicy

T = 1_700_000_000_000
FIRST = "00000000000000000000.log"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Messages of all formats: 0-1 of format 0, 2-3 of format 1, 4-5 aborted, 6 the abort marker, 7 without a
    transaction, 8 of an open transaction, 9 after it."""
    directory = tmp_path / "kafka" / "orders-0"
    first, second = Producer(7, 1, 20, transactional=True), Producer(8, 0, 0, transactional=True)
    with LogAppender(directory) as log:
        log.append([Record(0, None, b"k0", b"zero"), Record(0, None, None, None)], GZIP, magic=0)
        log.append([Record(0, T + 2, b"k2", b"two", (), True), Record(0, T + 2, b"k3", b"", (), True)], LZ4, magic=1)
        log.append([Record(0, T + 4, b"k4", b"four", (("h", b"1"),)), Record(0, T + 5, b"k5", b"\xff")], producer=first)
        log.append_entries(end_of_transaction(6, first, commit=False, timestamp=T + 6, coordinator_epoch=3))
        log.append([Record(0, T + 7, b"k7", b"seven")], leader_epoch=2)
        log.append([Record(0, T + 8, b"k8", b"eight")], producer=second)
        log.append([Record(0, T + 9, b"k9", b"nine")])
    return tmp_path / "kafka"


def dumped(*arguments: object, code: int = 0) -> Any:
    return rows("log", "dump", *arguments, code=code)


def offsets(*arguments: object) -> list[int]:
    return [row["offset"] for row in dumped(*arguments)]


def test_a_table_for_people(log_dir: Path) -> None:
    assert command("log", "dump", log_dir, "--controls").stdout.splitlines() == [
        "TOPIC   PARTITION  OFFSET  TIMESTAMP                 KEY  VALUE                HEADERS  CONTROL  PRODUCER-ID",
        "orders          0       0  -                         k0   zero                 -        -                  -",
        "orders          0       1  -                         -    -                    -        -                  -",
        "orders          0       2  2023-11-14T22:13:20.002Z  k2   two                  -        -                  -",
        "orders          0       3  2023-11-14T22:13:20.002Z  k3                        -        -                  -",
        "orders          0       4  2023-11-14T22:13:20.004Z  k4   four                 h=1      -                  7",
        "orders          0       5  2023-11-14T22:13:20.005Z  k5   0xff                 -        -                  7",
        "orders          0       6  2023-11-14T22:13:20.006Z  -    coordinator_epoch=3  -        abort              7",
        "orders          0       7  2023-11-14T22:13:20.007Z  k7   seven                -        -                  -",
        "orders          0       8  2023-11-14T22:13:20.008Z  k8   eight                -        -                  8",
        "orders          0       9  2023-11-14T22:13:20.009Z  k9   nine                 -        -                  -",
    ]


def test_json_has_every_field_and_null_for_missing_values(log_dir: Path) -> None:
    found = dumped(log_dir / "orders-0" / FIRST)

    assert found[0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": None,
        "timestamp_type": None,
        "key": "k0",
        "value": "zero",
        "headers": [],
        "control": None,
        "transactional": False,
        "producer_id": None,
        "producer_epoch": None,
        "sequence": None,
        "leader_epoch": None,
        "magic": 0,
        "codec": "gzip",
    }
    assert found[5] == {
        **found[0],
        "offset": 5,
        "timestamp": T + 5,
        "timestamp_type": "create",
        "key": "k5",
        "value": {"hex": "ff"},
        "transactional": True,
        "producer_id": 7,
        "producer_epoch": 1,
        "sequence": 21,
        "magic": 2,
        "codec": "none",
    }
    assert (found[1]["key"], found[1]["value"]) == (None, None)
    assert (found[2]["timestamp_type"], found[3]["value"]) == ("append", "")
    assert found[4]["headers"] == [["h", "1"]]
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert found[6]["leader_epoch"] == 2


def test_csv_has_the_same_fields(log_dir: Path) -> None:
    printed = command("log", "dump", log_dir, "--format", "csv", "--offset", "4", "--max-messages", "2").stdout
    assert printed.splitlines() == [
        "topic,partition,offset,timestamp,timestamp_type,key,value,headers,control,transactional,producer_id,"
        "producer_epoch,sequence,leader_epoch,magic,codec",
        f'orders,0,4,{T + 4},create,k4,four,"[[""h"", ""1""]]",,True,7,1,20,,2,none',
        f'orders,0,5,{T + 5},create,k5,"{{""hex"": ""ff""}}",[],,True,7,1,21,,2,none',
    ]


def test_read_committed_stops_at_an_open_transaction(log_dir: Path) -> None:
    assert offsets(log_dir, "--isolation-level", "read_committed") == [0, 1, 2, 3, 7]


def test_messages_are_selected_by_offset_time_topic_and_number(log_dir: Path) -> None:
    with LogAppender(log_dir / "other-1") as log:
        log.append([Record(0, T, b"k", b"v")])

    assert offsets(log_dir / "orders-0", "--offset", "3", "--to-offset", "5") == [3, 4]
    times = ("--from-datetime", "2023-11-14T22:13:20.005", "--to-datetime", "2023-11-14T22:13:20.008")
    assert offsets(log_dir, *times, "--topic", "orders") == [5, 7]
    assert offsets(log_dir, "--max-messages", "2") == [0, 1]
    assert offsets(log_dir, "--topic", "oth*:1") == [0]
    assert [row["topic"] for row in dumped(log_dir / "other-1", log_dir / "orders-0")] == ["other", *["orders"] * 9]
    assert command("log", "dump", log_dir, "--topic", "none").stderr == "no message matches\n"


def test_entries_are_shown_in_the_order_of_the_file(log_dir: Path) -> None:
    found = dumped(log_dir, "--entries")

    assert [(row["magic"], row["base_offset"], row["last_offset"], row["records"]) for row in found] == [
        (0, None, 1, None),
        (1, None, 3, None),
        (2, 4, 5, 2),
        (2, 6, 6, 1),
        (2, 7, 7, 1),
        (2, 8, 8, 1),
        (2, 9, 9, 1),
    ]
    assert [row["position"] for row in found] == [sum(row["size"] for row in found[:at]) for at in range(7)]
    assert [row["control"] for row in found] == [False, False, False, True, False, False, False]


# --- offsets --------------------------------------------------------------------------------------


def test_kafkas_own_offsets_are_decoded(tmp_path: Path) -> None:
    form = KafkaRecordFormat()
    ((key, value),) = form.encode_commit("g", "orders", [(3, 42, 5, "meta")], T, None)
    assert value is not None
    later = struct.pack(">h", 4) + b"\0\1g"
    written = [
        (key, value),
        (key, None),
        (key, b"\x7f\xff" + value[2:]),
        (form.encode_group_key("g"), struct.pack(">h h8s i h h q i", 3, 8, b"consumer", 9, -1, -1, T, 0)),
        (later, b"later"),
        (b"", b"no key at all"),
    ]
    directory = tmp_path / "__consumer_offsets-7"
    with LogAppender(directory) as log:
        log.append([Record(0, T, *one) for one in written])

    found = [(row["key"], row["value"]) for row in dumped(directory)]

    offset = {"type": "offset", "group": "g", "topic": "orders", "partition": 3}
    content = {"offset": 42, "leader_epoch": 5, "metadata": "meta", "commit_timestamp": T, "expire_timestamp": None}
    group = {"protocol_type": "consumer", "generation": 9, "protocol": None, "leader": None}
    assert found == [
        (offset, content | {"topic_id": None}),
        (offset, None),
        (offset, {"hex": "7fff" + value[2:].hex(), "error": "offset value: version 32767; known are 0 to 4"}),
        ({"type": "group", "group": "g"}, group | {"current_state_timestamp": T, "members": []}),
        ({"type": "ConsumerGroupPartitionMetadata", "version": 4}, "later"),
        ("", "no key at all"),
    ]
    shown = f"type=offset group=g topic=orders partition=3  offset=42 leader_epoch=5 metadata=meta commit_timestamp={T}"
    assert shown in command("log", "dump", directory, "--max-messages", "1").stdout


def test_an_offset_managers_topic_is_recognized_by_its_keys(tmp_path: Path) -> None:
    ((key, value),) = AvroRecordFormat().encode_commit("g", "orders", [(3, 42, -1, "")], T, None)
    directory = tmp_path / "offsetmgr-offsets-0"
    with LogAppender(directory) as log:
        log.append([Record(0, T, key, value), Record(0, T, b"O\0plain", b"text")])
        log.append([Record(0, T, *AvroRecordFormat().encode_group("g", GroupValue(T)))])

    auto, plain, group = dumped(directory)
    assert (group["key"], group["value"]) == ({"type": "group", "group": "g"}, {"last_active": T})
    assert (auto["key"], auto["value"]["offset"]) == (
        {"type": "offset", "group": "g", "topic": "orders", "partition": 3},
        42,
    )
    assert (plain["key"], plain["value"]) == ("O\0plain", "text")
    undecoded, *_ = dumped(directory, "--decode", "raw")
    assert undecoded["key"] in (key.decode("utf-8", "replace"), {"hex": key.hex()})


@pytest.mark.parametrize("key", ["", "4f", "00", "0100ff", "5000", "ffff", "4eff"])
def test_other_keys_than_those_of_offsets_topics_have_no_format(tmp_path: Path, key: str) -> None:
    (tmp_path / FIRST).write_bytes(batch([Record(0, T, bytes.fromhex(key), b"value")]))

    (row,) = dumped(tmp_path / FIRST, "--decode", "offsets")

    assert row["key"] in (bytes.fromhex(key).decode("utf-8", "replace"), {"hex": key})
    assert row["value"] == "value"


def test_a_copied_file_is_decoded_with_the_option(tmp_path: Path) -> None:
    ((key, value),) = KafkaRecordFormat().encode_commit("g", "orders", [(3, 42, 5, "")], T, None)
    (tmp_path / FIRST).write_bytes(batch([Record(0, T, key, value)]))

    (row,) = dumped(tmp_path / FIRST, "--decode", "offsets")

    assert (row["topic"], row["partition"], row["key"]["group"], row["value"]["offset"]) == (None, None, "g", 42)


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_entry_hides_no_other(log_dir: Path) -> None:
    file = log_dir / "orders-0" / FIRST
    data = bytearray(file.read_bytes())
    place = data.index(b"seven")
    data[place] ^= 1
    file.write_bytes(data + b"\0\0\0")

    captured = command("log", "dump", log_dir, "--format", "json", code=1)

    assert [row["offset"] for row in json.loads(captured.stdout)] == [0, 1, 2, 3, 4, 5, 8, 9]
    assert captured.stderr.splitlines() == [
        f"error: {file}, position {place - 69}: entry at offset 7: its checksum does not match its content"
        " (CORRUPT_MESSAGE)",
        f"error: {file}, position {len(data)}: the last 3 bytes are not a complete entry",
    ]


def test_nothing_is_read_after_an_entry_with_an_invalid_size(log_dir: Path) -> None:
    with LogAppender(log_dir / "sound-0", RollPolicy()) as log:
        log.append([Record(0, T, b"k", b"v")])
    file = log_dir / "orders-0" / FIRST
    end = file.stat().st_size
    file.write_bytes(file.read_bytes() + bytes(50))

    captured = command("log", "dump", log_dir, "--format", "json", code=1)

    assert [row["topic"] for row in json.loads(captured.stdout)] == [*["orders"] * 9, "sound"]
    assert captured.stderr == f"error: {file}, position {end}: the entry at offset 0 has an invalid size: 0 bytes\n"


def test_a_batch_over_the_limit_is_left_out_and_reported(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with LogAppender(directory) as log:
        log.append([Record(0, T, b"k", bytes(50_000))], GZIP)
        log.append([Record(0, T, b"k", b"small")], GZIP)

    assert [row["value"] for row in dumped(directory, "--max-batch-bytes", "1000", code=1)] == ["small"]
    assert command("log", "dump", directory, "--max-batch-bytes", "1000", code=1).stderr == (
        f"error: {directory / FIRST}, position 0: batch at offset 0: it decompresses to more than 1,000 bytes\n"
        "hint: --max-batch-bytes allows more, if the writer really wrote that much\n"
    )


def test_an_invalid_control_record_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with LogAppender(directory) as log:
        log.append_entries(batch([Record(0, T, b"\0", None)], control=True))
        log.append([Record(0, T, b"k", b"v")])

    assert [row["offset"] for row in dumped(directory, "--controls", code=1)] == [1]
    assert [row["offset"] for row in dumped(directory)] == [1]


def test_paths_that_are_no_logs_are_named_and_the_others_are_shown(log_dir: Path) -> None:
    old = log_dir.parent / "old" / "orders_0"
    old.mkdir(parents=True)
    (old / "00000000000.kafka").write_bytes(struct.pack(">ib", 9, 0) + bytes(8))
    (log_dir.parent / "notes.txt").write_text("")
    paths = [old, old / "00000000000.kafka", old.parent, log_dir.parent / "notes.txt", log_dir.parent / "gone", log_dir]

    captured = command("log", "dump", *paths, "--format", "json", code=1)

    assert len(json.loads(captured.stdout)) == 9
    assert [line for line in captured.stderr.splitlines() if line.startswith("error")] == [
        f"error: {old}: it holds 00000000000.kafka: a log of Kafka 0.7, whose entries have a length of 4 bytes and no"
        " offset",
        f"error: {old}/00000000000.kafka: it is a log of Kafka 0.7, whose entries have no offset: a position in"
        " the file is the offset",
        f"error: {old}: it holds 00000000000.kafka: a log of Kafka 0.7, whose entries have a length of 4 bytes and no"
        " offset",
        f"error: {log_dir.parent}/notes.txt: its name is not that of a log segment",
        f"error: cannot read {log_dir.parent}/gone: there is no such file or directory",
    ]


def test_a_large_file_is_streamed(tmp_path: Path) -> None:
    """A dump of 20 MB of messages needs less than 12 MB of memory."""
    import tracemalloc

    directory = tmp_path / "orders-0"
    with LogAppender(directory) as log:
        for _ in range(200):
            log.append([Record(0, T, b"k", bytes(100_000))])
    tracemalloc.start()
    try:
        printed = command("log", "dump", directory).stdout
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 12_000_000
    assert len(printed.splitlines()) == 201
