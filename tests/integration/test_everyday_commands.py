"""The everyday commands as processes, against real ZooKeeper and real Kafka."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.model import Committed
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer

pytestmark = pytest.mark.servers

COMMAND = [sys.executable, "-c", "from offsetmgr.cli.app import main; main()"]


class Cli:
    """Runs ``offsetmgr`` with a state folder of its own and nothing else in its settings."""

    def __init__(self, home: Path) -> None:
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("OFFSETMGR_")}
        self.environ |= {"XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home / "state")}

    def __call__(self, *arguments: str, code: int = 0, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env=self.environ,
            check=False,
        )
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        found = json.loads(self(*arguments, "--format", "json", code=code).stdout)
        assert isinstance(found, list)
        return found


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def topic(unique: str, kafka: KafkaBroker, make_topic: Callable[..., str]) -> str:
    """A topic of three partitions that hold 10, 20 and 0 records, at one-second steps from 2001-09-09T01:46:40Z."""
    # The records are old enough for the broker to delete them at its next look, half a minute after its start.
    make_topic(unique, 3, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition, count in ((0, 10), (1, 20)):
        for n in range(count):
            producer.produce(unique, b"x", partition=partition, timestamp=1_000_000_000_000 + 1000 * n)
    assert producer.flush(30) == 0
    return unique


@pytest.fixture(params=["zookeeper", "kafka", "dual"])
def flags(request: pytest.FixtureRequest, kafka: KafkaBroker, zookeeper: ZooKeeperServer, cli: Cli) -> list[str]:
    """What to say for each kind of store, with the brokers for the logs."""
    if request.param == "dual":
        config = Path(cli.environ["XDG_CONFIG_HOME"]) / "offsetmgr" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            f'[store.both]\nprimary = "kafka://{kafka.bootstrap}"\nsecondary = "zookeeper://{zookeeper.connect}"\n'
        )
        return ["--store", "dual:both"]
    if request.param == "zookeeper":
        return ["--zookeeper", zookeeper.connect, "--bootstrap-server", kafka.bootstrap]
    return ["--bootstrap-server", kafka.bootstrap]


def named_store(flags: list[str]) -> str:
    """How the store of these flags is named in what is said of it."""
    return {"--store": "dual:", "--zookeeper": f"zookeeper://{flags[1]}"}.get(flags[0], f"kafka://{flags[1]};")


def inner_store(cli: Cli, flags: list[str], image: Path) -> list[str]:
    """The flags of the store whose before-images a file holds."""
    if "--store" not in flags:
        return flags
    config = tomllib.loads((Path(cli.environ["XDG_CONFIG_HOME"]) / "offsetmgr" / "config.toml").read_text())
    return ["--store", config["store"]["both"][image.stem.rpartition(".")[2]]]


def committed(cli: Cli, flags: list[str], group: str) -> dict[int, int]:
    rows = cli.rows("offsets", "get", "--group", group, *flags)
    return {row["partition"]: row["offset"] for row in rows}


def test_offsets_are_set_shown_and_taken_back(cli: Cli, flags: list[str], topic: str) -> None:
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

    there, absent = cli.rows("offsets", "get", "--group", topic, "--topic", f"{topic}:1,2", *flags)
    assert there["commit_timestamp"] is None or there["commit_timestamp"] > 1_700_000_000_000
    assert there | {"commit_timestamp": None} == {
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
    offsets, said = reset(*every, "--to-offset", "15")
    assert offsets == {0: 10, 1: 15, 2: 0}
    assert said.count("clamped from 15 to the log's end") == 2
    assert reset("--topic", f"{topic}:1", "--shift-by", "-5")[0] == {0: 10, 1: 10, 2: 0}
    assert reset("--all-topics", "--shift-by", "-100")[0] == {0: 0, 1: 0, 2: 0}
    offsets, said = reset(*every, "--to-datetime", "2001-09-09T01:46:55.000")
    assert offsets == {0: 10, 1: 15, 2: 0}
    assert said.count("no record at or after that time: the log's end") == 2
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


def test_ctrl_c_at_the_question_does_nothing_and_says_so(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "store.avro"
    with open_store(f"file:{file}") as store:
        store.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(8)})
    arguments = ["groups", "delete", "--group", "g", "--execute", "--store", f"file:{file}"]
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*COMMAND, *arguments], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=cli.environ
        ) as process:
            assert process.stderr is not None
            said = b""
            while not said.endswith(b"[y/N] "):
                got = os.read(process.stderr.fileno(), 4096)
                assert got, said
                said += got
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read().strip() == b"interrupted: nothing was done"
    finally:
        os.close(ours)
        os.close(theirs)
    with open_store(f"file:{file}") as store:
        assert len(store.fetch("g")) == 1


def test_an_undo_names_what_it_needs_and_a_failed_edit_offers_none(
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


def test_lag_and_description_count_against_the_real_log(cli: Cli, flags: list[str], topic: str) -> None:
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0-2", "--to-offset", "8", "--execute",
        "--yes", *flags)  # fmt: skip
    rows = cli.rows("offsets", "lag", "--group", topic, *flags)
    assert [(r["partition"], r["offset"], r["log_start_offset"], r["log_end_offset"], r["lag"]) for r in rows] == [
        (0, 8, 0, 10, 2),
        (1, 8, 0, 20, 12),
        (2, 8, 0, 0, None),
    ]
    assert rows[2]["note"] == "beyond the log's end"
    behind = cli.rows("offsets", "lag", "--all-groups", "--topic", topic, "--only-with-lag", *flags)
    assert [(r["group"], r["partition"], r["lag"]) for r in behind] == [(topic, 0, 2), (topic, 1, 12), (topic, 2, None)]
    described = cli.rows("groups", "describe", "--group", topic, *flags)
    assert [(r["state"], r["partition"], r["offset"], r["lag"]) for r in described] == [
        ("EMPTY", 0, 8, 2),
        ("EMPTY", 1, 8, 12),
        ("EMPTY", 2, 8, None),
    ]
    watched = cli("groups", "describe", "--group", topic, "--watch", "0.1", "--count", "2", *flags)
    assert watched.stdout.count("GROUP") == 2


def test_partitions_that_are_asked_for_are_shown_committed_or_not(cli: Cli, flags: list[str], topic: str) -> None:
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:1", "--to-offset", "8", "--execute",
        "--yes", *flags)  # fmt: skip
    rows = cli.rows("offsets", "get", "--group", topic, "--topic", topic, *flags)
    assert [(r["partition"], r["state"]) for r in rows] == [(0, "absent"), (1, "committed"), (2, "absent")]
    rows = cli.rows("offsets", "lag", "--group", topic, "--topic", topic, *flags)
    assert [(r["partition"], r["log_end_offset"], r["lag"], r["note"]) for r in rows] == [
        (0, 10, None, "nothing committed"),
        (1, 20, 12, None),
        (2, 0, None, "nothing committed"),
    ]
    rows = cli.rows("offsets", "lag", "--group", topic, "--topic", f"{topic}:2", *flags)
    assert [(r["partition"], r["lag"]) for r in rows] == [(2, None)]
    for command in ("get", "lag"):
        said = cli("offsets", command, "--group", topic, "--topic", f"{topic}-none", *flags, code=1)
        assert said.stderr == f"error: group '{topic}': has no committed offsets in topic {topic}-none\n"
        said = cli("offsets", command, "--all-groups", "--topic", f"{topic}-none", *flags)
        assert f"no committed offsets in topic {topic}-none in " in said.stderr


def test_an_empty_place_is_named(cli: Cli, zookeeper: ZooKeeperServer, unique: str) -> None:
    client = KazooClient(zookeeper.connect)
    client.start()
    try:
        client.create(f"/{unique}")
    finally:
        client.stop()
        client.close()
    place = f"{zookeeper.connect}/{unique}"
    said = cli("groups", "list", "--zookeeper", place)
    nothing = re.compile(rf"no groups in zookeeper://{place}[^ ]*; is the chroot right\?\n")
    assert said.stdout == ""
    assert nothing.fullmatch(said.stderr)
    assert cli.rows("groups", "list", "--zookeeper", place) == []
    said = cli("groups", "describe", "--all-groups", "--zookeeper", place)
    assert nothing.fullmatch(said.stderr)
    said = cli("offsets", "get", "--all-groups", "--zookeeper", place)
    assert said.stderr.startswith(f"no committed offsets in zookeeper://{place}")


def test_one_odd_name_does_not_break_a_listing_of_two_stores(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    odd = f"{topic}/odd"
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        for name in (topic, odd):
            store.commit(name, {TopicPartition(topic, 0): OffsetAndMetadata(5)})
    dual = f"dual:?primary={quote(f'kafka://{kafka.bootstrap}', safe='')}"
    flags = ["--store", f"{dual}&secondary={quote(f'zookeeper://{zookeeper.connect}', safe='')}"]
    try:
        assert {"group": topic, "state": "EMPTY"} in cli.rows("groups", "list", "--state", *flags)
        described = cli("groups", "describe", "--all-groups", "--format", "json", *flags, code=1)
        assert [r["offset"] for r in json.loads(described.stdout) if r["group"] == topic] == [5]
        assert len(re.findall("^error: .*/odd'", described.stderr, re.MULTILINE)) == 1
    finally:
        with open_store(f"kafka://{kafka.bootstrap}") as store:
            store.delete(odd)


def test_an_edit_of_two_stores_is_taken_back_in_each(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    first, second = f"kafka://{kafka.bootstrap}", f"zookeeper://{zookeeper.connect}"
    held = {first: {0: 9, 1: 3}, second: {0: 5, 1: 7, 2: 1}}
    for uri, offsets in held.items():
        with open_store(uri) as store:
            store.commit(topic, {TopicPartition(topic, p): OffsetAndMetadata(o) for p, o in offsets.items()})
    dual = f"dual:?primary={quote(first, safe='')}&secondary={quote(second, safe='')}"
    done = cli("offsets", "set", "--group", topic, "--topic", f"{topic}:0-2", "--to-offset", "8", "--execute", "--yes",
               "--store", dual)  # fmt: skip
    assert "done: 3 changed" in done.stderr
    for uri in held:
        assert committed(cli, ["--store", uri], topic) == {0: 8, 1: 8, 2: 8}
    undos = [shlex.split(line.removeprefix("undo: ")) for line in done.stderr.splitlines() if line.startswith("undo: ")]
    assert [undo[undo.index("--store") + 1].partition("?")[0] for undo in undos] == list(held)
    for undo in undos:
        assert undo[0] == "offsetmgr"
        cli(*undo[1:], "--yes")
    for uri, offsets in held.items():
        assert committed(cli, ["--store", uri], topic) == offsets


def test_states_are_listed_filtered_and_described(cli: Cli, kafka: KafkaBroker, topic: str, member: Consumer) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    stable = [{"group": topic, "state": "STABLE"}]
    assert cli.rows("groups", "list", "--group", topic, *here, "--state") == stable
    assert cli.rows("groups", "list", "--group", topic, "--state", "Stable,Empty", *here) == stable
    empty = cli("groups", "list", "--group", topic, "--state", "empty", *here)
    assert (empty.stdout, empty.stderr) == ("", f"no groups in state empty in kafka://{kafka.bootstrap}\n")
    (row,) = cli.rows("groups", "describe", "--group", topic, "--state", "--verbose", *here)
    assert (row["group"], row["state"], row["members"], row["assignor"]) == (topic, "STABLE", 1, "range")
    assert kafka.bootstrap in str(row["coordinator"])


def test_only_with_lag_leaves_out_nothing_but_what_is_well(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    flags = ["--zookeeper", zookeeper.connect, "--bootstrap-server", kafka.bootstrap]
    with open_store(f"zookeeper://{zookeeper.connect}") as store:
        offsets = {0: 10, 1: 19, 2: 5}
        store.commit(topic, {TopicPartition(topic, p): OffsetAndMetadata(o) for p, o in offsets.items()})
        store.commit(topic, {TopicPartition(f"{topic}-gone", 0): OffsetAndMetadata(3)})
    for command in (["offsets", "lag"], ["groups", "describe"]):
        rows = cli.rows(*command, "--group", topic, "--only-with-lag", *flags, code=1)
        assert [(r["topic"], r["partition"], r["lag"], r["note"]) for r in rows] == [
            (topic, 1, 1, None),
            (topic, 2, None, "beyond the log's end"),
            (f"{topic}-gone", 0, None, "log unknown"),
        ]
    for command in (["offsets", "lag"], ["groups", "describe"]):
        refused = cli(*command, "--group", topic, "--only-with-lag", *flags[:2], code=2)
        assert "no brokers are known" in refused.stderr


def test_a_group_named_like_a_glob_is_meant_alone(
    cli: Cli, zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    flags = ["--zookeeper", zookeeper.connect]
    star, other = f"{unique}-*", f"{unique}-other"
    with open_store(f"zookeeper://{zookeeper.connect}") as store:
        for name in (star, other):
            store.commit(name, {TopicPartition("t", 0): OffsetAndMetadata(5)})
    both = [{"group": star}, {"group": other}]
    assert cli.rows("groups", "list", "--group", star, *flags) == both[:1]
    assert cli.rows("groups", "list", "--group", f"{unique}-[*]", *flags) == both[:1]
    assert cli.rows("groups", "list", "--group", f"{unique}-?*", *flags) == both
    file = str(tmp_path / "x.csv")
    cli("offsets", "export", file, "--group", f"{unique}-?*", *flags)
    here = ["--from", f"file:{file}", "--to", f"zookeeper://{zookeeper.connect}"]
    assert "no difference in 1 group" in cli("offsets", "diff", *here, "--group", star).stderr
    cli("groups", "delete", "--group", star, "--execute", "--yes", *flags)
    assert cli.rows("groups", "list", "--group", f"{unique}-?*", *flags) == both[1:]
    cli("offsets", "import", file, "--group", star, "--execute", "--yes", *flags)
    assert cli.rows("offsets", "get", "--group", star, *flags)[0]["offset"] == 5


def test_groups_are_copied_renamed_and_deleted(cli: Cli, flags: list[str], topic: str) -> None:
    copy, renamed = f"{topic}-copy", f"{topic}-renamed"
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "8", "--execute",
        "--yes", *flags)  # fmt: skip
    cli("groups", "copy", topic, copy, "--execute", "--yes", *flags)
    assert committed(cli, flags, copy) == {0: 8, 1: 8}
    cli("groups", "rename", copy, renamed, *flags)
    assert committed(cli, flags, copy) == {0: 8, 1: 8}
    done = cli("groups", "rename", copy, renamed, "--execute", "--yes", *flags)
    assert f"verified: group '{renamed}' holds all that '{copy}' holds" in done.stderr
    undos = [line for line in done.stderr.splitlines() if line.startswith("undo ")]
    assert [line[:7] for line in undos] == [f"undo {n}:" for n in range(1, 1 + (4 if "--store" in flags else 2))]
    assert done.stderr.splitlines()[-len(undos) :] == undos
    assert "rename-delete" in undos[0]
    assert committed(cli, flags, renamed) == {0: 8, 1: 8}
    assert "does not exist" in cli("offsets", "get", "--group", copy, *flags, code=1).stderr
    refused = cli("groups", "rename", topic, renamed, "--execute", "--yes", *flags, code=1)
    assert "exists already" in refused.stderr
    cli("groups", "delete", "--group", f"{topic}*", "--execute", "--yes", *flags)
    assert "matches" in cli("groups", "list", "--group", f"{topic}*", *flags, code=1).stderr


def test_deleted_offsets_come_back_from_their_before_images(cli: Cli, flags: list[str], topic: str) -> None:
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


def test_exported_offsets_are_equal_and_a_change_is_a_difference(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str, tmp_path: Path
) -> None:
    there, here = ["--zookeeper", zookeeper.connect], ["--bootstrap-server", kafka.bootstrap]
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "8", "--execute",
        "--yes", *there)  # fmt: skip
    for name in ("x.avro", "x.csv", "x.zk", "x.json"):
        file = str(tmp_path / name)
        cli("offsets", "export", file, "--group", topic, *there)
        same = cli("offsets", "diff", "--from", f"file:{file}", "--to", f"zookeeper://{zookeeper.connect}",
                   "--group", topic)  # fmt: skip
        assert "no difference in 1 group" in same.stderr
    cli("offsets", "import", str(tmp_path / "x.avro"), "--execute", "--yes", *here)
    both = ["--from", f"zookeeper://{zookeeper.connect}", "--to", f"kafka://{kafka.bootstrap}", "--group", topic]
    cli("offsets", "diff", *both)
    cli("offsets", "set", "--group", topic, "--topic", f"{topic}:1", "--to-offset", "9", "--execute", "--yes", *here)
    rows = cli.rows("offsets", "diff", *both, code=1)
    assert [(r["partition"], r["difference"], r["from_offset"], r["to_offset"]) for r in rows] == [(1, "offset", 8, 9)]
    back = cli("offsets", "import", str(tmp_path / "x.avro"), "--execute", "--yes", *here, code=1)
    assert "would go back from 9 to 8" in back.stderr
    assert "hint: add --allow-rewind" in back.stderr
    assert committed(cli, here, topic) == {0: 8, 1: 9}
    assert (
        "exists already" in cli("offsets", "export", str(tmp_path / "x.avro"), "--group", topic, *there, code=1).stderr
    )


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "not within the time given"


@pytest.fixture
def member(kafka: KafkaBroker, topic: str) -> Iterator[Consumer]:
    """A live consumer that has joined the group ``topic`` and owns all its partitions."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "client.id": "living", "auto.offset.reset": "latest"}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe([topic])

    def owns_all() -> bool:
        consumer.poll(0.2)
        return len(consumer.assignment()) == 3

    until(owns_all)
    yield consumer
    consumer.close()


def test_a_group_with_live_members_is_described_and_never_edited(
    cli: Cli, kafka: KafkaBroker, topic: str, member: Consumer
) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        before = dict(store.fetch(topic))
    rows = cli.rows("groups", "describe", "--group", topic, *here)
    assert [(r["state"], r["partition"], r["offset"], r["client_id"]) for r in rows] == [
        ("STABLE", 0, None, "living"),
        ("STABLE", 1, None, "living"),
        ("STABLE", 2, None, "living"),
    ]
    members = cli.rows("groups", "describe", "--group", topic, "--members", *here)
    assert [(r["client_id"], r["partitions"]) for r in members] == [("living", 3)]
    for arguments in (
        ["offsets", "reset", "--group", topic, "--new-group", "--topic", topic, "--to-earliest"],
        ["offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "1"],
        ["groups", "delete", "--group", topic],
        ["groups", "rename", topic, f"{topic}-new"],
    ):
        refused = cli(*arguments, "--execute", "--yes", *here, code=1)
        assert "living at 127.0.0.1" in refused.stderr
        assert "hint: stop its consumers first" in refused.stderr
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        assert dict(store.fetch(topic)) == before


def test_old_consumers_in_zookeeper_are_members_too(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str, tmp_path: Path
) -> None:
    there = ["--zookeeper", f"{zookeeper.connect}/kafka", "--bootstrap-server", kafka.bootstrap]
    consumer = OldConsumer(
        tmp_path / "old", zookeeper=f"{zookeeper.connect}/kafka", group=topic, topic=topic, offsets_storage="zookeeper",
        dual_commit=False, auto_commit_interval_ms=200, extra={"auto.offset.reset": "smallest"},
    )  # fmt: skip
    consumer.start()
    try:

        def caught_up() -> bool:
            rows = cli.rows("offsets", "get", "--all-groups", "--topic", topic, *there)
            return {(r["partition"], r["offset"]) for r in rows} >= {(0, 10), (1, 20)}

        until(caught_up, 90)
        rows = cli.rows("groups", "describe", "--group", topic, *there)
        assert [(r["state"], r["partition"], r["lag"]) for r in rows if r["partition"] < 2] == [
            ("STABLE", 0, 0),
            ("STABLE", 1, 0),
        ]
        assert all(str(r["member_id"]).startswith(f"{topic}_") for r in rows)
        refused = cli("offsets", "reset", "--group", topic, "--topic", topic, "--to-earliest", "--execute", "--yes",
                      *there, code=1)  # fmt: skip
        assert "STABLE with 1 member: " in refused.stderr
    finally:
        consumer.stop()

    def alone() -> bool:
        return cli.rows("groups", "list", "--group", topic, "--state", *there) == [{"group": topic, "state": "EMPTY"}]

    until(alone)
    cli("offsets", "reset", "--group", topic, "--topic", f"{topic}:0", "--to-earliest", "--execute", "--yes", *there)
    assert committed(cli, there, topic)[0] == 0


def test_watching_ends_cleanly_with_ctrl_c(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        store.commit(topic, {TopicPartition(topic, 0): OffsetAndMetadata(1)})
    arguments = ["groups", "describe", "--group", topic, "--watch", "--bootstrap-server", kafka.bootstrap]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cli.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("GROUP")
        assert process.stdout.readline().startswith(topic)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_before_images_are_on_disk_before_anything_is_changed(
    cli: Cli, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        store.commit(topic, {TopicPartition(topic, 0): OffsetAndMetadata(7)})
    file = tmp_path / "not-a-folder"
    file.write_text("")
    failed = cli("offsets", "set", "--group", topic, "--topic", f"{topic}:0", "--to-offset", "1", "--execute", "--yes",
                 "--before-image", str(file / "x.avro"), *here, code=1)  # fmt: skip
    assert "nothing was changed" in failed.stderr
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        found = store.fetch(topic)[TopicPartition(topic, 0)]
        assert isinstance(found, Committed)
        assert found.offset == 7


# --- the fault matrix ------------------------------------------------------------------------------

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
