"""``groups`` and ``offsets``: lists, descriptions and watches, on real ZooKeeper and real Kafka."""

from __future__ import annotations

import json
import re
import signal
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer
from everyday import Cli
from kazoo_client import connected
from processes import start_command
from same_cluster import join_cluster

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytest_plugins = ["everyday_fixtures"]

pytestmark = pytest.mark.servers


def test_lag_and_description_use_the_ranges_of_the_real_log(cli: Cli, flags: list[str], topic: str) -> None:
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


def test_requested_partitions_are_shown_with_or_without_a_commit(cli: Cli, flags: list[str], topic: str) -> None:
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
        done = cli("offsets", command, "--group", topic, "--topic", f"{topic}-none", *flags, code=1)
        assert done.stderr == f"error: group '{topic}': has no committed offsets in topic {topic}-none\n"
        done = cli("offsets", command, "--all-groups", "--topic", f"{topic}-none", *flags)
        assert f"no committed offsets in topic {topic}-none in " in done.stderr


@pytest.mark.parametrize(
    "command", [("groups", "describe"), ("offsets", "get"), ("offsets", "lag"), ("offsets", "peek")], ids=" ".join
)
def test_a_misspelled_group_hides_no_other_group(
    command: tuple[str, str], cli: Cli, kafka: KafkaBroker, topic: str
) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "8", "--execute",
        "--yes", *flags)  # fmt: skip
    both = ["--group", f"{topic}-misspelled", "--group", topic]
    (row,) = cli.rows(*command, *both, *flags, code=1)
    assert (row["group"], row["partition"], row["offset"]) == (topic, 0, 8)
    done = cli(*command, *both, *flags, code=1)
    assert done.stderr.startswith(f"error: group '{topic}-misspelled': does not exist in kafka://{kafka.bootstrap}\n")
    alone = cli(*command, "--group", f"{topic}-misspelled", *flags, code=1)
    assert alone.stderr.startswith(f"error: group '{topic}-misspelled': does not exist in kafka://{kafka.bootstrap}\n")


def test_a_topic_without_offsets_in_any_described_group_is_an_error(cli: Cli, flags: list[str], topic: str) -> None:
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:1", "--to-offset", "8", "--execute",
        "--yes", *flags)  # fmt: skip
    describe = ["groups", "describe", "--group", topic, "--topic"]
    done = cli(*describe, f"{topic}-typo", *flags, code=1)
    assert "0 members, nothing committed in these topics" in done.stdout
    assert done.stderr.startswith(f"error: topic {topic}-typo: not among the groups' offsets in ")
    mixed = cli(*describe, topic, "--topic", f"{topic}-typo", "--format", "json", *flags, code=1)
    assert [row["offset"] for row in json.loads(mixed.stdout)] == [8]
    for option in ("--members", "--state"):
        refused = cli(*describe, topic, option, *flags, code=2)
        assert f"--topic: selects partitions, but {option} shows no partitions" in refused.stderr


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


def test_one_invalid_group_name_does_not_break_a_list_of_two_stores(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str
) -> None:
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
    assert (empty.stdout, empty.stderr) == ("", f"no groups in state empty in kafka://{kafka.bootstrap}\n")
    (row,) = cli.rows("groups", "describe", "--group", topic, "--state", "--verbose", *here)
    assert (row["group"], row["state"], row["members"], row["assignor"]) == (topic, "STABLE", 1, "range")
    assert kafka.bootstrap in str(row["coordinator"])


def test_only_with_lag_omits_only_partitions_without_lag(
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


def test_watching_ends_cleanly_with_ctrl_c(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        store.commit(topic, {TopicPartition(topic, 0): OffsetAndMetadata(1)})
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
