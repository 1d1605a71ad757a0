"""``offsets set``, ``reset`` and ``delete``, and their undo, on real ZooKeeper and real Kafka."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from everyday import Cli, committed, inner_store, named_store
from processes import start_command
from same_cluster import join_cluster

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.model import Committed
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytest_plugins = ["everyday_fixtures"]

pytestmark = pytest.mark.servers


def test_offsets_are_set_shown_and_undone(cli: Cli, flags: list[str], topic: str) -> None:
    dry = cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "4", *flags)
    assert f"dry run: would change 2 offsets in 1 group in {named_store(flags)}" in dry.stderr
    assert "; nothing was changed" in dry.stderr
    assert cli("offsets", "get", "--group", topic, *flags, code=1).stderr.startswith(f"error: group '{topic}':")

    done = cli(
        "offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "4", "--execute",
        "--yes", *flags,
    )  # fmt: skip
    images = [line.removeprefix("before-images: ") for line in done.stderr.splitlines() if line[:7] == "before-"]
    undos = [shlex.split(line.removeprefix("undo: ")) for line in done.stderr.splitlines() if line.startswith("undo: ")]
    assert [undo[3] for undo in undos] == images
    assert len(images) == (2 if "--store" in flags else 1)

    present, absent = cli.rows("offsets", "get", "--group", topic, "--topic", f"{topic}:1,2", *flags)
    assert present["commit_timestamp"] is None or present["commit_timestamp"] > 1_700_000_000_000
    assert present | {"commit_timestamp": None} == {
        "group": topic,
        "topic": topic,
        "partition": 1,
        "state": "committed",
        "offset": 4,
        "metadata": "",
        "leader_epoch": None,
        "commit_timestamp": None,
    }
    assert absent == {
        "group": topic,
        "topic": topic,
        "partition": 2,
        "state": "absent",
        "offset": None,
        "metadata": None,
        "leader_epoch": None,
        "commit_timestamp": None,
    }
    for undo in undos:
        assert "done: 2 changed" in cli(*undo[1:], "--yes").stderr
    rows = cli.rows("offsets", "get", "--group", topic, "--topic", f"{topic}:0,1", *flags, code=0)
    assert [row["state"] for row in rows] == ["absent", "absent"]


def test_reset_follows_every_scenario_of_kafkas_tool(cli: Cli, flags: list[str], topic: str, tmp_path: Path) -> None:
    def reset(*scenario: str) -> tuple[dict[int, int], str]:
        arguments = ["--group", topic, "--new-group", "--execute", "--yes", *scenario, *flags]
        done = cli("offsets", "reset", *arguments)
        return committed(cli, flags, topic), done.stdout

    every = ["--topic", topic]
    assert reset(*every, "--to-earliest")[0] == {0: 0, 1: 0, 2: 0}
    assert reset(*every, "--to-latest")[0] == {0: 10, 1: 20, 2: 0}
    offsets, output = reset(*every, "--to-offset", "15")
    assert offsets == {0: 10, 1: 15, 2: 0}
    assert output.count("clamped from 15 to the log's end") == 2
    assert reset("--topic", f"{topic}:1", "--shift-by", "-5")[0] == {0: 10, 1: 10, 2: 0}
    assert reset("--all-topics", "--shift-by", "-100")[0] == {0: 0, 1: 0, 2: 0}
    offsets, output = reset(*every, "--to-datetime", "2001-09-09T01:46:55.000")
    assert offsets == {0: 10, 1: 15, 2: 0}
    assert output.count("no record at or after that time: the log's end") == 2
    assert reset(*every, "--by-duration", "P20000D")[0] == {0: 0, 1: 0, 2: 0}
    assert reset("--topic", f"{topic}:0,1", "--to-current")[0] == {0: 0, 1: 0, 2: 0}
    file = tmp_path / "plan.csv"
    file.write_text(f"{topic},0,3\n{topic},1,99\n")
    assert reset("--from-file", str(file))[0] == {0: 3, 1: 20, 2: 0}
    file.write_text(f'"{topic}",{topic},2,0\n{topic},{topic},0,1\n\n')
    assert reset("--from-file", str(file))[0] == {0: 1, 1: 20, 2: 0}


def test_an_exported_plan_is_read_back(cli: Cli, flags: list[str], topic: str, tmp_path: Path) -> None:
    arguments = ["--group", topic, "--new-group", "--topic", topic]
    plan = cli("offsets", "reset", *arguments, "--to-latest", "--export", *flags)
    assert plan.stdout == f"{topic},0,10\n{topic},1,20\n{topic},2,0\n"
    file = tmp_path / "plan.csv"
    file.write_text(plan.stdout)
    again = ["--from-file", str(file), "--export", "--execute", "--yes"]
    assert cli("offsets", "reset", *arguments[:3], *again, *flags).stdout == plan.stdout
    assert committed(cli, flags, topic) == {0: 10, 1: 20, 2: 0}
    two = cli("offsets", "reset", *arguments, "--group", f"{topic}-b", "--to-earliest", "--export", *flags)
    assert two.stdout.splitlines()[0] == f"{topic},{topic},0,0"
    assert len(two.stdout.splitlines()) == 6


def test_ctrl_c_at_the_prompt_changes_nothing_and_is_reported(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "store.avro"
    with open_store(f"file:{file}") as store:
        store.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(8)})
    arguments = ["groups", "delete", "--group", "g", "--execute", "--store", f"file:{file}"]
    primary, replica = pty.openpty()
    try:
        with start_command(*arguments, environ=cli.environ, text=False, stdin=replica) as process:
            assert process.stderr is not None
            output = b""
            while not output.endswith(b"[y/N] "):
                got = os.read(process.stderr.fileno(), 4096)
                assert got, output
                output += got
            # Python's input() misses a signal that arrives after it has printed the prompt and before it reads.
            for _ in range(20):
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                    break
            assert process.returncode == 130
            # Python prints the prompt again if the signal arrives while it flushes the prompt.
            assert process.stderr.read().strip().endswith(b"interrupted: nothing was done")
    finally:
        os.close(primary)
        os.close(replica)
    with open_store(f"file:{file}") as store:
        assert len(store.fetch("g")) == 1


def test_an_undo_command_has_all_options_and_a_failed_edit_prints_none(
    cli: Cli, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=PLAINTEXT\n")
    edit = ["offsets", "set", "--group", topic, "--new-group", "--execute", "--yes"]
    done = cli(*edit, "--topic", f"{topic}:0", "--to-offset", "3", "--command-config", str(properties), *here)
    assert f" --command-config {properties} --execute" in done.stderr.splitlines()[-1]
    failed = cli(*edit, "--topic", f"{topic}-none:0", "--to-offset", "3", *here, code=1)
    assert "undo:" not in failed.stderr


def test_an_edit_of_two_stores_is_undone_in_each(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    first, second = f"kafka://{kafka.bootstrap}", f"zookeeper://{zookeeper.connect}"
    before = {first: {0: 9, 1: 3}, second: {0: 5, 1: 7, 2: 1}}
    for uri, offsets in before.items():
        with open_store(uri) as store:
            store.commit(topic, {TopicPartition(topic, p): OffsetAndMetadata(o) for p, o in offsets.items()})
    join_cluster(zookeeper.connect, kafka.bootstrap)
    dual = f"dual:?primary={quote(first, safe='')}&secondary={quote(second, safe='')}"
    done = cli("offsets", "set", "--group", topic, "--topic", f"{topic}:0-2", "--to-offset", "8", "--execute", "--yes",
               "--store", dual)  # fmt: skip
    assert "done: 3 changed" in done.stderr
    for uri in before:
        assert committed(cli, ["--store", uri], topic) == {0: 8, 1: 8, 2: 8}
    undos = [shlex.split(line.removeprefix("undo: ")) for line in done.stderr.splitlines() if line.startswith("undo: ")]
    assert [undo[undo.index("--store") + 1].partition("?")[0] for undo in undos] == list(before)
    for undo in undos:
        assert undo[0] == "offsetmgr"
        cli(*undo[1:], "--yes")
    for uri, offsets in before.items():
        assert committed(cli, ["--store", uri], topic) == offsets


def test_deleted_offsets_are_restored_from_their_before_images(cli: Cli, flags: list[str], topic: str) -> None:
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "8", "--metadata",
        "mine", "--execute", "--yes", *flags)  # fmt: skip
    image = Path(cli.environ["XDG_STATE_HOME"]) / "mine.avro"
    cli("offsets", "delete", "--group", topic, "--topic", f"{topic}:1", "--before-image", str(image), "--execute",
        "--yes", *flags)  # fmt: skip
    assert committed(cli, flags, topic) == {0: 8}
    parts = ["mine"] if "--store" not in flags else ["mine.primary", "mine.secondary"]
    for part in parts:
        one = image.with_stem(part)
        cli("offsets", "import", str(one), "--execute", "--yes", *inner_store(cli, flags, one))
    assert committed(cli, flags, topic) == {0: 8, 1: 8}


def test_an_undo_names_the_groups_that_it_leaves_empty(cli: Cli, flags: list[str], topic: str) -> None:
    # Given a group that an edit created, in one store or in two
    image = Path(cli.environ["XDG_STATE_HOME"]) / "mine.avro"
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "8", "--execute",
        "--yes", "--before-image", str(image), *flags)  # fmt: skip
    for part in ["mine"] if "--store" not in flags else ["mine.primary", "mine.secondary"]:
        one = image.with_stem(part)
        there = inner_store(cli, flags, one)

        # When the edit is undone
        undone = cli("offsets", "import", str(one), "--execute", "--yes", *there)

        # Then the output names the group that stays, and the command that removes it
        stays = {"group": topic} in cli.rows("groups", "list", *there)
        notice = f"group '{topic}' stays, empty\nto remove: offsetmgr "
        assert (notice in undone.stderr) is stays
        if stays:
            cli(*shlex.split(undone.stderr.split(notice)[1].splitlines()[0]), "--yes")
        assert {"group": topic} not in cli.rows("groups", "list", *there)


def test_an_edit_changes_nothing_if_before_images_cannot_be_written(
    cli: Cli, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        store.commit(topic, {TopicPartition(topic, 0): OffsetAndMetadata(7)})
    file = tmp_path / "not-a-directory"
    file.write_text("")
    failed = cli("offsets", "set", "--group", topic, "--topic", f"{topic}:0", "--to-offset", "1", "--execute", "--yes",
                 "--before-image", str(file / "x.avro"), *here, code=1)  # fmt: skip
    assert "nothing was changed" in failed.stderr
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        found = store.fetch(topic)[TopicPartition(topic, 0)]
        assert isinstance(found, Committed)
        assert found.offset == 7
