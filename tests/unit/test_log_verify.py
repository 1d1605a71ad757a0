"""``log verify``: its reports and its exit codes."""

from __future__ import annotations

from damaged_log import NEWEST, SOUND, tree

pytest_plugins = ["damaged_log_fixtures"]


def test_verify_reports_the_sound_part_and_the_recovery_of_a_broker(log_dir, offsetmgr) -> None:
    before = tree(log_dir)

    done = offsetmgr("log", "verify", log_dir, "--format", "json")

    assert done.code == 1
    first, second = done.rows
    assert {name: first[name] for name in ("partition", "base_offset", "entries", "next_offset", "state", "why")} == {
        "partition": "orders-0",
        "base_offset": 0,
        "entries": 40,
        "next_offset": 40,
        "state": "sound",
        "why": None,
    }
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
    assert done.err == "2 segments, 1 not sound\n"
    assert tree(log_dir) == before


def test_verify_exits_with_0_if_all_is_sound_and_can_omit_sound_segments(log_dir, log, offsetmgr) -> None:
    log.write_bytes(SOUND)

    done = offsetmgr("log", "verify", log_dir / "orders-0", "--only-damaged", "--format", "json")

    assert (done.code, done.rows, done.err) == (0, [], "2 segments, 0 not sound\n")


def test_verify_of_one_file_finds_a_missing_tail(log, offsetmgr) -> None:
    log.write_bytes(SOUND[:-1])

    done = offsetmgr("log", "verify", log, "--format", "json")

    (row,) = done.rows
    assert (done.code, row["state"], row["next_offset"]) == (1, "missing tail", 44)


def test_offsets_in_doubt_are_a_difference(log, offsetmgr) -> None:
    log.write_bytes(SOUND + SOUND)

    done = offsetmgr("log", "verify", log, "--format", "json")

    (row,) = done.rows
    assert (done.code, row["state"], row["broker"], row["suspicious_entries"], row["sound"]) == (
        1,
        "in doubt",
        "kept",
        1,
        2 * len(SOUND),
    )
    assert row["why"] == f"position {len(SOUND)}: offset 40 comes after 44: one of the two entries was altered"


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
