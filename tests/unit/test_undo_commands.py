"""The undo of edits and of migrations, on snapshot files: warnings, notes, and the commands that are printed."""

from __future__ import annotations

import json
import re
import shlex
import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from one_migration import OneLog

from offsetmgr.api.endpoints import SourceAndTarget
from offsetmgr.cli.app import run
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.cli.followup_commands import MAX_NAMED, delete_groups_command
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.core.errors import OffsetMgrError, TimedOut, UnknownTopicOrPartition, Unreachable
from offsetmgr.core.model import Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.groups.operation_log import MAX_GROUPS, OperationLog, OperationStart, RecordedOperation
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.renewal import _unpublished
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.testing.memory import MemoryStore

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the stores here.avro and there.avro. In here.avro, group a has committed 5 in orders-0."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name, group in (("here", "a"), ("there", "b")):
        with SnapshotStore(tmp_path / f"{name}.avro") as store:
            store.commit(group, {ORDERS: OffsetAndMetadata(5)})
    return tmp_path


def offset(name: str = "here", group: str = "a") -> int | None:
    with SnapshotStore(Path(f"{name}.avro")) as store:
        found = store.fetch(group).get(ORDERS)
    return found.offset if isinstance(found, Committed) else None


def set_offset(value: int, *options: str, name: str = "here") -> RecordedOperation:
    store = f"file:{Path.cwd() / name}.avro"
    topic = ["--group", "a", "--topic", "orders:0", "--to-offset", str(value)]
    assert run(["offsets", "set", *topic, "--store", store, "--execute", "--yes", *options]) == 0
    return OperationLog().operations()[-1]


def undo_images(one: RecordedOperation, *options: str) -> int:
    store = f"file:{Path.cwd() / 'here.avro'}"
    return run(["offsets", "import", one.start.files[0], "--store", store, "--bootstrap-server", "h:1", *options])


def the_log_is(log: LogRange | OffsetMgrError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectFlags, "cluster", lambda _connect, _what: OneLog(log))
    monkeypatch.setattr(SourceAndTarget, "logs", lambda _sides: OneLog(log))


def unreachable_cluster(_connect: ConnectFlags, _what: str) -> OneLog:
    raise Unreachable("brokers h:1", "no connection")


def migrate(capsys: pytest.CaptureFixture[str]) -> None:
    """Copies group a to there.avro, where it has 3."""
    with SnapshotStore(Path("there.avro")) as store:
        store.commit("a", {ORDERS: OffsetAndMetadata(3)})
    sides = ["--from", f"file:{Path.cwd() / 'here.avro'}", "--to", f"file:{Path.cwd() / 'there.avro'}"]
    assert run(["migrate", "plan", *sides, "--group", "a", "--if-ahead", "keep", "-o", "plan.json"]) == 0
    assert run(["migrate", "apply", "plan.json", "--yes"]) == 0
    assert offset("there") == 5
    capsys.readouterr()


# --- offsets outside the log ------------------------------------------------------------------------


def test_the_undo_warns_of_an_offset_below_the_log_and_restores_it_exactly(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = set_offset(8)
    the_log_is(LogRange(7, 9), monkeypatch)
    capsys.readouterr()

    assert undo_images(one) == 0
    shown = capsys.readouterr()
    assert "below the log's start (7): auto.offset.reset would decide" in " ".join(shown.out.split())
    assert "warning: 1 offset would be restored outside the log" in shown.err
    assert undo_images(one, "--execute", "--yes") == 0
    assert "warning: 1 offset would be restored outside the log" in capsys.readouterr().err
    assert offset() == 5


def test_the_undo_has_no_warning_within_the_log_or_if_it_is_unchecked(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = set_offset(8)
    the_log_is(LogRange(5, 9), monkeypatch)
    assert undo_images(one) == 0
    the_log_is(LogRange(7, 9), monkeypatch)
    assert undo_images(one, "--unchecked") == 0
    assert "warning:" not in capsys.readouterr().err


def test_brokers_that_do_not_respond_do_not_prevent_the_undo(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = set_offset(8)
    monkeypatch.setattr(ConnectFlags, "cluster", unreachable_cluster)
    assert undo_images(one, "--execute", "--yes") == 0
    assert "warning: the restored offsets were not compared with the logs: brokers h:1" in capsys.readouterr().err
    assert offset() == 5


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("offset_to_set", "place"), [(150, "beyond the log's end (100)"), (6, "below the log's start (7)")]
)
def test_set_warns_of_an_offset_outside_the_log_and_writes_it_exactly(
    offset_to_set: int, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    the_log_is(LogRange(7, 100), monkeypatch)
    set_offset(offset_to_set, "--bootstrap-server", "h:1")
    shown = capsys.readouterr()
    assert f"{place}: auto.offset.reset would decide" in " ".join(shown.out.split())
    assert "warning: 1 offset would be set outside the log: a consumer that starts there follows" in shown.err
    assert offset() == offset_to_set

    set_offset(9, "--bootstrap-server", "h:1")
    assert "warning:" not in capsys.readouterr().err


def test_brokers_that_do_not_respond_do_not_prevent_set(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ConnectFlags, "cluster", unreachable_cluster)
    set_offset(8, "--bootstrap-server", "h:1")
    assert "warning: the set offsets were not compared with the logs: brokers h:1" in capsys.readouterr().err
    assert offset() == 8


def test_set_warns_of_a_topic_that_the_brokers_do_not_have_and_writes_the_offset(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "the topic or partition does not exist on the broker"
    the_log_is(UnknownTopicOrPartition("orders-0", why), monkeypatch)
    set_offset(8, "--bootstrap-server", "h:1")
    shown = capsys.readouterr()
    assert why in " ".join(shown.out.split())
    assert "warning: 1 offset would be set in a partition that the brokers do not have" in shown.err
    assert offset() == 8


def test_set_warns_of_an_offset_whose_log_range_is_unknown(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    the_log_is(TimedOut("orders-0", "no answer within 5 s"), monkeypatch)
    set_offset(8, "--bootstrap-server", "h:1")
    shown = capsys.readouterr()
    assert "not compared with its log: no answer within 5 s" in " ".join(shown.out.split())
    assert "warning: 1 offset would be set without a comparison with its log" in shown.err


@pytest.mark.parametrize(
    "command",
    [
        ["set", "--group", "a", "--topic", "orders:0", "--to-offset", "8"],
        ["reset", "--group", "a", "--topic", "orders:0", "--to-earliest"],
        ["import", "there.avro"],
    ],
    ids=["set", "reset", "import"],
)
def test_a_command_that_waits_for_brokers_names_the_brokers_and_the_end_of_the_wait(
    command: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("offsetmgr.cli.lock_wait._LOG_INTERVAL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never responds
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = ["--store", "file:here.avro", "--bootstrap-server", address, "--timeout", "1000"]
        assert run(["offsets", *command, *options]) == (0 if command[0] == "set" else 1)
    errors = capsys.readouterr().err
    line = rf"waiting up to 1 s, until \d\d:\d\d:\d\d UTC, for brokers {address} \(--timeout\)"
    assert len(re.findall(line, errors)) == 1, errors


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("group", "options", "error"),
    [
        ("a", [], "the file has no offsets for it\nhint: groups in the file: b\n"),
        (
            "b",
            ["--topic", "other"],
            "the file has no offsets for it in these topics\nhint: correct or leave out --topic\n",
        ),
    ],
)
def test_a_reset_to_a_file_without_the_group_has_a_hint_that_helps(
    group: str, options: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    the_log_is(LogRange(0, 9), monkeypatch)
    with SnapshotStore(Path("here.avro")) as store:
        store.commit("b", {ORDERS: OffsetAndMetadata(5)})
    assert (
        run(["offsets", "reset", "--from-file", "there.avro", "-g", group, "--store", "file:here.avro", *options]) == 1
    )
    assert f"error: group {group!r}: {error}" in capsys.readouterr().err


def test_a_rollback_warns_of_an_offset_beyond_the_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate(capsys)
    the_log_is(LogRange(0, 2), monkeypatch)

    assert run(["migrate", "rollback", "plan.json", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "beyond the log's end (2): auto.offset.reset would decide" in " ".join(shown.out.split())
    assert "warning: 1 offset would be restored outside the log" in shown.err
    assert run(["migrate", "rollback", "plan.json", "--yes"]) == 0
    assert "warning: 1 offset would be restored outside the log" in capsys.readouterr().err
    assert offset("there") == 3


def test_a_dry_run_of_a_rollback_counts_the_offsets_that_are_restored_already(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate(capsys)
    set_offset(3, name="there")

    assert run(["migrate", "rollback", "plan.json", "--dry-run"]) == 0
    assert "would restore 0 offsets; 1 is restored already; nothing was changed\n" in capsys.readouterr().err


# --- the options of the undo ------------------------------------------------------------------------


class StoreAt(MemoryStore):
    @property
    def uri(self) -> str:
        return self.id


@pytest.mark.parametrize(
    ("store", "servers"),
    [
        ("kafka://k:9092", ["--zookeeper", "z:2181/kafka"]),
        ("zookeeper://z:2181/kafka", ["--bootstrap-server", "k:9092"]),
    ],
)
def test_the_undo_of_an_edit_repeats_the_servers(store: str, servers: list[str]) -> None:
    settings = SettingsLayer(store=store, bootstrap_server="k:9092", zookeeper="z:2181/kafka")
    with ConnectFlags(settings, None) as connect:
        assert list(connect.undo_options(StoreAt(store))) == servers


def test_the_undo_of_an_edit_works_from_any_directory_and_with_the_same_context(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(directory / "own.toml"))
    (directory / "own.toml").write_text('default-context = "prod"\n[context.prod]\nzookeeper = "z:2181"\n')
    (directory / "client.properties").write_text("client.id=me\n")

    one = set_offset(8, "--command-config", "client.properties")
    words = shlex.split(one.start.undo[0])
    assert words[6:] == ["--command-config", str(directory / "client.properties"), "--context", "prod"]


# --- edits list and show ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["show", "undo"])
def test_an_id_that_matches_nothing_is_an_error_and_no_wrong_usage(
    command: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["edits", command, "20260101-000000-abcd"]) == 1
    error = f"error: operation 20260101-000000-abcd: {OperationLog().path} does not have it\n"
    assert capsys.readouterr().err == f"{error}hint: offsetmgr edits list shows the ids of this log\n"


def test_the_list_names_the_store_and_the_only_group(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_offset(8)
    with OperationLog().recorded(OperationStart("offsets delete", ("file:x", "file:y"), ("a", "b"), 2, 2)):
        pass
    capsys.readouterr()
    assert run(["edits", "list", "--format", "json"]) == 0
    one, two = json.loads(capsys.readouterr().out)
    assert (one["stores"], one["group"]) == (f"file:{quote(str(directory))}/here.avro", "a")
    assert (two["stores"], two["group"]) == ("file:x, file:y", None)


# --- edits undo -------------------------------------------------------------------------------------


def test_an_edit_whose_undo_was_undone_can_be_undone_again(directory: Path) -> None:
    edit = set_offset(8)
    for undone in (edit.id, None, edit.id):
        undo = OperationLog().operations()[-1].id if undone is None else undone
        assert run(["edits", "undo", undo, "--execute", "--yes"]) == 0
    assert offset() == 5


def test_an_undo_restores_a_changed_offset_with_allow_rewind(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit = set_offset(6)
    set_offset(7)
    undo = ["edits", "undo", edit.id, "--execute", "--yes"]
    assert run(undo) == 1
    assert "hint: add --allow-rewind to restore it anyway" in capsys.readouterr().err
    assert offset() == 7
    assert run([*undo, "--allow-rewind"]) == 0
    assert offset() == 5


@pytest.mark.parametrize(
    ("before", "wrote", "now", "effect"),
    [
        (505, 0, 599, "599 now, the edit wrote 0; the undo repeats 94 messages"),
        (505, 0, 300, "300 now, the edit wrote 0; the undo skips 205 messages"),
        (505, 503, 504, "504 now, the edit wrote 503; the undo skips 1 message"),
        (None, 0, 599, "599 now, the edit wrote 0; the undo deletes it, so auto.offset.reset decides where"),
    ],
)
def test_an_undo_says_what_the_consumers_repeat_or_skip(
    directory: Path, before: int | None, wrote: int, now: int, effect: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with SnapshotStore(Path("here.avro")) as store:
        if before is None:
            store.delete("a", [ORDERS])
        else:
            store.commit("a", {ORDERS: OffsetAndMetadata(before)})
    edit = set_offset(wrote, "--new-group")
    with SnapshotStore(Path("here.avro")) as store:
        store.commit("a", {ORDERS: OffsetAndMetadata(now)})
    capsys.readouterr()
    assert run(["edits", "undo", edit.id]) == 1
    assert effect in capsys.readouterr().err
    assert run(["edits", "undo", edit.id, "--allow-rewind"]) == 0
    assert effect in " ".join(capsys.readouterr().out.split())
    assert run(["edits", "undo", edit.id, "--allow-rewind", "--execute", "--yes"]) == 0
    assert offset() == before


def test_an_operation_that_still_runs_is_not_undone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit = set_offset(8)
    with OperationLog().recorded(edit.start) as running:
        assert run(["edits", "undo", running.id]) == 0
        assert "warning: offsets set still runs, as process " in capsys.readouterr().err
        assert run(["edits", "undo", running.id, "--execute", "--yes"]) == 2
        assert "offsets set still runs, as process " in capsys.readouterr().err
        assert offset() == 8
    assert run(["edits", "undo", running.id, "--execute", "--yes"]) == 0
    assert offset() == 5


def test_one_warning_names_the_records_of_a_newer_version(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (6, 7, 8):
        known = set_offset(value)
    path = OperationLog().path
    lines = path.read_text().splitlines()
    lines[0], lines[2] = (line.replace('"version": 1', '"version": 2') for line in (lines[0], lines[2]))
    path.write_text("\n".join(lines) + "\n")
    capsys.readouterr()

    assert run(["edits", "list"]) == 0
    shown = capsys.readouterr()
    assert known.id in shown.out
    assert shown.err.count("warning: 2 operations of a newer offsetmgr left out") == 1
    assert run(["edits", "undo", known.id, "--execute", "--yes"]) == 0
    assert offset() == 7


def test_the_list_of_a_group_has_the_operations_that_may_include_it(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = set_offset(8)
    for groups, count in ((MAX_GROUPS, 1_500), (MAX_GROUPS, 900), (3, 3), (3, 2)):
        names = tuple(f"other-{n}" for n in range(groups))
        with OperationLog().recorded(replace(named.start, groups=names, group_count=count)):
            pass
    capsys.readouterr()

    assert run(["edits", "list", "--group", "a", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["groups"], row["note"]) for row in rows] == [
        (1, None),
        (1_500, "may include it"),
        (900, "may include it"),
    ]


def test_the_list_of_a_group_without_operations_fails(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["edits", "list"]) == 0
    set_offset(8)
    assert run(["edits", "list", "--group", "b"]) == 1
    assert f"no edit or migration of group 'b' is recorded in {OperationLog().path}" in capsys.readouterr().err


def test_the_list_of_another_state_directory_does_not_claim_that_no_edit_was_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_offset(8)
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "other"))
    capsys.readouterr()
    assert run(["edits", "list"]) == 0
    log = directory / "other" / "offsetmgr" / "operations.jsonl"
    shown = f"no edit or migration is recorded in {log}; another XDG_STATE_HOME has a log of its own\n"
    assert capsys.readouterr().err == shown


# --- plans that were renewed ------------------------------------------------------------------------


def test_an_apply_is_undone_after_its_plan_was_renewed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, group in (("there", "a"), ("here", "c"), ("there", "c")):
        with SnapshotStore(Path(f"{name}.avro")) as store:
            store.commit(group, {ORDERS: OffsetAndMetadata(3 if name == "there" else 5)})
    sides = ["--from", f"file:{directory / 'here.avro'}", "--to", f"file:{directory / 'there.avro'}"]
    assert run(["migrate", "plan", *sides, "--all-groups", "--if-ahead", "keep", "-o", "plan.json"]) == 0
    assert run(["migrate", "apply", "plan.json", "--group", "a", "--yes"]) == 0
    apply = OperationLog().operations()[-1]
    assert run(["migrate", "renew", "plan.json", "-o", "second.json"]) == 0
    assert run(["migrate", "apply", "second.json", "--yes"]) == 0
    assert (offset("there"), offset("there", "c")) == (5, 5)
    capsys.readouterr()

    assert run(["edits", "undo", apply.id]) == 0
    assert f"plan.json was renewed: this command works on {directory / 'second.json'}" in capsys.readouterr().err
    assert run(["edits", "undo", apply.id, "--execute", "--yes"]) == 0
    assert (offset("there"), offset("there", "c")) == (3, 5)
    assert OperationLog().find(apply.id).undone_by


# --- the commands that are printed ------------------------------------------------------------------


def printed(shown: str, label: str) -> list[str]:
    (line,) = [line for line in shown.splitlines() if line.startswith(label)]
    return shlex.split(line.removeprefix(label))


def test_the_next_commands_of_a_migration_are_quoted_and_have_the_options(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "to.properties").write_text("client.id=me\n")
    options = ["--to-command-config", str(directory / "to.properties")]
    sides = ["--from", f"file:{directory / 'here.avro'}", "--to", f"file:{directory / 'there.avro'}"]
    with SnapshotStore(Path("here.avro")) as store:
        store.commit("c d", {ORDERS: OffsetAndMetadata(5)})

    assert run(["migrate", "plan", *sides, "--all-groups", "-o", "my plan.json", *options]) == 0
    apply = ["offsetmgr", "migrate", "apply", "my plan.json", *options]
    assert printed(capsys.readouterr().err, "next: ") == apply
    assert run(["migrate", "renew", "my plan.json", "-o", "second plan.json", "a", *options]) == 0
    renewed = ["offsetmgr", "migrate", "apply", "second plan.json", "--group", "a", *options]
    shown = capsys.readouterr().err
    assert "planned 1 group again; 1 group kept; my plan.json is replaced\n" in shown
    assert printed(shown, "next: ") == renewed
    second = Path("second plan.json")
    second.rename(_unpublished(PlanFile(Path("my plan.json")), second))  # as after a kill
    assert run(["migrate", "renew", "my plan.json", "-o", "second plan.json", "a", *options]) == 0
    shown = capsys.readouterr().err
    assert "it is complete now, and my plan.json is replaced\n" in shown
    assert printed(shown, "next: ") == renewed
    assert run(["migrate", "apply", "second plan.json", "--yes", *options]) == 0
    shown = capsys.readouterr().err
    assert printed(shown, "next: ") == ["offsetmgr", "migrate", "verify", "second plan.json", *options]
    assert printed(shown, "undo: ") == ["offsetmgr", "migrate", "rollback", "second plan.json", *options]
    assert run(["migrate", "rollback", "second plan.json", "--reverse-plan", "back plan.json", *options]) == 0
    back = ["offsetmgr", "migrate", "apply", "back plan.json", "--from-command-config", options[1]]
    assert printed(capsys.readouterr().err, "next: ") == back


def test_verify_and_finalize_name_the_remedy_if_the_source_moved_on(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate(capsys)
    with SnapshotStore(Path("here.avro")) as store:
        store.commit("a", {ORDERS: OffsetAndMetadata(6)})

    assert run(["migrate", "verify", "plan.json", "a"]) == 1
    shown = capsys.readouterr().err
    assert "hint: consumers still commit to the source. Bounce them to dual and verify again, or stop them" in shown
    assert "offsetmgr migrate status plan.json --group a prints the next command of each group" in shown
    assert run(["migrate", "finalize", "plan.json", "--yes"]) == 1
    assert "hint: offsetmgr migrate verify plan.json lists the differences\n" in capsys.readouterr().err

    assert run(["migrate", "rollback", "plan.json", "--yes"]) == 0
    assert run(["migrate", "verify", "plan.json"]) == 1
    assert "hint: consumers" not in capsys.readouterr().err


def test_the_command_that_removes_empty_groups_has_all_names_and_options() -> None:
    command = delete_groups_command("kafka://h:9092", ["a b", "c*"], ["--context", "prod"])
    assert shlex.split(command) == [
        *("offsetmgr", "groups", "delete", "--store", "kafka://h:9092", "--group", "a b", "--group", "c[*]"),
        *("--context", "prod", "--execute"),
    ]
    many = delete_groups_command("kafka://h:9092", [f"g{n}" for n in range(MAX_NAMED + 3)], [])
    assert many.count("--group") == MAX_NAMED
    assert many.endswith("--execute  (3 more empty groups: see offsetmgr groups list)")
