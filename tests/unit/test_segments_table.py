"""An offsets log on disk as the table of ``format("offsetmgr-segments")``, planned and read in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from savedlogs import ENDED, NOON, entry, write

from offsetmgr.core.errors import UsageError
from offsetmgr.segments.batch_builder import Producer, end_of_transaction


def rows(*dirs: Path, **options: str) -> list[dict[str, object]]:
    """The rows of the segments table, from a reader that plans and reads in this process."""
    from offsetmgr.spark.segment_source import SegmentSourceReader

    reader = SegmentSourceReader({"path": ",".join(map(str, dirs)), **options})
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def test_the_table_contains_no_aborted_or_unfinished_transactions(tmp_path: Path) -> None:
    other = Producer(8, 0, 0, transactional=True)
    first = entry(0, "a", 4) + entry(1, "a", 5, producer=ENDED)
    aborted = end_of_transaction(3, ENDED, commit=False, timestamp=NOON)
    second = entry(2, "a", 6, producer=ENDED) + aborted + entry(4, "a", 7, producer=ENDED)
    third = end_of_transaction(5, ENDED, commit=True, timestamp=NOON) + entry(6, "a", 8, producer=other)
    directory = tmp_path / "__consumer_offsets-3"
    write(directory, (0, first), (2, second), (5, third + entry(7, "b", None) + b"junk"))

    found = rows(directory)

    assert [(row.get("log_offset"), row.get("group"), row.get("offset"), row["tombstone"]) for row in found] == [
        (0, "a", 4, False),
        (4, "a", 7, False),
        (7, "b", None, True),
        (None, None, None, True),
    ]
    assert found[0] == {
        "log_partition": 3,
        "log_offset": 0,
        "log_timestamp": NOON,
        "format": "kafka",
        "kind": "offset",
        "key_version": 1,
        "group": "a",
        "topic": "orders",
        "partition": 0,
        "tombstone": False,
        "offset": 4,
        "metadata": "",
        "commit_timestamp": NOON,
    }
    assert found[-1]["error"] == f"{directory / f'{5:020}.log'}: its last 4 bytes are an incomplete entry"
    assert [row.get("log_offset") for row in rows(directory, group="b")] == [7, None], (
        "the damage may hide offsets of the group"
    )


def test_a_damaged_segment_is_a_row_with_an_error_and_the_others_are_read(tmp_path: Path) -> None:
    bad = bytearray(entry(1, "a", 5))
    bad[-1] ^= 1
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4) + bytes(bad)), (2, entry(2, "a", 6)))

    found = rows(tmp_path)

    assert [row.get("offset") for row in found] == [4, None, 6]
    assert "batch at offset 1: its checksum" in str(found[1]["error"])


def test_a_missing_partition_of_a_log_dir_is_a_row_with_an_error(tmp_path: Path) -> None:
    for number in (1, 3):
        write(tmp_path / "disk" / f"__consumer_offsets-{number}", (0, entry(0, "a", number)))
    (tmp_path / "unmounted").mkdir()

    missing, *found = rows(tmp_path / "disk")

    why = "there is no directory of its partitions 0, 2: their groups are missing"
    assert missing == {"kind": "other", "tombstone": True, "error": f"topic __consumer_offsets: {why}"}
    assert [(row["log_partition"], row["offset"]) for row in found] == [(1, 1), (3, 3)]
    assert [row.get("error") for row in rows(tmp_path / "disk", tmp_path / "unmounted")][:2] == [
        f"directory {tmp_path / 'unmounted'}: holds no partition of any topic",
        missing["error"],
    ]
    assert len(rows(tmp_path / "disk" / "__consumer_offsets-3")) == 1, "a path of one partition implies no others"


def test_replicas_of_one_partition_are_rejected(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / "__consumer_offsets-0", (0, entry(0, "a", 4)))

    with pytest.raises(UsageError, match="are replicas of one partition"):
        rows(tmp_path / "a", tmp_path / "b")
