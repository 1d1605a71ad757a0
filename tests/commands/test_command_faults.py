"""Faults as operators see them: one clear error line, the right exit code, in time, and no partial files.

`test_everyday_faults` has the same tests for ``groups`` and ``offsets``, `test_files_that_cannot_be_written` those for
files that cannot be read or written.
"""

import hashlib
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from committed_offsets import commit
from processes import Commands, create_topic, on_a_full_disk

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.migration.progress import Journal, read_journal
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers

TIMEOUT_MS = 3000
OVERHEAD_S = 20.0
"""Time above the timeout, by the command's own clock, for the import of modules and for requests to the server that
works."""
LONG_TIMEOUT_MS = 60_000
"""Timeout for commands against servers that work but may be busy."""
PARALLEL = 6
"""Number of commands that run at the same time. They mostly wait."""

PROGRESS = ("gate before the first step: ", "cluster ")
"""Lines of progress and of scope that a command may print before it detects the error."""


@dataclass
class Scene:
    """A group migrated from ZooKeeper to Kafka. ``directory`` has plan.json, plan.journal and x.avro."""

    commands: Commands
    zookeeper: str
    bootstrap: str
    topic: str

    @property
    def directory(self) -> Path:
        return self.commands.directory

    def plan_for_addresses(self, name: str, zookeeper: str, bootstrap: str) -> str:
        """Copies the applied plan and its journal with other addresses. Returns the file name of the new plan."""
        text = (self.directory / "plan.json").read_text()
        text = text.replace(f"zookeeper://{self.zookeeper}", f"zookeeper://{zookeeper}")
        text = text.replace(f"kafka://{self.bootstrap}", f"kafka://{bootstrap}")
        body, mark, _ = text.rpartition(', "sha256": "')
        digest = hashlib.sha256(body.encode()).hexdigest()
        (self.directory / f"{name}.json").write_text(f'{body}{mark}{digest}"}}\n')
        records = [record for _, record in read_journal(self.directory / "plan.journal")]
        with Journal(self.directory / f"{name}.journal", plan_sha256=digest, clock=SystemClock()) as journal:
            journal.append(
                {k: v for k, v in record.items() if k not in ("n", "at")}
                for record in records
                if record["kind"] != "open"
            )
        return f"{name}.json"


@pytest.fixture(scope="module")
def scene(zookeeper: ZooKeeperServer, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("faults")
    topic = create_topic(kafka.bootstrap, f"{directory.name}-{time.time_ns()}", 2)
    chroot = f"{zookeeper.connect}/kafka"
    found = Scene(Commands(directory), chroot, kafka.bootstrap, topic)
    source = ["--from", f"zookeeper://{chroot}", "--to", f"kafka://{kafka.bootstrap}", "--group", topic]
    commit(f"zookeeper://{chroot}", topic, topic, dict.fromkeys(range(2), 0))
    found.commands.run("migrate", "plan", *source, "-o", "plan.json")
    found.commands.run("migrate", "apply", "plan.json", "--yes")
    found.commands.run("offsets", "export", "x.avro", "--group", topic, "--zookeeper", chroot)
    yield found


def problem(scene: Scene, arguments: Sequence[str], code: int = 1, texts: Sequence[str] = ()) -> str:
    """Runs a command that must fail. Returns how its error differs from the expected one, or an empty text."""
    done, took = scene.commands.timed(*arguments, code=None)
    timeout_ms = int(arguments[arguments.index("--timeout") + 1]) if "--timeout" in arguments else LONG_TIMEOUT_MS
    lines = [line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)]
    differences = []
    if [line.partition(": ")[0] for line in lines] not in (["error"], ["error", "hint"]):
        differences.append("not one line of error and at most one of hint")
    elif "internal" in lines[0]:
        differences.append("a bug")
    differences += [f"does not contain {text!r}" for text in texts if text not in done.stderr]
    if done.returncode != code:
        differences.append(f"exit code {done.returncode}, not {code}")
    if done.stdout:
        differences.append(f"stdout: {done.stdout[:200]}")
    if took >= timeout_ms / 1000 + OVERHEAD_S:
        differences.append(f"took {took:.1f} s")
    if leftover := [file.name for file in scene.directory.glob("new-*")]:
        differences.append(f"left {leftover}")
    return f"{' '.join(arguments)}: {'; '.join(differences)}\n{done.stderr}" if differences else ""


def problems(scene: Scene, cases: Sequence[tuple[Sequence[str], int, Sequence[str]]]) -> list[str]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        return [found for found in pool.map(lambda case: problem(scene, *case), cases) if found]


@pytest.fixture
def addresses(scene: Scene) -> Iterator[Callable[[str], str]]:
    """Faulty addresses by name: without a listener, without a response, or of the other kind of server."""
    with socket.socket() as dead, socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        dead.bind(("127.0.0.1", 0))  # bound without listening: connections are refused, and the port stays reserved
        known = {
            "dead": f"127.0.0.1:{dead.getsockname()[1]}",
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
            "kafka": scene.bootstrap,
            "zookeeper": scene.zookeeper.partition("/")[0],
        }
        yield known.__getitem__


EXPECTED_ERRORS = {
    ("zookeeper", "dead"): "Connection refused",
    ("zookeeper", "silent"): "accepts connections, but is not a ZooKeeper server",
    ("zookeeper", "kafka"): "accepts connections, but is not a ZooKeeper server",
    ("kafka", "dead"): "Connection refused",
    ("kafka", "silent"): "no answer within ",  # 3 s, or the rest of them
    ("kafka", "zookeeper"): "does not respond like a Kafka broker",
}


@pytest.mark.parametrize(("side", "fault"), list(EXPECTED_ERRORS), ids=str)
def test_an_unusable_server_is_one_error_line_in_time(scene, addresses, side: str, fault: str) -> None:
    bad = addresses(fault)
    zookeeper, bootstrap = (f"{bad}/kafka", scene.bootstrap) if side == "zookeeper" else (scene.zookeeper, bad)
    plans = [scene.plan_for_addresses(f"{side}-{fault}-{n}", zookeeper, bootstrap) for n in range(5)]
    old, new = f"zookeeper://{zookeeper}", f"kafka://{bootstrap}"
    both = ["--zookeeper", zookeeper, "--bootstrap-server", bootstrap]
    bad_store = old if side == "zookeeper" else new
    group = ["--group", scene.topic]
    bounce = ["runbook", "bounce", *group, "--to-phase", "dual", "--command", "echo {host}", "--state", "bounce.json"]
    commands = [
        ["migrate", "plan", "--from", old, "--to", new, *group, "-o", "new-plan.json"],
        ["migrate", "verify", plans[0]],
        ["migrate", "finalize", plans[1], "--yes"],
        ["migrate", "finalize", plans[2], "--delete-source", "--yes"],
        ["migrate", "rollback", plans[3], "--reverse-plan", "new-back.json"],
        ["migrate", "mirror", "--from", old, "--to", new, *group, "--once"],
        ["migrate", "mirror", "--from", new, "--to", old, *group, "--once"],
        ["runbook", "write", *group, "--to", "dual", "-o", "new-book.json", *both],
        ["runbook", "check", *group, "--phase", "dual", *both],
        ["offsets", "import", "x.avro", "--execute", "--yes", "--store", bad_store],
        ["offsets", "diff", "--from", old, "--to", new, "--all-groups"],
    ]
    if side == "kafka":  # apply contacts only the target
        commands += [["migrate", "apply", plans[4], "--yes"]]
    else:  # a bounce first reads the members from the registry
        commands += [[*bounce, *both], [*bounce, "--execute", "--yes", *both]]
    expected = (bad, EXPECTED_ERRORS[side, fault])
    assert problems(scene, [([*c, "--timeout", str(TIMEOUT_MS)], 1, expected) for c in commands]) == []


def test_an_unknown_group_is_one_error_line(scene: Scene) -> None:
    unknown_group = "no-such-group"
    old, new = f"zookeeper://{scene.zookeeper}", f"kafka://{scene.bootstrap}"
    both = ["--zookeeper", scene.zookeeper, "--bootstrap-server", scene.bootstrap]
    commands = [
        ["migrate", "plan", "--from", old, "--to", new, "--group", unknown_group, "-o", "new-plan.json"],
        ["migrate", "mirror", "--from", old, "--to", new, "--group", unknown_group, "--once"],
        ["runbook", "write", "--group", unknown_group, "--to", "dual", *both],
        ["runbook", "check", "--group", unknown_group, "--phase", "dual", *both],
        ["runbook", "bounce", "--group", unknown_group, "--to-phase", "dual", "--command", "echo {host}", *both],
        ["offsets", "diff", "--from", old, "--to", new, "--group", unknown_group],
        ["offsets", "import", "x.avro", "--group", unknown_group, "--execute", "--yes", "--store", new],
    ]
    assert problems(scene, [([*c, "--timeout", str(LONG_TIMEOUT_MS)], 1, (unknown_group,)) for c in commands]) == []


GROUP_COUNT = 300
FULL_DISK = on_a_full_disk(40)  # more KiB than the journal's first intents need, less than all intents need


def test_a_full_disk_stops_apply_with_a_correct_journal_and_apply_resumes_with_space(scene, tmp_path, unique) -> None:
    commands = Commands(tmp_path)
    groups = [f"{unique}-{n:03}" for n in range(GROUP_COUNT)]
    tp = TopicPartition(scene.topic, 0)
    source, target = f"zookeeper://{scene.zookeeper}", f"kafka://{scene.bootstrap}"
    stores = ["--from", source, "--to", target, "--group", f"{unique}-*"]
    with open_store(source) as old, open_store(target) as new:
        edits = [GroupEdit(group, {tp: Change(OffsetAndMetadata(0, "moved"))}) for group in groups]
        assert [r.failures for r in old.edit(edits) if r.failures] == []
        planning = commands.run("migrate", "plan", *stores, "-o", "no.json", code=1, program=FULL_DISK)
        assert planning.stderr.endswith(
            "error: plan no.json: File too large\nhint: free disk space, then run the same command again\n"
        )
        assert list(tmp_path.glob("*no.json*")) == []
        commands.run("migrate", "plan", *stores, "-o", "p.json")
        failed = commands.run("migrate", "apply", "p.json", "--yes", code=1, program=FULL_DISK)
        changed, *error = failed.stderr.splitlines()[-3:]
        match = re.fullmatch(
            r"the offsets of up to (\d+) groups had been changed when the error occurred \((\d+) are confirmed\); "
            r"the next run checks them",
            changed,
        )
        assert match is not None, failed.stderr
        assert int(match[2]) <= int(match[1])
        assert error == [
            "error: journal p.journal: File too large",
            "hint: free disk space, then run the same command again",
        ]
        records = [record for _, record in read_journal(tmp_path / "p.journal")]
        recorded = {r["group"] for r in records if r["kind"] == "apply-outcome" and r["written"]}
        intended = {r["group"] for r in records if r["kind"] == "apply-intent"}
        written = {found.name for found in new.scan(groups) if found.offsets}
        assert recorded <= written <= intended < set(groups)
        assert len(intended) == int(match[1])
        assert "apply-complete" not in {r["kind"] for r in records}
        commands.run("migrate", "apply", "p.json", "--yes")
        commands.run("migrate", "verify", "p.json")
        assert {found.name for found in new.scan(groups) if found.offsets} == set(groups)
