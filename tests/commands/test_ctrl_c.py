"""Ctrl-C in every command that connects to a server, while the server does not respond."""

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import process_state, wait_for
from test_help import commands as all_commands
from test_help import examples_of

from offsetmgr.core.log_origin import OriginComparison, Relation
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Guard
from offsetmgr.migration.plan import Action, GroupPlan, PlanHeader, PlanOptions, PlanStep, StoreEndpoint, write_plan

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

LIMIT_S = 60.0
"""The time in which a command ends after Ctrl-C, far below its timeout."""
CONNECT_LIMIT_S = 120.0
"""The time in which a command connects to the server."""

OTHER_ARGUMENTS = {
    "groups list": "--bootstrap-server k1:9092",
    "groups where": "billing --bootstrap-server k1:9092",
    "offsets import": "saved.csv --bootstrap-server k1:9092 --execute --yes",
    "offsets diff": "--from file:saved.csv --to kafka://k1:9092",
    "offsets export": "exported.avro billing --bootstrap-server k1:9092",
    "migrate plan": "--all-groups --from zookeeper://z1:2181 --to kafka://k1:9092 -o new.plan",
    "migrate readiness": "--all-groups --from kafka://k1:9092 --to kafka://z1:2181",
    "migrate cutover": "--all-groups --from kafka://k1:9092 --to kafka://z1:2181 --state new.json",
    "migrate apply": "billing.plan --yes",
    "migrate renew": "billing.plan -o renewed.plan",
    "migrate status": "billing.plan --window 30",
    "migrate report": "billing.plan",
    "runbook bounce": "billing --to-phase dual --command 'echo {host} {settings}' --zookeeper z1:2181 "
    "--bootstrap-server k1:9092",
    "doctor": "--bootstrap-server k1:9092 --zookeeper z1:2181",
    "zk reassign": "--reassignment-json-file moves.json --zookeeper z1:2181 --execute",
}
"""Arguments for commands whose first example names a context or a file that the test does not have."""

SERVERS = {"manager serve", "mcp"}
"""Ctrl-C is the orderly end of these commands."""
NEEDS_MORE = {"migrate finalize", "log offsets"}
"""These commands connect only if a plan was applied, or if a broker's log directories exist."""
NOT_CONNECTING = ("help ", "edits ", "context ")
NEEDS_JVM = {"spark audit", "spark diff", "spark copy"}


def commands() -> list[str]:
    """The commands with connection options, and those of `migrate`, whose plan names the servers."""
    found = [
        name
        for name, one in all_commands().items()
        if {"bootstrap_server", "zookeeper"} & {parameter.name for parameter in one.params}
        and not name.startswith(NOT_CONNECTING)
    ]
    return [name for name in found if name not in NEEDS_JVM | SERVERS | NEEDS_MORE]


class StalledServer:
    """Accepts connections on a port and sends nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepted: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def has_request(self, seconds: float) -> bool:
        """Whether a client has sent a request, or sends one within this time."""
        readable, _, _ = select.select([self._listener, *self._accepted], [], [], seconds)
        for one in readable:
            if one is self._listener:
                self._accepted.append(self._listener.accept()[0])
            elif one.recv(1, socket.MSG_PEEK):
                return True
            else:  # the client has closed the connection
                self._accepted.remove(one)
                one.close()
        return False

    def close(self) -> None:
        for connection in (*self._accepted, self._listener):
            connection.close()


@pytest.fixture
def server() -> Iterator[StalledServer]:
    stalled = StalledServer()
    yield stalled
    stalled.close()


def write_files(directory: Path, address: str) -> None:
    """Writes the files that the examples name."""
    (directory / "saved.csv").write_text("group,topic,partition,offset\nbilling,orders,0,5\n")
    (directory / "moves.json").write_text(
        '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}'
    )
    header = PlanHeader(
        "0d0f4f0e-0000-4000-8000-000000000000",
        1_790_000_000_000,
        StoreEndpoint(f"zookeeper://{address}", "zookeeper", "zk", "cluster id"),
        StoreEndpoint(f"kafka://{address}", "kafka", "kafka", "cluster id"),
        PlanOptions(groups=("billing",)),
        "kafka",
        None,
        "offsetmgr",
        OriginComparison(Relation.SAME, "equal cluster ids"),
    )
    step = PlanStep(TopicPartition("orders", 0), Action.COPY, OffsetAndMetadata(5), None, OffsetAndMetadata(5))
    plan = GroupPlan("billing", "billing", (step,), next(iter(Guard)))
    write_plan(directory / "billing.plan", header, [plan])


def waits(process: subprocess.Popen[str]) -> bool:
    """Whether the main thread waits, in several looks: a thread that has just called a blocking function can be
    preempted before it blocks, and CPython handles a signal at that moment only after the function returns."""
    for _ in range(5):
        if process_state(process.pid) == "R":
            return False
        time.sleep(0.02)  # the pause between two looks
    return True


@pytest.mark.parametrize("command", commands())
def test_ctrl_c_ends_the_command_with_one_line(command: str, server: StalledServer, tmp_path: Path) -> None:
    write_files(tmp_path, server.address)
    text = OTHER_ARGUMENTS.get(command) or examples_of(command)[0].removeprefix(f"offsetmgr {command}")
    text = text.replace("k1:9092", server.address).replace("z1:2181", server.address)
    arguments = shlex.split(text)
    if server.address not in text:
        arguments += [] if command.startswith("migrate") else ["--bootstrap-server", server.address]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OFFSETMGR_")}
    environ |= {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "OFFSETMGR_TIMEOUT": "600s"}
    process = subprocess.Popen(
        [sys.executable, "-c", "from offsetmgr.cli.entry import main; main()", *command.split(), *arguments],
        cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + CONNECT_LIMIT_S
        while not server.has_request(0.2):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"sent no request: {process.communicate()}")
        wait_for(lambda: waits(process), "the command waits for the response")
        # On a busy machine Python may miss the first signal, in the moment that `waits` describes.
        for wait_s in (30, 120):
            process.send_signal(signal.SIGINT)
            sent = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=wait_s)
                break
        seconds = time.monotonic() - sent
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    *notes, last = err.splitlines()
    assert last.startswith("interrupted: ")
    assert not [line for line in notes if line.startswith(("error", "hint", "interrupted", "stopping", "Traceback"))]
    assert seconds < LIMIT_S, f"{seconds:.1f} s"
