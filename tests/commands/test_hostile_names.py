"""Names with control characters reach a terminal only as escapes, also in messages and logs."""

import json
import logging
import re
import sys
from pathlib import Path

import pytest

from offsetmgr.cli.app import run
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.server.logs import PlainLines
from offsetmgr.stores.snapshot import SnapshotStore

NAME = "bad\x1b]0;pwned\x07\x1b[2Jx\u202e\u009bK\nerror: forged"
"""A group that sets a terminal's title, clears the terminal, reverses the text, and forges a line."""
T0, T1 = TopicPartition("t", 0), TopicPartition(f"t{NAME}", 0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store of the group `NAME`, a store in which it is ahead, and a plan between both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for file, offset in (("a.avro", 5), ("b.avro", 9)):
        with SnapshotStore(tmp_path / file) as store:
            store.commit(NAME, {T0: OffsetAndMetadata(offset, NAME), T1: OffsetAndMetadata(offset)})
    (tmp_path / "a.csv").write_text('"x\x1b[2J",t,0,5\n')
    assert run(["migrate", "plan", "--from", "file:a.avro", "--to", "file:b.avro", "--group", NAME, "--allow-rewind",
                "-o", "p.json"]) == 0  # fmt: skip
    return tmp_path


COMMANDS = [
    ("groups", "list"),
    ("groups", "describe", "--group", NAME),
    ("groups", "describe", "--group", f"{NAME}?"),
    ("groups", "copy", NAME, f"{NAME}2", "--execute", "--yes"),
    ("groups", "rename", NAME, f"{NAME}2", "--execute", "--yes"),
    ("groups", "delete", "--group", NAME, "--execute", "--yes"),
    ("offsets", "get", "--group", NAME),
    ("offsets", "get", "--group", NAME, "--topic", NAME),
    ("offsets", "set", "--group", NAME, "--topic", "t:0", "--to-offset", "7", "--reason", NAME, "--execute", "--yes"),
    ("offsets", "delete", "--group", NAME, "--all-topics", "--execute", "--yes"),
    ("offsets", "export", "out.csv", "--group", NAME),
    ("offsets", "export", f"out{NAME}.avro", "--group", NAME),
    ("offsets", "import", "b.avro", "--group", NAME, "--execute", "--yes"),
    ("offsets", "import", "a.csv"),
    ("offsets", "diff", "--from", "file:a.avro", "--to", "file:b.avro"),
    ("migrate", "plan", "--from", "file:a.avro", "--to", "file:b.avro", "--group", NAME, "-o", "refused.json"),
    ("migrate", "apply", "p.json", "--yes"),
    ("migrate", "verify", "p.json"),
    ("migrate", "status", "p.json"),
    ("migrate", "status", "p.json", "--format", "markdown"),
    ("migrate", "status", "p.json", "--format", "text"),
    ("migrate", "rollback", "p.json", "--yes"),
    ("edits", "list"),
    ("zk", "tree", NAME, "--zookeeper", NAME),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]))
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_no_command_prints_control_characters(command: tuple[str, ...], output: str, home, capsys, monkeypatch) -> None:
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    store = () if command[0] in ("migrate", "edits", "zk") or "--from" in command else ("--store", "file:a.avro")
    chosen = () if output == "table" or "--format" in command else ("--format", output)
    run([*command, *store, *chosen])
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert [line for line in text.split("\n") if not line.isprintable()] == []
        assert not re.search("^error: forged", text, re.MULTILINE)
    assert shown.out + shown.err


def test_programs_get_the_name_itself(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["groups", "list", "--store", f"file:{home}/a.avro", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"group": NAME}]
    assert run(["groups", "list", "--store", f"file:{home}/a.avro", "--format", "csv"]) == 0
    assert capsys.readouterr().out == f'group\n"{NAME}"\n'


def test_a_line_of_the_managers_log_has_no_control_characters() -> None:
    record = logging.makeLogRecord({"msg": "group %s", "args": (NAME,), "group": NAME})
    assert PlainLines().format(record).isprintable()
