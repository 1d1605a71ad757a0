"""``log offsets``: the choice between directories, the handling of damage, transactions, and expiration."""

import errno
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from crc32c import crc32c
from end_of_transaction import end_of_transaction
from savedlogs import ENDED, HOUR_MS, KAFKA, NOON, entry, group_of, read, write

from offsetmgr.manager.partitioner import shard_for
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import EncodedRecord, GroupValue
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record


def with_a_wrong_checksum(entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 1])


def test_all_partitions_of_a_log_dir_are_read_over_all_their_segments(tmp_path: Path) -> None:
    first, second = group_of(0, 2), group_of(1, 2)
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, first, 4)), (1, entry(1, first, 5)), (2, b""))
    write(tmp_path / "__consumer_offsets-1", (0, entry(0, second, 7)))
    write(tmp_path / "orders-0", (0, entry(0, "not an offset", 1)))
    write(tmp_path / "__consumer_offsets-2.0123456789abcdef0123456789abcdef-delete", (0, entry(0, "deleted", 1)))

    assert read(tmp_path)[0] == {first: 5, second: 7}
    assert read(tmp_path / "__consumer_offsets-1")[0] == {second: 7}


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
    log = entry(0, "a", 4) + with_a_wrong_checksum(entry(1, "a", 5)) + entry(2, "a", 6)
    write(tmp_path / "__consumer_offsets-0", (0, log))

    found, reported = read(tmp_path)

    assert found == {"a": 4}, "a broker's recovery stops there as well"
    assert "truncated as by a broker's recovery" in reported.notes[0]


@pytest.mark.parametrize("damage", ["checksum", "end"])
def test_damage_before_the_newest_segment_is_an_error_of_its_directory_alone(tmp_path: Path, damage: str) -> None:
    mine, other = group_of(0, 2), group_of(1, 2)
    bad = with_a_wrong_checksum(entry(0, mine, 4))
    broken = bad if damage == "checksum" else bad[:-9]
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


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_replica_that_goes_farthest_is_read_and_reported(tmp_path: Path, processes: str) -> None:
    write(tmp_path / "a" / "__consumer_offsets-0", (0, entry(0, "g", 4, epoch=1) + entry(1, "g", 5, epoch=1)))
    write(tmp_path / "b" / "__consumer_offsets-0", (0, entry(0, "g", 4, epoch=1) + entry(1, "g", 6, epoch=2)))
    write(tmp_path / "c" / "__consumer_offsets-0", (0, b"".join(entry(n, "g", n, epoch=1) for n in range(9))))

    directories = (tmp_path / name for name in "abc")
    found, reported = read(*directories, options=("--processes", processes))

    assert found == {"g": 6}, "the replica with the later leader epoch, although another one is longer"
    used, *others = (tmp_path / name / "__consumer_offsets-0" for name in "bca")
    assert reported.notes == [
        f"__consumer_offsets-0: the replica {used} (up to offset 2, leader epoch 2) is used, not "
        f"{others[0]} (up to offset 9, leader epoch 1), {others[1]} (up to offset 2, leader epoch 1)"
    ]


def test_a_replica_ends_with_its_last_sound_entry_in_any_segment(tmp_path: Path) -> None:
    bad = with_a_wrong_checksum(entry(4, "g", 14))
    log = b"".join(entry(n, "g", 10 + n) for n in range(4))
    longer = write(tmp_path / "a" / "__consumer_offsets-0", (0, log), (4, bad))
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


def test_a_directory_that_is_named_twice_is_no_replica_of_itself(tmp_path, monkeypatch) -> None:
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
    assert reported.errors == [
        "__consumer_offsets-0: offsets topic: 1 keys are of version 99, so offsets may be missing"
    ]


def test_if_the_best_replica_is_damaged_the_next_one_is_read_and_the_failure_is_reported(tmp_path: Path) -> None:
    bad = with_a_wrong_checksum(entry(0, "g", 4))
    write(tmp_path / "a" / "__consumer_offsets-0", (0, bad), (1, entry(1, "g", 5) + entry(2, "g", 6)))
    write(tmp_path / "b" / "__consumer_offsets-0", (0, entry(0, "g", 4) + entry(1, "g", 5)))

    found, reported = read(tmp_path / "a", tmp_path / "b")

    assert found == {"g": 5}
    assert len(reported.errors) == 1
    assert reported.notes[-1].startswith(
        f"__consumer_offsets-0: {tmp_path / 'b' / '__consumer_offsets-0'} is read instead"
    )


def test_a_group_in_two_partitions_is_read_from_the_partition_of_its_coordinator(tmp_path: Path) -> None:
    names = [name for n in range(1000) if shard_for(name := f"m{n}", 3) == 2 and shard_for(name, 2) == 0]
    moved, *left = names[:8]
    entries = [entry(0, moved, 4), *(entry(n, name, n) for n, name in enumerate(left, 1))]
    write(tmp_path / "__consumer_offsets-0", (0, b"".join(entries)))
    write(tmp_path / "__consumer_offsets-1", (0, b""))
    write(tmp_path / "__consumer_offsets-2", (0, entry(0, moved, 5)))

    found, reported = read(tmp_path)

    assert found == {moved: 5} | {name: n for n, name in enumerate(left, 1)}
    assert reported.notes == [
        "offsetmgr uses 7 groups from partitions that their coordinator does not read "
        f"(__consumer_offsets has 3 partitions): {', '.join(sorted(left)[:5])} and 2 more",
        "offsetmgr ignores older offsets of 1 group in other partitions, from before the number of partitions was "
        "raised",
    ]


def test_a_groups_old_partition_is_not_used_if_its_own_cannot_be_read(tmp_path: Path) -> None:
    moved = next(f"m{n}" for n in range(1000) if shard_for(f"m{n}", 2) == 1)
    bad = with_a_wrong_checksum(entry(0, moved, 5))
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, moved, 4)))
    write(tmp_path / "__consumer_offsets-1", (0, bad), (1, entry(1, moved, 6)))

    found, reported = read(tmp_path)

    assert found == {}
    assert [error.partition(":")[0] for error in reported.errors][1:] == [f"group {moved!r}"]


def test_a_marker_in_a_later_segment_ends_the_transaction(tmp_path: Path) -> None:
    end = end_of_transaction(2, ENDED, commit=True, timestamp=NOON)
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4) + entry(1, "g", 9, producer=ENDED)), (2, end))

    assert read(tmp_path)[0] == {"g": 9}


# --- expiration -------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def kafka_group(since: int, members: int = 0, subscribed: str = "", protocol_type: str = "consumer") -> EncodedRecord:
    """A record of the group g. Without ``subscribed`` the subscriptions of its members cannot be read."""
    subscription = struct.pack(">hi", 0, 1) + text(subscribed) + struct.pack(">i", -1) if subscribed else b""
    member = text("m") + struct.pack(">h", -1) + text("c") + text("h") + struct.pack(">iii", 1, 1, len(subscription))
    head = struct.pack(">h", 3) + text(protocol_type) + struct.pack(">ihhqi", 1, -1, -1, since, members)
    return KAFKA.encode_group_key("g"), head + (member + subscription + struct.pack(">i", 0)) * members


AVRO = AvroRecordFormat()
CONSUMING = kafka_group(NOON, 1, "orders")


@pytest.mark.parametrize(
    ("committed", "own_time", "group", "expires_at"),
    [
        pytest.param(NOON, None, None, NOON + HOUR_MS, id="never had members: from its commit"),
        pytest.param(NOON - HOUR_MS, None, kafka_group(NOON), NOON + HOUR_MS, id="empty: from the last member's end"),
        pytest.param(NOON, None, kafka_group(-1), NOON + HOUR_MS, id="empty since an unknown time: from its commit"),
        pytest.param(
            NOON, None, kafka_group(NOON + HOUR_MS, protocol_type=""), NOON + HOUR_MS, id="no consumer group"
        ),
        pytest.param(NOON, NOON + 5, kafka_group(NOON), NOON + 5, id="its own time"),
        pytest.param(NOON, None, kafka_group(NOON, 1, "others"), NOON + HOUR_MS, id="members of other topics"),
        pytest.param(NOON, None, CONSUMING, None, id="members that subscribe the topic"),
        pytest.param(NOON, NOON + 5, CONSUMING, None, id="members that subscribe the topic, and its own time"),
        pytest.param(NOON, None, kafka_group(NOON, 2), None, id="members with unknown subscriptions"),
        pytest.param(
            NOON, None, AVRO.encode_group("g", GroupValue(NOON + HOUR_MS)), NOON + 8 * HOUR_MS,
            id="in a manager's topic: six hours of grace after its last activity",
        ),
    ],
)  # fmt: skip
def test_an_offset_expires_as_on_a_broker(tmp_path, committed: int, own_time, group, expires_at: int | None) -> None:
    form = AVRO if group is not None and group[0].startswith(b"O") else KAFKA
    records = [*form.encode_commit("g", "orders", [(0, 4, -1, "")], committed, own_time), *([group] if group else [])]
    write(tmp_path / "__consumer_offsets-0", (0, batch([Record(n, NOON, *one) for n, one in enumerate(records)])))

    def expired(at_ms: int) -> bool:
        at = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        found, reported = read(tmp_path, options=("--expired-at", at, "--retention-minutes", "60"))
        assert reported.errors == []
        return found != {"g": 4}

    if expires_at is None:
        assert not expired(NOON + 1000 * HOUR_MS)
    else:
        assert (expired(expires_at - 1), expired(expires_at)) == (False, True)


def test_an_unreadable_group_record_prevents_the_expiration_of_the_groups_offsets(tmp_path: Path) -> None:
    of_group = batch([Record(1, NOON, b"\x00\x02\x00\x01g", b"\x00\x63")])
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "g", 4) + of_group + entry(2, "other", 5)))

    found, reported = read(tmp_path, options=("--expired-at", "2030-01-01T00:00:00"))

    assert found == {"g": 4}
    assert reported.errors[0].startswith("group 'g': whether its offsets have expired is unknown, so all are kept: ")
