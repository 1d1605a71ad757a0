"""Offsets from directories: the choice between directories, the handling of damage, and expiration."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c
from savedlogs import ENDED, HOUR_MS, NOON, ORDERS, RecordedEvents, entry, group_of, read, write

from offsetmgr.core.errors import FileFailure
from offsetmgr.groups.disk_layout import find_topic_directories
from offsetmgr.groups.disk_recovery import Expiry, saved_groups
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.segments.batch_builder import batch, end_of_transaction
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.committed_offsets import Activity, SavedOffset
from offsetmgr.segments.parallel import map_directories


def test_all_partitions_of_a_log_dir_are_read_over_all_their_segments(tmp_path: Path) -> None:
    first, second = group_of(0, 2), group_of(1, 2)
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, first, 4)), (1, entry(1, first, 5)), (2, b""))
    write(tmp_path / "__consumer_offsets-1", (0, entry(0, second, 7)))
    write(tmp_path / "orders-0", (0, entry(0, "not an offset", 1)))
    write(tmp_path / "__consumer_offsets-2.0123456789abcdef0123456789abcdef-delete", (0, entry(0, "deleted", 1)))

    assert read(tmp_path)[0] == {first: 5, second: 7}
    assert read(tmp_path / "__consumer_offsets-1")[0] == {second: 7}


def test_directories_are_read_in_several_processes_with_the_same_result(tmp_path: Path) -> None:
    names = [group_of(n, 3) for n in range(3)]
    for n, name in enumerate(names):
        write(tmp_path / f"__consumer_offsets-{n}", (0, entry(0, name, 10 + n)))
    directories = [tmp_path / f"__consumer_offsets-{n}" for n in range(3)]
    progress: list[int] = []

    found = list(map_directories(_size, [*directories, tmp_path / "gone"], 2, progress.append))

    assert [directory.name for directory, _ in found] == [*(directory.name for directory in directories), "gone"]
    assert [result for _, result in found[:3]] == [len(entry(0, names[0], 10))] * 3
    assert isinstance(found[3][1], FileFailure), "the missing directory fails alone"
    assert progress[-1] == 3 * len(entry(0, names[0], 10))


def _size(directory: Path, tick: Callable[[int], None]) -> int:
    try:
        size = sum(file.stat().st_size for file in directory.iterdir())
    except OSError as error:
        raise FileFailure(f"directory {directory}", str(error)) from error
    tick(size)
    return size


@pytest.mark.parametrize("junk", [b"\x00" * 40, b"\xff" * 7, b"ZZ" * 400], ids=["zeros", "a few bytes", "nonsense"])
def test_a_damaged_tail_of_the_newest_segment_is_ignored_and_reported(tmp_path: Path, junk: bytes) -> None:
    good = entry(1, "a", 5)
    directory = write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4)), (1, good + junk))

    found, reported = read(tmp_path)

    assert found == {"a": 5}
    assert reported.errors == []
    (note,) = reported.notes
    assert f"{directory / f'{1:020}.log'}: {len(junk)} bytes from position {len(good)} on are ignored" in note


def test_an_entry_with_a_wrong_checksum_is_cut_with_all_entries_after_it(tmp_path: Path) -> None:
    bad = bytearray(entry(1, "a", 5))
    bad[-1] ^= 1
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4) + bytes(bad) + entry(2, "a", 6)))

    found, reported = read(tmp_path)

    assert found == {"a": 4}, "a broker's recovery stops there as well"
    assert "truncated as by a broker's recovery" in reported.notes[0]


@pytest.mark.parametrize("damage", ["checksum", "end"])
def test_damage_before_the_newest_segment_is_an_error_of_its_directory_alone(tmp_path: Path, damage: str) -> None:
    mine, other = group_of(0, 2), group_of(1, 2)
    bad = bytearray(entry(0, mine, 4))
    bad[-1] ^= 1
    broken = bytes(bad) if damage == "checksum" else bytes(bad[:-9])
    write(tmp_path / "__consumer_offsets-0", (0, broken), (1, entry(1, mine, 5)))
    write(tmp_path / "__consumer_offsets-1", (0, entry(0, other, 7)))

    found, reported = read(tmp_path)

    assert found == {other: 7}
    (error,) = reported.errors
    assert error.startswith(f"file {tmp_path / '__consumer_offsets-0' / f'{0:020}.log'}, position 0: ")


def test_an_intact_entry_that_cannot_be_read_is_never_cut(tmp_path: Path) -> None:
    whole = bytearray(entry(0, "a", 4))
    whole[61] = 0x7F  # the size of its first record
    struct.pack_into(">I", whole, 17, crc32c(bytes(whole[21:])))
    write(tmp_path / "__consumer_offsets-0", (0, bytes(whole)))

    found, reported = read(tmp_path)

    assert (found, reported.notes) == ({}, [])
    assert "batch at offset 0" in reported.errors[0]


def test_the_replica_that_goes_farthest_is_read_and_reported(tmp_path: Path) -> None:
    write(tmp_path / "a" / "__consumer_offsets-0", (0, entry(0, "g", 4, epoch=1) + entry(1, "g", 5, epoch=1)))
    write(tmp_path / "b" / "__consumer_offsets-0", (0, entry(0, "g", 4, epoch=1) + entry(1, "g", 6, epoch=2)))
    write(tmp_path / "c" / "__consumer_offsets-0", (0, b"".join(entry(n, "g", n, epoch=1) for n in range(9))))

    found, reported = read(tmp_path / "a", tmp_path / "b", tmp_path / "c")

    assert found == {"g": 6}, "the replica with the later leader epoch, although another one is longer"
    used, *others = (tmp_path / name / "__consumer_offsets-0" for name in "bca")
    assert reported.notes == [
        f"__consumer_offsets-0: the replica {used} (up to offset 2, leader epoch 2) is used, not "
        f"{others[0]} (up to offset 9, leader epoch 1), {others[1]} (up to offset 2, leader epoch 1)"
    ]


def test_a_replica_ends_with_its_last_sound_entry_in_any_segment(tmp_path: Path) -> None:
    bad = bytearray(entry(4, "g", 14))
    bad[-1] ^= 1
    log = b"".join(entry(n, "g", 10 + n) for n in range(4))
    longer = write(tmp_path / "a" / "__consumer_offsets-0", (0, log), (4, bytes(bad)))
    shorter = write(tmp_path / "b" / "__consumer_offsets-0", (0, entry(0, "g", 10)))

    found, reported = read(tmp_path / "a", tmp_path / "b")

    assert found == {"g": 13}
    used = f"the replica {longer} (up to offset 4, leader epoch 0) is used, not {shorter} (up to offset 1, "
    assert used in reported.notes[0]


def test_a_replica_with_an_unknown_end_is_an_error_although_another_one_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a" / "__consumer_offsets-0", (0, entry(0, "g", 4)))
    unknown = tmp_path / "b" / "__consumer_offsets-0"
    (unknown / f"{0:020}.log").mkdir(parents=True)
    (unknown / f"{0:020}.log" / "x").touch()

    found, reported = read(tmp_path / "a", tmp_path / "b")

    assert found == {"g": 4}
    (error,) = reported.errors
    why = f"the end of the log in {unknown} is unknown; the result may lack the latest commits: "
    assert error.startswith(f"__consumer_offsets-0: {why}")
    assert error.endswith("Is a directory")


def test_a_directory_that_is_named_twice_is_no_replica_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4)))
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)

    found, reported = read(tmp_path, Path(), tmp_path / "elsewhere", directory)

    assert (found, reported.notes, reported.errors) == ({"g": 4}, [], [])


def test_the_name_of_a_link_determines_the_partition_of_a_directory(tmp_path: Path) -> None:
    write(tmp_path / "disk2" / "moved", (0, entry(0, "g", 4)))
    (tmp_path / "disk1").mkdir()
    (tmp_path / "disk1" / "__consumer_offsets-0").symlink_to(tmp_path / "disk2" / "moved")

    assert read(tmp_path / "disk1")[0] == {"g": 4}


@pytest.mark.parametrize(
    ("there", "missing"), [((1, 5), "0, 2-4"), ((0, 1, 9_999_999_999), "2-9999999998")], ids=["some", "most"]
)
def test_partitions_without_a_directory_are_an_error(tmp_path: Path, there: tuple[int, ...], missing: str) -> None:
    for number in there:
        write(tmp_path / f"__consumer_offsets-{number}", (0, entry(0, f"g{number}", 4)))

    found, reported = read(tmp_path)

    assert len(found) == len(there)
    why = f"there is no directory of its partitions {missing}: their groups are missing"
    assert reported.errors == [f"topic __consumer_offsets: {why}"]


def test_the_other_partitions_are_reported_without_an_error_if_one_is_named(tmp_path: Path) -> None:
    directory = write(tmp_path / "__consumer_offsets-2", (0, entry(0, "g", 4)))

    found, reported = read(directory)

    assert (found, reported.errors) == ({"g": 4}, [])
    assert reported.notes == [
        "__consumer_offsets: partitions 0-1 are not among the given directories, so their groups are missing"
    ]


def test_a_log_dir_without_any_partition_is_an_error_with_others(tmp_path: Path) -> None:
    write(tmp_path / "a" / "__consumer_offsets-0", (0, entry(0, "g", 4)))
    (tmp_path / "b").mkdir()

    found, reported = read(tmp_path / "a", tmp_path / "b")

    assert (found, reported.errors) == ({"g": 4}, [f"directory {tmp_path / 'b'}: holds no partition of any topic"])


@pytest.mark.parametrize("content", [b"\xff\xfe", b"7\n0\n", b"nonsense"], ids=["no text", "version", "nonsense"])
def test_a_damaged_checkpoint_hides_no_offset_and_is_reported_once(tmp_path: Path, content: bytes) -> None:
    for number in range(2):
        write(tmp_path / f"__consumer_offsets-{number}", (0, entry(0, group_of(number, 2), number)))
    (tmp_path / "log-start-offset-checkpoint").write_bytes(content)

    found, reported = read(tmp_path)

    assert found == {group_of(0, 2): 0, group_of(1, 2): 1}
    assert (reported.errors, len(reported.notes)) == ([], 1)
    assert reported.notes[0].startswith(str(tmp_path / "log-start-offset-checkpoint"))
    assert reported.notes[0].endswith("assuming that each log begins with its first segment, as brokers do")


def test_an_unreadable_directory_of_another_topic_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4)))
    write(tmp_path / "orders-0", (0, entry(0, "g", 4)))
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "orders-0":
            raise OSError(errno.EIO, "Input/output error")  # a bad sector; file permissions do not stop root
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)

    assert read(tmp_path)[0] == {"g": 4}


def test_keys_of_unknown_versions_are_named_and_left_out(tmp_path: Path) -> None:
    new = batch([Record(1, NOON, b"\x00\x63\x00\x01g", b"\x00\x00")])
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4) + new))

    found, reported = read(tmp_path)

    assert found == {"g": 4}
    assert [str(error) for error in reported.errors] == [
        "__consumer_offsets-0: offsets topic: 1 keys are of version 99, so offsets may be missing"
    ]


def test_if_the_best_replica_is_damaged_the_next_one_is_read_and_the_failure_is_reported(tmp_path: Path) -> None:
    bad = bytearray(entry(0, "g", 4))
    bad[-1] ^= 1
    write(tmp_path / "a" / "__consumer_offsets-0", (0, bytes(bad)), (1, entry(1, "g", 5) + entry(2, "g", 6)))
    write(tmp_path / "b" / "__consumer_offsets-0", (0, entry(0, "g", 4) + entry(1, "g", 5)))

    found, reported = read(tmp_path / "a", tmp_path / "b")

    assert found == {"g": 5}
    assert len(reported.errors) == 1
    assert reported.notes[-1].startswith(
        f"__consumer_offsets-0: {tmp_path / 'b' / '__consumer_offsets-0'} is read instead"
    )


def test_a_group_in_two_partitions_is_read_from_the_partition_of_its_coordinator(tmp_path: Path) -> None:
    moved = next(f"m{n}" for n in range(1000) if shard_for(f"m{n}", 3) == 2 and shard_for(f"m{n}", 2) == 0)
    left = next(f"l{n}" for n in range(1000) if shard_for(f"l{n}", 3) == 2 and shard_for(f"l{n}", 2) == 0)
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, moved, 4) + entry(1, left, 8)))
    write(tmp_path / "__consumer_offsets-1", (0, b""))
    write(tmp_path / "__consumer_offsets-2", (0, entry(0, moved, 5)))

    found, reported = read(tmp_path)

    assert found == {moved: 5, left: 8}
    assert reported.notes == [
        "offsetmgr uses 1 group from partitions that their coordinator does not read "
        "(__consumer_offsets has 3 partitions): "
        f"{left}",
        "offsetmgr ignores older offsets of 1 group in other partitions, from before the number of partitions was "
        "raised",
    ]


def test_groups_that_are_only_in_other_partitions_than_their_coordinators_are_returned_and_reported(
    tmp_path: Path,
) -> None:
    misplaced = [f"m{n}" for n in range(1000) if shard_for(f"m{n}", 2) == 1][:7]
    write(tmp_path / "__consumer_offsets-0", (0, b"".join(entry(n, name, n) for n, name in enumerate(misplaced))))
    write(tmp_path / "__consumer_offsets-1", (0, b""))

    found, reported = read(tmp_path)

    assert found == {name: n for n, name in enumerate(misplaced)}
    assert reported.notes == [
        "offsetmgr uses 7 groups from partitions that their coordinator does not read "
        "(__consumer_offsets has 2 partitions): "
        f"{', '.join(sorted(misplaced)[:5])} and 2 more"
    ]


def test_a_groups_old_partition_is_not_used_if_its_own_cannot_be_read(tmp_path: Path) -> None:
    moved = next(f"m{n}" for n in range(1000) if shard_for(f"m{n}", 2) == 1)
    bad = bytearray(entry(0, moved, 5))
    bad[-1] ^= 1
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, moved, 4)))
    write(tmp_path / "__consumer_offsets-1", (0, bytes(bad)), (1, entry(1, moved, 6)))

    found, reported = read(tmp_path)

    assert found == {}
    assert [error.partition(":")[0] for error in reported.errors][1:] == [f"group {moved!r}"]


def transaction_state(status: int) -> bytes:
    value = struct.pack(">hqhib", 0, ENDED.id, 0, 60_000, status) + struct.pack(">ih", 1, 18) + b"__consumer_offsets"
    value += struct.pack(">ii", 1, 0) + struct.pack(">qq", NOON, NOON)
    return batch([Record(0, NOON, b"\x00\x00\x00\x01t", value)])


@pytest.mark.parametrize(("status", "expected"), [(1, 4), (2, 9), (3, 4)], ids=["ongoing", "commit", "abort"])
def test_a_transaction_without_its_marker_has_the_outcome_that_its_coordinator_decided(
    tmp_path: Path, status: int, expected: int
) -> None:
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4) + entry(1, "g", 9, producer=ENDED)))
    write(tmp_path / "__transaction_state-0", (0, transaction_state(status)))

    found, reported = read(tmp_path)

    assert found == {"g": expected}
    open_ones = "offsetmgr leaves out 1 offset of 1 open transaction: whether they were committed is not known"
    decided = "offsetmgr takes the outcome of 1 transaction from __transaction_state"
    assert reported.notes == [f"__consumer_offsets-0: {open_ones if status == 1 else decided}"]


def test_a_marker_in_a_later_segment_ends_the_transaction(tmp_path: Path) -> None:
    end = end_of_transaction(2, ENDED, commit=True, timestamp=NOON)
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4) + entry(1, "g", 9, producer=ENDED)), (2, end))

    assert read(tmp_path)[0] == {"g": 9}


def saved(*, committed: int = NOON, expires: int | None = None) -> SavedOffset:
    return SavedOffset(4, "", None, committed, expires, 0)


EMPTY_SINCE_NOON = Activity("kafka", 0, NOON, "consumer", frozenset())
CONSUMING = Activity("kafka", 1, NOON, "consumer", frozenset({"orders"}))


@pytest.mark.parametrize(
    ("offset", "activity", "expires_at"),
    [
        (saved(), None, NOON + HOUR_MS),
        (saved(committed=NOON - HOUR_MS), EMPTY_SINCE_NOON, NOON + HOUR_MS),
        (saved(), Activity("kafka", 0, None, "consumer", frozenset()), NOON + HOUR_MS),
        (saved(), Activity("kafka", 0, NOON + HOUR_MS, "", None), NOON + HOUR_MS),
        (saved(expires=NOON + 5), EMPTY_SINCE_NOON, NOON + 5),
        (saved(), CONSUMING._replace(subscribed=frozenset({"others"})), NOON + HOUR_MS),
        (saved(), CONSUMING, None),
        (saved(expires=NOON + 5), CONSUMING, None),
        (saved(), Activity("kafka", 2), None),
        (saved(), Activity("avro", 0, NOON + HOUR_MS), NOON + 8 * HOUR_MS),
    ],
    ids=[
        "never had members: from its commit",
        "empty: from the time at which the last member left",
        "empty since an unknown time: from its commit",
        "not a consumer group: from its commit",
        "its own time",
        "members that do not subscribe the topic: from its commit",
        "members that do",
        "members that do, and its own time",
        "members with unknown subscriptions",
        "in offsetmgr's own topic: six hours of grace after its last activity",
    ],
)
def test_an_offset_expires_as_on_a_broker(
    offset: SavedOffset, activity: Activity | None, expires_at: int | None
) -> None:
    def expired(at: int) -> bool:
        return Expiry(at, HOUR_MS).has_expired(ORDERS, offset, activity)

    if expires_at is None:
        assert not expired(NOON + 1000 * HOUR_MS)
    else:
        assert (expired(expires_at - 1), expired(expires_at)) == (False, True)


def test_an_unreadable_group_record_prevents_the_expiration_of_the_groups_offsets(tmp_path: Path) -> None:
    of_group = batch([Record(1, NOON, b"\x00\x02\x00\x01g", b"\x00\x63")])
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4) + of_group + entry(2, "other", 5)))
    reported = RecordedEvents()

    found = saved_groups(find_topic_directories([tmp_path]), reported, expiry=Expiry(NOON + 1000 * HOUR_MS, HOUR_MS))

    assert {group.group: group.offsets[ORDERS].offset for group in found} == {"g": 4}
    (error,) = reported.errors
    assert error.startswith("group 'g': whether its offsets have expired is unknown, so all are kept: ")
