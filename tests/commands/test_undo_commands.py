"""The undo of edits and of migrations, on snapshot files: warnings, notes, and the commands that are printed."""

import json
import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
from in_process import Output, command, rows
from reported_logs import report_log

from offsetmgr.core.errors import OffsetMgrError, TimedOut, UnknownTopicOrPartition, Unreachable
from offsetmgr.core.model import Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.core.selection import MAX_NAMED, deletion_of
from offsetmgr.stores.snapshot import SnapshotStore

ORDERS = TopicPartition("orders", 0)
LOG = Path("state/offsetmgr/operations.jsonl")
MAX_RECORDED_GROUPS = 1_000
Record = dict[str, Any]
BROKERS = ["--bootstrap-server", "h:1"]
DO = ["--execute", "--yes"]
HERE = "file:here.avro"
Log = LogRange | OffsetMgrError | Callable[[], NoReturn]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the stores here.avro and there.avro. In here.avro, group a has committed 5 in orders-0."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    commit("here", "a", 5)
    commit("there", "b", 5)
    return tmp_path


def commit(name: str, group: str, value: int) -> None:
    with SnapshotStore(Path(f"{name}.avro")) as store:
        store.commit(group, {ORDERS: OffsetAndMetadata(value)})


def offset(name: str = "here", group: str = "a") -> int | None:
    with SnapshotStore(Path(f"{name}.avro")) as store:
        found = store.fetch(group).get(ORDERS)
    return found.offset if isinstance(found, Committed) else None


def operations() -> list[Record]:
    """The records about starts of operations in the operation log."""
    records = map(json.loads, LOG.read_text().splitlines())
    return [record for record in records if record["kind"] == "start"]


def append(kind: str, record: Record) -> str:
    with LOG.open("a") as log:
        log.write(json.dumps(record | {"kind": kind}) + "\n")
    return str(record["id"])


def record_like(operation: Record, **changes: Any) -> str:
    """Records an operation that was executed. Returns its id."""
    named = operation | {"id": f"20260101-000000-{len(operations()):04x}"} | changes
    append("end", {"id": append("start", named), "at_ms": named["at_ms"], "outcome": "done", "written": 2, "failed": 0})
    return str(named["id"])


def edit(value: int, *options: str, name: str = "here") -> tuple[Record, Output]:
    """Sets an offset. Returns the record of the edit, and the output."""
    store = f"file:{Path.cwd() / name}.avro"
    words = ["--group", "a", "--topic", "orders:0", "--to-offset", str(value), "--store", store, *DO]
    done = command("offsets", "set", *words, *options)
    return operations()[-1], done


def set_offset(value: int, *options: str, name: str = "here") -> Record:
    return edit(value, *options, name=name)[0]


def undo(id_: str, *options: str, code: int = 0) -> Output:
    return command("edits", "undo", id_, *options, code=code)


def no_connection() -> NoReturn:
    raise Unreachable("brokers h:1", "no connection")


SIDES = ("--from", "file:here.avro", "--to", "file:there.avro")


def migrate() -> None:
    """Copies group a to there.avro, where it has 3."""
    commit("there", "a", 3)
    command("migrate", "plan", *SIDES, "--group", "a", "--if-ahead", "keep", "-o", "plan.json")
    command("migrate", "apply", "plan.json", "--yes")
    assert offset("there") == 5


BELOW = "warning: 1 offset would be restored outside the log"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("log", "options", "note", "warning"),
    [
        (LogRange(7, 9), [], "below the log's start (7): auto.offset.reset would decide", BELOW),
        (LogRange(7, 9), ["--unchecked"], "", ""),
        (LogRange(5, 9), [], "", ""),
        (no_connection, [], "", "warning: the restored offsets were not compared with the logs: brokers h:1"),
    ],
    ids=["below", "unchecked", "within", "unreachable"],
)
def test_the_undo_warns_of_an_offset_outside_the_log_and_restores_it_exactly(log, options, note, warning, monkeypatch):
    one = set_offset(8)
    report_log(log, monkeypatch)
    for more in ([], DO):
        done = command("offsets", "import", one["files"][0], "--store", HERE, *BROKERS, *options, *more)
        assert more or note in " ".join(done.stdout.split())
        assert ("warning:" in done.stderr, warning in done.stderr) == (bool(warning), True)
    assert offset() == 5


OUTSIDE = "warning: 1 offset would be set outside the log: a consumer that starts there follows"
NO_TOPIC = "the topic or partition does not exist on the broker"
NOT_THERE = "warning: 1 offset would be set in a partition that the brokers do not have"
NO_ANSWER = TimedOut("orders-0", "no answer within 5 s")
NOT_COMPARED = "warning: 1 offset would be set without a comparison with its log"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("log", "value", "note", "warning"),
    [
        (LogRange(7, 100), 150, "beyond the log's end (100): auto.offset.reset would decide", OUTSIDE),
        (LogRange(7, 100), 6, "below the log's start (7): auto.offset.reset would decide", OUTSIDE),
        (UnknownTopicOrPartition("orders-0", NO_TOPIC), 8, NO_TOPIC, NOT_THERE),
        (NO_ANSWER, 8, "not compared with its log: no answer within 5 s", NOT_COMPARED),
        (no_connection, 8, "", "warning: the set offsets were not compared with the logs: brokers h:1"),
        (LogRange(7, 100), 9, "", ""),
    ],
    ids=["beyond", "below", "no topic", "no answer", "unreachable", "within"],
)
def test_set_warns_of_an_offset_that_may_be_outside_the_log_and_writes_it_exactly(
    log: Log, value: int, note: str, warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_log(log, monkeypatch)
    _, shown = edit(value, *BROKERS)
    assert note in " ".join(shown.stdout.split())
    assert ("warning:" in shown.stderr, warning in shown.stderr) == (bool(warning), True)
    assert offset() == value


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("set --group a --topic orders:0 --to-offset 8", 0),
        ("reset --group a --topic orders:0 --to-earliest", 1),
        ("import there.avro", 1),
    ],
)
def test_a_command_that_waits_for_brokers_names_the_brokers_and_the_end_of_the_wait(words, code, monkeypatch) -> None:
    monkeypatch.setattr("offsetmgr.kafka.client.client.SLOW_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never responds
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = ["--store", HERE, "--bootstrap-server", address, "--timeout", "1000"]
        errors = command("offsets", *words.split(), *options, code=code).stderr
    line = rf"waiting up to 1 s, until \d\d:\d\d:\d\d UTC, for brokers {address} \(--timeout\)"
    assert len(re.findall(line, errors)) == 1, errors


@pytest.mark.usefixtures("directory")
def test_a_reset_to_a_file_without_the_group_has_a_hint_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    report_log(LogRange(0, 9), monkeypatch)
    commit("here", "b", 5)
    reset = ("offsets", "reset", "--from-file", "there.avro", "--store", HERE, *BROKERS, "-g")
    why = "error: group 'a': the file has no offsets for it\nhint: groups in the file: b\n"
    assert why in command(*reset, "a", code=1).stderr
    why = "error: group 'b': the file has no offsets for it in these topics\nhint: correct or leave out --topic\n"
    assert why in command(*reset, "b", "--topic", "other", code=1).stderr


@pytest.mark.usefixtures("directory")
def test_a_rollback_warns_of_an_offset_beyond_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    migrate()
    report_log(LogRange(0, 2), monkeypatch)
    shown = command("migrate", "rollback", "plan.json", "--dry-run", *BROKERS)
    assert "beyond the log's end (2): auto.offset.reset would decide" in " ".join(shown.stdout.split())
    assert BELOW in shown.stderr
    assert BELOW in command("migrate", "rollback", "plan.json", "--yes", *BROKERS).stderr
    assert offset("there") == 3


@pytest.mark.usefixtures("directory")
def test_a_dry_run_of_a_rollback_counts_the_offsets_that_are_restored_already() -> None:
    migrate()
    set_offset(3, name="there")
    shown = command("migrate", "rollback", "plan.json", "--dry-run")
    assert "would restore 0 offsets; 1 is restored already; nothing was changed\n" in shown.stderr


def test_the_undo_of_an_edit_works_from_any_directory_with_the_same_context_and_servers(directory, monkeypatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(directory / "own.toml"))
    (directory / "own.toml").write_text('default-context = "prod"\n[context.prod]\nzookeeper = "z:2181/kafka"\n')
    (directory / "client.properties").write_text("client.id=me\n")
    report_log(LogRange(0, 9), monkeypatch)
    servers = ["--zookeeper", "z:2181/kafka", "--bootstrap-server", "k:9092"]
    one = set_offset(8, *servers, "--command-config", "client.properties")
    (shown,) = rows("edits", "show", one["id"])
    settings = ["--command-config", f"{directory}/client.properties", "--context", "prod"]
    assert shlex.split(shown["undo"])[6:] == [*settings, *servers]


@pytest.mark.parametrize("words", ["show", "undo"])
def test_an_id_that_matches_nothing_is_an_error_and_no_wrong_usage(words: str, directory: Path) -> None:
    error = f"error: operation 20260101-000000-abcd: {directory / LOG} does not have it\n"
    shown = command("edits", words, "20260101-000000-abcd", code=1).stderr
    assert shown == f"{error}hint: offsetmgr edits list shows the ids of this log\n"


def test_the_list_names_the_store_and_the_only_group(directory: Path) -> None:
    both: Record = {"stores": ["file:x", "file:y"], "groups": ["a", "b"], "group_count": 2, "changes": 2}
    record_like(set_offset(8), name="offsets delete", **both)
    one, two = rows("edits", "list")
    assert (one["stores"], one["group"]) == (f"file:{quote(str(directory))}/here.avro", "a")
    assert (two["stores"], two["group"]) == ("file:x, file:y", None)


@pytest.mark.usefixtures("directory")
def test_a_recorded_switch_is_named_and_has_no_undo() -> None:
    """An earlier offsetmgr had the command `migrate switch`."""
    back = "offsetmgr migrate switch --group shop --to zookeeper --zookeeper z:2181 --bootstrap-server h:1"
    text = "recorded the group's storage mode; this version does not use it"
    switch = set_offset(8) | {"stores": ["zookeeper://z:2181", "kafka://h:1"], "groups": ["shop"], "group_count": 1}
    declared = record_like(switch, name="migrate switch --declare", files=[], undo=[])
    recorded = record_like(switch, name="migrate switch", changes=3, files=["/x.avro"], undo=[back])
    found = [(row["operation"], row["note"]) for row in rows("edits", "list", "--group", "shop")]
    assert found == [("migrate switch --declare", text), ("migrate switch", text)]
    shown = command("edits", "show", recorded, "--format", "json")
    assert (json.loads(shown.stdout)[0]["undo"], shown.stderr) == (back, f"migrate switch: {text}\n")
    hint = "hint: a rolling bounce moves a group between ZooKeeper and Kafka: offsetmgr runbook write"
    copied = "; the undo of the offsets that it copied: offsetmgr offsets import /x.avro --store STORE"
    for one, name, end in ((declared, "migrate switch --declare", ""), (recorded, "migrate switch", copied)):
        assert undo(one, *DO, code=2).stderr == f"error: undo of {one}: {name} {text}\n{hint}{end}\n"


@pytest.mark.usefixtures("directory")
def test_an_edit_of_a_switched_store_is_undone_in_the_store_that_the_group_uses() -> None:
    """An earlier offsetmgr had the stores `switched:NAME`, with which it recorded their edits."""
    one = set_offset(8)
    (shown,) = rows("edits", "show", one["id"])
    command_line = shown["undo"].replace(one["stores"][0], "switched:prod")
    undone = undo(record_like(one, stores=["switched:prod"], undo=[command_line]), *DO, code=2)
    assert undone.stderr.endswith(
        "error: store 'switched:prod': an earlier offsetmgr had it\n"
        "hint: name the store that the group uses: zookeeper://... or kafka://...\n"
    )
    command(*shlex.split(command_line.replace("switched:prod", HERE))[1:], *DO)
    assert offset() == 5


@pytest.mark.usefixtures("directory")
def test_an_edit_whose_undo_was_undone_can_be_undone_again() -> None:
    one = set_offset(8)
    for undone in (one["id"], None, one["id"]):
        undo(operations()[-1]["id"] if undone is None else undone, *DO)
    assert offset() == 5


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("before", "wrote", "now", "effect"),
    [
        (505, 0, 599, "599 now, the edit wrote 0; the undo repeats 94 messages"),
        (505, 0, 300, "300 now, the edit wrote 0; the undo skips 205 messages"),
        (505, 503, 504, "504 now, the edit wrote 503; the undo skips 1 message"),
        (None, 0, 599, "599 now, the edit wrote 0; the undo deletes it, so auto.offset.reset decides where"),
    ],
)
def test_an_undo_says_what_the_consumers_repeat_or_skip(before: int | None, wrote: int, now: int, effect: str) -> None:
    if before is None:
        with SnapshotStore(Path("here.avro")) as store:
            store.delete("a", [ORDERS])
    else:
        commit("here", "a", before)
    one = set_offset(wrote, "--new-group")
    commit("here", "a", now)
    errors = undo(one["id"], *DO, code=1).stderr
    assert effect in errors
    assert "hint: add --allow-rewind to restore it anyway" in errors
    assert offset() == now
    assert effect in " ".join(undo(one["id"], "--allow-rewind").stdout.split())
    undo(one["id"], "--allow-rewind", *DO)
    assert offset() == before


@pytest.mark.usefixtures("directory")
def test_an_operation_that_still_runs_is_not_undone() -> None:
    one = set_offset(8)
    running = append("start", one | {"id": "20260101-000000-aaaa"})
    assert "warning: offsets set still runs, as process " in undo(running).stderr
    assert "offsets set still runs, as process " in undo(running, *DO, code=2).stderr
    assert offset() == 8
    append("end", {"id": running, "at_ms": one["at_ms"], "outcome": "done", "written": 1, "failed": 0})
    undo(running, *DO)
    assert offset() == 5


@pytest.mark.usefixtures("directory")
def test_one_warning_names_the_records_of_a_newer_version() -> None:
    for value in (6, 7, 8):
        known = set_offset(value)
    lines = LOG.read_text().splitlines()
    lines[0], lines[2] = (line.replace('"version": 2', '"version": 3') for line in (lines[0], lines[2]))
    LOG.write_text("\n".join(lines) + "\n")
    shown = command("edits", "list")
    assert known["id"] in shown.stdout
    assert shown.stderr.count("warning: 2 operations of a newer offsetmgr left out") == 1
    assert "line 1: is of version 3; known: 1 to 2" in shown.stderr
    newer = json.loads(lines[0])["id"]
    assert "is of version 3" in command("edits", "show", newer, code=1).stderr
    undo(known["id"], *DO)
    assert offset() == 7


@pytest.mark.usefixtures("directory")
def test_the_list_of_a_group_has_the_operations_that_may_include_it() -> None:
    named = set_offset(8)
    for groups, count in ((MAX_RECORDED_GROUPS, 1_500), (MAX_RECORDED_GROUPS, 900), (3, 3), (3, 2)):
        record_like(named, groups=[f"other-{n}" for n in range(groups)], group_count=count)
    assert [(row["groups"], row["note"]) for row in rows("edits", "list", "--group", "a")] == [
        *[(1, None), (1_500, "may include it"), (900, "may include it")]
    ]


def test_an_empty_list_does_not_claim_that_no_edit_was_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command("edits", "list")
    set_offset(8)
    missing = command("edits", "list", "--group", "b", code=1).stderr
    assert f"no edit or migration of group 'b' is recorded in {directory / LOG}" in missing
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "other"))
    log = directory / "other" / "offsetmgr" / "operations.jsonl"
    shown = f"no edit or migration is recorded in {log}; another XDG_STATE_HOME has a log of its own\n"
    assert command("edits", "list").stderr == shown


def test_an_apply_is_undone_after_its_plan_was_renewed(directory: Path) -> None:
    for name, group, value in (("there", "a", 3), ("here", "c", 5), ("there", "c", 3)):
        commit(name, group, value)
    command("migrate", "plan", *SIDES, "--all-groups", "--if-ahead", "keep", "-o", "plan.json")
    command("migrate", "apply", "plan.json", "--group", "a", "--yes")
    apply = operations()[-1]
    command("migrate", "renew", "plan.json", "-o", "second.json")
    command("migrate", "apply", "second.json", "--yes")
    assert (offset("there"), offset("there", "c")) == (5, 5)
    assert f"plan.json was renewed: this command works on {directory / 'second.json'}" in undo(apply["id"]).stderr
    undo(apply["id"], *DO)
    assert (offset("there"), offset("there", "c")) == (3, 5)
    (row,) = [row for row in rows("edits", "list") if row["id"] == apply["id"]]
    (back,) = rows("edits", "show", row["undone_by"])
    assert (back["operation"], back["outcome"]) == ("migrate rollback", "done")
    assert "migrate rollback has no undo" in undo(back["id"], code=2).stderr


def printed(shown: str, label: str) -> list[str]:
    (line,) = [line for line in shown.splitlines() if line.startswith(label)]
    return shlex.split(line.removeprefix(label))


def test_the_next_commands_of_a_migration_are_quoted_and_have_the_options(directory: Path, monkeypatch) -> None:
    lost = "no volume holds this file, so it would be lost with the container"
    (directory / "to.properties").write_text("client.id=me\n")
    options = ["--to-command-config", str(directory / "to.properties")]
    commit("here", "c d", 5)
    planned = command("migrate", "plan", *SIDES, "--all-groups", "-o", "my plan.json", *options).stderr
    assert printed(planned, "next: ") == ["offsetmgr", "migrate", "apply", "my plan.json", *options]
    with monkeypatch.context() as container:
        container.setenv("OFFSETMGR_STATE_VOLUME", "/state")
        shown = command("migrate", "renew", "my plan.json", "-o", "second plan.json", "a", *options).stderr
    assert f"warning: file {directory}/second plan.json: {lost}" in shown
    assert "planned 1 group again; 1 group kept; my plan.json is replaced\n" in shown
    renewed = ["offsetmgr", "migrate", "apply", "second plan.json", "--group", "a", *options]
    assert printed(shown, "next: ") == renewed
    shown = command("migrate", "apply", "second plan.json", "--yes", *options).stderr
    assert printed(shown, "next: ") == ["offsetmgr", "migrate", "verify", "second plan.json", *options]
    assert printed(shown, "undo: ") == ["offsetmgr", "migrate", "rollback", "second plan.json", *options]
    monkeypatch.setenv("OFFSETMGR_STATE_VOLUME", "/state")
    shown = command("migrate", "rollback", "second plan.json", "--reverse-plan", "back plan.json", *options).stderr
    assert f"warning: file {directory}/back plan.json: {lost}" in shown
    back = ["offsetmgr", "migrate", "apply", "back plan.json", "--from-command-config", options[1]]
    assert printed(shown, "next: ") == back


@pytest.mark.usefixtures("directory")
def test_verify_and_finalize_name_the_remedy_if_the_source_moved_on() -> None:
    migrate()
    commit("here", "a", 6)
    shown = command("migrate", "verify", "plan.json", "a", code=1).stderr
    assert "hint: consumers still commit to the source. Bounce them to dual and verify again, or stop them" in shown
    assert "offsetmgr migrate status plan.json --group a prints the next command of each group" in shown
    shown = command("migrate", "finalize", "plan.json", "--yes", code=1).stderr
    assert "hint: offsetmgr migrate verify plan.json lists the differences\n" in shown
    command("migrate", "rollback", "plan.json", "--yes")
    assert "hint: consumers" not in command("migrate", "verify", "plan.json", code=1).stderr


def test_the_command_that_removes_empty_groups_says_how_many_it_does_not_name() -> None:
    many = deletion_of("kafka://h:9092", [f"g{n}" for n in range(MAX_NAMED + 3)], {"context": "prod"}).command_line()
    assert many.count("--group") == MAX_NAMED
    assert many.endswith(" --context prod --execute  (3 more empty groups: see offsetmgr groups list)")
