"""The output of the command line: rows, errors, progress, and its speed."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import run_command
from stopwatch import loop_s

from offsetmgr.cli.app import run
from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.edit_command import _list_failures
from offsetmgr.cli.errors import Declined, Interrupted, report
from offsetmgr.cli.render import BATCH, Column, OutputFormat, progress, write_rows
from offsetmgr.cli.root import REGISTRY
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.core.errors import GroupNotFound, InvalidUri, PartialFailure, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore

COLUMNS = (
    Column("group"),
    Column("log_end", right=True),
    Column("note", optional=True),
    Column("epoch", right=True, detail=True),
)


COMMAND = [sys.executable, "-c", "from offsetmgr.cli.app import main; main()"]


def test_a_table_aligns_numbers_and_leaves_out_empty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_rows(COLUMNS, [("orders", 7, None, 1), ("x", 12345, None, 2)], OutputFormat.TABLE) == 2
    assert capsys.readouterr().out == "GROUP   LOG-END\norders        7\nx         12345\n"


def test_unknown_numbers_are_a_dash_and_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_rows(COLUMNS, [("a\x1b[31m\nb", None, "n", 1)], OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines()[1] == "a\\x1b[31m\\nb        -  n"


def test_on_a_terminal_the_last_column_is_wrapped_at_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    text = "the broker keeps the offsets of a group until they expire"
    write_rows((Column("group"), Column("note")), [("orders", text), ("x", "short")], OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "GROUP   NOTE",
        "orders  the broker keeps the offsets of",
        "        a group until they expire",
        "x       short",
    ]


def test_names_are_never_cut_and_late_rows_may_be_wider_than_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("g", 1, None, 0)] * BATCH + [("g" * 249, 2, "late", 0)]
    write_rows(COLUMNS, rows, OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["g" * 249, "2", "late"]


def test_json_is_one_array_with_nulls(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [('q"\n%s', 1, None, None), ("é", None, "n", 2)] * BATCH
    write_rows(COLUMNS, rows, OutputFormat.JSON)
    found = json.loads(capsys.readouterr().out)
    assert found[:2] == [
        {"group": 'q"\n%s', "log_end": 1, "note": None, "epoch": None},
        {"group": "é", "log_end": None, "note": "n", "epoch": 2},
    ]
    assert len(found) == 2 * BATCH


@pytest.mark.parametrize(
    ("output", "expected"),
    [(OutputFormat.JSON, "[]\n"), (OutputFormat.CSV, "group,log_end,note,epoch\n"), (OutputFormat.TABLE, "")],
)
def test_no_rows_are_valid_output_too(output: OutputFormat, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(COLUMNS, [], output)
    assert capsys.readouterr().out == expected


def test_csv_quotes_values_that_contain_a_separator(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(COLUMNS, [("a,b", 1, None, None)], OutputFormat.CSV)
    out = capsys.readouterr().out
    assert out == 'group,log_end,note,epoch\n"a,b",1,,\n'
    assert list(csv.reader(io.StringIO(out)))[1] == ["a,b", "1", "", ""]


@pytest.mark.slow
@pytest.mark.parametrize("output", list(OutputFormat))
def test_fifty_thousand_rows_cost_little_more_than_the_standard_library_needs(
    output: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    # The bound is relative to a peer in the same run, because a bound in seconds would measure the machine.
    rows = [(f"group-{n // 50}", n, None, n % 7) for n in range(50_000)]
    names = [column.name for column in COLUMNS]
    peer = min(
        _seconds(lambda: sys.stdout.write(json.dumps([dict(zip(names, row, strict=True)) for row in rows])))
        for _ in range(5)
    )
    ours = min(_seconds(lambda: write_rows(COLUMNS, rows, output)) for _ in range(5))
    capsys.readouterr()
    assert ours < 6 * peer


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def test_an_error_is_one_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(GroupNotFound("group 'g'", "does not\nexist", "look at the list")) == 1
    assert capsys.readouterr().err == "error: group 'g': does not exist\nhint: look at the list\n"


@pytest.mark.parametrize(("where", "why"), [("> /dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
@pytest.mark.parametrize("arguments", ["--help", "offsets get --group g --store file:{file} --format json"])
def test_output_that_cannot_be_written_is_one_line(where: str, why: str, arguments: str, tmp_path: Path) -> None:
    file = tmp_path / "store.avro"
    with SnapshotStore(file) as store:
        store.commit("g", {TopicPartition("t", n): OffsetAndMetadata(1) for n in range(2000)})
    command = f"{shlex.join(COMMAND)} {arguments.format(file=shlex.quote(str(file)))} {where}"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, f"error: cannot write the output: {why}\n")


@pytest.mark.parametrize("on_terminal", [False, True])
def test_names_are_printed_in_every_locale(on_terminal: bool, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("büro-東,t,0,5\n", "utf-8")
    command = [*COMMAND, "offsets", "get", "--all-groups", "--store", f"file:{tmp_path}/x.csv", "--format", "csv"]
    environ = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    ours, theirs = os.openpty()
    stdout = theirs if on_terminal else subprocess.PIPE
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=environ, timeout=120, check=False)
    printed = os.read(ours, 4096) if on_terminal else done.stdout
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")
    assert printed.splitlines()[1].startswith(b"b\xfcro-\\u6771," if on_terminal else "büro-東,".encode())


@pytest.mark.parametrize("flags", [["--dry-run", "--execute"], ["--execute", "--dry-run"]])
def test_a_dry_run_that_executes_is_wrong_usage(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "delete", "--group", "g", "--yes", "--zookeeper", "127.0.0.1:1", *flags]) == 2
    assert capsys.readouterr().err.startswith("error: --dry-run and --execute: are both given\nhint: ")


def test_offsets_are_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["offsets", "set", "--group", "g", "--topic", "t", "--to-offset", "1_000"]) == 2
    assert "'1_000' is not an offset" in capsys.readouterr().err


@pytest.mark.parametrize("offset", ["9223372036854775808", "9" * 5000])
@pytest.mark.parametrize("command", ["set", "reset"])
def test_an_offset_beyond_63_bits_is_bad_usage(command: str, offset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["offsets", command, "--group", "g", "--topic", "t", "--to-offset", offset]) == 2
    assert "is beyond the largest offset, 9223372036854775807" in capsys.readouterr().err


def test_times_are_read_by_people_in_tables_and_numbers_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (Column("at", time=True),)
    write_rows(columns, [(1_000_000_000_123,), (None,), (10**18,)], OutputFormat.TABLE)
    write_rows(columns, [(1_000_000_000_123,)], OutputFormat.CSV)
    table = "AT\n2001-09-09T01:46:40.123Z\n-\n1000000000000000000\n"
    assert capsys.readouterr().out == f"{table}at\n1000000000123\n"


@pytest.mark.parametrize("group", list(REGISTRY))
def test_lists_of_commands_are_whole_sentences(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, "--help"]) == 0
    out = capsys.readouterr().out
    assert "..." not in out.partition("Commands:")[2]
    assert "--install-completion" not in out


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(InvalidUri("store 'x'", "no kind")) == 2
    assert capsys.readouterr().err == "error: store 'x': no kind\n"


def test_the_hint_of_wrong_usage_names_the_help_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "apply", "x.plan", "--execute"]) == 2
    assert capsys.readouterr().err == "error: No such option: --execute\nhint: see offsetmgr migrate apply --help\n"


@pytest.mark.parametrize("command", ["offsets get", "groups where", "edits list"])
def test_the_hint_names_the_forms_for_a_group_whose_name_begins_with_a_dash(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "-dash"]) == 2
    forms = "--group=-NAME, or -- -NAME at the end of the command"
    hint = f"hint: for a group whose name begins with -: {forms}; see offsetmgr {command} --help\n"
    assert capsys.readouterr().err == f"error: No such option: -d\n{hint}"
    assert run(["edits", "show", "-dash"]) == 2
    assert capsys.readouterr().err.endswith("hint: see offsetmgr edits show --help\n")


@pytest.mark.parametrize("words", [["--group=-dash"], ["-g", "-dash"], ["--", "-dash"]])
def test_a_group_whose_name_begins_with_a_dash_is_read(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SnapshotStore(tmp_path / "s.avro") as store:
        store.commit("-dash", {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    assert run(["offsets", "get", "--store", f"file:{tmp_path}/s.avro", *words]) == 0
    assert "-dash  orders     0  committed       5" in capsys.readouterr().out


def test_an_argument_that_is_not_utf_8_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["offsetmgr", "groups", "describe", "bad\udcff"])
    assert report(UnicodeEncodeError("utf-8", "bad\udcff", 3, 4, "surrogates not allowed")) == 2
    assert capsys.readouterr().err.startswith("error: argument 'bad\\udcff': is not valid UTF-8\nhint: ")


def test_a_partial_failure_lists_each_partition(capsys: pytest.CaptureFixture[str]) -> None:
    failures = {TopicPartition("t", n): GroupNotFound("it", f"is gone {n}") for n in (1, 0)}
    assert report(PartialFailure("commit", successes={}, failures=failures)) == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["  t-0: it: is gone 0", "  t-1: it: is gone 1"]


def test_an_internal_error_is_one_line_and_its_traceback_needs_debug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report(ZeroDivisionError("division\nby zero")) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: internal: ZeroDivisionError: division by zero\nhint: ")
    assert "Traceback" not in err
    report(ZeroDivisionError("x"), debug=True)
    assert "ZeroDivisionError: x\nerror: internal" in capsys.readouterr().err


def test_an_interruption_reports_the_remaining_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(Interrupted("3 of 5 done")) == 130
    assert report(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted: 3 of 5 done\ninterrupted: stopped before the end\n"


def test_an_interruption_within_c_code_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    wrapped = SystemError("<function close> returned a result with an exception set")
    wrapped.__cause__ = KeyboardInterrupt()
    assert report(wrapped) == 130
    assert capsys.readouterr().err == "interrupted: stopped before the end\n"


def test_without_a_terminal_there_is_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError) as caught:
        confirm("delete it?", yes=False)
    assert caught.value.hint == "add --yes"
    confirm("delete it?", yes=True)


@pytest.mark.parametrize(("answer", "confirmed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False)])
def test_only_yes_confirms(answer: str, confirmed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    if confirmed:
        confirm("delete it?", yes=False)
    else:
        with pytest.raises(Declined):
            confirm("delete it?", yes=False)


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_terminal_that_is_lost_at_the_prompt_is_an_error(
    error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(io.StringIO):
        is_open = True

        def isatty(self) -> bool:
            return self.is_open

        def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
            self.is_open = False
            if error is not None:
                raise error
            return ""

    monkeypatch.setattr(sys, "stdin", Lost())
    with pytest.raises(UsageError) as caught:
        confirm("delete it?", yes=False)
    assert str(caught.value) == "delete it: no answer was given (end of input), so nothing was done"
    assert caught.value.hint == "answer y or n, or add --yes"


def test_progress_is_silent_at_first_and_yields_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(100), "reading", 100)) == list(range(100))
    assert capsys.readouterr().err == ""


def test_progress_without_a_terminal_is_a_line_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now: Iterator[int] = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    list(progress(range(64), "reading", 128))
    assert capsys.readouterr().err.splitlines()[0] == "reading: [##..................] 16 of 128, 16/s"


def test_help_shows_every_group_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from offsetmgr.cli.app import run; code = run(['--help']); "
        "print([m for m in ('confluent_kafka','kazoo','kio','fastavro','rich','asyncio') if m in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert all(f"\n  {name} " in done.stdout for name in REGISTRY)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_help_takes_less_than_300_units_of_processor_time() -> None:
    def children_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def once() -> float:
        before = children_s()
        assert subprocess.run([*COMMAND, "--help"], stdout=subprocess.DEVNULL, check=False).returncode == 0
        return children_s() - before

    assert min(once() for _ in range(5)) < 300 * loop_s()


COMMANDS = {
    "groups": ["list", "describe", "delete", "copy", "rename"],
    "offsets": ["get", "set", "reset", "export", "import", "diff", "lag", "delete"],
}


@pytest.mark.parametrize(("group", "command"), [(g, c) for g, names in COMMANDS.items() for c in names])
def test_every_command_has_complete_help(group: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, command, "--help"]) == 0
    out = capsys.readouterr().out
    connection = out.partition("Connection options (see offsetmgr help connection): ")[2].partition("\n\n")[0]
    options = {"--bootstrap-server", "--command-config", "--zookeeper", "--store", "--context", "--timeout"}
    options.add("--ignore-persistent-members")
    assert options == set(connection.replace(",", "").split())
    assert f"Usage: offsetmgr {group} {command}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["groupz"], "No such command 'groupz'. Did you mean 'groups'?"),
        (["groups", "list", "--nonsense"], "No such option"),
        (["groups", "list"], "no store given"),
        (["groups", "list", "--store", "nonsense"], "no kind"),
        (["groups", "list", "--bootstrap-server", "h"], "'h' has no port"),
        (["groups", "list", "--zookeeper", "u:p@h:1"], "credentials do not belong in a URI"),
        (["groups", "list", "--context", "none"], "context 'none'"),
        (["groups", "list", "--command-config", "none.properties"], "No such file"),
        (["groups", "describe", "--bootstrap-server", "h:1"], "no group is named"),
        (["offsets", "get", "--group", "g", "--all-groups", "--store", "file:x.avro"], "both --group and --all-groups"),
        (["offsets", "get", "--group", "g", "--topic", "t:x", "--store", "file:x.avro"], "'x' is not a partition"),
        (["offsets", "lag", "--group", "g", "--store", "file:x.avro"], "add --bootstrap-server"),
        (["offsets", "reset", "--group", "g", "--topic", "t", "--store", "file:x.avro"], "no scenario is given"),
        (["offsets", "reset", "--group", "g", "--to-latest", "--to-earliest"], "several scenarios are given"),
        (["offsets", "reset", "--group", "g", "--to-latest", "--store", "file:x.avro"], "no topic is named"),
        (["offsets", "reset", "--group", "g", "--by-duration", "1D"], "PnDTnHnMnS"),
        (["offsets", "set", "--group", "g", "--topic", "t:0", "--to-offset", "-1"], "-1"),
        (["offsets", "export", "x.unknown", "--all-groups", "--store", "file:x.avro"], "format"),
        (
            ["offsets", "reset", "-g", "g", "-t", "t", "--to-latest", "--running", "--wait-empty", "60"],
            "give one of them",
        ),
        (
            [
                "offsets",
                "set",
                "-g",
                "g",
                "-t",
                "t:0",
                "--to-offset",
                "1",
                "--running",
                "--wait-empty",
                "60",
                "--bootstrap-server",
                "127.0.0.1:1",
            ],
            "give one of them",
        ),
        (["groups", "rename", "a", "a", "--store", "file:x.avro"], "both names are the same"),
        (["manager", "serve", "--listen", "h:1", "--bootstrap-server", "h:1", "--relay-ports", "2-3"], "add --relay"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.partition(":")[0] for line in lines] in (["error"], ["error", "hint"])
    assert message in captured.err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.avro", b"not avro at all"),
        ("x.avro", b""),
        ("x.csv", b"g,t,zero,5\n"),
        ("x.zk", b"/consumers/g/offsets/t/x:5\n"),
        ("x.json", b'{"groupid": "g", "offsets": '),
        ("missing.avro", None),
    ],
)
def test_a_broken_file_is_one_line_and_exit_code_1(
    name: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    target = f"file:{tmp_path}/target.avro"
    assert run(["offsets", "import", str(tmp_path / name), "--store", target, "--execute", "--yes"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert name in captured.err.splitlines()[0]
    assert not (tmp_path / "target.avro").exists()


@pytest.mark.parametrize(
    ("content", "why"), [("g,t,zero,5\n", "line 1: partition is not a number"), ("", "holds no groups")]
)
def test_an_error_in_standard_input_names_it(content: str, why: str, tmp_path: Path) -> None:
    with SnapshotStore(tmp_path / "store.avro") as store:
        store.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(1)})
    words = [*COMMAND, "offsets", "import", "-", "--as", "csv", "--store", f"file:{tmp_path}/store.avro"]
    done = subprocess.run(words, input=content, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: standard input: {why}")


def test_a_pipe_that_closes_is_no_error(tmp_path: Path) -> None:
    rows = "".join(f"g{n},t,0,{n}\n" for n in range(50_000))
    (tmp_path / "x.csv").write_text(rows)
    command = [sys.executable, "-c", "from offsetmgr.cli.app import main; main()"]
    arguments = ["offsets", "get", "--all-groups", "--store", f"file:{tmp_path}/x.csv"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("GROUP")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(90) == 141


def test_version() -> None:
    assert run_command("--version").stdout.startswith("offsetmgr 0.")


def test_a_stop_signal_during_a_write_to_stderr_is_handled(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class InUse(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call")

    with stop_on_signal("the work ends") as stopped:
        monkeypatch.setattr(sys, "stderr", InUse())
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.undo()
        assert stopped()
    assert "stopping: the work ends (again to interrupt at once)\n" in capfd.readouterr().err


def test_an_error_names_its_partition_once(capsys: pytest.CaptureFixture[str]) -> None:
    tp = TopicPartition("orders", 0)
    assert _list_failures([("shop", tp, UnknownTopicOrPartition("orders-0", "does not exist"))]) == 1
    assert capsys.readouterr().err == "error: group shop, orders-0: does not exist\n"


@pytest.mark.slow
def test_progress_is_shown_while_the_first_item_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def items() -> Iterator[int]:
        deadline = time.monotonic() + 120
        while not shown and time.monotonic() < deadline:
            shown.extend(capsys.readouterr().err.splitlines())
            time.sleep(0.02)  # the pause between two polls
        yield from range(2000)

    assert len(list(progress(items(), "removing", 2000))) == 2000
    assert shown == ["removing: [....................] 0 of 2,000, 0/s"]
