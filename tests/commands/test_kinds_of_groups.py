"""Share groups and groups of the Streams protocol on brokers of 4.4: every command that gets their name names the kind
and Kafka's own command, and changes nothing."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MakeTopic
from processes import fill, until

from offsetmgr.cli.app import run
from offsetmgr.sandbox import KraftBroker, jars
from offsetmgr.sandbox.java import QUICK_START, java_command

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

RESET = "offsets reset {g} --topic {t} --to-earliest --new-group\n"
"""The edit of streams groups that is refused, but not that of share groups."""
EDITS = """
groups delete {g} --execute --yes
groups copy {other} {g}
groups rename {g} {g}-new
groups rename {other} {g}
offsets set {g} --topic {t}:0 --to-offset 3 --new-group
offsets set {g} --topic {t}:0 --to-offset 3 --new-group --running
offsets reset {g} --topic {t} --to-earliest --new-group
offsets import {dir}/saved.csv
migrate plan --from file:{dir}/saved.csv --to kafka://{bootstrap} --all-groups -o {dir}/plan --translate none
offsets delete --group {g} --topic {t}:0 --execute --yes
migrate mirror --from file:{dir}/saved.csv --to kafka://{bootstrap} --all-groups --once --yes --translate none
migrate apply {dir}/before --yes
"""
READS = """
groups copy {g} {g}-new
offsets get {g}
offsets peek {g}
offsets export {dir}/{g}.csv --group {g}
offsets diff --group {g} --from kafka://{bootstrap} --to file:{dir}/saved.csv
migrate plan --from kafka://{bootstrap} --to file:{dir}/new.avro --group {g} -o {dir}/plan --translate none
migrate mirror --from kafka://{bootstrap} --to kafka://{bootstrap} --group {g} --rename {g}={g}-new --once --yes
"""


@contextmanager
def program(main: str, arguments: Sequence[str], log: Path) -> Iterator[None]:
    directories = [jars.resolve(name) for name in ("kafka-4.4", "streams", "janino")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            java_command(directories, main, arguments, jvm=("-Xmx256m", *QUICK_START)),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


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

    def unlike(self, lines: str, kind: str, tool: str) -> dict[str, tuple[int, str, str]]:
        """Returns the results of the commands that do not name the kind and the tool, or do not fail."""
        found = {line: self.run(line) for line in lines.splitlines() if line}
        return {
            line: (code, out, err)
            for line, (code, out, err) in found.items()
            if code != 1 or kind not in out + err or f"{tool} --bootstrap-server {self.bootstrap}" not in out + err
        }


@pytest.fixture
def topic(kraft: KraftBroker, unique: str, make_topic: MakeTopic) -> str:
    make_topic(unique, 1, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, unique, 100)
    return unique


def test_a_share_group(
    kraft: KraftBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    group = Group(kraft.bootstrap, topic, tmp_path, capsys)
    consumer = ["--bootstrap-server", kraft.bootstrap, "--topic", topic, "--group", topic]
    with program("org.apache.kafka.tools.consumer.ConsoleShareConsumer", consumer, tmp_path / "share.log"):
        until(lambda: "kafka 1" in group.run("groups where {g}")[1], 120)
        assert group.unlike(EDITS.replace(RESET, "") + READS, "is a share group", "kafka-share-groups.sh") == {}
        code, listed, _ = group.run("groups list --state")
        assert (code, f"{topic} " in listed) == (0, False)


def test_a_group_of_the_streams_protocol(
    kraft: KraftBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    group = Group(kraft.bootstrap, topic, tmp_path, capsys)
    source = str(Path(__file__).parents[1] / "RunningStreams.java")
    application = [kraft.bootstrap, topic, topic, str(tmp_path / "state-of-streams"), "group.protocol=streams"]
    main = "org.codehaus.janino.SimpleCompiler"
    with program(main, [source, "RunningStreams", *application], tmp_path / "streams.log"):
        until(lambda: "committed     100" in group.run("offsets get {g}")[1], 120)
        kind = "is a group of Kafka Streams' protocol"
        assert group.unlike(EDITS, kind, "kafka-streams-groups.sh") == {}
        code, located, _ = group.run("groups where {g}")
        assert (code, "kafka 1" in located) == (0, True)
        code, listed, _ = group.run("groups list --state")
        assert code == 0
        assert [line.split() for line in listed.splitlines() if line.startswith(f"{topic} ")] == [[topic, "STABLE"]]
        assert "committed     100" in group.run("offsets get {g}")[1]
