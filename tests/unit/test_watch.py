"""``--watch``: the interval, the time of each output, and errors of a server."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import pytest
import typer

from offsetmgr.cli import watch
from offsetmgr.cli.app import run
from offsetmgr.cli.durations import parse_seconds
from offsetmgr.cli.errors import report_and_exit_code
from offsetmgr.cli.render import Column, OutputFormat, write_rows
from offsetmgr.cli.watch import WatchCommand, watch_command
from offsetmgr.core.durations import parse_milliseconds
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, Unreachable, UsageError

COLUMNS = (Column("group"), Column("lag"))
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


def rows_in(output: OutputFormat) -> Callable[[], int]:
    def once() -> int:
        write_rows(COLUMNS, [("shop", 1)], output)
        return 0

    return once


def test_each_csv_row_has_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch_command(rows_in(OutputFormat.CSV), 5, 2) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["group"], row["lag"]) for row in rows] == [("shop", "1"), ("shop", "1")]
    assert all(TIME.fullmatch(row["time"]) for row in rows)


def test_each_json_row_has_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    watch_command(rows_in(OutputFormat.JSON), 5, 2)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(row) for row in rows] == [["time", "group", "lag"]] * 2


def test_a_table_in_a_pipe_follows_a_line_with_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    watch_command(rows_in(OutputFormat.TABLE), 5, 2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert TIME.fullmatch(lines[0])
    assert TIME.fullmatch(lines[3])


def test_without_watch_nothing_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    watch_command(rows_in(OutputFormat.TABLE), 5, 1)
    capsys.readouterr()
    watch_command(rows_in(OutputFormat.CSV), None, None)
    assert capsys.readouterr().out == "group,lag\nshop,1\n"


def failing(*results: OffsetMgrError | None) -> Callable[[], int]:
    remaining = list(results)

    def once() -> int:
        if (error := remaining.pop(0)) is not None:
            raise error
        return 0

    return once


def test_errors_of_an_output_have_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    watch_command(lambda: report_and_exit_code([DEAD]), 5, 1)
    assert re.fullmatch(f"error: {TIME.pattern}: {re.escape(str(DEAD))}\n", capsys.readouterr().err)


DEAD = Unreachable("broker kafka1:9092", "it does not respond")
MISSING = GroupNotFound("group shop", "does not exist")


@pytest.mark.parametrize(
    "results", [(None, DEAD, None), (DEAD, None, None), (None, MISSING, None)], ids=["later", "first", "deleted"]
)
def test_an_error_is_a_line_with_the_time_and_the_watch_continues(
    results: tuple[OffsetMgrError | None, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch_command(failing(*results), 5, 3) == 0
    (line,) = capsys.readouterr().err.splitlines()
    error = next(error for error in results if error is not None)
    assert re.fullmatch(f"error: {TIME.pattern}: {re.escape(str(error))}", line)


def test_the_exit_code_is_that_of_the_last_output() -> None:
    assert watch_command(failing(None, DEAD), 5, 2) == 1


@pytest.mark.parametrize("results", [(MISSING,), (UsageError("--sort", "no column"),), (None, UsageError("a", "b"))])
def test_a_missing_group_at_first_and_wrong_usage_end_the_watch(results: tuple[OffsetMgrError | None, ...]) -> None:
    with pytest.raises(OffsetMgrError):
        watch_command(failing(*results), 5, 3)


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (["--watch"], 5.0),
        (["--watch", "2"], 2.0),
        (["--watch", "1m"], 60.0),
        (["--watch", "1m30s"], 90.0),
        (["--watch=0.5"], 0.5),
        (["--watch", "shop"], 5.0),
    ],
)
def test_the_interval_is_a_number_or_a_duration(arguments: list[str], seconds: float) -> None:
    app = typer.Typer()
    seen = []

    @app.command(cls=WatchCommand)
    def command(groups: list[str] = typer.Argument(default=None), interval: watch.Watch = None) -> None:  # noqa: B008
        seen.append((interval, groups or []))

    app(arguments, standalone_mode=False)
    assert seen == [(seconds, ["shop"] if "shop" in arguments else [])]


@pytest.mark.parametrize(("text", "expected"), [("30", 30), ("0.5", 0.5), ("90s", 90), ("1h30m", 5400), ("PT1M", 60)])
def test_seconds(text: str, expected: float) -> None:
    assert parse_seconds(text, "--window") == expected


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "", "5x", "-PT1M"])
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--window"):
        parse_seconds(text, "--window")


def test_the_interval_has_a_minimum(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["zk", "brokers", "--zookeeper", "127.0.0.1:1", "--watch", "0.01"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "error: --watch: 0.01 is not allowed"


@pytest.mark.parametrize("option", ["--window", "--wait-empty"])
def test_other_waits_accept_durations(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["groups", "where", "g"] if option == "--window" else ["offsets", "delete", "-g", "g"]
    assert run([*command, option, "5x"]) == 2
    assert "is not a number of seconds or a duration" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "expected"), [("2000", 2_000), ("2s", 2_000), ("1m30s", 90_000), ("PT0.5S", 500)])
def test_a_timeout_is_a_number_of_milliseconds_or_a_duration(text: str, expected: int) -> None:
    assert parse_milliseconds(text, "--timeout") == expected


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
def test_another_timeout_is_a_usage_error_that_names_the_unit(
    text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", "list", "--store", "file:none.avro", f"--timeout={text}"]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert "--timeout" in errors
    assert why.replace("; ", " hint: ") in errors
