"""The everyday commands before a dead server, one that never answers, the wrong kind of one, an unknown group."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from everyday import Cli

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytest_plugins = ["everyday_fixtures"]

pytestmark = pytest.mark.servers
READS_AND_EDITS = [
    ["groups", "list"],
    ["groups", "describe", "--group", "g"],
    ["groups", "delete", "--group", "g", "--execute", "--yes"],
    ["groups", "copy", "g", "h", "--execute", "--yes"],
    ["groups", "rename", "g", "h", "--execute", "--yes"],
    ["offsets", "get", "--group", "g"],
    ["offsets", "lag", "--all-groups"],
    ["offsets", "set", "--group", "g", "--topic", "t:0", "--to-offset", "1", "--execute", "--yes"],
    ["offsets", "reset", "--group", "g", "--topic", "t", "--to-latest", "--execute", "--yes"],
    ["offsets", "delete", "--group", "g", "--all-topics", "--execute", "--yes"],
    ["offsets", "export", "x.avro", "--group", "g"],
]
TIMEOUT_MS = 1500
START = 4.0
"""Seconds for a process to start on a busy machine, beside the time-out."""


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def check_fault(cli: Cli, arguments: list[str], tmp_path: Path, allowed: float) -> str:
    """One clear line, exit code 1, in time, nothing on stdout, no file left."""
    arguments = [str(tmp_path / a) if a == "x.avro" else a for a in arguments]
    started = time.monotonic()
    done = cli(*arguments, "--timeout", str(TIMEOUT_MS), code=1)
    assert time.monotonic() - started < allowed
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("reading:")]
    assert [re.split("[: ]", line)[0] for line in lines] in (["error"], ["error", "hint"]), done.stderr
    assert "internal" not in lines[0]
    assert not (tmp_path / "x.avro").exists()
    assert list(tmp_path.glob("state/offsetmgr/before-images/*")) == []
    return lines[0]


@pytest.mark.parametrize("arguments", READS_AND_EDITS, ids=lambda a: "-".join(a[:2]))
@pytest.mark.parametrize("kind", ["kafka", "zookeeper"])
def test_a_dead_server_is_one_line_within_the_time_out(
    kind: str, arguments: list[str], cli: Cli, tmp_path: Path
) -> None:
    with socket.socket() as held:  # bound and not listening: connections are refused, and nobody else takes the port
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        flags = ["--bootstrap-server", address] + (["--zookeeper", address] if kind == "zookeeper" else [])
        line = check_fault(cli, [*arguments, *flags], tmp_path, TIMEOUT_MS / 1000 + START)
    assert address in line


@pytest.mark.parametrize("arguments", READS_AND_EDITS, ids=lambda a: "-".join(a[:2]))
@pytest.mark.parametrize("kind", ["kafka", "zookeeper"])
def test_a_port_that_never_answers_is_one_line_within_the_time_out(
    kind: str, arguments: list[str], cli: Cli, tmp_path: Path, silent: str
) -> None:
    flags = ["--bootstrap-server", silent] + (["--zookeeper", silent] if kind == "zookeeper" else [])
    line = check_fault(cli, [*arguments, *flags], tmp_path, TIMEOUT_MS / 1000 + START)
    assert silent in line


@pytest.mark.parametrize(
    "arguments",
    [a for a in READS_AND_EDITS if "--all-groups" not in a and a[1] != "list"],
    ids=lambda a: "-".join(a[:2]),
)
@pytest.mark.parametrize("kind", ["kafka", "zookeeper"])
def test_an_unknown_group_is_one_line(
    kind: str,
    arguments: list[str],
    cli: Cli,
    topic: str,
    tmp_path: Path,
    kafka: KafkaBroker,
    zookeeper: ZooKeeperServer,
) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    flags += ["--zookeeper", zookeeper.connect] if kind == "zookeeper" else []
    unknown = f"{topic}-unknown"
    named = [unknown if a == "g" else topic if a == "t" else f"{topic}:0" if a == "t:0" else a for a in arguments]
    line = check_fault(cli, [*named, *flags], tmp_path, 10)
    assert f"group '{unknown}'" in line


def test_the_wrong_kind_of_server_is_one_line(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    allowed = TIMEOUT_MS / 1000 + START
    assert kafka.bootstrap in check_fault(cli, ["groups", "list", "--zookeeper", kafka.bootstrap], tmp_path, allowed)
    line = check_fault(cli, ["groups", "list", "--bootstrap-server", zookeeper.connect], tmp_path, allowed)
    assert zookeeper.connect in line
