"""``log verify``: its reports and its exit codes."""

import pytest
from damaged_log import NEWEST, SOUND, tree

SCOPE = "checked: segments, partition.metadata, leader-epoch-checkpoint; a broker reads other files when it starts\n"


def test_verify_reports_the_sound_part_and_the_recovery_of_a_broker(log_dir, offsetmgr) -> None:
    before = tree(log_dir)

    done = offsetmgr("log", "verify", log_dir, "--format", "json")

    assert done.code == 1
    first, second = done.rows
    assert (first["partition"], first["state"], first["why"]) == ("orders-0", "sound", None)
    assert (first["base_offset"], first["entries"], first["next_offset"]) == (0, 40, 40)
    assert second == {
        "path": str(log_dir / "orders-0" / f"{NEWEST}.log"),
        "partition": "orders-0",
        "base_offset": 40,
        "size": len(SOUND) + 1000,
        "entries": 5,
        "next_offset": 45,
        "state": "invalid entry",
        "sound": len(SOUND),
        "broker": "cut",
        "suspicious_entries": 0,
        "why": f"position {len(SOUND)}: an entry cannot have 0 bytes",
    }
    assert done.err == "2 segments, 1 not sound\n" + SCOPE
    assert tree(log_dir) == before


def test_verify_exits_with_0_if_all_is_sound_and_can_omit_sound_segments(log_dir, log, offsetmgr) -> None:
    log.write_bytes(SOUND)

    done = offsetmgr("log", "verify", log_dir / "orders-0", "--only-damaged", "--format", "json")

    assert (done.code, done.rows, done.err) == (0, [], "2 segments, 0 not sound\n" + SCOPE)


@pytest.mark.parametrize(
    ("content", "state", "broker", "next_offset", "why"),
    [
        (SOUND[:-1], "missing tail", "cut", 44, f"position {len(SOUND) // 5 * 4}: "),
        (SOUND + SOUND, "in doubt", "kept", 45,
         f"position {len(SOUND)}: offset 40 comes after 44: one of the two entries was altered"),
    ],
    ids=["missing tail", "in doubt"],
)  # fmt: skip
def test_verify_of_one_file(log, offsetmgr, content, state, broker, next_offset, why) -> None:
    log.write_bytes(content)

    done = offsetmgr("log", "verify", log, "--format", "json")

    (row,) = done.rows
    assert (done.code, row["state"], row["broker"], row["next_offset"]) == (1, state, broker, next_offset)
    assert row["suspicious_entries"] == (state == "in doubt")
    assert row["why"].startswith(why)
    assert done.err.endswith("checked: only the segments that are named, not the other files of their directories\n")


TOPIC_ID = "topic_id: 0KKp6cZKTl2Vt3pVTzDTfA\n"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("partition.metadata", "", "it is empty"),
        ("partition.metadata", "version: 0\n", "it has no line with the topic's id"),
        ("partition.metadata", f"version:0\n{TOPIC_ID}", "its lines are not version: 0 and topic_id: ID"),
        ("partition.metadata", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n", "its lines are not"),
        ("partition.metadata", "version: 0\ntopic_id: short\n", "its lines are not"),
        ("partition.metadata", "\0\0\0\0", "it has no line with the topic's id"),
        ("leader-epoch-checkpoint", "0\n2\n0 0\n", "its header announces 2 lines, but it has 1"),
        ("leader-epoch-checkpoint", "0\n1\n0\n", "a line does not have an epoch and an offset: '0'"),
        ("leader-epoch-checkpoint", "7\n1\n0 0\n", "version 7 of a checkpoint file is not known"),
        ("leader-epoch-checkpoint", "\0\0\0", "it is not a checkpoint file"),
        ("leader-epoch-checkpoint", b"\xff", "it is not a text file"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "recover"])
def test_a_file_with_which_a_broker_does_not_start_is_named(
    log_dir, log, offsetmgr, tmp_path, command, name, content, why
) -> None:
    log.write_bytes(SOUND)
    file = log_dir / "orders-0" / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())

    more = ("--to", tmp_path / "out") if command == "recover" else ()
    done = offsetmgr("log", command, log_dir, *more, "--format", "json")

    assert done.code == 1
    assert f"error: {file}: {why}" in done.err
    assert "a broker takes the log directory offline, or does not start\n" in done.err
    assert "hint: " in done.err
    column, expected = ("broker", "unknown") if command == "verify" else ("action", "refused")
    assert {row[column] for row in done.rows} == {expected}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("partition.metadata", f"version: 0\n{TOPIC_ID}"),
        ("partition.metadata", f"version: 1\n{TOPIC_ID}"),
        ("leader-epoch-checkpoint", ""),
        ("leader-epoch-checkpoint", "0\n"),
        ("leader-epoch-checkpoint", "0\n0\n"),
        ("leader-epoch-checkpoint", "0\n2\n0 0\n3 17\n"),
    ],
)
def test_a_file_that_a_broker_reads_is_no_error(log_dir, log, offsetmgr, name, content) -> None:
    log.write_bytes(SOUND)
    (log_dir / "orders-0" / name).write_text(content)
    assert offsetmgr("log", "verify", log_dir).code == 0


def test_a_path_that_is_no_log_is_rejected_by_name(tmp_path, log_dir, offsetmgr) -> None:
    (tmp_path / "empty").mkdir()
    old = tmp_path / "orders_0"
    old.mkdir()
    (old / "00000000000.kafka").write_bytes(b"")

    for path, code, words in (
        (tmp_path / "nowhere", 2, "does not exist"),
        (tmp_path / "empty", 2, "holds no log"),
        (log_dir / "meta.properties", 1, "name is not that of a log segment"),
        (old, 1, "Kafka 0.7"),
    ):
        done = offsetmgr("log", "verify", path)
        assert (done.code, words in done.err) == (code, True), done.err
