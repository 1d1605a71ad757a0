"""``groups`` and ``offsets`` on real ZooKeeper and real Kafka: edits, their undo, lists, descriptions and watches."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from urllib.parse import quote

import pytest
from committed_offsets import commit
from confluent_kafka import Consumer
from everyday import Cli, committed, named_store
from kazoo_client import connected
from old_consumers import old_member
from processes import start_command, until
from same_cluster import join_cluster

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers

DO = ("--execute", "--yes")


def set_offsets(cli: Cli, flags: list[str], topic: str, partitions: str, offset: str = "8") -> CompletedProcess[str]:
    edit = ("offsets", "set", topic, "--new-group", "--topic", f"{topic}:{partitions}", "--to-offset", offset)
    return cli(*edit, *DO, *flags)


def test_offsets_are_set_shown_and_undone(cli: Cli, flags: list[str], topic: str) -> None:
    dry = cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "4", *flags)
    assert f"dry run: would change 2 offsets in 1 group in {named_store(flags)}" in dry.stderr
    assert "; nothing was changed" in dry.stderr
    assert cli("offsets", "get", "--group", topic, *flags, code=1).stderr.startswith(f"error: group '{topic}':")
    done = set_offsets(cli, flags, topic, "0,1", "4")
    images = [line.removeprefix("before-images: ") for line in done.stderr.splitlines() if line[:7] == "before-"]
    undos = [shlex.split(line.removeprefix("undo: ")) for line in done.stderr.splitlines() if line.startswith("undo: ")]
    assert [undo[3] for undo in undos] == images
    assert len(images) == (2 if "--store" in flags else 1)
    present, absent = cli.rows("offsets", "get", "--group", topic, "--topic", f"{topic}:1,2", *flags)
    assert present["commit_timestamp"] is None or present["commit_timestamp"] > 1_700_000_000_000
    common = {"group": topic, "topic": topic, "leader_epoch": None, "commit_timestamp": None}
    value = {"partition": 1, "state": "committed", "offset": 4, "metadata": ""}
    assert present | {"commit_timestamp": None} == common | value
    assert absent == common | {"partition": 2, "state": "absent", "offset": None, "metadata": None}
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
    commit(f"file:{file}", "g", "t", {0: 8})
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


def create_node(zookeeper: ZooKeeperServer, path: str, data: bytes) -> None:
    with connected(zookeeper.connect) as client:
        client.create(path, data, makepath=True)


def test_groups_are_copied_renamed_and_deleted(cli: Cli, flags: list[str], topic: str) -> None:
    copy, renamed = f"{topic}-copy", f"{topic}-renamed"
    set_offsets(cli, flags, topic, "0,1")
    cli("groups", "copy", topic, copy, "--execute", "--yes", *flags)
    assert committed(cli, flags, copy) == {0: 8, 1: 8}
    cli("groups", "rename", copy, renamed, *flags)
    assert committed(cli, flags, copy) == {0: 8, 1: 8}
    done = cli("groups", "rename", copy, renamed, "--execute", "--yes", *flags)
    assert f"verified: group '{renamed}' has the 2 offsets that were read from '{copy}'" in done.stderr
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


def test_exported_offsets_are_equal_and_a_change_is_a_difference(cli, kafka, zookeeper, topic, tmp_path) -> None:
    there, here = ["--zookeeper", zookeeper.connect], ["--bootstrap-server", kafka.bootstrap]
    set_offsets(cli, there, topic, "0,1")
    for name in ("x.avro", "x.csv", "x.zk", "x.json"):
        file = str(tmp_path / name)
        cli("offsets", "export", file, "--group", topic, *there)
        same = cli("offsets", "diff", topic, "--from", f"file:{file}", "--to", f"zookeeper://{zookeeper.connect}")
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
    again = cli("offsets", "export", str(tmp_path / "x.avro"), "--group", topic, *there, code=1)
    assert "exists already" in again.stderr


def test_a_group_with_live_members_is_described_and_never_edited(cli, kafka, topic, member) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        before = dict(store.fetch(topic))
    rows = cli.rows("groups", "describe", "--group", topic, *here)
    found = [(r["state"], r["partition"], r["offset"], r["client_id"]) for r in rows]
    assert found == [("STABLE", n, None, "living") for n in range(3)]
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
        waits = "hint: --wait-empty SECONDS waits until the group has no members; --running moves it without a stop"
        assert (waits in refused.stderr) == (arguments[0] == "offsets")
    refused = cli("groups", "delete", "--group", topic, "--execute", *here, code=1)  # nothing is left to ask for
    assert "stdin is not a terminal" not in refused.stderr
    assert [row["operation"] for row in cli.rows("edits", "list")] == []
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        assert dict(store.fetch(topic)) == before


def test_old_consumers_in_zookeeper_are_members_too(cli, kafka, zookeeper, topic, tmp_path) -> None:
    there = ["--zookeeper", f"{zookeeper.connect}/kafka", "--bootstrap-server", kafka.bootstrap]
    from_start = {"auto.offset.reset": "smallest"}
    consumer = old_member(tmp_path / "old", f"{zookeeper.connect}/kafka", topic, topic, extra=from_start)
    consumer.start()
    try:

        def caught_up() -> bool:
            rows = cli.rows("offsets", "get", "--all-groups", "--topic", topic, *there, code=None)
            return {(r["partition"], r["offset"]) for r in rows} >= {(0, 10), (1, 20)}

        until(caught_up, 90)
        rows = cli.rows("groups", "describe", "--group", topic, *there)
        assert [(r["state"], r["partition"], r["lag"]) for r in rows if r["partition"] < 2] == [
            ("STABLE", 0, 0),
            ("STABLE", 1, 0),
        ]
        assert all(str(r["member_id"]).startswith(f"{topic}_") for r in rows)
        refused = cli("offsets", "reset", topic, "--topic", topic, "--to-earliest", *DO, *there, code=1)
        assert "STABLE with 1 member: " in refused.stderr
        # Edits in Kafka are refused too if the ZooKeeper is known: a member with dual commit commits there as well.
        cli.environ["OFFSETMGR_ZOOKEEPER"] = there[1]
        in_kafka = ["--store", f"kafka://{kafka.bootstrap}", "--execute", "--yes"]
        for edit in (
            ["offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "3"],
            ["offsets", "reset", "--group", topic, "--new-group", "--topic", topic, "--to-earliest"],
            ["groups", "rename", topic, f"{topic}-new"],
        ):
            refused = cli(*edit, *in_kafka, code=1)
            assert "STABLE with 1 member: " in refused.stderr
            assert f"({topic}_" in refused.stderr
        del cli.environ["OFFSETMGR_ZOOKEEPER"]
        with open_store(f"kafka://{kafka.bootstrap}") as store:
            assert topic not in set(store.groups())
    finally:
        consumer.stop()

    def has_no_members() -> bool:
        return cli.rows("groups", "list", "--group", topic, "--state", *there) == [{"group": topic, "state": "EMPTY"}]

    until(has_no_members)
    cli.environ["OFFSETMGR_ZOOKEEPER"] = there[1]
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "3", *in_kafka)
    del cli.environ["OFFSETMGR_ZOOKEEPER"]
    reset = ["offsets", "reset", topic, "--topic", f"{topic}:0", "--to-earliest", "--execute", "--yes", *there]
    assert "the store to which its consumers commit is not known" in cli(*reset, code=1).stderr
    cli(*reset, "--store", f"zookeeper://{there[1]}")
    assert committed(cli, ["--store", f"zookeeper://{there[1]}"], topic)[0] == 0


def test_members_in_the_zookeeper_of_another_cluster_are_ignored(cli, kafka, zookeeper, topic) -> None:
    registration = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1"}'
    create_node(zookeeper, f"/{topic}/consumers/{topic}/ids/consumer-1", registration)
    cli.environ["OFFSETMGR_ZOOKEEPER"] = f"{zookeeper.connect}/{topic}"
    edit = ["offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "3"]
    edit += ["--store", f"kafka://{kafka.bootstrap}", "--execute", "--yes"]
    # a ZooKeeper without a cluster id may have the same group
    assert "1 persistent registration in ZooKeeper" in cli(*edit, code=1).stderr
    create_node(zookeeper, f"/{topic}/cluster/id", b'{"version":"1","id":"another"}')
    assert "done: 1 changed" in cli(*edit).stderr


def test_lag_and_description_use_the_ranges_of_the_real_log(cli: Cli, flags: list[str], topic: str) -> None:
    set_offsets(cli, flags, topic, "0-2")
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


def test_requested_partitions_are_shown_with_or_without_a_commit(cli: Cli, flags: list[str], topic: str) -> None:
    set_offsets(cli, flags, topic, "1")
    rows = cli.rows("offsets", "get", topic, "--topic", topic, *flags)
    assert [(r["partition"], r["state"]) for r in rows] == [(0, "absent"), (1, "committed"), (2, "absent")]
    rows = cli.rows("offsets", "lag", topic, "--topic", topic, *flags)
    assert [(r["partition"], r["log_end_offset"], r["lag"], r["note"]) for r in rows] == [
        *((0, 10, None, "nothing committed"), (1, 20, 12, None), (2, 0, None, "nothing committed"))
    ]
    rows = cli.rows("offsets", "lag", topic, "--topic", f"{topic}:2", *flags)
    assert [(r["partition"], r["lag"]) for r in rows] == [(2, None)]
    for command in ("get", "lag"):
        done = cli("offsets", command, topic, "--topic", f"{topic}-none", *flags, code=1)
        assert done.stderr == f"error: group '{topic}': has no committed offsets in topic {topic}-none\n"
        done = cli("offsets", command, "--all-groups", "--topic", f"{topic}-none", *flags, code=1)
        assert f"error: topic {topic}-none: not among the groups' offsets in " in done.stderr


def test_an_empty_store_is_named(cli: Cli, zookeeper: ZooKeeperServer, unique: str) -> None:
    with connected(zookeeper.connect) as client:
        client.create(f"/{unique}")
    address = f"{zookeeper.connect}/{unique}"
    done = cli("groups", "list", "--zookeeper", address)
    nothing = re.compile(rf"no groups in zookeeper://{address}[^ ]*; is the chroot right\?\n")
    assert done.stdout == ""
    assert nothing.fullmatch(done.stderr)
    assert cli.rows("groups", "list", "--zookeeper", address) == []
    done = cli("groups", "describe", "--all-groups", "--zookeeper", address)
    assert nothing.fullmatch(done.stderr)
    done = cli("offsets", "get", "--all-groups", "--zookeeper", address)
    assert done.stderr.startswith(f"no committed offsets in zookeeper://{address}")
    with connected(zookeeper.connect) as client:
        client.create(f"/{unique}/cluster/id", b'{"version":"1","id":"AAAAAAAAAAAAAAAAAAAAAA"}', makepath=True)
    for command in (("groups", "list"), ("groups", "describe", "--all-groups"), ("zk", "members", "--all-groups")):
        done = cli(*command, "--zookeeper", address)
        assert re.match(rf"no groups in zookeeper://{address}[^ ]*\n", done.stderr), command


def test_one_invalid_group_name_does_not_break_a_list_of_two_stores(cli, kafka, zookeeper, topic) -> None:
    odd = f"{topic}/odd"
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        for name in (topic, odd):
            store.commit(name, {TopicPartition(topic, 0): OffsetAndMetadata(5)})
    join_cluster(zookeeper.connect, kafka.bootstrap)
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


def test_states_are_listed_filtered_and_described(cli: Cli, kafka: KafkaBroker, topic: str, member: Consumer) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    stable = [{"group": topic, "state": "STABLE"}]
    assert cli.rows("groups", "list", "--group", topic, *here, "--state") == stable
    assert cli.rows("groups", "list", "--group", topic, "--state", "Stable,Empty", *here) == stable
    empty = cli("groups", "list", "--group", topic, "--state", "empty", *here)
    assert (empty.stdout, empty.stderr) == ("", f"no selected groups in state empty in kafka://{kafka.bootstrap}\n")
    (row,) = cli.rows("groups", "describe", "--group", topic, "--state", "--verbose", *here)
    assert (row["group"], row["state"], row["members"], row["assignor"]) == (topic, "STABLE", 1, "range")
    assert kafka.bootstrap in str(row["coordinator"])


def test_watching_ends_cleanly_with_ctrl_c(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    commit(f"kafka://{kafka.bootstrap}", topic, topic, {0: 1})
    arguments = ["groups", "describe", "--group", topic, "--watch", "--bootstrap-server", kafka.bootstrap]
    with start_command(*arguments, environ=cli.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith("Z\n")  # the time
        assert process.stdout.readline().startswith("GROUP")
        assert process.stdout.readline().startswith(topic)
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
        assert process.stderr.read() == ""
