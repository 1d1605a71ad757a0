"""The merged output of a command that runs for several clusters at once."""

from __future__ import annotations

import sys

import pytest
import typer

from offsetmgr.cli.many_clusters import run_for_contexts
from offsetmgr.cli.output_collector import COLLECTOR
from offsetmgr.cli.render import Column, OutputFormat, write_rows
from offsetmgr.cli.table_fit import set_wide
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, Unreachable

GROUP = "group 'shop'"


def run(errors: dict[str, OffsetMgrError | None], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and stderr of a command that writes one row for each cluster without an error."""

    def command(name: str) -> None:
        if (error := errors[name]) is None:
            write_rows([Column("group")], [("shop",)], OutputFormat.TABLE)
            return
        collector = COLLECTOR.get()
        assert collector is not None
        collector.errors.append(error)
        raise typer.Exit(1)

    code = run_for_contexts(list(errors), command, OutputFormat.TABLE)
    return code, capsys.readouterr().err


def test_only_a_group_that_does_not_exist_is_reported_as_missing(capsys: pytest.CaptureFixture[str]) -> None:
    no_topic = GroupNotFound(GROUP, "has no committed offsets in topic orders")
    missing = GroupNotFound(GROUP, "does not exist in kafka://k:9092")
    code, err = run({"prod-1": None, "prod-2": no_topic, "prod-3": missing}, capsys)
    assert code == 0
    assert f"{GROUP} does not exist in 1 cluster of 3\n" in err
    assert f"prod-2: {GROUP}: has no committed offsets in topic orders\n" in err


def test_a_terminal_shows_the_error_of_a_cluster_within_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(name: str) -> None:
        if name == "prod-1":
            columns = (Column("group"), Column("lag", right=True), Column("evidence"))
            write_rows(columns, [("shop", 5, "commits to ZooKeeper alone " * 4)], OutputFormat.TABLE)
            return
        collector = COLLECTOR.get()
        assert collector is not None
        collector.errors.append(Unreachable("ZooKeeper at h:1", "no server could be reached within 3000 ms"))
        raise typer.Exit(1)

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    set_wide(False)
    assert run_for_contexts(["prod-1", "prod-2"], command, OutputFormat.TABLE) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("prod-2") and "error: ZooKeeper at h:1" in line for line in lines)


def test_another_error_about_a_missing_group_is_not_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    missing = GroupNotFound(GROUP, "does not exist in kafka://k:9092")
    code, err = run({"prod-1": None, "prod-2": Unreachable(GROUP, "timed out"), "prod-3": missing}, capsys)
    assert code == 1
    assert "error: 1 of 3 clusters failed: prod-2" in err
