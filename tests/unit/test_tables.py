"""Tables on a terminal: width, colours, order, totals, and the changes of ``--watch``."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence

import pytest

from offsetmgr.cli.app import run
from offsetmgr.cli.doctor import CHECKS
from offsetmgr.cli.edits import LIST as EDITS
from offsetmgr.cli.group_details import DESCRIBE
from offsetmgr.cli.migrate_output import STEP_COLUMNS, VERIFY_COLUMNS
from offsetmgr.cli.migrate_status import COLUMNS as STATUS
from offsetmgr.cli.offset_peek import PEEKED
from offsetmgr.cli.offset_reports import LAG
from offsetmgr.cli.render import Column, OutputFormat, write_rows
from offsetmgr.cli.row_order import PartitionTable
from offsetmgr.cli.table_fit import NAME_RANK, WHOLE_RANK, fitted_widths, set_wide, shortened, text_width, wrapped_line
from offsetmgr.cli.watch import watch_command
from offsetmgr.cli.zk_cluster import BROKERS
from offsetmgr.cli.zk_groups import MEMBERS
from offsetmgr.core.errors import UsageError

MEMBER = "consumer-billing-service-7-0a1b2c3d-4e5f-6789-abcd-ef0123456789"
ROW = ("billing", "STABLE", "orders", 0, 1000, 2500, 1500, "consumer-billing-service-7", "/10.1.2.3", MEMBER, None)


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes stdout a terminal with 80 columns and without colours. The fixture capsys replaces stdout after the setup,
    so each test calls this function itself."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    set_wide(False)


def test_a_table_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    write_rows(DESCRIBE, [ROW], OutputFormat.TABLE)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "GROUP    STATE   TOPIC   PART  OFFSET  LOG-END   LAG  MEMBER-ID",
        f"billing  STABLE  orders     0    1000     2500  1500  {MEMBER[:12]}..{MEMBER[-12:]}",
    ]
    assert shown.err == "left out: CLIENT-ID, HOST; --wide shows all columns\n"
    set_wide(True)
    write_rows(DESCRIBE, [ROW], OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines()[1].endswith(f"consumer-billing-service-7  /10.1.2.3  {MEMBER}")
    set_wide(False)


def test_a_wide_terminal_and_a_pipe_show_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    write_rows(DESCRIBE, [ROW], OutputFormat.TABLE)
    whole = capsys.readouterr()
    assert MEMBER in whole.out
    assert whole.err == ""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    write_rows(DESCRIBE, [ROW], OutputFormat.TABLE)
    assert capsys.readouterr() == whole


def test_widths_are_reduced_only_as_far_as_needed() -> None:
    assert fitted_widths([10, 30, 20], [0, 1, 2], 64) == [10, 30, 20]
    assert fitted_widths([10, 30, 20], [0, 1, 2], 54) == [10, 20, 20]
    assert fitted_widths([10, 30, 20], [0, 1, 2], 46) == [10, 16, 16]
    assert fitted_widths([10, 30, 20], [0, 1, 2], 45) == [10, 30, None]
    assert fitted_widths([10, 30, 20], [0, 1, 2], 30) == [10, 18, None]
    assert fitted_widths([10, 30, 20], [0, 1, 2], 22) == [10, 10, None]
    assert fitted_widths([10, 30, 20], [0, 1, 2], 21) == [10, None, None]
    assert fitted_widths([50, 90], [0, 0], 60) == [50, 90]
    assert [len(shortened(MEMBER, width)) for width in (12, 13, 80)] == [12, 13, len(MEMBER)]


def test_the_last_column_is_wrapped_after_commas_too() -> None:
    cells = ("m", ",".join(f"orders-{number}" for number in range(6)))
    assert wrapped_line(cells, (1, 53), 30).splitlines() == [
        "m  orders-0,orders-1,orders-2,",
        "   orders-3,orders-4,orders-5",
    ]


def test_long_names_are_shortened_for_a_last_column_that_would_be_wrapped() -> None:
    assert fitted_widths([150, 10, 37], [NAME_RANK, 0, 0], 200) == [149, 10, 37]
    assert fitted_widths([150, 10, 37], [NAME_RANK, 0, 0], 100) == [49, 10, 37]
    assert fitted_widths([150, 10, 80], [NAME_RANK, 0, 0], 100) == [40, 10, 80]
    assert fitted_widths([30, 10, 80], [NAME_RANK, 0, 0], 100) == [30, 10, 80]
    assert fitted_widths([30, 10, 80], [NAME_RANK, 0, 0], 60) == [26, 10, 80]


def test_the_last_column_is_wrapped_if_less_than_its_usual_width_is_left() -> None:
    cells = ("x" * 68, "beyond the log's end")
    assert wrapped_line(cells, (68, 20), 80).splitlines() == ["x" * 68 + "  beyond the", " " * 70 + "log's end"]
    assert wrapped_line(cells, (68, 20), 79).count("\n") == 0


def test_the_name_of_an_error_is_broken_into_lines() -> None:
    lines = wrapped_line(("x", "does not exist (UNKNOWN_TOPIC_OR_PARTITION)"), (1, 43), 27).splitlines()
    assert lines == ["x  does not exist (UNKNOWN_", "   TOPIC_OR_PARTITION)"]


def test_names_are_shortened_only_if_nothing_else_makes_the_table_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fitted_widths([60, 30], [NAME_RANK, 1], 76) == [60, 14]
    assert fitted_widths([60, 30, 90], [NAME_RANK, NAME_RANK, 0], 80) == [28, 28, 90]
    assert fitted_widths([60, 30], [NAME_RANK, 1], 40) == [28, 10]
    assert fitted_widths([60, 30, 20], [NAME_RANK, 1, 2], 100) == [60, 18, 18]
    assert fitted_widths([20, 24, 20], [0, WHOLE_RANK, 1], 60) == [20, None, 20]
    use_terminal(monkeypatch)
    topic = f"com.example.{'settlement.' * 8}retry"
    write_rows(DESCRIBE, [("billing", "STABLE", topic, *ROW[3:])], OutputFormat.TABLE)
    shown = capsys.readouterr()
    title, row = shown.out.splitlines()
    assert len(row) <= 80
    assert len(title) <= 80
    assert "com.exam" in row
    assert "retry" in row
    assert "shortened: TOPIC; --wide shows all columns and names" in shown.err


@pytest.mark.parametrize(
    ("columns", "row", "shown"),
    [
        (MEMBERS, ("billing", MEMBER, "/10.1.2.3", "static", "orders=1", 4, 1795674996586, None, "0x10003cbccc90002",
                   None, None, None), "consumer-bil"),
        (EDITS, ("20261126-065735-e790", 1795674996586, "offsets import undo", "done", 2, 1, "billing",
                 "kafka://b1:9092", "root", None, "undo of 20261126-065705-c637", None), "20261126-065735-e790"),
        (PEEKED, ("shop", "orders", 0, 1234, 1234, 1795674996586, "2 days 3 h", 312, "customer-10223",
                  '{"id": 7, "state": "paid", "total": 12.50}', "trace=abc", None), '{"id": 7.. 12.50}'),
        (PEEKED, ("billing-service-production", "com.example.payments.settled", 0, 12345678, 12345680, 1795674996586,
                  "2 days 3 h", 312, "customer-10223-eu-west-1-0000000", '{"id": 7, "state": "paid", "total": 12.50}',
                  "trace=abc", "2 transaction markers skipped; record 12345680"), '{"i'),
        (EDITS, ("20261126-065735-e790", 1795674996586, "offsets import undo", "done, undone", 2, 1, "billing",
                 "kafka://b1:9092", "root", "20261126-065755-a790", "a long reason of a person", None), "billing"),
        (STATUS, ("billing", "billing", 12, "web team", "applied in part", 1795674996586, "inferred", "", None,
                  "a reason"), "inferred"),
        (VERIFY_COLUMNS, ("billing", "orders", 12, "source-ahead", "seen", 12345, 23456, 12345, 23458, "it moved"
                          " on after the plan; a start from the target would repeat 11111 messages"), "23456"),
        (STEP_COLUMNS, ("billing", None, "orders", 12, "refuse-rewind", 123456, 234567, None, "the target is ahead by"
                        " 111111, and a rewind needs --allow-rewind"), "234567"),
        (BROKERS, (0, "controller", "PLAINTEXT://10.11.12.13:9092", None, 5, 1795674996586, "0x10004b96a8d0001", None,
                   None, None, None, None, None), "PLAINTEXT://10.11.12.13:9092"),
    ],
)  # fmt: skip
def test_80_columns_show_the_most_important_identifier(
    columns: Sequence[Column],
    row: Sequence[object],
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_terminal(monkeypatch)
    write_rows(columns[: len(row)], [row], OutputFormat.TABLE)
    out = capsys.readouterr()
    assert all(len(line) <= 80 for line in out.out.splitlines())
    assert shown in out.out
    assert "AT-MS" not in out.err


def test_columns_of_wide_characters_are_aligned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = Column("group"), Column("lag", right=True), Column("note")
    rows = [("請求グループ-東京", 1, "x"), ("billing", 20, "y" * 10), ("e\u0301clair", 3, " ".join(["z" * 9] * 7))]
    use_terminal(monkeypatch)
    write_rows(columns, rows, OutputFormat.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert {text_width(line[: line.index(c)]) for line, c in zip(lines, "Nxyzz", strict=False)} == {24}
    assert all(text_width(line) <= 80 for line in lines)
    assert text_width(shortened("請求グループ-東京", 10)) in (9, 10)


def test_a_command_is_not_broken_into_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    command = "offsetmgr migrate plan --from zookeeper://zk1:2181/kafka --to kafka://broker1:9092 -o billing.plan"
    write_rows((Column("group"), Column("next", command=True)), [("billing", command)], OutputFormat.TABLE)
    assert command in capsys.readouterr().out


def test_colours_only_on_a_terminal_without_no_color(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    write_rows(DESCRIBE, [ROW], OutputFormat.TABLE)
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    monkeypatch.delenv("NO_COLOR")
    write_rows(DESCRIBE, [ROW], OutputFormat.TABLE)
    colours = capsys.readouterr().out
    assert "\x1b[33m1500\x1b[0m" in colours
    assert colours.replace("\x1b[33m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") == plain
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
        write_rows(DESCRIBE, [ROW], OutputFormat.TABLE)
        assert capsys.readouterr().out == plain


def lag_row(group: str, partition: int, lag: int | None) -> tuple[object, ...]:
    offset = None if lag is None else 100 - lag
    return (group, "t", partition, "committed", offset, None, None, None, 0, 100, lag, None)


ROWS = [lag_row("a", 0, 5), lag_row("a", 1, None), lag_row("b", 0, 70), lag_row("c", 0, 9)]


def written(capsys: pytest.CaptureFixture[str], table: PartitionTable) -> list[dict[str, object]]:
    table.write(ROWS, OutputFormat.JSON)
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


def test_rows_are_sorted_and_limited(capsys: pytest.CaptureFixture[str]) -> None:
    by_lag = written(capsys, PartitionTable(LAG, sort="LAG"))
    assert [row["lag"] for row in by_lag] == [70, 9, 5, None]
    assert [row["lag"] for row in written(capsys, PartitionTable(LAG, top=2))] == [70, 9]
    assert [row["group"] for row in written(capsys, PartitionTable(LAG, sort="group", top=3))] == ["a", "a", "b"]
    with pytest.raises(UsageError, match="no column has this name"):
        PartitionTable(LAG, sort="lagg")


def test_totals_do_not_count_unknown_lags(capsys: pytest.CaptureFixture[str]) -> None:
    table = PartitionTable(LAG, totals=True, sort="lag")
    assert [tuple(row.values()) for row in written(capsys, table)] == [
        ("b", 1, 70, 70, 0),
        ("c", 1, 9, 9, 0),
        ("a", 2, 5, 5, 1),
    ]


def test_watched_rows_have_a_time_the_change_and_the_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    table = PartitionTable(LAG, watched=True)
    outputs = iter([[lag_row("a", 0, 50), lag_row("b", 0, None)], [lag_row("a", 0, 30), lag_row("b", 0, 7)]])
    watch_command(lambda: table.write(next(outputs), OutputFormat.JSON), 2.0, 2)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["lag"], row["change"], row["rate"]) for row in rows] == [
        (50, None, None),
        (None, None, None),
        (30, -20, 10.0),
        (7, None, None),
    ]
    assert all(row["time"].endswith("Z") for row in rows)


def test_wide_is_accepted_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--wide", "--version"]) == 0
    assert run(["groups", "describe", "--wide", "--members", "--state", "-g", "x"]) == 2
    set_wide(False)
    assert "both --members and --state" in capsys.readouterr().err


def test_a_long_name_pads_no_other_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [lag_row("a" * 300, 0, 1), lag_row("b", 0, 2)]
    PartitionTable(LAG).write(rows, OutputFormat.TABLE)
    title, long, short = capsys.readouterr().out.splitlines()
    assert long.startswith("a" * 300 + "  t ")
    assert max(len(title), len(short)) < 160
    assert title.index("TOPIC") == short.index("t ")


@pytest.mark.parametrize(
    "endpoints",
    [
        ["broker-1.example.com:9092", "broker-2.example.com:9092", "zookeeper-1.example.com:2181"],
        [f"127.0.{n}.1:24398" for n in range(10, 14)],
        ["10.20.30.40:19092", "10.21.30.40:19092", "10.20.31.40:19092", "10.20.30.41:19092"],
    ],
)
def test_a_shortened_address_keeps_the_part_that_differs(
    endpoints: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    rows = [("ok", "permissions on topic consumer-offset", one, "it is " + "very " * 12 + "near") for one in endpoints]
    write_rows(CHECKS[:-1], rows, OutputFormat.TABLE)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ok")]
    shown = [re.split(" {2,}", line)[2] for line in lines]
    assert len(set(shown)) == len(endpoints)
