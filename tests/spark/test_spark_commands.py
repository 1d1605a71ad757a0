"""``offsetmgr spark`` with an unreachable server: an error of one line, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetmgr.cli.app import run


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "--bootstrap-server", "{dead_server}", "-o", "{directory}"],
        ["copy", "--from", "kafka://{dead_server}", "--to", "kafka://{dead_server}", "--all-groups"],
        ["diff", "--from", "zookeeper://{dead_server}", "--to", "kafka://{dead_server}", "--group", "g"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_dead_server_is_reported_in_one_line_and_spark_is_not_started(
    arguments: list[str], dead_server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "audit"
    given = [part.format(dead_server=dead_server, directory=directory) for part in arguments]

    assert run(["spark", *given, "--timeout", "500"]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2  # a JVM that starts Spark would print more
    assert lines[0].startswith("error: ") and dead_server in lines[0] and "Connection refused" in lines[0]
    assert lines[1].startswith("hint: ")
    assert not directory.exists()
