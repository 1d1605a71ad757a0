"""Share groups, groups of the Streams protocol and of Connect workers: edits name the kind and Kafka's own command, and
change nothing; commands that read show the rows of Kafka's tools."""

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from conftest import MakeTopic
from in_process import command, rows
from processes import close_consumers, fill, running_program, until

from offsetmgr import OffsetAdmin
from offsetmgr.cli.app import run
from offsetmgr.core.batches import by_key
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.sandbox import KraftBroker, jars
from offsetmgr.sandbox.java import QUICK_START, java_command

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

JANINO = "org.codehaus.janino.SimpleCompiler"
RESET = "offsets reset {g} --topic {t} --to-earliest --new-group"
"""The edit that offsetmgr refuses for streams groups, and not for share groups."""
SETS = "--reset-offsets {option} TOPIC --to-offset N --execute"
EDITS = {
    "groups delete {g} --execute --yes": "--delete",
    "groups copy {other} {g}": "--describe",
    "groups rename {g} {g}-new": "--describe",
    "groups rename {other} {g}": "--describe",
    "offsets set {g} --topic {t}:0 --to-offset 3 --new-group": SETS,
    "offsets set {g} --topic {t}:0 --to-offset 3 --new-group --running": SETS,
    RESET: SETS,
    "offsets import {dir}/saved.csv": SETS,
    "migrate plan --from file:{dir}/saved.csv --to kafka://{bootstrap} --all-groups -o {dir}/plan --translate none":
        "--describe",
    "offsets delete --group {g} --topic {t}:0 --execute --yes": "--delete-offsets {option} TOPIC",
    "migrate mirror --from file:{dir}/saved.csv --to kafka://{bootstrap} --all-groups --once --yes --translate none":
        "--describe",
    "migrate apply {dir}/before --yes": "--describe",
}  # fmt: skip
"""Edits, each with the end of Kafka's command that the refusal names."""
READS = """
groups copy {g} {g}-new
offsets get {g}
offsets peek {g}
offsets export {dir}/{g}.csv --group {g}
offsets diff --group {g} --from kafka://{bootstrap} --to file:{dir}/saved.csv
migrate plan --from kafka://{bootstrap} --to file:{dir}/new.avro --group {g} -o {dir}/plan --translate none
migrate mirror --from kafka://{bootstrap} --to kafka://{bootstrap} --group {g} --rename {g}={g}-new --once --yes
"""


def program(main: str, arguments: Sequence[str], log: Path) -> AbstractContextManager[None]:
    directories = [jars.resolve(name) for name in ("kafka-4.4", "streams", "janino")]
    return running_program(java_command(directories, main, arguments, jvm=("-Xmx256m", *QUICK_START)), log)


class Group:
    """A group of another kind, and a plain group with an offset."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap, self.name, self._directory, self._capsys = bootstrap, topic, directory, capsys
        assert self.run("offsets set {other} --topic {t}:0 --to-offset 5 --new-group --execute --yes")[0] == 0
        (directory / "saved.csv").write_text(f"{topic},{topic},0,5\n")
        sides = "--from file:{dir}/saved.csv --to kafka://{bootstrap} --translate none"
        assert self.run(f"migrate plan {sides} --all-groups -o {{dir}}/before")[0] == 0

    def run(self, line: str) -> tuple[int, str, str]:
        names = {"g": self.name, "other": f"{self.name}-other", "t": self.name, "dir": self._directory}
        words = shlex.split(line.format(**names, bootstrap=self.bootstrap))
        self._capsys.readouterr()
        code = run([*words, "--bootstrap-server", self.bootstrap])
        return code, *self._capsys.readouterr()

    def unlike(self, lines: Mapping[str, str], *texts: str) -> dict[str, tuple[int, str, str]]:
        """Returns the results of the commands that do not fail, or whose output lacks one of the texts. In the texts,
        "{end}" is the end of Kafka's command in ``lines``."""
        found = {line: self.run(line) for line in lines}
        return {
            line: (code, out, err)
            for line, (code, out, err) in found.items()
            if code != 1 or not all(text.replace("{end}", lines[line]) in out + err for text in texts)
        }


@pytest.fixture
def topic(kraft: KraftBroker, unique: str, make_topic: MakeTopic) -> str:
    make_topic(unique, 1, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, unique, 100)
    return unique


def test_a_share_group(kraft: KraftBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    group = Group(kraft.bootstrap, topic, tmp_path, capsys)
    consumer = ["--bootstrap-server", kraft.bootstrap, "--topic", topic, "--group", topic]
    with program("org.apache.kafka.tools.consumer.ConsoleShareConsumer", consumer, tmp_path / "share.log"):
        until(lambda: "kafka 1" in group.run("groups where {g}")[1], 120)
        tool = f"kafka-share-groups.sh --bootstrap-server {kraft.bootstrap} --group {topic} "
        lines = {**EDITS, **dict.fromkeys(READS.split("\n")[1:-1], "--describe")}
        lines = {line: tool + end.format(option="--topic") for line, end in lines.items() if line != RESET}
        reset = f"offsetmgr offsets reset {topic} --all-topics --to-offset N resets its start offset"
        lines |= {line: reset for line, end in EDITS.items() if end == SETS and line != RESET}
        assert group.unlike(lines, "is a share group", "{end}") == {}
        code, listed, _ = group.run("groups list --state")
        assert (code, f"{topic} " in listed) == (0, False)


def test_a_group_of_the_streams_protocol(kraft: KraftBroker, topic: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    group = Group(kraft.bootstrap, topic, tmp_path, capsys)
    source = str(Path(__file__).parents[1] / "RunningStreams.java")
    application = [kraft.bootstrap, topic, topic, str(tmp_path / "state-of-streams"), "group.protocol=streams"]
    with program(JANINO, [source, "RunningStreams", *application], tmp_path / "streams.log"):
        until(lambda: "committed     100" in group.run("offsets get {g}")[1], 120)
        kind = "is a group of Kafka Streams' protocol"
        tool = f"kafka-streams-groups.sh --bootstrap-server {kraft.bootstrap} --group {topic} {{end}}"
        lines = {line: end.format(option="--input-topic") for line, end in EDITS.items()}
        assert group.unlike(lines, kind, tool) == {}
        code, located, _ = group.run("groups where {g}")
        assert (code, "kafka 1" in located) == (0, True)
        code, listed, _ = group.run("groups list --state")
        assert code == 0
        assert [line.split() for line in listed.splitlines() if line.startswith(f"{topic} ")] == [[topic, "STABLE"]]
        assert "committed     100" in group.run("offsets get {g}")[1]


def test_a_group_of_connect_workers(kraft: KraftBroker, topic: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    group = Group(kraft.bootstrap, topic, tmp_path, capsys)
    join(kraft.bootstrap, topic, "connect")
    lines = dict.fromkeys(EDITS, "PATCH /connectors/NAME/offsets")
    lines["offsets delete --group {g} --topic {t}:0 --execute --yes"] = "DELETE /connectors/NAME/offsets"
    tool = f"kafka-consumer-groups.sh --bootstrap-server {kraft.bootstrap} --group {topic} --delete"
    lines["groups delete {g} --execute --yes"] = tool
    assert group.unlike(lines, "its members are no consumers but a Kafka Connect cluster", "{end}") == {}


# Groups of every kind, as Kafka's own tools show them.

TESTS = Path(__file__).parents[1]
TOOLS = "org.apache.kafka.tools."
EARLY_ACCESS = {"unstable.api.versions.enable": "true", "unstable.feature.versions.enable": "true"}
"""Kafka 4.1 has share groups and streams groups only with these settings, and if their features are switched on."""


class JavaPrograms:
    """Kafka's tools and clients in one JVM; see `KafkaTools.java`."""

    def __init__(self, bootstrap: str, log: Path, stack: ExitStack) -> None:
        directories = [jars.resolve(name) for name in ("kafka-4.4", "streams", "janino")]
        arguments = [str(TESTS / "KafkaTools.java"), "KafkaTools"]
        line = java_command(directories, JANINO, arguments, jvm=("-Xmx384m", *QUICK_START))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = stack.enter_context(subprocess.Popen(line, stderr=stack.enter_context(log.open("wb")), **pipes))
        stack.callback(self._process.kill)
        self._server = ("--bootstrap-server", bootstrap)

    def __call__(self, how: str, *words: str) -> list[str]:
        """Runs, starts or stops a program. Returns the lines that it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words).join((f"{how}\t", "\n")).encode())
        self._process.stdin.flush()
        lines: list[str] = []
        while (line := self._process.stdout.readline()) != b"done\n":
            assert line, "the JVM has ended"
            lines.append(line.decode())
        return lines

    def tool(self, name: str, *options: str) -> list[str]:
        return self("run", TOOLS + name, *self._server, *options)

    def rows(self, columns: int, prefix: str, name: str, *options: str) -> set[tuple[str | None, ...]]:
        """The rows of groups whose name begins with ``prefix``. The tools print "-" for an unknown value and "/" before
        an address. The random id of a member can begin with "/" too."""
        lines = (re.sub(r"(:\d+) +\(\d+\)", r"\1", line) for line in self.tool(name, *options))
        cells = (line.split(None, columns - 1) for line in lines if line.startswith(prefix))
        address = re.compile(r"/(?=[\d.]+$)")
        return {tuple(None if c.strip() == "-" else address.sub("", c.strip(), 1) for c in row) for row in cells}


def join(bootstrap: str, group: str, protocol_type: str) -> None:
    """Joins as a member of another protocol than that of consumers, as Connect workers do."""
    protocol = {"default": b""}
    thread = ClientThread(Client(bootstrap, Security.of({})), 60)

    async def joined(deadline: float) -> None:
        at, member = await thread.client.coordinator(group, deadline), ""
        for _ in range(2):  # the coordinator answers the first request with the member id
            request = requests.join_as(group, member, protocol_type, protocol, 120_000, 120_000)
            answer = await thread.client.call(at, request, deadline)
            member = answer["member_id"]
        membership = requests.LockMembership(group, member, answer["generation_id"])
        await thread.client.call(at, requests.sync_group(membership, {member: b""}), deadline)

    thread.run(joined)
    thread.close()


class GroupsOfEveryKind:
    """Creates groups whose names begin with that of a topic with two partitions and some records."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, java: JavaPrograms) -> None:
        self.bootstrap, self.topic, self._directory, self._java = bootstrap, topic, directory, java
        self.hostile = f"{topic}-';$(reboot)\"\x1b[31m"
        """The names are data: the shell, the terminal and CSV would interpret this one."""

    def simple_consumers(self) -> None:
        """Commits to 7 groups without membership."""
        for number, group in enumerate([f"{self.topic}-simple-{number}" for number in range(6)] + [self.hostile]):
            consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
            consumer.commit(offsets=[TopicPartition(self.topic, 0, number)], asynchronous=False)
            consumer.close()

    def other_protocols(self) -> None:
        for number, protocol_type in enumerate(("connect", "connect", "connect", "sr")):
            join(self.bootstrap, f"{self.topic}-{protocol_type}-{number}", protocol_type)

    def consumers(self, protocol: str, stack: ExitStack) -> None:
        """Starts 7 groups: one has two members, one no commit, and the last two lose their member."""
        consumers: list[Consumer] = []
        for number in (0, 0, 1, 2, 3, 4, 5, 6):
            settings = {"group.id": f"{self.topic}-{protocol}-{number}", "group.protocol": protocol}
            consumers.append(Consumer({"bootstrap.servers": self.bootstrap, "enable.auto.commit": False, **settings}))
            consumers[-1].subscribe([self.topic])
        stack.callback(close_consumers, consumers)

        def assigned() -> list[int]:
            for consumer in consumers:
                consumer.poll(0)
            return [len(consumer.assignment()) for consumer in consumers]

        until(lambda: assigned() == [1, 1, 2, 2, 2, 2, 2, 2], 60)
        for consumer in (*consumers[:2], *consumers[3:]):
            at = [TopicPartition(one.topic, one.partition, 5) for one in consumer.assignment()]
            consumer.commit(offsets=at, asynchronous=False)
        close_consumers(consumers[-2:])

    def share_and_streams_groups(self) -> None:
        """Starts three share groups, of which one has two members and the last loses its member, and two applications
        of Kafka Streams with internal topics, of which the second stops."""
        console = (f"{TOOLS}consumer.ConsoleShareConsumer", "--bootstrap-server", self.bootstrap, "--topic", self.topic)
        shares = [f"{self.topic}-share-{number}" for number in (0, 0, 1, 2)]
        for group, limit in zip(shares, ((), (), (), ("--max-messages", "1")), strict=True):
            self._java("start", *console, "--group", group, *limit)
        applications = [f"{self.topic}-streams-{number}" for number in range(2)]
        main = (JANINO, str(TESTS / "RunningStreams.java"), "RunningStreams", self.bootstrap)
        settings = ("group.protocol=streams", "count.by=words")
        lines = [(*main, group, self.topic, str(self._directory / group), *settings) for group in applications]
        for line in lines:
            self._java("start", *line)

        def consumed() -> bool:
            fill(self.bootstrap, self.topic, 4, 2)  # a share group begins at the end, once a member has fetched
            found = [row for row in self.read("offsets lag", shares) if row["offset"] is not None]
            return self.sizes(shares) == [2, 2, 1, 0] and len(found) >= 5

        until(consumed, 60)
        # The applications read each record from the topic and from the repartition topic.
        until(lambda: [row["lag"] for row in self.read("offsets lag", applications)] == [0] * 8, 60)
        self._java("stop", *lines[1])
        until(lambda: self.sizes(applications) == [1, 0], 60)

    def read(self, line: str, groups: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of a command. A group that does not exist yet has none."""
        named = [word for group in dict.fromkeys(groups) for word in ("--group", group)]
        found = rows(*line.split(), *named, "--bootstrap-server", self.bootstrap, code=None)
        return [row for row in found if row["group"].startswith(self.topic)]

    def sizes(self, groups: Sequence[str]) -> list[int]:
        sizes = {row["group"]: row["members"] for row in self.read("groups describe --state", groups)}
        return [sizes.get(group, -1) for group in groups]


TABLES = (
    ("consumer.group.Consumer", "--offsets", "groups describe",
     "group topic partition offset log_end_offset lag member_id host client_id"),
    ("consumer.group.Consumer", "--members", "groups describe --members", "group member_id host client_id partitions"),
    ("consumer.group.Consumer", "--state", "groups describe --state", "group coordinator assignor state members"),
    ("consumer.group.Share", "--offsets", "offsets lag", "group topic partition offset lag"),
    ("consumer.group.Share", "--members", "groups describe --members",
     "group member_id host client_id partitions assignment"),
    ("consumer.group.Share", "--state", "groups describe --state", "group coordinator state members"),
    ("streams.Streams", "--offsets --verbose", "offsets lag",
     "group topic partition offset leader_epoch log_end_offset lag"),
    ("streams.Streams", "--members", "groups describe --members", "group member_id - client_id tasks"),
    ("streams.Streams", "--state", "groups describe --state", "group coordinator - state members"),
)  # fmt: skip
"""For each table of Kafka's tools: the tool, its options, the command, and the columns of both. The broker does not
report the assignor of a streams group, and offsetmgr does not show the id of a process."""


def printed(row: dict[str, Any], column: str) -> str | None:
    """A cell of a command, in the form of Kafka's tools."""
    value = row[column]
    if column == "tasks":
        found = by_key(re.findall(r"active (\d+)_(\d+)", value))
        return "ACTIVE: " + " ".join(f"{subtopology}:[{','.join(numbers)}];" for subtopology, numbers in found.items())
    if column == "assignment":
        by_topic = by_key(re.findall(r"([^,]+)-(\d+)", value))
        return ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items())
    return None if value is None else str(value).title() if column == "state" else str(value)


@pytest.fixture(params=["3.9.1", "4.1.1", "4.4.0"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The shared brokers, and one of 4.1 with the settings for early access."""
    if request.param != "4.1.1":
        yield request.getfixturevalue("kafka" if request.param == "3.9.1" else "kraft")
        return
    with KraftBroker(tmp_path / "broker", version=request.param, config=EARLY_ACCESS) as broker:
        yield broker


def test_the_rows_equal_those_of_kafkas_tools(server: Any, unique: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    bootstrap, has_kinds = server.bootstrap, server.version != "3.9.1"
    make_topic(unique, 2, bootstrap=bootstrap)
    fill(bootstrap, unique, 20, 10)
    with ExitStack() as stack:
        java = JavaPrograms(bootstrap, tmp_path / "java.log", stack)
        groups = GroupsOfEveryKind(bootstrap, unique, tmp_path, java)
        if server.version == "4.1.1":
            for feature in ("share.version=1", "streams.version=1"):
                java.tool("FeatureCommand", "upgrade", "--feature", feature)
        if has_kinds:
            groups.share_and_streams_groups()
            groups.consumers("consumer", stack)
        groups.consumers("classic", stack)
        groups.simple_consumers()
        groups.other_protocols()

        listed = groups.read("groups list --type", ())
        assert len(listed) == (30 if has_kinds else 18)
        kinds = {tuple(filter(None, (r["group"], r["type"].title(), r["protocol"]))) for r in listed}
        assert kinds == java.rows(3, unique, "GroupsCommand", "--list")
        consumers = [row for row in listed if row["protocol"] in ("consumer", "")]
        states = java.rows(3, unique, "consumer.group.ConsumerGroupCommand", "--list", "--type", "--state")
        assert {(r["group"], r["type"].title(), r["state"].title()) for r in consumers} == states
        for tool, options, line, columns in TABLES:
            kind, names = tool.rpartition(".")[2].lower(), columns.split()
            of_tool = consumers if kind == "consumer" else [row for row in listed if row["type"] == kind]
            if kind == "streams" and "--offsets" in options:
                of_tool = [row for row in of_tool if row["members"]]  # the tool shows no offsets of the others
            if not of_tool:
                continue
            chosen = [row["group"] for row in of_tool]
            words = ("--describe", *options.split(), *(word for group in chosen for word in ("--group", group)))
            theirs = java.rows(len(names), unique, f"{tool}GroupCommand", *words)
            ours = [row for row in groups.read(line, chosen) if row[names[1]] is not None]
            compared = [(at, name) for at, name in enumerate(names) if name != "-"]
            if server.version == "4.1.1" and "streams" in tool and options == "--state":
                theirs = {(*row[:2], None, *row[2:]) for row in theirs}  # the cell of the assignor is empty
            expected = {tuple(row[at] for at, _ in compared) for row in theirs}
            assert {tuple(printed(row, name) for _, name in compared) for row in ours} == expected, (tool, options)
        with OffsetAdmin(f"kafka://{bootstrap}") as admin:
            workers = list(admin.list_groups(f"{unique}*", protocols=["connect"]))
        assert [(one.type, one.state, one.members) for one in workers] == [("classic", "STABLE", 1)] * 3
        for line in ("groups list --type", "groups describe", "offsets lag"):
            table = command(*line.split(), "--group", groups.hostile, "--bootstrap-server", bootstrap).stdout
            assert ("\x1b" in table, f"{unique}-';$(reboot)" in table) == (False, True)
        if has_kinds:
            shown = groups.read("groups describe", [f"{unique}-share-0", f"{unique}-streams-0"])
            notes = {tuple(str(row[name]).removeprefix(unique) for name in ("group", "topic", "note")) for row in shown}
            internal = ("-streams-0", "-streams-0-words-repartition", "repartition topic")
            assert notes == {("-share-0", "", "start offset of a share group"), ("-streams-0", "", "None"), internal}
