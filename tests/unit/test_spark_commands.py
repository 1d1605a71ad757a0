"""``offsetmgr spark`` where there is nothing to work on: told in a line, before any Spark is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetmgr.cli import spark as commands
from offsetmgr.cli.app import run


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and which nobody else can take meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "--bootstrap-server", "{nobody}", "-o", "{directory}"],
        ["copy", "--from", "kafka://{nobody}", "--to", "kafka://{nobody}", "--all-groups"],
        ["diff", "--from", "zookeeper://{nobody}", "--to", "kafka://{nobody}", "--group", "g"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_dead_server_is_reported_in_a_line_and_no_spark_is_started_for_it(
    arguments: list[str],
    nobody: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "_spark", lambda *_: pytest.fail("Spark was started"))
    directory = tmp_path / "audit"
    given = [part.format(nobody=nobody, directory=directory) for part in arguments]

    assert run(["spark", *given, "--timeout", "500"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith("error: ") and nobody in said[0] and "Connection refused" in said[0]
    assert said[1].startswith("hint: ")
    assert not directory.exists()
