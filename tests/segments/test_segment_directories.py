"""A partition's directory: appends, rolling, searches, reads from any offset, and reports of deletable segments."""

import pickle
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.advice import for_command_line
from offsetmgr.core.errors import CorruptData, FileFailure, LimitExceeded, OffsetOutOfRange, UnsupportedOperation
from offsetmgr.core.model import LogRange
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record, batches
from offsetmgr.segments.compression import GZIP
from offsetmgr.segments.log_appender import LogAppender, RollPolicy
from offsetmgr.segments.partition import Partition
from offsetmgr.segments.retention import AnyOf, LargerThan, OlderThan, report
from offsetmgr.segments.time_lookup import at_or_after

T = 1_700_000_000_000
SMALL = RollPolicy(segment_bytes=1000, index_interval_bytes=100)


def record(number: int, size: int = 20) -> Record:
    return Record(0, T + number, b"k%02d" % number, b"v" * size)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition of 60 messages, one per batch of 91 bytes, in segments of 10."""
    directory = tmp_path / "orders-3"
    with LogAppender(directory, SMALL) as log:
        for number in range(60):
            log.append([record(number)])
    return directory


def bases(directory: Path) -> list[int]:
    return [segment.base_offset for segment in Partition(directory).segments]


def read_all(partition: Partition, offset: int, size: int = 1000) -> list[int]:
    """The offsets from ``offset`` on, read in chunks of ``size`` bytes as a reader does."""
    found: list[int] = []
    while (piece := partition.read(offset, size)) is not None:
        for one in batches(piece.data, offset):
            found += [each.offset for each in one.records]
            offset = one.last_offset + 1
    return found


# --- appending ------------------------------------------------------------------------------------


def test_a_segment_is_rolled_before_it_would_be_too_large(directory: Path) -> None:
    segments = Partition(directory).segments

    assert [segment.log.name for segment in segments] == [f"{base:020}.log" for base in range(0, 60, 10)]
    assert all(segment.size == 910 for segment in segments)
    assert {file.suffix for file in directory.iterdir()} == {".log", ".index", ".timeindex"}


def test_a_segment_is_rolled_by_the_times_of_messages_and_without_them_by_the_clock(tmp_path: Path) -> None:
    clock: Any = SimpleNamespace(now=T)
    clock.now_ms = lambda: clock.now
    with LogAppender(tmp_path / "timed-0", RollPolicy(segment_ms=1000), clock) as log:
        for time in (0, 1000, 1001, 1500, 2002):
            log.append([Record(0, T + time, b"k", b"v")])
        clock.now += 5000
        log.append([Record(0, T + 2003, b"k", b"v")])
    with LogAppender(tmp_path / "untimed-0", RollPolicy(segment_ms=1000), clock) as log:
        for wait in (0, 1000, 1, 1000):
            clock.now += wait
            log.append([Record(0, None, b"k", b"v")], magic=0)

    assert (bases(tmp_path / "timed-0"), bases(tmp_path / "untimed-0")) == ([0, 2, 4], [0, 2])


def test_offsets_are_assigned_and_gaps_of_a_replica_are_kept(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "orders-0") as log:
        assert log.append([record(0), record(1)], GZIP) == (0, 1)
        assert log.append([Record(99, None, b"k", b"v")], magic=0) == (2, 2)
        assert log.append_entries(batch([Record(10, T, b"k", b"v")])) == (10, 10)
        assert log.next_offset == 11
        with pytest.raises(UnsupportedOperation, match="an entry has offset 10, but the next offset is 12"):
            log.append_entries(batch([Record(11, T, b"", b"")]) + batch([Record(10, T, b"k", b"v")], base_offset=10))
        damaged = bytearray(batch([Record(11, T, b"k", b"v")]))
        damaged[-1] ^= 1
        with pytest.raises(CorruptData, match="its checksum does not match its content"):
            log.append_entries(bytes(damaged))
        with pytest.raises(CorruptData, match="does not end with a complete entry"):
            log.append_entries(bytes(damaged[:-1]))

    assert read_all(Partition(tmp_path / "orders-0"), 0) == [0, 1, 2, 10]


def test_appending_resumes_at_the_end_of_the_log(directory: Path) -> None:
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    index = directory / "00000000000000000050.index"
    index.write_bytes(index.read_bytes() + bytes(800))  # the preallocated space that a killed broker's index keeps

    with LogAppender(directory, SMALL) as log:
        assert log.append([record(60)]) == (60, 60)

    assert read_all(Partition(directory), 0, 500) == list(range(61))
    assert index.read_bytes() == before[index.name]


def test_a_log_with_an_incomplete_last_entry_must_be_recovered_before_an_append(directory: Path) -> None:
    log = directory / "00000000000000000050.log"
    for damage in (log.read_bytes()[:-1], log.read_bytes() + bytes(30)):
        log.write_bytes(damage)
        with pytest.raises(CorruptData) as caught, LogAppender(directory):
            pass
        assert caught.value.hint == "truncate it there with log.recover()"
        of_a_worker = pickle.loads(pickle.dumps(caught.value))
        assert for_command_line(of_a_worker.hint) == "truncate it there with offsetmgr log recover"
        assert log.read_bytes() == damage


# --- indexes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, bytes(40), struct.pack(">ii", 2, 100), b"\0\0\0\1\0\0"])
def test_a_wrong_index_costs_only_time(directory: Path, damage: bytes) -> None:
    for file in [*directory.glob("*.index"), *directory.glob("*.timeindex")]:
        file.write_bytes(damage)

    for offset in range(60):
        assert read_all(Partition(directory), offset, 200) == list(range(offset, 60))


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 400), st.sampled_from([0, 1, 2])), min_size=1, max_size=25),
    st.integers(200, 3000),
    st.integers(0, 500),
    st.integers(1, 600),
)
def test_appended_records_are_read_back(tmp_path_factory, appends, segment: int, interval: int, size: int) -> None:
    directory = tmp_path_factory.mktemp("log") / "orders-0"
    count = 0
    for half in (appends[: len(appends) // 2], appends[len(appends) // 2 :]):
        with LogAppender(directory, RollPolicy(segment_bytes=segment, index_interval_bytes=interval)) as log:
            for records, length, magic in half:
                time = None if magic == 0 else T
                log.append([Record(0, time, b"k", b"v" * length)] * records, GZIP if length > 200 else 0, magic=magic)
                count += records

    partition = Partition(directory)

    assert partition.range() == LogRange(0, count)
    for offset in range(0, count, 7):
        assert read_all(partition, offset, size) == list(range(offset, count))


def test_a_message_larger_than_the_chunk_is_read_whole_up_to_a_limit(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "orders-0") as log:
        log.append([record(0, 50_000)])
        log.append([record(1)])
    partition = Partition(tmp_path / "orders-0")

    piece = partition.read(0, 1000)
    assert piece is not None
    assert len(piece.data) == 50_075
    with pytest.raises(LimitExceeded, match="the entry has 50,075 bytes, more than the maximum of 20,000"):
        partition.read(0, 1000, max_entry_bytes=20_000)
    assert partition.read(1, 1000, max_entry_bytes=100_000) is not None


def test_an_offset_outside_the_log_is_an_error_but_its_end_is_not(directory: Path) -> None:
    partition = Partition(directory)

    assert partition.read(60) is None
    with pytest.raises(OffsetOutOfRange, match="the log begins at 0 and ends at 60") as caught:
        partition.read(61)
    assert caught.value.log_range == LogRange(0, 60)
    (directory.parent / "log-start-offset-checkpoint").write_text("0\n1\norders 3 15\n")
    with pytest.raises(OffsetOutOfRange, match="the log begins at 15 and ends at 60"):
        partition.read(14)
    assert partition.range() == LogRange(15, 60)


def test_readers_keep_their_view_while_segments_are_added_and_deleted(directory: Path) -> None:
    partition = Partition(directory)
    view = partition.segments
    with LogAppender(directory, SMALL) as log:
        for number in range(60, 75):
            log.append([record(number)])
    (directory / "00000000000000000000.log").unlink()

    assert partition.segments == view
    with pytest.raises(FileFailure, match=r"00000000000000000000.log: No such file"):
        partition.read(5)
    partition.refresh()
    assert [segment.base_offset for segment in partition.segments] == bases(directory) == [10, 20, 30, 40, 50, 60, 70]
    assert [segment.base_offset for segment in view] == [0, 10, 20, 30, 40, 50]


def test_a_damaged_entry_does_not_count_as_a_gap(directory: Path) -> None:
    log = directory / "00000000000000000020.log"
    data = bytearray(log.read_bytes())
    data[300] ^= 1
    log.write_bytes(data)

    with pytest.raises(CorruptData, match=r"00000000000000000020.log, position 273: the entry at offset 23 is damaged"):
        Partition(directory).read(23)


# --- unfinished work of a broker -----------------------------------------------------------------


def swap(directory: Path, base: int, offsets: list[int], last: int, suffix: str = ".swap") -> None:
    data = batch([Record(offset, T, b"k", b"cleaned") for offset in offsets], base_offset=base, last_offset=last)
    (directory / f"{base:020}.log{suffix}").write_bytes(data)


def test_a_segment_that_compaction_finished_replaces_its_originals(directory: Path) -> None:
    swap(directory, 10, [12, 27], 29)

    assert read_all(Partition(directory), 0) == [*range(10), 12, 27, *range(30, 60)]
    assert Partition(directory).segments[1].log.name == "00000000000000000010.log.swap"


def test_segments_that_compaction_did_not_finish_are_ignored(directory: Path) -> None:
    swap(directory, 0, [3], 19, ".cleaned")
    swap(directory, 20, [22], 39)
    (directory / "00000000000000000040.log").rename(directory / "00000000000000000040.log.deleted")

    assert read_all(Partition(directory), 0) == [*range(40), *range(50, 60)]


def test_swap_files_before_an_unfinished_segment_are_valid(directory: Path) -> None:
    """A broker renames segments from the last to the first, so swap files before an unfinished one are older."""
    swap(directory, 0, [3], 9)
    swap(directory, 20, [22], 39, ".cleaned")

    assert read_all(Partition(directory), 0) == [3, *range(10, 60)]


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("orders", CorruptData, "its name is not that of a partition's directory"),
        ("orders-0.0123456789abcdef0123456789abcdef-delete", UnsupportedOperation, "the partition is deleted"),
        ("orders-0.0123456789abcdef0123456789abcdef-future", UnsupportedOperation, "still being copied to"),
        ("orders-0.0123456789abcdef0123456789abcdef-stray", UnsupportedOperation, "unknown to its cluster"),
        ("orders_0", UnsupportedOperation, "its name is TOPIC_N: a log of Kafka 0.7"),
    ],
)
def test_other_directories_are_rejected_by_name(tmp_path: Path, name: str, error: type[Exception], why: str) -> None:
    (tmp_path / name).mkdir()

    with pytest.raises(error, match=why):
        Partition(tmp_path / name)


# --- times and deletion ---------------------------------------------------------------------------


def test_offsets_are_found_by_time_in_any_order_of_the_times(tmp_path: Path) -> None:
    """Compares the result with a linear search through all messages."""
    chance = random.Random(5)
    times = [T + chance.randrange(1000) for _ in range(80)]
    with LogAppender(tmp_path / "orders-0", SMALL) as log:
        for at in range(0, 80, 2):
            log.append([Record(0, time, b"k", b"v" * 30) for time in times[at : at + 2]])
    segments = Partition(tmp_path / "orders-0").segments

    for time in [T - 1, *range(T, T + 1001, 20)]:
        behind = [(offset, at) for offset, at in enumerate(times) if at >= time]
        assert at_or_after(segments, time) == (behind[0] if behind else None)


def test_messages_without_times_are_not_found_by_time(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "orders-0", RollPolicy(segment_bytes=200)) as log:
        for _ in range(10):
            log.append([Record(0, None, b"k", b"v" * 20)], magic=0)
    assert at_or_after(Partition(tmp_path / "orders-0").segments, T) is None


def test_deletion_is_reported_and_nothing_is_deleted(directory: Path) -> None:
    """The newest messages of the segments have the times T + 9, 19, ... 59. Each segment has 910 bytes."""
    segments = Partition(directory).segments
    files = sorted(file.name for file in directory.iterdir())

    by_age = list(report(segments, OlderThan(1000), T + 1025))
    assert [finding.segment.base_offset for finding in by_age] == [0, 10, 20, 30, 40, 50]
    reasons = [f"its newest message is {age} ms old" for age in ("1,016", "1,006")]
    assert [finding.reason for finding in by_age] == [*reasons, None, None, None, None]
    by_size = list(report(segments, LargerThan(2000), T))
    assert [finding.reason is not None for finding in by_size] == [True, True, True, False, False, False]
    assert by_size[2].reason == "2,730 bytes follow it"
    either = list(report(segments, AnyOf((OlderThan(1000), LargerThan(2000))), T + 1025))
    assert [finding.reason is not None for finding in either] == [True, True, True, False, False, False]
    assert all(finding.reason for finding in report(segments, OlderThan(0), T + 1025))
    assert sorted(file.name for file in directory.iterdir()) == files


def test_a_custom_policy_leaves_no_gap_between_segments(directory: Path) -> None:
    class Even:
        def reason(self, candidate: object, now: int) -> str | None:
            return "even" if candidate.segment.base_offset % 20 == 0 else None  # type: ignore[attr-defined]

    findings = list(report(Partition(directory).segments, Even(), T))

    assert [finding.reason for finding in findings] == ["even", None, None, None, None, None]
