"""Tables on a terminal: width, colours, order, totals, and the repeated output of ``--watch``."""

import csv
import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import command, rows
from reported_logs import Reported, report_log

from offsetmgr.cli.app import run
from offsetmgr.cli.render import (
    NAME_RANK,
    WHOLE_RANK,
    Column,
    OutputFormat,
    fitted_widths,
    set_wide,
    shortened,
    text_width,
    wrapped_line,
    write_rows,
)
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, Unreachable, UsageError
from offsetmgr.core.model import LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore

MEMBER = "consumer-billing-service-7-0a1b2c3d-4e5f-6789-abcd-ef0123456789"
COLUMNS = (
    *(Column("group"), Column("state"), Column("topic", rank=NAME_RANK), Column("partition", right=True, title="PART")),
    *(Column("offset", right=True), Column("log_end_offset", right=True, title="LOG-END")),
    Column("lag", right=True, attention=True),
    Column("client_id", optional=True, rank=2),
    Column("host", optional=True, rank=3),
    Column("member_id", optional=True, rank=1),
)
"""Columns as those of ``groups describe``."""
ROW = ("billing", "STABLE", "orders", 0, 1000, 2500, 1500, "consumer-billing-service-7", "/10.1.2.3", MEMBER)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def use_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
    """Makes stdout a terminal without colours. The fixture capsys replaces stdout after the setup, so each test calls
    this function itself."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    set_wide(False)


def test_a_table_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    write_rows(COLUMNS, [ROW], OutputFormat.TABLE)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "GROUP    STATE   TOPIC   PART  OFFSET  LOG-END   LAG  MEMBER-ID",
        f"billing  STABLE  orders     0    1000     2500  1500  {MEMBER[:12]}..{MEMBER[-12:]}",
    ]
    assert shown.err == "left out: CLIENT-ID, HOST; --wide shows all columns\n"
    set_wide(True)
    write_rows(COLUMNS, [ROW], OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines()[1].endswith(f"consumer-billing-service-7  /10.1.2.3  {MEMBER}")
    set_wide(False)


def test_a_wide_terminal_and_a_pipe_show_everything(capsys, monkeypatch) -> None:
    use_terminal(monkeypatch, 200)
    write_rows(COLUMNS, [ROW], OutputFormat.TABLE)
    whole = capsys.readouterr()
    assert MEMBER in whole.out
    assert whole.err == ""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    write_rows(COLUMNS, [ROW], OutputFormat.TABLE)
    assert capsys.readouterr() == whole


@pytest.mark.parametrize(
    ("widths", "ranks", "room", "fitted"),
    [
        ([10, 30, 20], [0, 1, 2], 64, [10, 30, 20]),
        ([10, 30, 20], [0, 1, 2], 54, [10, 20, 20]),
        ([10, 30, 20], [0, 1, 2], 46, [10, 16, 16]),
        ([10, 30, 20], [0, 1, 2], 45, [10, 30, None]),
        ([10, 30, 20], [0, 1, 2], 30, [10, 18, None]),
        ([10, 30, 20], [0, 1, 2], 22, [10, 10, None]),
        ([10, 30, 20], [0, 1, 2], 21, [10, None, None]),
        ([50, 90], [0, 0], 60, [50, 90]),
        # Long names are shortened for a last column that would be wrapped,
        ([150, 10, 37], [NAME_RANK, 0, 0], 200, [149, 10, 37]),
        ([150, 10, 37], [NAME_RANK, 0, 0], 100, [49, 10, 37]),
        ([150, 10, 80], [NAME_RANK, 0, 0], 100, [40, 10, 80]),
        ([30, 10, 80], [NAME_RANK, 0, 0], 100, [30, 10, 80]),
        ([30, 10, 80], [NAME_RANK, 0, 0], 60, [26, 10, 80]),
        # and if nothing else makes the table fit.
        ([60, 30], [NAME_RANK, 1], 76, [60, 14]),
        ([60, 30, 90], [NAME_RANK, NAME_RANK, 0], 80, [28, 28, 90]),
        ([60, 30], [NAME_RANK, 1], 40, [28, 10]),
        ([60, 30, 20], [NAME_RANK, 1, 2], 100, [60, 18, 18]),
        ([20, 24, 20], [0, WHOLE_RANK, 1], 60, [20, None, 20]),
    ],
)
def test_widths_are_reduced_only_as_far_as_needed(widths: list[int], ranks: list[int], room: int, fitted) -> None:
    assert fitted_widths(widths, ranks, room) == fitted


@pytest.mark.parametrize(
    ("cells", "widths", "room", "lines"),
    [
        (
            ("m", ",".join(f"orders-{number}" for number in range(6))),
            (1, 53),
            30,
            ["m  orders-0,orders-1,orders-2,", "   orders-3,orders-4,orders-5"],
        ),
        (("x" * 68, "beyond the log's end"), (68, 20), 80, ["x" * 68 + "  beyond the", " " * 70 + "log's end"]),
        (("x" * 68, "beyond the log's end"), (68, 20), 79, ["x" * 68 + "  beyond the log's end"]),
        (
            ("x", "does not exist (UNKNOWN_TOPIC_OR_PARTITION)"),
            (1, 43),
            27,
            ["x  does not exist (UNKNOWN_", "   TOPIC_OR_PARTITION)"],
        ),
    ],
    ids=["after commas", "words", "no room", "the name of an error"],
)
def test_the_last_column_is_wrapped(cells, widths: tuple[int, ...], room: int, lines: list[str]) -> None:
    assert wrapped_line(cells, widths, room).splitlines() == lines


def test_a_name_is_shortened_in_the_middle(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(shortened(MEMBER, width)) for width in (12, 13, 80)] == [12, 13, len(MEMBER)]
    use_terminal(monkeypatch)
    topic = f"com.example.{'settlement.' * 8}retry"
    write_rows(COLUMNS, [("billing", "STABLE", topic, *ROW[3:])], OutputFormat.TABLE)
    shown = capsys.readouterr()
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert re.search(r"com\.exam\S*\.\.\S*retry", shown.out)
    assert "shortened: TOPIC; --wide shows all columns and names" in shown.err


LONG_GROUP = "billing-service-production"


@pytest.mark.parametrize(
    ("command", "identifier"),
    [
        ("edits list", r"20\d{6}-\d{6}-[0-9a-f]{4} "),
        ("migrate status plan", LONG_GROUP),
        ("migrate verify plan", " 7 +9 "),
        ("migrate plan --from file:a.avro --to file:b.avro --all-groups -o other", "refuse-rewind +7  keeps 9"),
    ],
)
def test_80_columns_show_the_most_important_identifier(command, identifier: str, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    tp = TopicPartition("com.example.payments.settled", 0)
    for name, offset in (("a", 5), ("b", 9)):
        with SnapshotStore(tmp_path / f"{name}.avro") as store:
            store.commit(LONG_GROUP, {tp: OffsetAndMetadata(offset)})
    edit = ["offsets", "set", LONG_GROUP, "--topic", str(tp.topic), "--to-offset", "7", "--execute", "--yes"]
    assert run([*edit, "--store", "file:a.avro", "--reason", "a long reason of a person"]) == 0
    run(["migrate", "plan", "--from", "file:a.avro", "--to", "file:b.avro", "--all-groups", "-o", "plan"])
    capsys.readouterr()
    use_terminal(monkeypatch)
    run(command.split())
    shown = capsys.readouterr()
    assert re.search(identifier, shown.out)
    table = shown.out.partition("\n\n")[0].splitlines()
    assert len(table) >= 2
    assert all(len(line) <= 80 for line in table)
    assert "AT-MS" not in shown.err


def test_columns_of_wide_characters_are_aligned(capsys, monkeypatch) -> None:
    columns = Column("group"), Column("lag", right=True), Column("note")
    names = [("請求グループ-東京", 1, "x"), ("billing", 20, "y" * 10), ("e\u0301clair", 3, " ".join(["z" * 9] * 7))]
    use_terminal(monkeypatch)
    write_rows(columns, names, OutputFormat.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert {text_width(line[: line.index(c)]) for line, c in zip(lines, "Nxyzz", strict=False)} == {24}
    assert all(text_width(line) <= 80 for line in lines)
    assert text_width(shortened("請求グループ-東京", 10)) in (9, 10)


def test_a_command_is_not_broken_into_lines(capsys, monkeypatch) -> None:
    use_terminal(monkeypatch)
    command = "offsetmgr migrate plan --from zookeeper://zk1:2181/kafka --to kafka://broker1:9092 -o billing.plan"
    write_rows((Column("group"), Column("next", command=True)), [("billing", command)], OutputFormat.TABLE)
    assert command in capsys.readouterr().out


def test_colours_only_on_a_terminal_without_no_color(capsys, monkeypatch) -> None:
    use_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    write_rows(COLUMNS, [ROW], OutputFormat.TABLE)
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    monkeypatch.delenv("NO_COLOR")
    write_rows(COLUMNS, [ROW], OutputFormat.TABLE)
    colours = capsys.readouterr().out
    assert "\x1b[33m1500\x1b[0m" in colours
    assert colours.replace("\x1b[33m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") == plain
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
        write_rows(COLUMNS, [ROW], OutputFormat.TABLE)
        assert capsys.readouterr().out == plain


def test_wide_is_accepted_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--wide", "--version"]) == 0
    assert run(["groups", "describe", "--wide", "--members", "--state", "-g", "x"]) == 2
    set_wide(False)
    assert "both --members and --state" in capsys.readouterr().err


@pytest.mark.parametrize(
    "endpoints",
    [
        [f"127.0.{n}.1:24398" for n in range(10, 14)],
        ["127.20.30.40:19092", "127.21.30.40:19092", "127.20.31.40:19092", "127.20.30.41:19092"],
    ],
)
def test_a_shortened_address_keeps_the_part_that_differs(endpoints: list[str], capsys, monkeypatch) -> None:
    """No server listens at these addresses."""
    use_terminal(monkeypatch)
    assert run(["doctor", "--bootstrap-server", ",".join(endpoints), "--timeout", "3000"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    shown = [re.split(" {2,}", line)[2] for line in lines]
    assert len(shown) == len(set(shown)) == len(endpoints)


ROWS = "a,t,0,95\na,t,1,-2\nb,t,0,30\nc,t,0,91\n"
"""The offset of partition 1 of group a is not readable."""


@pytest.fixture
def lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command ``offsets lag`` for the groups of `ROWS`; each log ends at 100."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    report_log(LogRange(0, 100), monkeypatch)
    (tmp_path / "x.csv").write_text(ROWS)
    return ["offsets", "lag", "--all-groups", "--store", f"file:{tmp_path}/x.csv", "--bootstrap-server", "h:1"]


def test_rows_are_sorted_limited_and_added_up(lag: list[str]) -> None:
    assert [row["lag"] for row in rows(*lag, "--sort", "LAG", code=1)] == [70, 9, 5, None]
    assert [row["lag"] for row in rows(*lag, "--top", "2", code=1)] == [70, 9]
    assert [row["group"] for row in rows(*lag, "--sort", "group", "--top", "3", code=1)] == ["a", "a", "b"]
    assert "no column has this name" in command(*lag, "--sort", "lagg", code=2).stderr
    totals = rows(*lag, "--totals", "--sort", "lag", code=1)
    assert [tuple(row.values()) for row in totals] == [("b", 1, 70, 70, 0), ("c", 1, 9, 9, 0), ("a", 2, 5, 5, 1)]


def test_watched_rows_have_a_time_the_change_and_the_rate(lag: list[str], tmp_path, monkeypatch) -> None:
    def commit(_seconds: float) -> None:
        (tmp_path / "x.csv").write_text("a,t,0,97\na,t,1,93\nb,t,0,30\n")

    monkeypatch.setattr("time.sleep", commit)
    watched = command(*lag, "--watch", "2", "--count", "2", "--format", "json", code=None).stdout
    found = [json.loads(line) for line in watched.splitlines()]
    assert [(row["lag"], row["change"], row["rate"] and row["rate"] > 0) for row in found] == [
        *[(5, None, None), (None, None, None), (70, None, None), (9, None, None)],
        *[(3, -2, True), (7, None, None), (70, 0, 0.0)],
    ]
    assert all(TIME.fullmatch(row["time"]) for row in found)


def test_a_long_name_pads_no_other_row(lag: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"{'a' * 300},t,0,1\nb,t,0,2\n")
    title, long, short = command(*lag).stdout.splitlines()
    assert long.startswith("a" * 300 + "  t ")
    assert max(len(title), len(short)) < 160
    assert title.index("TOPIC") == short.index("t ")


def test_each_watched_output_has_its_time(lag: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("shop,t,0,99\n")
    twice = (*lag, "--watch", "--count", "2")
    found = list(csv.DictReader(io.StringIO(command(*twice, "--format", "csv").stdout)))
    assert [(row["group"], row["lag"]) for row in found] == [("shop", "1"), ("shop", "1")]
    assert all(TIME.fullmatch(row["time"]) for row in found)
    lines = command(*twice).stdout.splitlines()
    assert [bool(TIME.fullmatch(line)) for line in lines] == [True, False, False] * 2
    assert command(*lag, "--format", "csv").stdout.startswith("group,")
    describe = ("groups", "describe", "shop", "none", "--store", f"file:{tmp_path}/x.csv")
    shown = command(*describe, "--watch", "--count", "1", code=1).stderr
    assert re.fullmatch(f"error: {TIME.pattern}: group 'none': does not exist in file:.*x.csv\n", shown)


DEAD = Unreachable("broker kafka1:9092", "it does not respond")
MISSING = GroupNotFound("group shop", "does not exist")


def reporting(*results: OffsetMgrError | None) -> Callable[[], Reported]:
    """A function that reports a log range, or raises an error, in this order."""
    remaining = list(results)

    def next_result() -> Reported:
        if (error := remaining.pop(0)) is not None:
            raise error
        return LogRange(0, 100)

    return next_result


@pytest.mark.parametrize(
    ("results", "code"),
    [((None, DEAD, None), 0), ((DEAD, None, None), 0), ((None, MISSING, None), 0), ((None, DEAD), 1)],
    ids=["later", "first", "deleted", "last"],
)
def test_an_error_is_a_line_with_the_time_and_the_watch_continues(results, code, lag, tmp_path, monkeypatch) -> None:
    (tmp_path / "x.csv").write_text("shop,t,0,99\n")
    report_log(reporting(*results), monkeypatch)
    (line,) = command(*lag, "--watch", "--count", len(results), code=code).stderr.splitlines()
    error = next(error for error in results if error is not None)
    assert re.fullmatch(f"error: {TIME.pattern}: {re.escape(str(error))}", line)


@pytest.mark.parametrize("results", [(MISSING,), (UsageError("--sort", "no column"),), (None, UsageError("a", "b"))])
def test_a_missing_group_at_first_and_wrong_usage_end_the_watch(results, lag, tmp_path, monkeypatch) -> None:
    (tmp_path / "x.csv").write_text("shop,t,0,99\n")
    report_log(reporting(*results), monkeypatch)
    shown = command(*lag, "--watch", "--count", "3", code=1 if results == (MISSING,) else 2).stderr
    assert shown.startswith(f"error: {results[-1]}\n")


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["--watch"], 5.0),
        (["--watch", "2"], 2.0),
        (["--watch", "30"], 30.0),
        (["--watch", "90s"], 90.0),
        (["--watch", "1m30s"], 90.0),
        (["--watch", "1h30m"], 5400.0),
        (["--watch=PT1M"], 60.0),
        (["--watch=0.5"], 0.5),
        (["--watch", "shop"], 5.0),
    ],
)
def test_the_interval_is_a_number_or_a_duration(words: list[str], seconds: float, tmp_path, monkeypatch) -> None:
    (tmp_path / "x.csv").write_text("shop,t,0,99\n")
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    group = [] if "shop" in words else ["shop"]
    command("offsets", "get", *group, *words, "--count", "2", "--store", f"file:{tmp_path}/x.csv")
    assert slept == [seconds]


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "", "5x", "-PT1M"])
@pytest.mark.parametrize("line", ["groups where g --window", "offsets delete -g g --wait-empty"])
def test_other_texts_are_no_durations(line: str, text: str) -> None:
    *words, option = line.split()
    assert option in command(*words, f"{option}={text}", code=2).stderr


def test_the_interval_has_a_minimum() -> None:
    done = command("zk", "brokers", "--zookeeper", "127.0.0.1:1", "--watch", "0.01", code=2)
    assert done.stderr.splitlines()[0] == "error: --watch: 0.01 is not allowed"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2 s", "'2 s' is not a number of milliseconds or a duration; as in 2000, 2s, 1m30s"),
        ("1.5", "'1.5' is not a number of milliseconds or a duration"),
        ("0", "0 is not allowed; the least value is 1 ms"),
        ("-5s", "'-5s' is not a number"),
        ("PT-5S", "PT-5S is not allowed"),
    ],
)
def test_another_timeout_is_a_usage_error_that_names_the_unit(text: str, why: str, capsys) -> None:
    assert run(["groups", "list", "--store", "file:none.avro", f"--timeout={text}"]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert "--timeout" in errors
    assert why.replace("; ", " hint: ") in errors
