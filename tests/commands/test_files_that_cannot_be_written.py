"""Plans, journals and snapshots that cannot be written or read: an error of one line, no change, and a hint."""

import errno
import os
from pathlib import Path

import pytest
from in_process import command

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore

UNWRITABLE = "hint: name another file, in a directory that can be written"


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of a migration from here.avro to there.avro. The working directory has both."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("here.avro", "there.avro"):
        with SnapshotStore(tmp_path / name) as store:
            store.commit(name, {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    return ["--from", "file:here.avro", "--to", "file:there.avro", "--all-groups"]


def test_an_unwritable_plan_or_snapshot_gets_a_hint(stores: list[str]) -> None:
    command("migrate", "plan", *stores, "-o", "plan.json")
    command("migrate", "apply", "plan.json", "--yes")
    below = "here.avro/plan.json"
    for words in (
        ("migrate", "plan", *stores, "-o", below),
        ("migrate", "rollback", "plan.json", "--reverse-plan", below),
    ):
        why = f"error: plan {below}: {os.strerror(errno.ENOTDIR)}"
        assert command(*words, code=1).stderr.splitlines()[-2:] == [why, UNWRITABLE]
    snapshot = command("offsets", "export", "here.avro/x.avro", "--all-groups", "--store", "file:here.avro", code=1)
    assert snapshot.stderr.splitlines()[-1] == UNWRITABLE


def test_an_unwritable_journal_gets_a_hint_to_copy_its_plan(stores: list[str]) -> None:
    command("migrate", "plan", *stores, "-o", "plan.json")
    Path("plan.journal").symlink_to("no directory/plan.journal")
    error, hint = command("migrate", "apply", "plan.json", "--yes", code=1).stderr.splitlines()[-2:]
    assert "plan.journal" in error
    assert os.strerror(errno.ENOENT) in error
    assert hint.startswith("hint: the journal is in its plan's directory: copy the plan ")


COMMANDS = ("apply --yes", "status", "finalize --yes", "rollback --yes", "verify")


def errors(*commands: str) -> set[str]:
    """The errors of commands of plan.json. Each fails with one line, at most one hint, and without output."""
    found = set()
    for words in commands:
        done = command("migrate", *words.split(), "plan.json", code=1)
        error, *hint = done.stderr.splitlines()
        assert (done.stdout, [line[:6] for line in hint]) in (("", []), ("", ["hint: "])), done
        found.add(error)
    return found


CHANGED = "its hash does not match: the file was edited or truncated"


@pytest.mark.usefixtures("stores")
def test_a_damaged_plan_is_one_error_line(stores: list[str]) -> None:
    plan = Path("plan.json")
    command("migrate", "plan", *stores, "-o", plan)
    text = plan.read_text()
    assert "never overwritten" in command("migrate", "plan", *stores, "-o", plan, code=1).stderr
    damaged = {
        text[: len(text) // 2]: CHANGED,
        "".join(text.splitlines(keepends=True)[:-1]): CHANGED,
        text.replace('"after":5', '"after":6', 1): CHANGED,
        f"{text}x": CHANGED,
        "": "the file is empty",
        '{"hello": "world"}\n': "this is not a plan of offsetmgr",
        bytes(range(128)).decode() * 20: "this is not a plan of offsetmgr",
    }
    for found, why in damaged.items():
        assert found != text
        plan.write_text(found)
        (error,) = errors(*COMMANDS)
        assert error.startswith(f"error: plan plan.json: {why}")
    plan.write_bytes(bytes(range(256)) * 20)
    assert "this is not a plan of offsetmgr" in errors(*COMMANDS).pop()
    plan.unlink()
    assert errors(*COMMANDS) == {f"error: plan plan.json: {os.strerror(errno.ENOENT)}"}
    plan.mkdir()
    assert errors(*COMMANDS) == {f"error: plan plan.json: {os.strerror(errno.EISDIR)}"}


def test_a_damaged_journal_or_one_of_another_plan_is_one_error_line(stores: list[str]) -> None:
    journal = Path("plan.journal")
    for name in ("foreign.json", "plan.json"):
        command("migrate", "plan", *stores, "-o", name)
        command("migrate", "apply", name, "--yes")
    lines = journal.read_bytes().splitlines(keepends=True)
    for data, why in (
        (b"".join(lines).replace(b"apply-open", b"apply-oqen", 1), f"damaged at byte {len(lines[0])}, before its end"),
        (b"".join([lines[0], *lines[2:]]), "record 1 is missing"),
        (Path("foreign.journal").read_bytes(), "it belongs to another plan of the same name"),
    ):
        journal.write_bytes(data)
        (error,) = errors(*COMMANDS[:-1])  # `verify` does not read the journal
        assert error.startswith(f"error: journal plan.journal: {why}")
