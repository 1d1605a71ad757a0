"""Offsets that the coordinator does not list to a login: those of topics that the login may not describe.

A group of the broker has an offset in a topic that the login may read, and often one in a topic that it may not.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclBinding, AclOperation, ResourceType
from everyday import Cli
from kazoo_client import connected
from processes import create_topic, fill, until
from secured_broker import Secured, allowed

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.model import Committed
from offsetmgr.sandbox import ZooKeeperServer

pytestmark = pytest.mark.servers

MISSING = "leave out groups and offsets of topics that this login may not describe"
NOT_PROVED = "brokers with an authorizer leave them out"


@dataclass
class Filtered:
    """The group ``group`` and a login that may read and delete it, and may read the topic ``seen``."""

    broker: Secured
    cli: Cli
    group: str
    login: list[str]
    """The options of the login."""
    newest: bool
    """Whether the broker has the coordinator of Kafka 4.0 and later."""
    granted: list[AclBinding] = field(default_factory=list)

    @property
    def seen(self) -> str:
        return f"{self.group}-seen"

    @property
    def hidden(self) -> str:
        return f"{self.group}-hidden"

    def allow(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        prefixed = kind == ResourceType.GROUP and name != "*"
        acls = [allowed(kind, name, operation, prefixed=prefixed) for operation in operations]
        self.granted += acls
        self.broker.grant(acls)

    def commit(self, group: str, **topics: int) -> None:
        """Commits offsets of partition 0 of the topics ``seen`` and ``hidden`` with another login."""
        names = {"seen": self.seen, "hidden": self.hidden}
        offsets = {TopicPartition(names[key], 0): OffsetAndMetadata(n, f"kept {n}") for key, n in topics.items()}
        with open_store(f"kafka://{self.broker.open}") as store:
            store.commit(group, offsets)

    def committed(self, group: str) -> dict[str, tuple[int, str]]:
        with open_store(f"kafka://{self.broker.open}") as store:
            found = store.fetch(group)
        names = {self.seen: "seen", self.hidden: "hidden"}
        return {names[tp.topic]: (c.offset, c.metadata) for tp, c in found.items() if isinstance(c, Committed)}


@pytest.fixture(params=["secured", "secured_kraft"])
def filtered(request: pytest.FixtureRequest, cli: Cli, unique: str, tmp_path: Path):
    broker: Secured = request.getfixturevalue(request.param)
    file = tmp_path / "login.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in broker.properties.items()))
    login = ["--bootstrap-server", broker.bootstrap, "--command-config", str(file)]
    made = Filtered(broker, cli, unique, login, newest=request.param == "secured_kraft")
    for topic in (made.seen, made.hidden):
        fill(broker.open, create_topic(broker.open, topic, 1), 30)
    made.allow(ResourceType.GROUP, unique, AclOperation.READ, AclOperation.DELETE)
    made.allow(ResourceType.TOPIC, made.seen, AclOperation.READ)
    yield made
    broker.revoke(made.granted)


OFFSETS_LOG = (ResourceType.TOPIC, "__consumer_offsets", AclOperation.READ)
COMMANDS = {"delete": ("delete", "--group", "{0}"), "rename": ("rename", "{0}", "{0}-new")}


def run(filtered: Filtered, command: str, *options: str, code: int) -> str:
    words = (word.format(filtered.group) for word in COMMANDS[command])
    done = filtered.cli("groups", *words, *options, "--execute", "--yes", *filtered.login, code=code)
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("reads_log", [False, True])
def test_a_hidden_offset_is_not_destroyed(filtered: Filtered, command: str, reads_log: bool) -> None:
    if reads_log:
        filtered.allow(*OFFSETS_LOG)
    filtered.commit(filtered.group, seen=10, hidden=20)
    before = filtered.committed(filtered.group)
    output = run(filtered, command, code=1)
    assert filtered.committed(filtered.group) == before == {"seen": (10, "kept 10"), "hidden": (20, "kept 20")}
    assert "--accept-unseen" in output
    assert "live in this store" not in output
    operations = filtered.cli.rows("edits", "list")
    if reads_log:  # the refusal names the offset, and comes before the first write
        assert f"has 1 offset that its coordinator does not show to this login: {filtered.hidden}-0" in output
        assert operations == []
    elif filtered.newest:
        assert NOT_PROVED in output
        assert operations == []
    else:
        assert "still exists (EMPTY) after offsetmgr deleted all offsets that this login sees" in output
        assert "offsetmgr has committed the deleted offsets again" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_the_group_is_deleted_with_the_option_that_accepts_it(filtered: Filtered, command: str) -> None:
    filtered.commit(filtered.group, seen=10, hidden=20)
    output = run(filtered, command, "--accept-unseen", code=0)
    assert filtered.committed(filtered.group) == {}
    copy = {"seen": (10, "kept 10")} if command == "rename" else {}
    assert filtered.committed(f"{filtered.group}-new") == copy
    assert "has all offsets" not in output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("reads_log", [False, True])
def test_a_group_without_a_hidden_offset_is_deleted_if_that_is_proved(filtered, command: str, reads_log: bool) -> None:
    if reads_log:
        filtered.allow(*OFFSETS_LOG)
    filtered.commit(filtered.group, seen=10)
    proved = reads_log or not filtered.newest
    output = run(filtered, command, code=0 if proved else 1)
    if not proved:  # a coordinator of 4.4 keeps a group for minutes after its last offset
        assert NOT_PROVED in output
        assert "allow Read on the topic __consumer_offsets" in output
        assert filtered.committed(filtered.group) == {"seen": (10, "kept 10")}
        assert filtered.cli.rows("edits", "list") == []
    else:
        assert filtered.committed(filtered.group) == {}


@pytest.mark.parametrize("filtered", ["secured"], indirect=True)  # later coordinators refuse the name
def test_the_group_with_the_empty_name_is_deleted_with_the_option(filtered: Filtered) -> None:
    filtered.allow(ResourceType.GROUP, "*", AclOperation.READ, AclOperation.DELETE)
    filtered.commit("", seen=10, hidden=20)
    delete = ("groups", "delete", "--group", "", "--execute", "--yes", *filtered.login)
    refused = filtered.cli(*delete, code=1)
    assert NOT_PROVED in refused.stderr  # brokers delete this group only as a whole, so its deletion is no proof
    assert filtered.committed("") == {"seen": (10, "kept 10"), "hidden": (20, "kept 20")}
    filtered.cli(*delete, "--accept-unseen")
    assert filtered.committed("") == {}


def test_one_group_that_is_refused_does_not_stop_the_others(filtered: Filtered) -> None:
    filtered.allow(*OFFSETS_LOG)
    other = f"{filtered.group}-other"
    filtered.commit(filtered.group, seen=10, hidden=20)
    filtered.commit(other, seen=3)
    filtered.cli("groups", "delete", "--group", f"{filtered.group}*", "--execute", "--yes", *filtered.login, code=1)
    assert filtered.committed(other) == {}
    assert filtered.committed(filtered.group) == {"seen": (10, "kept 10"), "hidden": (20, "kept 20")}


@pytest.mark.parametrize("reads_log", [False, True])
def test_finalize_keeps_the_source_of_a_group_with_hidden_offsets(filtered, tmp_path, reads_log: bool) -> None:
    filtered.commit(filtered.group, seen=10, hidden=20)
    if reads_log:
        filtered.allow(*OFFSETS_LOG)
    plan, store = str(tmp_path / "plan.jsonl"), f"kafka://{filtered.broker.bootstrap}"
    config = filtered.login[2:]
    stores = ["--from", store, "--to", store, "--group", filtered.group]
    rename = ["--rename", f"{filtered.group}={filtered.group}-new"]
    planned = filtered.cli("migrate", "plan", *stores, *rename, "-o", plan, *config)
    assert MISSING in planned.stderr
    assert "expiry  unknown for offsets that no consumer commits again" in planned.stderr
    filtered.cli("migrate", "apply", plan, "--yes", *config)
    finalize = ["migrate", "finalize", plan, "--delete-source", "--window", "0", "--yes", *config]
    kept = filtered.cli(*finalize, code=1)
    assert f"kept in the source: group '{filtered.group}':" in kept.stderr
    assert "--accept-unseen" in kept.stderr
    assert filtered.committed(filtered.group) == {"seen": (10, "kept 10"), "hidden": (20, "kept 20")}
    filtered.cli(*finalize, "--accept-unseen")
    assert filtered.committed(filtered.group) == {"hidden": (20, "kept 20")}


def test_commands_say_what_a_filtered_login_may_not_see(filtered: Filtered, tmp_path: Path) -> None:
    filtered.commit(filtered.group, seen=10, hidden=20)
    commands = {
        "list": ["groups", "list"],
        "describe": ["groups", "describe", "--group", filtered.group],
        "where": ["groups", "where", filtered.group],
        "get": ["offsets", "get", "--group", filtered.group],
        "lag": ["offsets", "lag", "--group", filtered.group],
        "export": ["offsets", "export", str(tmp_path / "x.avro"), "--group", filtered.group, "--overwrite"],
        "export glob": ["offsets", "export", str(tmp_path / "x.avro"), "--group", f"{filtered.group}*", "--overwrite"],
        "dry run": ["offsets", "delete", "--group", filtered.group, "--all-topics"],
    }
    everything = ["--bootstrap-server", filtered.broker.open]
    for name, command in commands.items():
        output = filtered.cli(*command, *filtered.login).stderr
        assert output.count(MISSING) == 1, name
        assert "may not describe" not in filtered.cli(*command, *everything).stderr, name
    filtered.allow(ResourceType.TOPIC, "*", AclOperation.DESCRIBE)
    filtered.allow(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
    for name, command in commands.items():
        assert "may not describe" not in filtered.cli(*command, *filtered.login).stderr, name


def test_a_topic_that_the_login_may_not_describe_is_not_absent(filtered: Filtered, zookeeper: ZooKeeperServer) -> None:
    filtered.commit(filtered.group, seen=10, hidden=20)
    for topics in ([filtered.hidden], [f"{filtered.hidden}:0"], [f"{filtered.hidden}:0", filtered.seen]):
        options = [word for topic in topics for word in ("--topic", topic)]
        for command in ("get", "lag"):
            found = filtered.cli(
                "offsets", command, "--group", filtered.group, *options, "--format", "json", *filtered.login, code=1
            )
            states = {row["topic"]: row["state"] for row in json.loads(found.stdout)}
            assert states == {filtered.hidden: "unreadable"} | (
                {filtered.seen: "committed"} if len(topics) > 1 else {}
            ), (command, topics)
            assert "TOPIC_AUTHORIZATION_FAILED" in found.stderr
            assert "has no committed offsets" not in found.stderr
    named = ["--group", filtered.group, "--topic", filtered.hidden]
    refused = filtered.cli("offsets", "reset", *named, "--to-earliest", *filtered.login, code=1).stderr
    assert f"topic {filtered.hidden}: not authorized for this topic" in refused
    peeked = filtered.cli("offsets", "peek", *named, *filtered.login, code=1).stderr
    assert f"{filtered.hidden}-0: not authorized for this topic" in peeked
    with connected(zookeeper.connect) as client:
        client.create(f"/{filtered.group}")  # other tests name a cluster in the root
    chroot = f"{zookeeper.connect}/{filtered.group}"
    old, selected = f"zookeeper://{chroot}", ["--group", filtered.group, *filtered.login]
    with open_store(old) as store:  # its offsets do not show that Kafka has none
        store.commit(filtered.group, {TopicPartition(filtered.hidden, 0): OffsetAndMetadata(5)})
    (where,) = filtered.cli.rows("groups", "where", *selected, "--zookeeper", chroot)
    assert (where["phase"], "TOPIC_AUTHORIZATION_FAILED" in where["evidence"]) == ("unknown", True)
    stores = ["--from", old, "--to", f"kafka://{filtered.broker.bootstrap}", "--topic", filtered.hidden]
    (difference,) = filtered.cli.rows("offsets", "diff", *stores, *selected, code=1)
    assert difference["difference"] == "unreadable"


@pytest.mark.parametrize("filtered", ["secured_kraft"], indirect=True)
def test_a_group_of_the_consumer_protocol_with_a_hidden_topic_is_not_empty(filtered: Filtered) -> None:
    """The coordinator does not describe such a group to the login, although it has a member."""
    settings = {"bootstrap.servers": filtered.broker.open, "group.id": filtered.group, "group.protocol": "consumer"}
    consumer = Consumer(settings)
    consumer.subscribe([filtered.hidden])

    def owns() -> bool:
        consumer.poll(0.2)
        return bool(consumer.assignment())

    until(owns)
    described = filtered.cli("groups", "describe", "--group", filtered.group, *filtered.login, code=1)
    assert "TOPIC_AUTHORIZATION_FAILED" in described.stderr
    assert "EMPTY" not in described.stdout
    refused = run(filtered, "delete", "--accept-unseen", code=1)
    assert "TOPIC_AUTHORIZATION_FAILED" in refused
    consumer.close()
