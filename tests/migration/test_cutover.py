"""``migrate cutover``: groups, and then the producers of their topics, move to another cluster. Two real clusters, with
a copier that does what replicators do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import commit, committed, pending_commit
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from in_process import command, rows
from processes import create_topic, delete_topic, finish, produce, start_command, until
from repeated import repeated
from test_kinds_of_groups import program
from two_clusters import RECORDS, TwoClusters

from offsetmgr.migration.cutover import Cutover
from offsetmgr.migration.journaled_writer import JournaledWriter

pytestmark = pytest.mark.servers
DRY = "a dry run writes nothing"
PLACES = "{}; repeats at most 0 records, without those that the replicator wrote twice; skips {} records"


class Operator:
    """A person who runs the cutover of group ``group`` with one topic, and starts and stops its consumers."""

    def __init__(self, clusters: TwoClusters, group: str, home: Path) -> None:
        self.clusters, self.group, self.home = clusters, group, home
        self.state = home / "cutover.json"
        self.sides = ("--from", f"kafka://{clusters.a}", "--to", f"kafka://{clusters.b}")

    def arguments(self, *words: object, state: Path | None = None, back: bool = False) -> list[object]:
        uris = (self.sides[3], self.sides[1]) if back else (self.sides[1], self.sides[3])
        files = ("--state", state or self.state, "--interval", 0.1, "--yes")
        selected = () if "--all-groups" in words else ("--group", self.group)
        return ["migrate", "cutover", *selected, "--from", uris[0], "--to", uris[1], *files, *words]

    def look(self, *words: object, code: int = 1, **options: Any) -> dict[str, tuple[str, str]]:
        """The step and the obstacle of each group and topic."""
        arguments, others = self.arguments(*words, **options), rf"group (?!{self.group})\S+: it is in a rebalance"
        while re.search(others, (shown := command(*arguments, "--format", "json", code=None)).stdout):
            continue  # another test's group, which may use any topic
        assert shown.stdout, shown.stderr
        found = json.loads(shown.stdout)
        assert bool(code) == any(row["held_up_by"] for row in found), shown.stdout
        self.notes = {row["name"]: row["note"] for row in found}
        return {row["name"]: (row["step"], row["held_up_by"] or "") for row in found}

    def run(self, *words: object, code: int = 1, **options: Any) -> tuple[str, str]:
        """Executes what is possible. Returns the step and the obstacle of the group."""
        return self.look("--execute", *words, code=code, **options)[self.group]

    def topic(self, *words: object, code: int = 1, **options: Any) -> tuple[str, str]:
        return self.look("--execute", *words, code=code, **options)[self.group + "-t"]


@contextmanager
def consumer(bootstrap: str, group: str, topic: str, records: int, **settings: Any) -> Iterator[list[bytes]]:
    """A member that has read and committed so many records."""
    options = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings}
    member = Consumer({"bootstrap.servers": bootstrap, **options})
    member.subscribe([topic])
    values: list[bytes] = []
    while not member.assignment():
        first = member.poll(0.1)
        values += [first.value() or b""] if first is not None and records else []
    while len(values) < records:
        values += [one.value() or b"" for one in member.consume(records - len(values), 1)]
    if records:
        member.commit(asynchronous=False)
    with repeated(lambda: member.poll(0.1)):
        yield values
    member.close()


@pytest.fixture
def operator(clusters: TwoClusters, unique: str, tmp_path: Path) -> Operator:
    """The topic has one partition, whose copy lies behind 7 foreign records. The group has committed 50."""
    topic = clusters.topic(f"{unique}-t")
    clusters.foreign(topic, 7)
    clusters.copy(topic)
    clusters.commit(unique, topic, {0: 50})
    return Operator(clusters, unique, tmp_path)


def begin_again_to_write(path: Path, group: str) -> None:
    state = json.loads(path.read_text())
    state["groups"][group]["step"] = 3
    path.write_text(json.dumps(state))


def abort(bootstrap: str, topic: str) -> None:
    """Writes a record in a transaction that is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, "aborted", partition=0)
    producer.flush()
    producer.abort_transaction(60)


def test_a_group_and_its_topic_move_step_by_step(clusters: TwoClusters, operator: Operator) -> None:
    group, topic, b = operator.group, f"{operator.group}-t", clusters.b
    # Without --execute, nothing is changed
    assert operator.look()[group] == ("4 written", DRY)
    assert not operator.state.exists()
    assert operator.notes[group] == PLACES.format("1 position: 1 seen", 0)
    assert committed(f"kafka://{b}", group) == {}
    # Then the offsets are written, and the consumers are the next to start
    assert operator.run() == ("5 started at the target", "no consumer at the target")
    assert committed(f"kafka://{b}", group) == {0: 57}
    assert operator.run() == ("5 started at the target", "no consumer at the target")
    # A consumer that has not committed is not moving
    with consumer(b, group, topic, 0):
        found = operator.look("--execute")
    assert found[group] == ("6 moving", f"no commit at the target beyond the written one in {topic}-0")
    assert found[topic] == ("7 producers stopped", f"1 group not through: {group} (at step 6)")
    with consumer(b, group, topic, 50) as values:
        assert values[0] == b"record 50"
        # Both logs end with offsets that are no records
        for bootstrap in (clusters.a, b):
            abort(bootstrap, topic)
        found = operator.look("--execute")
    assert found[group] == ("through", "")
    # The producers are next: first nothing is written at the source any more, then all is copied
    assert found[topic] == ("9 replicator stopped", "you have not said that the replicator is stopped")
    produce(clusters.a, topic, ["late", "later"])
    assert operator.topic() == ("8 copied to the end", f"2 records of {topic}-0 not at the target")
    # A record that the replicator has left out stays behind only with the operator's word
    clusters.copy(topic, RECORDS + 3, RECORDS + 4)
    assert operator.topic() == ("8 copied to the end", f"1 record of {topic}-0 not at the target")
    last = ("--replicator-stopped", "--accept", "missing")
    abort(b, topic)
    assert operator.topic(*last) == ("10 producers at the target", "no new record at the target")
    assert operator.notes[topic] == f"not at the target: 1 record of {topic}-0"
    # A producer that had only paused at the source: nothing is lost, and its records are not those of the target
    produce(clusters.a, topic, ["latest"])
    assert operator.topic(*last) == ("8 copied to the end", f"2 records of {topic}-0 not at the target")
    clusters.copy(topic, RECORDS + 4, RECORDS + 5)
    assert operator.topic(*last) == ("10 producers at the target", "no new record at the target")
    # Nor is a record of a transaction that is aborted
    abort(b, topic)
    assert operator.topic(*last) == ("10 producers at the target", "no new record at the target")
    produce(b, topic, ["first at the target"])
    assert operator.topic("--way-back", "running", code=0) == ("through", "")
    assert "you said that a reverse replicator runs, but it has copied no record" in operator.notes[topic]
    # Consumers that come back at the source are named; records there are only noted from then on
    produce(clusters.a, topic, ["too late"])
    with consumer(clusters.a, group, topic, 0):
        found = operator.look("--execute")
    assert found[group][1].startswith("at the source, 1 member: rdkafka")
    assert operator.topic(code=0) == ("through", "")
    assert f"may be no copies of the target's: {topic}-0 from " in operator.notes[topic]
    # A group that was left behind can still move, with the operator's word, and gets what only the target holds
    operator.group = f"{group}-late"
    clusters.commit(operator.group, topic, {0: RECORDS + 6})
    assert operator.run()[0] == "1 ready"
    assert operator.run("--accept", "bracketed", "--accept", "missing")[0] == "5 started at the target"
    assert committed(f"kafka://{b}", operator.group) == {0: 115}
    # A topic that is created again is another log
    delete_topic(AdminClient({"bootstrap.servers": b}), topic)
    create_topic(b, topic, 1)
    assert operator.run()[1].startswith(f"topic {topic} was deleted and created again at kafka://{b}")


def test_an_interrupted_look_opens_no_gate(clusters: TwoClusters, operator: Operator, unique: str) -> None:
    words = [str(word) for word in operator.arguments("--execute", "--interval", 600)]
    process = start_command(*words)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    done = finish(process, 130)
    assert "interrupted: run the same command again to go on" in done.stderr
    assert committed(f"kafka://{clusters.b}", unique) == {}
    assert not operator.state.exists()


def test_a_name_that_means_nothing_is_refused(clusters: TwoClusters, operator: Operator, unique: str) -> None:
    for words in (["--rename", "x=y"], ["--excuse", "x"], ["--output-topic", "x=y"], ["--rename-topic", "x=y"]):
        shown = command(*operator.arguments("--execute", *words), code=2).stderr
        assert shown.startswith(f"error: {words[0]} ")
        assert not operator.state.exists()
    for arguments, why in (
        (["--interval", 0], "--interval"),
        (["--undo"], f"state file {operator.state}: does not exist"),
        (["--to", "kafka://127.0.0.1:1", "--timeout", 2000], "the target kafka://127.0.0.1:1 does not respond"),
    ):
        shown = command(*operator.arguments("--execute", *arguments), code=None).stderr
        assert shown.startswith("error: ") and why in shown
        assert not list(operator.home.glob("cutover*"))
    # A topic without a copy may get another name until something is written
    assert operator.run("--rename-topic", f"{unique}-t=none")[1] == "the target has no topic none"
    # The command shows first how sure the offsets are, and how many records the target lacks
    lacking = clusters.topic(f"{unique}-l")
    clusters.copy(lacking, 0, 50)
    clusters.copy(lacking, 55, RECORDS)
    clusters.commit(unique, lacking, {0: 50})
    words = ["--rename-topic", "(.*)=\\1", "--accept", "missing", "--execute"]
    shown = command(*(word for word in operator.arguments(*words) if word != "--yes"), code=None).stderr
    places = PLACES.format("2 positions: 1 missing, 1 seen", 5)
    assert f"write the offsets of 1 group at kafka://{clusters.b}: {places}:" in shown
    assert operator.run(*words)[0].startswith("5 ") and operator.notes[unique] == places


def test_a_group_is_not_ready_while_its_copy_is_not(clusters: TwoClusters, operator: Operator, unique: str) -> None:
    group, topic, b = operator.group, f"{unique}-t", f"kafka://{clusters.b}"
    # Given a topic that was never copied, and one with other partitions: each is named
    other = clusters.topic(f"{unique}-o", 2, partitions_of_copy=3)
    clusters.commit(group, other, {0: 0})
    why = f"{other} has 2 partitions at the source, and {other} has 3 at the target"
    assert operator.run() == ("1 ready", why)
    commit_deleted(clusters, group, other)
    # A member at the target
    with consumer(clusters.b, group, topic, 0):
        step, why = operator.run()
        assert (step, why.split(":")[0]) == ("1 ready", "at the target, 1 member")
    # Another program that commits there, within the interval or since the last look
    commit(b, group, topic, {0: 20})
    changed = f"another program commits at the target: {topic}-0 went from"
    assert operator.run("--wait", 1) == ("1 ready", f"{changed} no offset to 20")
    numbers = count(21)
    with repeated(lambda: commit(b, group, topic, {0: next(numbers)})):
        step, why = operator.run("--interval", 1)
        assert step == "1 ready" and why.startswith(changed)
    commit(b, group, topic, {0: 90}, allow_rewind=True)
    assert operator.run()[0] == "1 ready"
    # It may commit again after a while, so a run looks again. A dry run has no state, so it notes a change
    larger = "the target holds larger offsets than the translated ones: {}-0 ({}, not 57)"
    until(lambda: operator.run() == ("3 translated", larger.format(topic, 90)))
    commit(b, group, topic, {0: 91})
    assert operator.look()[group] == ("3 translated", larger.format(topic, 91))
    assert f"another program has committed at the target: {topic}-0 went from 90 to 91" in operator.notes[group]
    # A replicator that is behind
    command("offsets", "delete", group, "-t", topic, "--store", b, "--execute", "--yes")
    produce(clusters.a, topic, map(str, range(30)))
    behind = f"the replicator is 30 records behind in {topic}, more than 10"
    until(lambda: operator.run("--max-behind", 10) == ("1 ready", behind))
    # Too little that may be read
    shown = command(*operator.arguments("--max-read", 100), code=1).stderr
    assert f"next: group {group}: --max-read 1MB reads far enough" in shown
    assert operator.run("--max-behind", 30) == ("5 started at the target", "no consumer at the target")


def commit_deleted(clusters: TwoClusters, group: str, topic: str) -> None:
    uri = f"kafka://{clusters.a}"
    command("offsets", "delete", group, "-t", topic, "--store", uri, "--execute", "--yes")


def test_a_group_must_have_stopped_at_the_source(clusters: TwoClusters, operator: Operator, unique: str) -> None:
    group, topic, a = operator.group, f"{unique}-t", clusters.a
    # A member, by the protocol's own description
    with consumer(a, group, topic, 0):
        assert operator.run()[1].startswith("1 member: rdkafka at 127.0.0.1")
    # Without an offset, there is nothing to move: it has expired, or members have not committed
    commit_deleted(clusters, group, topic)
    operator.group = f"{unique}-new"
    with consumer(a, operator.group, topic, 0):
        assert operator.run("--group", group) == ("1 ready", "no offset of it is committed at the source")
    clusters.commit(group, topic, {0: 50})
    operator.group = group
    # An offset in an open transaction
    with pending_commit(a, group, topic, 0) as producer:
        assert operator.run() == ("2 stopped at the source", f"an open transaction holds an offset of {topic}-0")
        producer.abort_transaction(60)
    # A commit without membership within the interval
    numbers = cycle(range(50, 90))
    with repeated(lambda: commit(f"kafka://{a}", group, topic, {0: next(numbers)}, allow_rewind=True)):
        step, why = operator.run("--interval", 1)
        assert step == "2 stopped at the source" and why.endswith("without a member")
    # A static member that is stopped stays until its session ends, unless it is removed
    static = {"group.instance.id": "till-1", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}
    with consumer(a, group, topic, 0, **static):
        why = operator.run()[1]
        assert "(static: till-1)" in why
        assert "static members stay until their sessions end" in why and "1800" not in why
        # One that lives comes back, and is not removed again
        # A run that removes members removes none while the group must not be stopped yet
        produce(a, topic, ["late"])
        assert operator.run("--max-behind", 0, "--remove-static-members")[0] == "1 ready"
        assert "migrate cutover" not in command("edits", "list", "--group", group, code=None).stdout
        assert (
            "if till-1 is stopped: add --execute"
            in command(*operator.arguments("--remove-static-members"), code=1).stderr
        )
        back = "static member till-1 came back after it was removed"
        assert operator.run("--remove-static-members", "--interval", 3) == ("2 stopped at the source", back)
    assert operator.run("--remove-static-members") == ("2 stopped at the source", back)
    assert "migrate cutover" in [one["operation"] for one in rows("edits", "list", "--group", group)]
    while (step := operator.run("--remove-static-members")[0]).startswith("2"):
        time.sleep(0.5)
    assert step == "5 started at the target"


def test_members_of_the_new_protocol_hold_up_a_group(clusters: TwoClusters, unique: str, tmp_path: Path) -> None:
    # Given the newest brokers as the source, whose old description calls such a group dead
    swapped = TwoClusters(clusters.b, clusters.a, clusters.make_topic)
    topic = swapped.topic(f"{unique}-t")
    swapped.copy(topic)
    swapped.commit(unique, topic, {0: 50})
    operator = Operator(swapped, unique, tmp_path)
    static = {"group.protocol": "consumer", "group.instance.id": "till-1"}
    with consumer(swapped.a, unique, topic, 0, **static):
        step, why = operator.run()
    assert step == "2 stopped at the source" and "(static: till-1)" in why
    # And a command that waits goes on as soon as nothing holds up the group
    assert operator.run("--wait", 3, "--remove-static-members")[0] == "5 started at the target"
    # A share group holds up the producers until the operator excuses it
    share = f"{unique}-share"
    words = ["--bootstrap-server", swapped.a, "--topic", topic, "--group", share]
    console = program("org.apache.kafka.tools.consumer.ConsoleShareConsumer", words, tmp_path / "share.log")
    with consumer(swapped.b, unique, topic, 50), console:
        why = f"1 group still at the source: {share} (a share group)"
        until(lambda: operator.topic() == ("7 producers stopped", why), 120)
        assert operator.topic("--excuse", share)[0] == "9 replicator stopped"


def test_a_written_group_must_not_go_on_at_the_source(
    clusters: TwoClusters, operator: Operator, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, topic, a = operator.group, f"{unique}-t", clusters.a
    monkeypatch.chdir(operator.home)
    operator.state = Path(operator.state.name)
    operator.run()
    monkeypatch.chdir(operator.home.parent)
    operator.state = Path(operator.home.name, operator.state.name)
    # Another program at the target, and a consumer at the source
    commit(f"kafka://{clusters.b}", group, topic, {0: 60})
    why = f"without a member at the target, {topic}-0 is at 60 and not at 57 as written"
    assert operator.run() == ("5 started at the target", why)
    commit(f"kafka://{clusters.b}", group, topic, {0: 57}, allow_rewind=True)
    with consumer(a, group, topic, 0):
        assert operator.run()[1].startswith("at the source, 1 member: rdkafka")
    clusters.commit(group, topic, {0: 55})
    moved = f"it committed after the write: {topic}-0 is at 55 at the source, and was translated at 50"
    assert operator.run() == ("5 started at the target", moved)
    # Then the group is taken back, and written again
    assert operator.look("--undo") == {group: ("4 written", "a dry run takes nothing back")}
    plan = next(operator.home.glob("*.plan"))
    journal = Path(f"{plan}.journal").rename(operator.home / "journal")
    assert f"lacks the writes of group {group}, so" in operator.look("--undo", "--execute")[group][1]
    journal.rename(f"{plan}.journal")
    aside = plan.rename(operator.home / "aside")
    assert operator.look("--undo", "--execute")[group][0] == "4 written"
    plan.write_bytes(aside.read_bytes().replace(b"57", b"58"))
    assert "its hash does not match" in operator.look("--undo")[group][1] and operator.run()[0] == "4 written"
    aside.rename(plan)
    # Also after a rollback of the plan
    command("migrate", "rollback", plan, "--yes")
    assert operator.run() == ("4 written", "an undo or rollback of it has begun")
    assert operator.look("--undo", "--execute", code=0) == {group: ("taken back", "")}
    assert committed(f"kafka://{clusters.b}", group) == {}
    operator.run()
    assert committed(f"kafka://{clusters.b}", group) == {0: 62}
    # A group that has consumed at the target goes on there, and is not taken back
    commit(f"kafka://{clusters.b}", group, topic, {0: 63})
    # Also if the command was killed before it knew that it had written the offsets
    begin_again_to_write(operator.state, group)
    clusters.commit(group, topic, {0: 56})
    assert operator.run()[0] == "5 started at the target"
    with consumer(clusters.b, group, topic, 44):
        clusters.commit(group, topic, {0: 56})
        assert operator.run() == ("through", "")
    assert f"repeats at most 1 more record: {topic}-0 is at 56 at the source" in operator.notes[group]
    assert f"before a member was seen, {topic}-0 is at 63 and not at 62 as written" in operator.notes[group]
    assert operator.look("--undo", "--execute") == {group: ("6 moving", "it has consumed at the target")}


def test_an_undo_restores_all_offsets_or_none(
    clusters: TwoClusters, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, b, operator = clusters.topic(f"{unique}-t", 2), f"kafka://{clusters.b}", Operator(clusters, unique, tmp_path)
    for partition in (0, 1):
        clusters.copy(topic, partition=partition)
    clusters.commit(unique, topic, {0: 50, 1: 50})
    (tmp_path / "other.json").symlink_to("nowhere")
    operator.run()
    commit(b, unique, topic, {0: 60})
    why = f"{topic}-0: is at 60 and not at 50: it has changed since apply"
    assert operator.look("--undo") == operator.look("--undo", "--execute") == {unique: ("4 written", why)}
    assert f"add --back-of {operator.state}" in command(*operator.arguments("--undo"), code=1).stderr
    assert committed(b, unique) == {0: 60, 1: 50}
    with consumer(clusters.b, unique, topic, 0):
        assert operator.look("--undo", "--execute")[unique][1].startswith("at the target, 1 member: rdkafka")
    assert operator.run()[0] == "5 started at the target"
    with monkeypatch.context() as patched:
        patched.setattr(JournaledWriter, "_batches", lambda self, _: setattr(self, "_stopped_early", True) or ())
        commit(b, unique, topic, {0: 50}, allow_rewind=True)
        assert operator.look("--undo", "--execute")[unique][1] == "the run was stopped before it was taken back"
    # Given another program that commits before the write, to one partition, and then to both
    for offsets in ({1: 5}, {0: 5, 1: 5}):
        commit(b, unique, topic, {0: 50}, allow_rewind=True)
        operator.look("--undo", "--execute", code=0)
        with monkeypatch.context() as patched:
            patched.setattr(Cutover, "_tell_first", lambda *_, found=offsets: commit(b, unique, topic, found))
            assert operator.run()[0] == "4 written"
        if 0 not in offsets:
            why = f"{topic}-1: holds 5, and held no offset before the plan was applied"
            assert operator.look("--undo", "--execute") == {unique: ("4 written", why)}
            assert committed(b, unique) == {0: 50, 1: 5}
            command("offsets", "delete", unique, "-t", f"{topic}:1", "--store", b, "--execute", "--yes")
    # If nothing was written, the group begins again
    clusters.commit(unique, topic, {0: 51, 1: 50})
    until(lambda: operator.run()[0] == "5 started at the target")
    assert committed(b, unique) == {0: 51, 1: 50}
    # Given offsets that the target held already: nothing is written, and they count like written ones
    operator.look("--undo", "--execute", code=0)
    command("offsets", "delete", unique, "-t", f"{topic}:1", "--store", f"kafka://{clusters.a}", "--execute", "--yes")
    commit(b, unique, topic, {0: 51, 1: 50})
    until(lambda: operator.run()[0] == "5 started at the target")
    assert f"without an offset at the source, starts at that of the target: {topic}-1 at 50" in operator.notes[unique]
    commit(b, unique, topic, {0: 60})
    why = f"at the target, {topic}-0 is at 60 and not at 51 as written"
    assert operator.look("--undo", "--execute") == {unique: ("4 written", why)}


KILLED = """
import json, os, signal, sys
from offsetmgr.app import migrate  # once for all runs
from offsetmgr.cli.app import main
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.migration.cutover_state import CutoverState
from offsetmgr.migration.progress import Journal

count = 0

def step():
    global count
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    count += 1

def patched(original):
    def call(*arguments, **named):
        step()
        return original(*arguments, **named)
    return call

async def sent(self, request, *arguments, **named):
    if request.api_key == ApiKey.OFFSET_COMMIT:
        step()
    answer = await original_call(self, request, *arguments, **named)
    if request.api_key == ApiKey.OFFSET_COMMIT:
        step()  # after it, too
    return answer

original_call, BrokerConnection.call = BrokerConnection.call, sent
CutoverState.save = patched(CutoverState.save)
Journal.append = patched(Journal.append)
for last, arguments in enumerate(json.loads(sys.argv[1])):
    if not (process := os.fork()):
        sys.argv = ["offsetmgr", *arguments]
        main()
    _, status = os.waitpid(process, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(f"{last} runs were killed, and the next one ended with {os.WEXITSTATUS(status)}")
"""


def test_a_run_that_is_killed_anywhere_goes_on(clusters: TwoClusters, operator: Operator, unique: str) -> None:
    topic, moved, b = f"{unique}-t", 0, f"kafka://{clusters.b}"
    groups = {f"{unique}-{number}": operator.home / f"{number}.json" for number in range(20)}
    calls = []
    for operator.group, operator.state in groups.items():
        for name in (operator.group, other := f"{operator.group}-b"):
            clusters.commit(name, topic, {0: 50})
        calls.append([*map(str, operator.arguments("--execute", "--group", other))])
    # Given commands for two groups that are killed before or after they write their state, the journal, or the offsets
    run = subprocess.run([sys.executable, "-c", KILLED, json.dumps(calls)], capture_output=True, text=True, check=False)
    killed = int(run.stderr.splitlines()[-1].split()[0])
    assert 7 < killed < 20 and "ended with 1" in run.stderr, run.stderr
    for number, (operator.group, operator.state) in enumerate([*groups.items()][:killed]):
        # And in half of the cases a consumer at the source that commits before the command is run again
        both, at = ("--group", other := f"{operator.group}-b"), 50 + number % 2
        clusters.commit(operator.group, topic, {0: at})
        if operator.run(*both)[1].startswith("it committed after the write"):
            moved += 1
            operator.look("--undo", "--execute", code=0)
        shown = operator.look("--execute", *both)
        assert shown[operator.group] == shown[other] == ("5 started at the target", "no consumer at the target"), number
        assert (committed(b, operator.group), committed(b, other)) == ({0: 7 + at}, {0: 57}), number
    assert moved
    # Undos that are killed: a group counts as written only with its offsets
    calls = []
    for operator.group, operator.state in [*groups.items()][:killed]:
        calls.append([*map(str, operator.arguments("--execute", "--undo", "--group", f"{operator.group}-b"))])
    run = subprocess.run([sys.executable, "-c", KILLED, json.dumps(calls)], capture_output=True, text=True, check=False)
    assert "ended with 0" in run.stderr, run.stderr
    for operator.group, operator.state in [*groups.items()][: int(run.stderr.splitlines()[-1].split()[0])]:
        both = (operator.group, f"{operator.group}-b")
        expected = ["5 started at the target" if committed(b, name) else "4 written" for name in both]
        found = operator.look("--execute", "--group", both[1])
        assert [found[name][0] for name in both] == expected
        operator.look("--undo", "--execute", "--group", both[1], code=0)
    plans = {plan.name for plan in operator.home.glob("*.plan") if not Path(f"{plan}.journal").exists()}
    kept = {
        one["plan"]
        for state in groups.values()
        if state.exists()
        for one in json.loads(state.read_text())["groups"].values()
    }
    assert plans <= kept and not list(operator.home.glob("*.lock"))


def test_groups_go_back(clusters: TwoClusters, operator: Operator, unique: str) -> None:
    group, topic, back = operator.group, f"{unique}-t", operator.home / "back.json"
    # Given an offset in a topic that the group does not read any more
    old = clusters.topic(f"{unique}-old")
    clusters.copy(old)
    clusters.commit(group, old, {0: 10})
    operator.run()
    with consumer(clusters.b, group, topic, 20):
        assert operator.run() == ("6 moving", f"no commit at the target beyond the written one in {old}-0")
    command("offsets", "delete", group, "-t", old, "--store", f"kafka://{clusters.b}", "--execute", "--yes")
    assert operator.run() == ("through", "")
    # Before the producers move, records that the target lacks are no obstacle on the way back, and the source's offset,
    # which the first cutover left, is no other writer's
    produce(clusters.a, topic, map(str, range(30)))
    # A group that was moved is moved only with its state, also if another group moves the other way
    state = json.loads(operator.state.read_text())
    state |= {"clusters": state["clusters"][::-1], "groups": {"another": {"step": 5}}}
    (other := operator.home / "other.json").write_text(json.dumps(state))
    for options in ({"state": other, "back": True}, {"state": back}):
        shown = command(*operator.arguments("--execute", **options), code=1).stderr
        assert f"{operator.state} moved group {group} to" in shown
    # A pattern means only groups that the first cutover has moved
    commit(f"kafka://{clusters.b}", f"{unique}-native", topic, {0: 23})
    way_back: dict[str, Any] = {"state": back, "back": True}
    words = ("--back-of", operator.state, "--group", f"{unique}*", "--execute", "--wait", 300)
    with consumer(clusters.b, group, topic, 0):
        process = start_command(*map(str, operator.arguments(*words, **way_back)))
        assert any("waiting up to" in line for line in process.stderr or ())
        # While the way back waits, the first cutover moves another group
        operator.group = f"{unique}-other"
        clusters.commit(operator.group, topic, {0: 50})
        assert operator.run()[0] == "5 started at the target"
    until(lambda: committed(f"kafka://{clusters.a}", group) == {0: 70})
    why = f"1 group not through: {operator.group} (at step 5); 1 group still at the source: {group}"
    assert operator.look("--execute")[topic][1] == why
    assert committed(f"kafka://{clusters.a}", f"{unique}-native") == {}
    with consumer(clusters.a, group, topic, 1):
        finish(process)
    assert operator.look("--undo")[operator.group] == ("4 written", "a dry run takes nothing back")
    # The first cutover does not go on without the group, and does not take it back
    operator.group = group
    assert operator.look("--undo")[group] == ("6 moving", f"it went back by the cutover with state file {back}")
    assert operator.run() == ("6 moving", f"it went back by the cutover with state file {back}")
    # A third move begins where the producers always were, and asks for them
    produce(clusters.a, topic, ["last"])
    third: dict[str, Any] = {"state": operator.home / "third.json"}
    behind = f"the replicator is 31 records behind in {topic}, more than 0"
    assert operator.run("--back-of", back, "--max-behind", 0, **third) == ("1 ready", behind)
    clusters.copy(topic, RECORDS, RECORDS + 31)
    assert operator.run(**third)[0] == "5 started at the target"
    with consumer(clusters.b, group, topic, 1):
        assert operator.topic(**third)[0] == "7 producers stopped"


def test_no_way_back_skips_what_the_copy_lacked(clusters: TwoClusters, unique: str, tmp_path: Path) -> None:
    topic, operator = clusters.topic(f"{unique}-t"), Operator(clusters, unique, tmp_path)
    clusters.copy(topic, 0, 50)
    clusters.copy(topic, 55)
    # Given an offset at the target that may be another program's
    clusters.commit(unique, topic, {0: 50}, {0: 5})
    why = f"another program commits at the target: {topic}-0 went from no offset to 5"
    assert operator.run("--accept", "missing") == ("1 ready", why)
    until(lambda: operator.run("--accept", "missing")[0] == "5 started at the target")
    with consumer(clusters.b, unique, topic, 20):
        operator.run()
    back: dict[str, Any] = {"state": tmp_path / "back.json", "back": True}
    step, why = operator.run("--back-of", operator.state, **back)
    assert step == "3 translated" and "the copy lacked 5 records from offset 50 on, which 75 skips" in why
    # The printed way back does not accept it, and one whose first plan is gone says that the number is not known
    command(*operator.arguments("--accept", "missing", "-o", page := tmp_path / "runbook.md"), code=None)
    (line,) = (line for line in page.read_text().splitlines() if "From then on" in line)
    assert "missing" not in line
    plan = next(tmp_path.glob("cutover-*.plan"))
    aside = plan.rename(tmp_path / "aside")
    assert "tells what its target lacked: plan " in operator.run(**back)[1]
    assert operator.look("--accept", "missing", **back)[unique] == ("4 written", DRY)
    assert "skips an unknown number of records" in operator.notes[unique]
    aside.rename(plan)
    assert operator.run("--accept", "missing", **back)[0] == "5 started at the target"
    assert operator.notes[unique].endswith("skips 5 records")
    # An offset goes backwards, also if the command was killed before it was written
    operator.look("--undo", "--execute", code=0, **back)
    commit(f"kafka://{clusters.b}", unique, topic, {0: 45}, allow_rewind=True)
    assert operator.run("--accept", "bracketed", **back)[0] == "5 started at the target"
    assert (written := committed(f"kafka://{clusters.a}", unique)) != {0: 50}
    commit(f"kafka://{clusters.a}", unique, topic, {0: 50})
    begin_again_to_write(back["state"], unique)
    (journal,) = tmp_path.glob("back-*-2.plan.journal")
    journal.write_bytes(journal.read_bytes().partition(b"apply-outcome")[0].rpartition(b"\n")[0] + b"\n")
    assert operator.run(**back) == ("5 started at the target", "no consumer at the target")
    assert committed(f"kafka://{clusters.a}", unique) == written


def test_after_the_producers_the_way_back_needs_a_reverse_replicator(
    clusters: TwoClusters, operator: Operator, unique: str
) -> None:
    operator.group = group = f"{unique}-r"
    topic, back = clusters.topic(f"{group}-t"), operator.home / "back.json"
    clusters.copy(topic)
    clusters.commit(f"{unique}-2", f"{unique}-t", {0: 50})
    clusters.commit(group, topic, {0: 50})
    operator.run()
    with consumer(clusters.b, group, topic, 50):
        assert operator.topic("--replicator-stopped")[0] == "10 producers at the target"
    # A group that was moved goes back only as such
    shown = command(*operator.arguments("--execute", state=back, back=True), code=1).stderr
    assert f"{operator.state} moved group {group} to" in shown and f"add --back-of {operator.state}" in shown
    # If the producers and the replicator go on, groups may go back
    produce(clusters.a, topic, ["more"])
    clusters.copy(topic, RECORDS, RECORDS + 1)
    options: dict[str, Any] = {"state": back, "back": True}
    # Also if they have begun to read another topic of the source
    clusters.copy(clusters.topic(new := f"{unique}-new"), 0, 90)
    commit(f"kafka://{clusters.b}", group, new, {0: 50})
    assert operator.look("--back-of", operator.state, **options)[group] == ("4 written", DRY)
    command("offsets", "delete", group, "-t", new, "--store", f"kafka://{clusters.b}", "--execute", "--yes")
    assert operator.look("--way-back", "running")[topic][0] == "9 replicator stopped"
    # The producers start at the target, although the command has not seen it yet
    produce(clusters.b, topic, ["new"])
    shown = command(*operator.arguments("--back-of", operator.state, "--execute", **options), code=1).stderr
    assert f"the producers of {topic} write at kafka://{clusters.b}, without a reverse replicator" in shown
    assert not back.exists()
    # They do not hold up a group that does not read their topic
    operator.group = f"{unique}-2"
    assert operator.run()[0] == "5 started at the target"
    assert operator.look("--back-of", operator.state, **options)[operator.group] == ("4 written", DRY)
    operator.group = group
    # With a reverse replicator, groups and producers go back like before
    assert operator.topic("--way-back", "running", code=0) == ("through", "")
    assert operator.run("--back-of", operator.state, "--max-behind", 0, **options)[0] == "1 ready"
    reverse = TwoClusters(clusters.b, clusters.a, clusters.make_topic)
    reverse.copy(topic, RECORDS + 1, RECORDS + 2)
    assert operator.topic(code=0) == ("through", "") and not operator.notes[topic]
    # Also if they have begun to read a topic of the target
    reverse.copy(reverse.topic(other := f"{unique}-other"))
    reverse.commit(group, other, {0: 50})
    assert operator.look(**options)[group] == ("4 written", DRY)
    command("offsets", "delete", group, "-t", other, "--store", f"kafka://{clusters.b}", "--execute", "--yes")
    assert operator.run(**options)[0] == "5 started at the target"
    with consumer(clusters.a, group, topic, 2) as values:
        assert values == [b"more", b"new"]
        assert operator.topic("--replicator-stopped", **options)[0] == "10 producers at the target"
    produce(clusters.a, topic, ["home"])
    assert operator.topic(code=0, **options) == ("through", "")
    # And then they move again: the producers are at home, and their replicator may be behind
    assert operator.run("--back-of", back, "--max-behind", 0, state=operator.home / "third.json")[0] == "1 ready"
    # In a topic without a record, the first one at the source is no copy, although the next one is
    operator.group, topic, operator.state = f"{unique}-e", f"{unique}-e-t", operator.home / "empty.json"
    for bootstrap in (clusters.a, clusters.b):
        clusters.make_topic(topic, 1, bootstrap=bootstrap)
    clusters.commit(operator.group, topic, {0: 0})
    operator.run("--way-back", "running")
    with consumer(clusters.b, operator.group, topic, 0):
        assert operator.topic("--replicator-stopped")[0] == "10 producers at the target"
    produce(clusters.a, topic, ["stray"])
    produce(clusters.b, topic, ["first", "second"])
    reverse.copy(topic, 0, 1)
    assert operator.topic()[0].startswith("8 ") and f"{topic}-0 from 0 on; a larger --max-read" in operator.notes[topic]


def test_producers_wait_for_all_groups_of_the_source(clusters: TwoClusters, operator: Operator, unique: str) -> None:
    group, topic = operator.group, f"{unique}-t"
    clusters.commit(f"{unique}-stays", topic, {0: 10})
    operator.run()
    why = f"1 group not through: {group} (at step 5); 1 group still at the source: {unique}-stays"
    assert operator.topic() == ("7 producers stopped", why)
    with consumer(clusters.b, group, topic, 50):
        why = f"1 group still at the source: {unique}-stays"
        assert operator.topic("--replicator-stopped") == ("7 producers stopped", why)
        # A dry run lists the same groups, and an option excuses them
        shown = command(*operator.arguments(), code=1)
        assert f"have moved without this state file, add --excuse {unique}-stays" in shown.stderr
        assert why in shown.stdout
        stays = ("--excuse", f"{unique}-stays")
        # A transaction that is open, and a replicator that still writes
        producer = Producer({"bootstrap.servers": clusters.a, "transactional.id": unique})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, "pending")
        producer.flush()
        step, why = operator.topic(*stays)
        assert step == "7 producers stopped" and f"a transaction is open in {topic}-0 (transactional id {unique}" in why
        producer.abort_transaction(60)
        with repeated(lambda: produce(clusters.a, topic, ["more"])):
            assert operator.topic("--interval", 1, *stays) == (
                "7 producers stopped",
                f"the source's log still changes: {topic}-0",
            )
        # A group without an offset, and partitions that the target lacks
        with consumer(clusters.a, f"{unique}-new", topic, 0):
            why = f"2 groups still at the source: {unique}-new, {unique}-stays"
            assert operator.topic() == ("7 producers stopped", why)
        admin = AdminClient({"bootstrap.servers": clusters.a})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
        why = f"{topic} has 2 partitions at the source, and {topic} has 1 at the target"
        # A group that an earlier run excused may be gone
        command("groups", "delete", *stays[1:], "--store", f"kafka://{clusters.a}", "--execute", "--yes")
        assert operator.topic(*stays) == ("7 producers stopped", why)


def test_a_job_that_writes_exactly_once_starts_with_its_whole_output(
    clusters: TwoClusters, operator: Operator, unique: str
) -> None:
    output = clusters.topic(f"{unique}-out")
    group, job = operator.group, ("--output-topic", f"{operator.group}={output}")
    clusters.copy(output, 0, 98)
    # One that cannot be right is named
    other = clusters.topic(f"{unique}-odd", 2, partitions_of_copy=1)
    why = f"{other} has 2 partitions at the source, and {other} has 1 at the target"
    assert operator.run("--output-topic", f"{group}={other}") == ("1 ready", why)
    # A group that reads the output moves before the job, which is its producer
    operator.group = reader = f"{unique}-reader"
    clusters.commit(reader, output, {0: 50})
    with_reader = ("--group", group, *job)
    assert operator.look("--execute", *with_reader)[group] == (
        "1 ready",
        f"its output is read at the source by {reader}",
    )
    with consumer(clusters.b, reader, output, 48):
        operator.run()
    operator.group = group
    why = f"output topic: 2 records of {output}-0 not at the target"
    assert operator.run(*job) == ("3 translated", why)
    # Later runs need not name it again
    assert operator.run() == ("3 translated", why)
    clusters.copy(output, 98, 100)
    assert operator.run()[0] == "5 started at the target"
    # Neither does the way back: what the job has written at the target must not be missing
    with consumer(clusters.b, group, f"{unique}-t", 50):
        operator.run()
    produce(clusters.b, output, ["result"])
    with consumer(clusters.b, reader, output, 3):
        assert operator.look("--execute", "--group", reader)[output] == ("through", "")
    back: dict[str, Any] = {"state": operator.home / "back.json", "back": True}
    why = f"output topic: 1 record of {output}-0 not at the target"
    stays = ("--excuse", reader)
    assert operator.run("--back-of", operator.state, *stays, **back) == ("3 translated", why)
    # Nor does that of a job that the first cutover moves later
    clusters.commit(operator.group, f"{unique}-t", {0: 100})
    operator.group = f"{unique}-later"
    clusters.commit(operator.group, f"{unique}-t", {0: 50})
    clusters.copy(late := clusters.topic(f"{unique}-late"))
    assert operator.run("--output-topic", f"{operator.group}={late}")[0] == "5 started at the target"
    with consumer(clusters.b, operator.group, f"{unique}-t", 50):
        operator.run()
    produce(clusters.b, late, ["result"])
    assert operator.run(*stays, **back) == ("3 translated", why.replace(output, late))


def test_a_runbook_says_who_does_what(clusters: TwoClusters, unique: str, tmp_path: Path) -> None:
    # Given a topic with another name in the target
    topic, copied = clusters.topic(f"{unique}-t", copy=f"A.{unique}-t"), f"A.{unique}-t"
    clusters.copy(topic, to=copied)
    clusters.commit(unique, topic, {0: 50})
    operator, page = Operator(clusters, unique, tmp_path), tmp_path / "runbook.md"
    clusters.commit(f"{unique}-too", topic, {0: 50})
    words = ("--group", f"{unique}-too", "--rename", f"{unique}={unique}-too")
    assert f"would both become {unique}-too" in command(*operator.arguments(*words), code=2).stderr
    operator.run("--rename-topic", r"(.*)=A.\1", "--rename", f"{unique}={unique}-new", "--group", f"{unique}-too")
    assert committed(f"kafka://{clusters.b}", f"{unique}-too") == {0: 50}
    # Later runs need not name it again, and may name another
    clusters.commit(f"{unique}-more", topic, {0: 50})
    operator.run("--group", f"{unique}-more", "--rename", f"{unique}-more={unique}-renamed")
    assert committed(f"kafka://{clusters.b}", f"{unique}-renamed") == {0: 50}
    files = {side: tmp_path / f"{side}.properties" for side in ("from", "to")}
    logins = [word for side, file in files.items() for word in (f"--{side}-command-config", file)]
    for file in files.values():
        file.write_text("security.protocol=PLAINTEXT\n")
    shown = command(*operator.arguments("-o", page, *logins), code=1)
    assert f"next: group {unique}: start the consumers of group {unique}-new at the target" in shown.stderr
    assert "without a reverse replicator and --way-back running, there is no way back" in shown.stderr
    text = page.read_text()
    (line,) = (line for line in text.replace("\\", "").splitlines() if "From then on" in line)
    assert f"--from-command-config {files['to']}" in line and f"--to-command-config {files['from']}" in line
    assert "no consumer at the target" in text and f"--group {unique}-new" in text.replace("\\", "")
    # And neither does the way back
    with consumer(clusters.b, f"{unique}-new", copied, 10):
        operator.run()
    back = Operator(clusters, f"{unique}-new", tmp_path)
    back.state = tmp_path / "back.json"
    assert back.run("--back-of", operator.state, back=True)[0] == "5 started at the target"
    assert committed(f"kafka://{clusters.a}", unique) == {0: 60}
    # The state of other clusters is refused
    swapped = command(*operator.arguments(back=True), code=None).stderr
    assert "is of a cutover from cluster" in swapped
