"""The everyday commands against a dead server, a silent one and the wrong kind of server, and with an unknown group."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from everyday import Cli
from same_cluster import join_cluster

from offsetmgr.sandbox import KafkaBroker

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
OVERHEAD_S = 20.0
"""Time above the timeout, by the command's own clock. The default of the timeout is longer, so a command that ignores
``--timeout`` fails."""
LONG_TIMEOUT_MS = 60_000
"""Timeout for commands against servers that work but may be busy."""


@pytest.fixture(params=["refuses", "is silent"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a port that refuses connections, or accepts them and sends nothing."""
    with socket.socket() as found:  # bound in both cases, so that the port stays reserved
        found.bind(("127.0.0.1", 0))
        if request.param == "is silent":
            found.listen(64)
        yield f"127.0.0.1:{found.getsockname()[1]}"


def check_fault(cli: Cli, arguments: list[str], tmp_path: Path, timeout_ms: int = TIMEOUT_MS) -> str:
    """Checks one error line, exit code 1, the duration, an empty stdout and that no file is left. Returns the line."""
    arguments = [str(tmp_path / a) if a == "x.avro" else a for a in arguments]
    done, took = cli.timed(*arguments, "--timeout", str(timeout_ms), code=1)
    assert took < timeout_ms / 1000 + OVERHEAD_S
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("reading:")]
    assert [re.split("[: ]", line)[0] for line in lines] in (["error"], ["error", "hint"]), done.stderr
    assert "internal" not in lines[0]
    assert not (tmp_path / "x.avro").exists()
    assert list(tmp_path.glob("state/offsetmgr/before-images/*")) == []
    return lines[0]


@pytest.mark.parametrize("arguments", READS_AND_EDITS, ids=lambda a: "-".join(a[:2]))
@pytest.mark.parametrize("kind", ["kafka", "zookeeper"])
def test_a_dead_or_silent_server_is_one_error_line_within_the_timeout(kind, arguments, address, cli, tmp_path) -> None:
    flags = ["--bootstrap-server", address] + (["--zookeeper", address] if kind == "zookeeper" else [])
    assert address in check_fault(cli, [*arguments, *flags], tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [a for a in READS_AND_EDITS if "--all-groups" not in a and a[1] != "list"],
    ids=lambda a: "-".join(a[:2]),
)
@pytest.mark.parametrize("kind", ["kafka", "zookeeper"])
def test_an_unknown_group_is_one_error_line(kind: str, arguments, cli, topic, tmp_path, kafka, zookeeper) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    if kind == "zookeeper":
        join_cluster(zookeeper.connect, kafka.bootstrap)
        flags += ["--zookeeper", zookeeper.connect]
    unknown = f"{topic}-unknown"
    named = [unknown if a == "g" else topic if a == "t" else f"{topic}:0" if a == "t:0" else a for a in arguments]
    line = check_fault(cli, [*named, *flags], tmp_path, LONG_TIMEOUT_MS)
    assert f"group '{unknown}'" in line


def test_the_wrong_kind_of_server_is_one_error_line(cli, kafka, zookeeper, tmp_path) -> None:
    assert kafka.bootstrap in check_fault(cli, ["groups", "list", "--zookeeper", kafka.bootstrap], tmp_path)
    line = check_fault(cli, ["groups", "list", "--bootstrap-server", zookeeper.connect], tmp_path)
    assert zookeeper.connect in line


def test_a_port_without_sasl_is_reported_with_a_hint(cli: Cli, kafka: KafkaBroker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";\n'
    )
    here = ["--bootstrap-server", kafka.bootstrap, "--command-config", str(config)]
    failed = cli("offsets", "get", "--group", "g", *here, code=1)
    assert failed.stderr.splitlines()[-1] == "hint: this port accepts no SASL logins: use the port of a SASL listener"
