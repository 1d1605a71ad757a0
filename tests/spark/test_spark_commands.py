"""``offsetmgr spark`` without Spark: an unreachable server, a report of starting offsets, unsupported versions."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from offsetmgr.cli.app import run
from offsetmgr.core.errors import SparkError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.spark import (
    BatchCommitter,
    OffsetCommitter,
    reader_from_group,
    register,
    run_periods,
    session,
    table_registration,
    table_session,
)
from offsetmgr.spark.start_offsets import StartingOffsets


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "--bootstrap-server", "{dead_server}", "-o", "{directory}"],
        ["copy", "--from", "kafka://{dead_server}", "--to", "kafka://{dead_server}", "--all-groups"],
        ["diff", "--from", "zookeeper://{dead_server}", "--to", "kafka://{dead_server}", "--group", "g"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_dead_server_is_reported_in_one_line_and_spark_is_not_started(arguments, dead_server, tmp_path, capfd):
    directory = tmp_path / "audit"
    given = [part.format(dead_server=dead_server, directory=directory) for part in arguments]

    assert run(["spark", *given, "--timeout", "500"]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2  # a JVM that starts Spark would print more
    assert lines[0].startswith("error: ") and dead_server in lines[0] and "Connection refused" in lines[0]
    assert lines[1].startswith("hint: ")
    assert not directory.exists()


# --- the report of a job's starting offsets


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_group_without_any_committed_offset_may_be_misspelt() -> None:
    start = StartingOffsets("odrers", {T0: -2, T1: -2}, new=(T0, T1))
    known = StartingOffsets("orders", {T0: -2, T1: -1}, new=(T0,), outside_log={T1: (4, LogRange(5, 9))})

    assert (start.unknown, known.unknown) == (True, False)
    assert start.explain() == [
        "group odrers: 0 of 2 partitions begin at their committed offset",
        "group odrers has no committed offsets in these topics; check its name",
        "t-0: no committed offset, begins at the earliest offset",
        "t-1: no committed offset, begins at the earliest offset",
    ]
    assert known.explain()[1:] == [
        "t-0: no committed offset, begins at the earliest offset",
        "t-1: 4 is not in the log (5 to 9), begins at the earliest offset",
    ]


# --- versions of PySpark that offsetmgr does not support: one error at the start of everything that needs Spark
# The version is substituted; the rest of PySpark is the installed one. Nothing here starts Spark.


ANY: Any = None

STARTS: dict[str, Callable[[], object]] = {
    "session": lambda: session("s"),
    "OffsetCommitter": lambda: OffsetCommitter(ANY, "g"),
    "BatchCommitter": lambda: BatchCommitter(ANY, "g", ANY, checkpoint="c"),
    "run_periods": lambda: run_periods(ANY, [], ANY, ANY, ANY, None, ANY, ANY),
    "reader_from_group": lambda: reader_from_group(ANY, ANY, "g", ["t"], bootstrap="b"),
    "register": lambda: register(ANY),
    "table_session": lambda: table_session("s"),
    "table_job": lambda: table_registration.table_job("s", None, {}).__enter__(),
}

WHY = "PySpark 3.5.9 is installed, but offsetmgr supports PySpark 4.0 to 4.3"


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "3.5.9")


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_everything_that_needs_spark_rejects_an_unsupported_version_at_its_start(start: Callable[[], object]) -> None:
    with pytest.raises(SparkError) as refused:
        start()
    assert refused.value.why == WHY
    assert refused.value.hint == "pip install 'pyspark>=4.0,<4.4'"


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("module", ["data_source", "log_source", "table_registration"])
def test_a_table_cannot_be_imported_with_an_unsupported_version(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data_source_api", "data_source", "log_source", "table_registration"):
        monkeypatch.delitem(sys.modules, f"offsetmgr.spark.{name}", raising=False)
    with pytest.raises(SparkError, match=WHY):
        importlib.import_module(f"offsetmgr.spark.{module}")


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "--bootstrap-server", "127.0.0.1:1", "-o", "directory"],
        ["diff", "--from", "file:a.csv", "--to", "file:b.csv", "--all-groups"],
        ["copy", "--from", "file:a.csv", "--to", "file:b.csv", "--all-groups"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_rejects_an_unsupported_version_before_it_does_anything_else(arguments: list[str], capsys) -> None:
    assert run(["spark", *arguments]) == 1
    assert capsys.readouterr().err == (f"error: spark {arguments[0]}: {WHY}\nhint: pip install 'pyspark>=4.0,<4.4'\n")


@pytest.mark.parametrize(
    ("version", "supported"),
    [("3.5.5", False), ("4.0.0", True), ("4.0.5", True), ("4.3.0.dev1", True), ("4.4.0", False), ("odd", False)],
)
def test_tested_versions_are_supported(version: str, supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: version)
    if supported:
        OffsetCommitter(ANY, "g")
    else:
        with pytest.raises(SparkError, match=f"PySpark {version} is installed"):
            OffsetCommitter(ANY, "g")
