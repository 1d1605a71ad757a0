"""What an operator reads when something is wrong: one clear line, the right exit code, in time, nothing half-made.

Beside `test_everyday_faults`, which has the same for ``groups`` and ``offsets``.
"""

from __future__ import annotations

import hashlib
import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import Commands, create_topic

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.migration.journal import Journal, read_journal
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers

TIMEOUT_MS = 3000
LITTLE = 5.0
"""Seconds beside the timeout, by the command's own clock: for the modules that it imports, and for what it asks of the
server that is as it should be."""
PATIENT_MS = 30_000
"""Where both servers are as they should be, and may be as busy as they like."""
GROUP = "g"
SIDE_BY_SIDE = 6
"""Commands at the same time: most of what they do here is wait."""


PROGRESS = ("gate before the first step: ",)
"""What a command may say that it is about to do, before it finds that it cannot."""


@dataclass
class Scene:
    """A group that was moved from ZooKeeper to Kafka, in ``directory``: plan.json, plan.journal, x.avro, x.csv."""

    commands: Commands
    zookeeper: str
    bootstrap: str
    topic: str

    @property
    def directory(self) -> Path:
        return self.commands.directory

    def moved_to(self, name: str, zookeeper: str, bootstrap: str) -> str:
        """A copy of the applied plan and its journal, which name other addresses."""
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
    with open_store(f"zookeeper://{chroot}") as store:
        store.commit(topic, {TopicPartition(topic, p): OffsetAndMetadata(0) for p in range(2)})
    found.commands.run("migrate", "plan", *source, "-o", "plan.json")
    found.commands.run("migrate", "apply", "plan.json", "--yes")
    for name in ("x.avro", "x.csv"):
        found.commands.run("offsets", "export", name, "--group", topic, "--zookeeper", chroot)
    yield found


def complaint(scene: Scene, arguments: Sequence[str], code: int = 1, says: Sequence[str] = ()) -> str:
    """What is wrong with a command's answer to a fault; empty where it is as it should be."""
    done, took = scene.commands.timed(*arguments, code=None)
    timeout_ms = int(arguments[arguments.index("--timeout") + 1]) if "--timeout" in arguments else PATIENT_MS
    lines = [line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)]
    wrong = []
    if [line.partition(": ")[0] for line in lines] not in (["error"], ["error", "hint"]):
        wrong.append("not one line of error and at most one of hint")
    elif "internal" in lines[0]:
        wrong.append("a bug")
    wrong += [f"does not say {text!r}" for text in says if text not in done.stderr]
    if done.returncode != code:
        wrong.append(f"exit code {done.returncode}, not {code}")
    if done.stdout:
        wrong.append(f"stdout: {done.stdout[:200]}")
    if took >= timeout_ms / 1000 + LITTLE:
        wrong.append(f"took {took:.1f} s")
    if made := [file.name for file in scene.directory.glob("new-*")]:
        wrong.append(f"left {made}")
    return f"{' '.join(arguments)}: {'; '.join(wrong)}\n{done.stderr}" if wrong else ""


def complaints(scene: Scene, cases: Sequence[tuple[Sequence[str], int, Sequence[str]]]) -> list[str]:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return [found for found in pool.map(lambda case: complaint(scene, *case), cases) if found]


# --- servers --------------------------------------------------------------------------------------


@pytest.fixture
def addresses(scene: Scene) -> Iterator[Callable[[str], str]]:
    """Addresses with something wrong, by name: nobody listens, nobody answers, or the other kind of server."""
    with socket.socket() as dead, socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        dead.bind(("127.0.0.1", 0))  # not listening: refused, and nobody else takes the port
        known = {
            "dead": f"127.0.0.1:{dead.getsockname()[1]}",
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
            "kafka": scene.bootstrap,
            "zookeeper": scene.zookeeper.partition("/")[0],
        }
        yield known.__getitem__


SAYS = {
    ("zookeeper", "dead"): "Connection refused",
    ("zookeeper", "silent"): "accepts connections, but is not a ZooKeeper server",
    ("zookeeper", "kafka"): "accepts connections, but is not a ZooKeeper server",
    ("kafka", "dead"): "Connection refused",
    ("kafka", "silent"): "no answer within ",  # 3 s, or what was left of them
    ("kafka", "zookeeper"): "does not respond like a Kafka broker",
}


@pytest.mark.parametrize(("side", "fault"), list(SAYS), ids=str)
def test_a_server_that_cannot_be_used_is_one_line_in_time(
    scene: Scene, addresses: Callable[[str], str], side: str, fault: str
) -> None:
    bad = addresses(fault)
    zookeeper, bootstrap = (f"{bad}/kafka", scene.bootstrap) if side == "zookeeper" else (scene.zookeeper, bad)
    plans = [scene.moved_to(f"{side}-{fault}-{n}", zookeeper, bootstrap) for n in range(5)]
    old, new = f"zookeeper://{zookeeper}", f"kafka://{bootstrap}"
    both = ["--zookeeper", zookeeper, "--bootstrap-server", bootstrap]
    bad_store = old if side == "zookeeper" else new
    group = ["--group", scene.topic]
    bounce = [
        "runbook",
        "bounce",
        *group,
        "--to-phase",
        "dual",
        "--command",
        "echo {host}",
        "--state",
        "bounce.json",
    ]
    commands = [
        ["migrate", "plan", "--from", old, "--to", new, *group, "-o", "new-plan.json"],
        ["migrate", "verify", plans[0]],
        ["migrate", "finalize", plans[1]],
        ["migrate", "finalize", plans[2], "--delete-source", "--yes"],
        ["migrate", "rollback", plans[3], "--reverse-plan", "new-back.json"],
        ["migrate", "mirror", "--from", old, "--to", new, *group, "--once"],
        ["migrate", "mirror", "--from", new, "--to", old, *group, "--once"],
        ["runbook", "write", *group, "--to", "dual", "-o", "new-book.json", *both],
        ["runbook", "check", *group, "--phase", "dual", *both],
        ["offsets", "import", "x.avro", "--execute", "--yes", "--store", bad_store],
        ["offsets", "diff", "--from", old, "--to", new, "--all-groups"],
    ]
    if side == "kafka":  # apply asks the target alone
        commands += [["migrate", "apply", plans[4], "--yes"]]
    else:  # a bounce first asks the registry whom it would restart
        commands += [[*bounce, *both], [*bounce, "--execute", *both]]

    found = complaints(scene, [([*c, "--timeout", str(TIMEOUT_MS)], 1, (bad, SAYS[side, fault])) for c in commands])

    assert found == [], "\n".join(found)


def test_an_unknown_group_is_one_line(scene: Scene) -> None:
    nobody = "no-such-group"
    old, new = f"zookeeper://{scene.zookeeper}", f"kafka://{scene.bootstrap}"
    both = ["--zookeeper", scene.zookeeper, "--bootstrap-server", scene.bootstrap]
    commands = [
        ["migrate", "plan", "--from", old, "--to", new, "--group", nobody, "-o", "new-plan.json"],
        ["migrate", "mirror", "--from", old, "--to", new, "--group", nobody, "--once"],
        ["runbook", "write", "--group", nobody, "--to", "dual", *both],
        ["runbook", "check", "--group", nobody, "--phase", "dual", *both],
        ["runbook", "bounce", "--group", nobody, "--to-phase", "dual", "--command", "echo {host}", *both],
        ["offsets", "diff", "--from", old, "--to", new, "--group", nobody],
        ["offsets", "import", "x.avro", "--group", nobody, "--execute", "--yes", "--store", new],
    ]

    found = complaints(scene, [([*c, "--timeout", str(PATIENT_MS)], 1, (nobody,)) for c in commands])

    assert found == [], "\n".join(found)


# --- files ----------------------------------------------------------------------------------------

PLAN_COMMANDS = [
    ["migrate", "apply", "PLAN", "--yes"],
    ["migrate", "status", "PLAN"],
    ["migrate", "verify", "PLAN"],
    ["migrate", "finalize", "PLAN"],
    ["migrate", "rollback", "PLAN", "--yes"],
]


def with_plan(name: str) -> list[list[str]]:
    return [[name if word == "PLAN" else word for word in command] for command in PLAN_COMMANDS]


def test_a_plan_that_is_missing_cut_or_something_else_is_one_line(scene: Scene) -> None:
    text = (scene.directory / "plan.json").read_text()
    (scene.directory / "cut.json").write_text(text[: len(text) // 2])
    (scene.directory / "cut-line.json").write_text("".join(text.splitlines(keepends=True)[:-1]))
    (scene.directory / "edited.json").write_text(text.replace('"after":0', '"after":1', 1))
    (scene.directory / "empty.json").write_text("")
    (scene.directory / "other.json").write_text('{"hello": "world"}\n')
    (scene.directory / "binary.json").write_bytes(bytes(range(256)) * 20)
    (scene.directory / "a-folder").mkdir()
    says = {
        "missing.json": "No such file or directory",
        "cut.json": "its hash does not match: the file was edited or truncated",
        "cut-line.json": "its hash does not match: the file was edited or truncated",
        "edited.json": "its hash does not match: the file was edited or truncated",
        "empty.json": "the file is empty",
        "other.json": "this is not a plan of offsetmgr",
        "binary.json": "this is not a plan of offsetmgr",
        "a-folder": "Is a directory",
    }
    cases: list[tuple[list[str], int, tuple[str, ...]]] = []
    cases += [(command, 1, (f"plan {name}", text)) for name, text in says.items() for command in with_plan(name)[:2]]
    cases += [(command, 1, ("plan cut.json",)) for command in with_plan("cut.json")[2:]]

    found = complaints(scene, cases)

    assert found == [], "\n".join(found)


def test_a_journal_that_is_damaged_or_of_another_plan_is_one_line(scene: Scene) -> None:
    original = (scene.directory / "plan.journal").read_bytes()
    for name in ("damaged", "gap", "strange"):
        (scene.directory / f"{name}.json").write_bytes((scene.directory / "plan.json").read_bytes())
    lines = original.splitlines(keepends=True)
    (scene.directory / "damaged.journal").write_bytes(original.replace(b"apply-open", b"apply-oqen", 1))
    (scene.directory / "gap.journal").write_bytes(b"".join([lines[0], *lines[2:]]))
    foreign = scene.moved_to("foreign", "h:1/kafka", "h:2")
    (scene.directory / foreign).write_text((scene.directory / "plan.json").read_text())
    says = {
        "damaged": f"damaged at byte {len(lines[0])}, before its end",
        "gap": "record 1 is missing",
        "foreign": "it belongs to another plan of the same name",
    }
    cases = [
        (command, 1, (f"journal {name}.journal", text))
        for name, text in says.items()
        for command in with_plan(f"{name}.json")
        if "verify" not in command
    ]

    found = complaints(scene, cases)

    assert found == [], "\n".join(found)


def test_snapshots_that_are_junk_cut_or_missing_are_one_line(scene: Scene) -> None:
    whole = (scene.directory / "x.avro").read_bytes()
    (scene.directory / "cut.avro").write_bytes(whole[: len(whole) - 10])
    (scene.directory / "head.avro").write_bytes(whole[:20])
    (scene.directory / "junk.csv").write_text(f"{scene.topic},0,1\nwhat is this?\n")
    (scene.directory / "number.csv").write_text(f"{scene.topic},{scene.topic},zero,1\n")
    (scene.directory / "binary.csv").write_bytes(b"\xff\xfe\x00\x01" * 50)
    (scene.directory / "junk.json").write_text('{"groupid": ')
    (scene.directory / "junk.zk").write_text("/consumers/g/offsets/t/0:1\nhello\n")
    to = ["--bootstrap-server", scene.bootstrap]
    names = ["cut.avro", "head.avro", "junk.csv", "number.csv", "binary.csv", "junk.json", "junk.zk", "missing.avro"]
    cases = [
        (["offsets", "import", name, "--group", scene.topic, "--execute", "--yes", *to], 1, (name,)) for name in names
    ]
    cases += [
        (
            ["offsets", "diff", "--from", f"file:{name}", "--to", f"kafka://{scene.bootstrap}", "--all-groups"],
            1,
            (name,),
        )
        for name in names
        if name not in ("junk.csv", "number.csv")
    ]
    cases += [
        (
            [
                "migrate",
                "plan",
                "--from",
                f"file:{name}",
                "--to",
                f"kafka://{scene.bootstrap}",
                "-o",
                "new.json",
                "--all-groups",
            ],
            1,
            (name,),
        )
        for name in ("cut.avro", "missing.avro", "junk.zk")
    ]

    found = complaints(scene, cases)

    assert found == [], "\n".join(found)


def test_files_that_cannot_be_written_are_one_line(scene: Scene, tmp_path: Path) -> None:
    """A file where a directory is needed stands for a read-only directory: root, whom CI may run as, may write
    anywhere."""
    blocked = tmp_path / "not-a-folder"
    blocked.write_text("")
    old, new = f"zookeeper://{scene.zookeeper}", f"kafka://{scene.bootstrap}"
    both = ["--zookeeper", scene.zookeeper, "--bootstrap-server", scene.bootstrap]
    where = str(blocked / "out.json")
    commands = [
        ["migrate", "plan", "--from", old, "--to", new, "--group", scene.topic, "-o", where],
        [
            "migrate",
            "rollback",
            scene.moved_to("unwritable", scene.zookeeper, scene.bootstrap),
            "--reverse-plan",
            where,
        ],
        ["runbook", "write", "--group", scene.topic, "--to", "dual", "--from", "zookeeper", "-o", where, *both],
        ["offsets", "export", where, "--group", scene.topic, *both],
    ]

    found = complaints(scene, [(command, 1, (where,)) for command in commands])

    assert found == [], "\n".join(found)


MANY = 300
ROOM = 40_000
"""Bytes that the largest file may have: more than the journal's first intents take, less than all of them."""


def little_room() -> None:
    """Stands for a full disk: a write beyond it fails, having written what still fitted."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def test_a_full_disk_stops_apply_with_nothing_claimed_that_is_not_so_and_it_goes_on_when_there_is_room(
    scene: Scene, tmp_path: Path, unique: str
) -> None:
    commands = Commands(tmp_path)
    groups = [f"{unique}-{n:03}" for n in range(MANY)]
    tp = TopicPartition(scene.topic, 0)
    source, target = f"zookeeper://{scene.zookeeper}", f"kafka://{scene.bootstrap}"
    stores = ["--from", source, "--to", target, "--group", f"{unique}-*"]
    with open_store(source) as old, open_store(target) as new:
        edits = [GroupEdit(group, {tp: Change(OffsetAndMetadata(0, "moved"))}) for group in groups]
        assert [r.failures for r in old.edit(edits) if r.failures] == []
        planning = commands.run("migrate", "plan", *stores, "-o", "no.json", code=1, preexec_fn=little_room)
        assert (
            planning.stderr == "error: plan no.json: File too large\nhint: make room, then run the same command again\n"
        )
        assert list(tmp_path.glob("*no.json*")) == []
        commands.run("migrate", "plan", *stores, "-o", "p.json")

        failed = commands.run("migrate", "apply", "p.json", "--yes", code=1, preexec_fn=little_room)

        assert failed.stderr.splitlines()[-2:] == [
            "error: journal p.journal: File too large",
            "hint: make room, then run the same command again",
        ]
        records = [record for _, record in read_journal(tmp_path / "p.journal")]
        claimed = {r["group"] for r in records if r["kind"] == "apply-outcome" and r["written"]}
        intended = {r["group"] for r in records if r["kind"] == "apply-intent"}
        written = {found.group for found in new.scan(groups) if found.offsets}
        assert claimed <= written <= intended < set(groups)
        assert "apply-complete" not in {r["kind"] for r in records}

        commands.run("migrate", "apply", "p.json", "--yes")
        commands.run("migrate", "verify", "p.json")
        assert {found.group for found in new.scan(groups) if found.offsets} == set(groups)


def test_a_journal_that_cannot_be_made_stops_apply_before_anything_is_written(scene: Scene, unique: str) -> None:
    """A directory in the journal's place stands for a read-only one."""
    tp = TopicPartition(scene.topic, 1)
    source, target = f"zookeeper://{scene.zookeeper}", f"kafka://{scene.bootstrap}"
    with open_store(source) as old, open_store(target) as new:
        old.commit(unique, {tp: OffsetAndMetadata(0)})
        stores = ["--from", source, "--to", target, "--group", unique]
        scene.commands.run("migrate", "plan", *stores, "-o", "nojournal.json")
        (scene.directory / "nojournal.journal").mkdir()

        assert complaint(scene, ["migrate", "apply", "nojournal.json", "--yes"], says=["nojournal.journal"]) == ""
        assert dict(new.fetch(unique)) == {}


# --- the sandbox ----------------------------------------------------------------------------------


def test_a_sandbox_that_is_not_there_or_whose_state_is_broken(scene: Scene, tmp_path: Path) -> None:
    none, broken = tmp_path / "none", tmp_path / "broken"
    broken.mkdir()
    (broken / "state.json").write_text('{"version": 1, "servers": [')
    cases = [
        (["sandbox", "env", "--state", str(none)], 1, (str(none),)),
        *((["sandbox", c, "--state", str(broken)], 1, ("not a sandbox's state",)) for c in ("status", "env", "down")),
    ]

    found = complaints(scene, cases)

    assert found == [], "\n".join(found)
    down = scene.commands.run("sandbox", "down", "--state", str(none))
    assert down.stderr == "nothing was running\n"
    status = scene.commands.run("sandbox", "status", "--state", str(none), code=1)
    assert status.stderr == f"no sandbox is up in {none}\n"
