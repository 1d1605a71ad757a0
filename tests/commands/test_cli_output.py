"""The output of the command line: rows, errors, progress, and its speed."""

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
from in_process import command, rows
from stopwatch import loop_s
from test_help import CONNECTION_OPTIONS

from offsetmgr.cli.app import REGISTRY
from offsetmgr.cli.connect_flags import stop_on_signal
from offsetmgr.cli.render import BATCH, Column, OutputFormat, progress, write_rows
from offsetmgr.core.errors import GroupActive, GroupNotFound, PartialFailure
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore

COLUMNS = (
    Column("group"),
    Column("log_end", right=True),
    Column("note", optional=True),
    Column("epoch", right=True, detail=True),
)

COMMAND = [sys.executable, "-c", "from offsetmgr.cli.app import main; main()"]

T, C, J = OutputFormat.TABLE, OutputFormat.CSV, OutputFormat.JSON
AT = (Column("at", time=True),)


@pytest.mark.parametrize(
    ("columns", "rows", "output", "printed"),
    [
        (
            COLUMNS,
            [("orders", 7, None, 1), ("x", 12345, None, 2)],
            T,
            "GROUP   LOG-END\norders        7\nx         12345\n",
        ),
        (COLUMNS, [("a\x1b[31m\nb", None, "n", 1)], T, "GROUP         LOG-END  NOTE\na\\x1b[31m\\nb        -  n\n"),
        (COLUMNS, [("a,b", 1, None, None)], C, 'group,log_end,note,epoch\n"a,b",1,,\n'),
        (COLUMNS, [], T, ""),
        (COLUMNS, [], C, "group,log_end,note,epoch\n"),
        (COLUMNS, [], J, "[]\n"),
        (AT, [(1_000_000_000_123,), (None,), (10**18,)], T, "AT\n2001-09-09T01:46:40.123Z\n-\n1000000000000000000\n"),
        (AT, [(1_000_000_000_123,)], C, "at\n1000000000123\n"),
    ],
    ids=["aligned", "unknown", "quoted", "no table", "no csv", "no json", "times", "milliseconds"],
)
def test_rows_are_printed_for_people_and_for_programs(columns, rows, output, printed: str, capsys) -> None:
    assert write_rows(columns, rows, output) == len(rows)
    assert capsys.readouterr().out == printed


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


def test_an_unknown_type_of_a_group_is_no_mismatch(tmp_path: Path) -> None:
    (tmp_path / "saved.csv").write_text("g,t,0,5\n")
    store = ("--store", f"file:{tmp_path}/saved.csv")
    refused = command("groups", "list", *store, "--type", "classic", code=1)
    assert (refused.stdout.splitlines()[1:], refused.stderr.split(":")[:2]) == ([], ["error", " 1 group"])
    (listed,) = rows("groups", "list", *store, "--type")
    assert (listed["group"], listed["type"], listed["protocol"]) == ("g", None, None)


@pytest.mark.slow
@pytest.mark.parametrize("output", list(OutputFormat))
def test_fifty_thousand_rows_cost_little_more_than_the_standard_library_needs(output: OutputFormat, capsys) -> None:
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


def test_lists_of_commands_are_whole_sentences() -> None:
    for group in REGISTRY:
        out = command(group, "--help").stdout
        assert "..." not in out.partition("Commands:")[2]
        assert "--install-completion" not in out


def test_the_hint_of_wrong_usage_names_the_help_of_the_command() -> None:
    done = command("migrate", "apply", "x.plan", "--execute", code=2)
    assert done.stderr == "error: No such option: --execute\nhint: see offsetmgr migrate apply --help\n"
    forms = "--group=-NAME, or -- -NAME at the end of the command"
    for words in ("offsets get", "groups where", "edits list"):
        hint = f"hint: for a group whose name begins with -: {forms}; see offsetmgr {words} --help\n"
        assert command(*words.split(), "-dash", code=2).stderr == f"error: No such option: -d\n{hint}"
    shown = command("edits", "show", "-dash", code=2).stderr
    assert shown.endswith("hint: see offsetmgr edits show --help\n")


@pytest.mark.parametrize("words", [["--group=-dash"], ["-g", "-dash"], ["--", "-dash"]])
def test_a_group_whose_name_begins_with_a_dash_is_read(words: list[str], tmp_path: Path) -> None:
    with SnapshotStore(tmp_path / "s.avro") as store:
        store.commit("-dash", {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    shown = command("offsets", "get", "--store", f"file:{tmp_path}/s.avro", *words).stdout
    assert "-dash  orders     0  committed       5" in shown


def caused_by(error: BaseException) -> SystemError:
    """The error of C code that was interrupted."""
    found = SystemError("<function close> returned a result with an exception set")
    found.__cause__ = error
    return found


GONE = {TopicPartition("t", n): GroupNotFound("it", f"is gone {n}") for n in (1, 0)}
STOPPED = "interrupted: stopped before the end\n"


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (
            PartialFailure("commit", successes={}, failures=GONE),
            1,
            "error: commit: 2 of 2 partitions failed; t-0: it: is gone 0\n  t-0: it: is gone 0\n  t-1: it: is gone 1\n",
        ),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "error: internal: ZeroDivisionError: division by zero\n"
            "hint: this is a bug in offsetmgr; run the command again with --debug for the traceback\n",
        ),
        (
            UnicodeEncodeError("utf-8", "bad\udcff", 3, 4, "surrogates not allowed"),
            2,
            "error: argument 'bad\\udcff': is not valid UTF-8\nhint: ",
        ),
        (KeyboardInterrupt(), 130, STOPPED),
        (caused_by(KeyboardInterrupt()), 130, STOPPED),
    ],
    ids=["partitions", "internal", "encoding", "interrupted", "interrupted in C"],
)
def test_an_error_is_reported_in_lines_without_a_traceback(error, code: int, shown: str, tmp_path, monkeypatch) -> None:
    def fail(_store: SnapshotStore) -> list[str]:
        raise error

    monkeypatch.setattr(SnapshotStore, "groups", fail)
    monkeypatch.setattr(sys, "argv", ["offsetmgr", "groups", "list", "bad\udcff"])
    words = ("groups", "list", "--store", f"file:{tmp_path}/x.csv")
    errors = command(*words, code=code).stderr
    assert "Traceback" not in errors
    assert errors.startswith(shown) if shown.endswith("hint: ") else errors == shown
    assert "Traceback" in command("--debug", *words, code=None).stderr


LOCK = "offsetmgr at /10.0.0.7 (offsetmgr-0b6f)"
CONSUMER = "shop at /10.0.0.8 (shop-41aa)"


@pytest.mark.parametrize(("members", "locked"), [((CONSUMER,), False), ((LOCK,), True), ((LOCK, CONSUMER), False)])
def test_the_hint_about_active_members_knows_the_lock_of_another_command(members, locked: bool) -> None:
    error = GroupActive("group g", "has active members", "stop its consumers first", members=members)
    assert error.hint == (
        "another offsetmgr command is editing this group: try again when it has finished; if it was killed, its"
        " lock expires within 10 s"
        if locked
        else "stop its consumers first"
    )


@pytest.fixture
def deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Path]:
    """A command that asks before it deletes a group, and the file with the group."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "x.csv"
    file.write_text("g,t,0,5\n")
    return ["groups", "delete", "-g", "g", "--store", f"file:{file}", "--execute"], file


class Answer(io.StringIO):
    """A terminal that is lost at the prompt if the answer is empty or an error."""

    def __init__(self, answer: str | BaseException) -> None:
        self._answer = answer
        self._is_open = True
        super().__init__()

    def isatty(self) -> bool:
        return self._is_open

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        self._is_open = bool(self._answer) and isinstance(self._answer, str)
        if isinstance(self._answer, str):
            return self._answer
        raise self._answer


NO_ANSWER = "no answer was given (end of input), so nothing was done\nhint: answer y or n, or add --yes\n"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        *(("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1)),
        *((lost, 2) for lost in ("", OSError(errno.EIO, "Input/output error"), KeyboardInterrupt())),
    ],
)
def test_only_yes_confirms_and_a_terminal_that_is_lost_at_the_prompt_is_an_error(answer, code, deletion, monkeypatch):
    words, file = deletion
    monkeypatch.setattr(sys, "stdin", Answer(answer))
    errors = command(*words, code=code).stderr
    assert errors.endswith(NO_ANSWER) == (code == 2)
    assert (file.read_text() == "g,t,0,5\n") == (code > 0)


def test_progress_is_silent_at_first_and_yields_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(100), "reading", 100)) == list(range(100))
    assert capsys.readouterr().err == ""


def test_progress_without_a_terminal_is_a_line_from_time_to_time(monkeypatch, capsys) -> None:
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


DELETE = ["groups", "delete", "-g", "g", "--yes", "--zookeeper", "127.0.0.1:1"]
SET = ["offsets", "set", "-g", "g", "-t", "t:0", "--to-offset", "1"]


def test_every_command_has_complete_help() -> None:
    names = ["groups list", "groups describe", "groups delete", "groups copy", "groups rename"]
    names += [f"offsets {name}" for name in ["get", "set", "reset", "export", "import", "diff", "lag", "delete"]]
    for name in names:
        out = command(*name.split(), "--help").stdout
        connection = out.partition("Connection options (see offsetmgr help connection): ")[2].partition("\n\n")[0]
        assert set(CONNECTION_OPTIONS) == set(connection.replace(",", "").split())
        assert f"Usage: offsetmgr {name}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DELETE, "--dry-run", "--execute"], "error: --dry-run and --execute: are both given\nhint: "),
        ([*DELETE, "--execute", "--dry-run"], "error: --dry-run and --execute: are both given\nhint: "),
        ([*SET[:-1], "1_000"], "'1_000' is not an offset"),
        *(
            (
                ["offsets", edit, "-g", "g", "-t", "t", "--to-offset", offset],
                "is beyond the largest offset, 9223372036854775807",
            )
            for edit in ("set", "reset")
            for offset in ("9223372036854775808", "9" * 5000)
        ),
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
        ([*SET[:-1], "-1"], "-1"),
        (["offsets", "export", "x.unknown", "--all-groups", "--store", "file:x.avro"], "format"),
        (
            ["offsets", "reset", "-g", "g", "-t", "t", "--to-latest", "--running", "--wait-empty", "60"],
            "give one of them",
        ),
        ([*SET, "--running", "--wait-empty", "60", "--bootstrap-server", "127.0.0.1:1"], "give one of them"),
        (["groups", "rename", "a", "a", "--store", "file:x.avro"], "both names are the same"),
        (["manager", "serve", "--listen", "h:1", "--bootstrap-server", "h:1", "--relay-ports", "2-3"], "add --relay"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = command(*arguments, code=2)
    lines = done.stderr.splitlines()
    assert (done.stdout, [line.partition(":")[0] for line in lines]) in (("", ["error"]), ("", ["error", "hint"]))
    assert message in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.avro", b"not avro at all"),
        ("x.avro", b""),
        ("x.avro", 20),
        ("x.avro", -10),
        ("x.csv", b"g,t,zero,5\n"),
        ("x.csv", b"g,t,0,1\nwhat is this?\n"),
        ("x.csv", b"\xff\xfe\x00\x01" * 50),
        ("x.zk", b"/consumers/g/offsets/t/x:5\n"),
        ("x.zk", b"/consumers/g/offsets/t/0:1\nhello\n"),
        ("x.json", b'{"groupid": "g", "offsets": '),
        ("missing.avro", None),
    ],
)
def test_a_broken_file_is_one_line_and_exit_code_1(name: str, content: bytes | int | None, tmp_path: Path) -> None:
    """A number is the size of a file that was truncated."""
    file, target = tmp_path / name, f"file:{tmp_path}/target.avro"
    if isinstance(content, int):
        with SnapshotStore(file) as store:
            store.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(1)})
        content = file.read_bytes()[:content]
    if content is not None:
        file.write_bytes(content)
    sides = ("--from", f"file:{file}", "--to", target, "--all-groups")
    for words in (
        ("offsets", "import", file, "--store", target, "--execute", "--yes"),
        ("offsets", "diff", *sides),
        ("migrate", "plan", *sides, "-o", tmp_path / "plan.json"),
    ):
        done = command(*words, code=1)
        error, *hint = done.stderr.splitlines()
        assert (done.stdout, [line[:6] for line in hint]) in (("", []), ("", ["hint: "])), done
        assert error.startswith("error: ") and name in error
    assert {one.name for one in tmp_path.iterdir()} <= {name}


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
    rows = "".join(f"g{n},t,0,{n}\n" for n in range(10_000))
    (tmp_path / "x.csv").write_text(rows)
    arguments = ["offsets", "get", "--all-groups", "--store", f"file:{tmp_path}/x.csv"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("GROUP")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(90) == 141
    line = f"{shlex.join(COMMAND)} offsets --help | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    usage, code = done.stdout.splitlines()
    assert (usage[:7], code in ("0", "141"), done.stderr) == ("Usage: ", True, "")


def test_a_stop_signal_during_a_write_to_stderr_is_handled(monkeypatch, capfd) -> None:
    class InUse(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call")

    with stop_on_signal("the work ends") as stopped:
        monkeypatch.setattr(sys, "stderr", InUse())
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.undo()
        assert stopped()
    assert "stopping: the work ends (again to interrupt at once)\n" in capfd.readouterr().err


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
