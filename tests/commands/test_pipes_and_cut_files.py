"""Snapshots through pipes, and line-based files that were truncated within their last number."""

import os
import subprocess
import threading
from pathlib import Path

import pytest
from committed_offsets import commit, committed
from conftest import MakeTopic
from processes import OFFSETMGR, Commands, own_environment

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, java_tool
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers
COMMITTED = {0: 1017, 1: 1018, 2: 1019}
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class World:
    """A group with three committed offsets in Kafka, and commands that run in ``directory``."""

    def __init__(self, uri: str, name: str, directory: Path) -> None:
        self.uri, self.group, self.topic = uri, name, name
        self.commands = Commands(directory)
        self.directory = directory

    def piped(self, *arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
        words, env = [*OFFSETMGR, *arguments, "--store", self.uri], own_environment(self.directory)
        return subprocess.run(
            words, cwd=self.directory, env=env, input=data, capture_output=True, timeout=240, check=False
        )

    def lower(self) -> None:
        with open_store(self.uri) as store:
            after = {TopicPartition(self.topic, p): OffsetAndMetadata(5) for p in COMMITTED}
            store.commit(self.group, after, allow_rewind=True)


@pytest.fixture
def world(kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path) -> World:
    make_topic(unique, 3)
    found = World(f"kafka://{kafka.bootstrap}", unique, tmp_path)
    commit(found.uri, unique, unique, COMMITTED)
    return found


@pytest.mark.parametrize("form", ["avro", "csv"])
def test_an_export_goes_to_standard_output_and_an_import_reads_standard_input(world: World, form: str) -> None:
    exported = world.piped("offsets", "export", "-", "--as", form, "--group", world.group, data=b"")
    assert exported.returncode == 0, exported.stderr
    assert b"exported 3 offsets of 1 group to standard output" in exported.stderr
    assert not (world.directory / "-").exists()
    world.lower()
    refused = world.piped("offsets", "import", "-", "--as", form, "--unchecked", "--execute", data=exported.stdout)
    assert refused.returncode == 2, refused.stderr
    assert b"--yes" in refused.stderr
    assert committed(world.uri, world.group) == dict.fromkeys(COMMITTED, 5)
    done = world.piped(
        "offsets", "import", "-", "--as", form, "--unchecked", "--execute", "--yes", data=exported.stdout
    )
    assert done.returncode == 0, done.stderr
    assert committed(world.uri, world.group) == COMMITTED


def test_standard_input_without_a_format_is_rejected_and_the_error_names_the_option(world: World) -> None:
    refused = world.piped("offsets", "import", "-", data=b"")
    assert refused.returncode == 2
    assert b"--as avro|csv|zk|json|spark" in refused.stderr


def test_an_import_reads_a_named_pipe(world: World) -> None:
    lines = "".join(f"{world.group},{world.topic},{p},{n}\n" for p, n in COMMITTED.items())
    pipe = world.directory / "offsets.csv"
    os.mkfifo(pipe)
    world.lower()
    feeding = threading.Thread(target=pipe.write_text, args=(lines,), daemon=True)
    feeding.start()
    world.commands.run("offsets", "import", "offsets.csv", "--store", world.uri, "--unchecked", "--execute", "--yes")
    feeding.join(90)
    assert committed(world.uri, world.group) == COMMITTED


@pytest.mark.parametrize("name", ["cut.csv", "cut.zk"])
def test_a_file_truncated_within_its_last_number_is_rejected_and_nothing_is_written(world: World, name: str) -> None:
    world.commands.run("offsets", "export", name, "--store", world.uri, "--group", world.group)
    path = world.directory / name
    path.write_bytes(path.read_bytes().rstrip()[:-2])  # 1019 becomes 10
    world.lower()
    into = ("offsets", "import", name, "--store", world.uri, "--unchecked", "--execute", "--yes")
    stderr = world.commands.run(*into, code=1).stderr
    assert "its last line has no line end, so the file may be truncated within its last number" in stderr
    assert "--accept-unterminated" in stderr
    assert committed(world.uri, world.group) == dict.fromkeys(COMMITTED, 5)
    plan = ("migrate", "plan", "--from", f"file:{name}", "--to", world.uri, "--all-groups", "-o", "p.json")
    assert "unterminated=accept" in world.commands.run(*plan, code=1).stderr
    world.commands.run(*into, "--accept-unterminated")
    assert committed(world.uri, world.group) == {**COMMITTED, 2: 10}


def test_an_export_of_kafkas_own_tool_can_be_imported(world: World) -> None:
    arguments = ["--bootstrap-server", world.uri.removeprefix("kafka://"), "--reset-offsets", "--to-current"]
    arguments += ["--group", world.group, "--topic", world.topic, "--export", "--dry-run"]
    lines = java_tool("kafka-3.9", CONSUMER_GROUPS, arguments).stdout
    (world.directory / "theirs.csv").write_text(lines)
    into = ("offsets", "import", "theirs.csv", "--store", world.uri, "--group", world.group, "--unchecked")
    assert "nothing was changed" in world.commands.run(*into).stderr
