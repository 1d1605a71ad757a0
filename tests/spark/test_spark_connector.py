"""The choice, the download and the cache of a session's Kafka connector. A script replaces Java, which runs Ivy."""

import locale
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from offsetmgr.core.errors import SparkError
from offsetmgr.spark import session

JAVA = """#!/bin/sh
echo run >> "$(dirname "$0")/runs"
while [ "$1" != "-ivy" ]; do shift; done
ivy="$2"
while [ "$1" != "-retrieve" ]; do shift; done
target="$(dirname "$2")"
"""
ONE_VERSION = """
if grep -q 'rev="4.0.1"' "$ivy"; then
    mkdir -p "$target"
    touch "$target/spark-sql-kafka-0-10_2.13-4.0.1.jar"
else
    echo ":: org.apache.spark#spark-sql-kafka-0-10_2.13;4.0.x: not found"
    exit 1
fi
"""


class Program:
    """A program with PySpark 4.0.3 that creates a session, with a cache and the script instead of Java."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self._bin, self._patch = directory / "cache" / "spark", directory / "java" / "bin", monkeypatch
        self._bin.mkdir(parents=True)
        monkeypatch.setenv("JAVA_HOME", str(directory / "java"))
        monkeypatch.setenv("OFFSETMGR_CACHE", str(directory / "cache"))
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        running = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: {"spark.jars": "spark-sql-kafka.jar"}))
        self._settings: dict[str, str] = {}

        def config(builder: object, *_: str, **options: dict[str, str]) -> object:
            self._settings |= options.get("map", {})
            return builder

        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: running)
        monkeypatch.setattr(SparkSession.Builder, "config", config)
        monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _builder: None)
        self.pyspark("4.0.3")
        self.java(ONE_VERSION)

    def pyspark(self, version: str) -> None:
        self._patch.setattr("importlib.metadata.version", lambda _name: version)

    def java(self, commands: str) -> None:
        (self._bin / "java").write_text(JAVA + commands)
        (self._bin / "java").chmod(0o755)

    def jars(self, connector: str | None = None) -> list[Path]:
        """The jars of a new session."""
        session("s", connector=connector)
        return [Path(jar) for jar in self._settings["spark.jars"].split(",")]

    @property
    def runs(self) -> int:
        """How often Ivy has run."""
        return (self._bin / "runs").read_text().count("run")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("pyspark", "tried"),
    [
        ("4.0.3", ["4.0.3", "4.0.2", "4.0.1", "4.0.0"]),
        ("4.1.0.dev1", ["4.1.0"]),
        ("4.3.1", ["4.3.1", "4.3.0", "4.2.0"]),
    ],
)
def test_the_newest_version_comes_first_and_none_is_newer_than_pyspark(pyspark: str, tried: list[str], program) -> None:
    program.pyspark(pyspark)
    program.java("exit 1")

    with pytest.raises(SparkError, match="cannot download a Kafka connector for Spark: ") as refused:
        program.jars()
    assert re.findall(r"(\d\.\d\.\d): ", str(refused.value)) == tried
    assert "session(connector=VERSION)" in str(refused.value.hint)


def test_a_version_of_pyspark_that_is_not_released_has_no_connector(program: Program) -> None:
    program.pyspark("4.1")
    with pytest.raises(SparkError, match=r"'4\.1' is not that of a release"):
        program.jars()


def test_the_newest_available_version_is_used_and_cached(program: Program) -> None:
    jar = program.cache / "4.0.1" / "spark-sql-kafka-0-10_2.13-4.0.1.jar"
    for _ in range(2):
        assert program.jars() == [jar]
        assert program.runs == 3


def test_without_a_connector_of_the_minor_version_the_last_resort_is_used_and_cached(program: Program) -> None:
    program.pyspark("4.3.1")
    program.java(ONE_VERSION.replace("4.0.1", "4.2.0"))
    for _ in range(2):
        assert [jar.name for jar in program.jars()] == ["spark-sql-kafka-0-10_2.13-4.2.0.jar"]
        assert program.runs == 3

    program.java(ONE_VERSION.replace("4.0.1", "4.3.0"))
    program.pyspark("4.3.0")
    assert [jar.name for jar in program.jars()] == ["spark-sql-kafka-0-10_2.13-4.3.0.jar"]


def test_a_cached_connector_of_another_minor_version_is_not_used(program: Program) -> None:
    program.java(ONE_VERSION.replace('rev="4.0.1"', 'rev="4.[23].0"'))
    assert program.jars("4.2.0")[0].parent.name == "4.2.0"
    program.pyspark("4.3.0")
    assert program.jars()[0].parent.name == "4.3.0"


def test_the_jars_replace_an_incomplete_directory(program: Program, tmp_path: Path) -> None:
    left = program.cache / "4.0.1" / "left.jar"
    left.parent.mkdir(parents=True)
    left.touch()
    program.java(f'cp "$ivy" "{tmp_path}/ivy.xml"; mkdir "$target"; touch "$target/a.jar" "$target/b.jar"')

    assert program.jars("4.0.1") == [left.with_name("a.jar"), left.with_name("b.jar")]
    assert sorted(path.name for path in program.cache.iterdir()) == ["4.0.1", "resolve.lock"]
    described = (tmp_path / "ivy.xml").read_text()
    module = 'org="org.apache.spark" name="spark-sql-kafka-0-10_2.13" rev="4.0.1" transitive="true"'
    assert f'<dependency {module} conf="default"/>' in described
    assert '<exclude org="org.apache.hadoop" module="*"/>' in described


def test_ivy_runs_in_utf_8_in_every_locale(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getencoding", lambda: "ANSI_X3.4-1968")  # with LC_ALL=C
    monkeypatch.setenv("LC_ALL", "C")
    program.java('echo "error: $LC_ALL"; exit 1')

    with pytest.raises(SparkError, match=r"error: C\.UTF-8"):
        program.jars("4.0.2")


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        (ONE_VERSION, "org.apache.spark#spark-sql-kafka-0-10_2.13;4.0.x: not found"),
        ("exit 3", "Ivy ended with exit code 3"),
        ("exit 0", "Ivy retrieved none"),
        (
            "echo ':: UNRESOLVED DEPENDENCIES ::'; echo ':: server;1.0: not found'; echo 'error'",
            "server;1.0: not found",
        ),
        ("echo ':: FAILED DOWNLOADS ::'; echo 'no such host'", "no such host"),
        ("exec sleep 60", "Ivy has not ended within 0.2 s"),
    ],
)
def test_a_named_version_is_the_only_one_tried_and_a_failure_has_its_reason_and_leaves_no_files(
    commands: str, reason: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in commands:
        monkeypatch.setattr("offsetmgr.spark.connector.TIMEOUT_S", 0.2)
    program.java(commands)
    with pytest.raises(SparkError) as refused:
        program.jars("4.0.2")

    assert str(refused.value) == f"cannot download a Kafka connector for Spark: 4.0.2: {reason}"
    assert [path.name for path in program.cache.iterdir()] == ["resolve.lock"]


def test_java_that_cannot_run_is_a_failure(program: Program, tmp_path: Path) -> None:
    (tmp_path / "java" / "bin" / "java").write_text(f"#!{tmp_path}/none\n")
    with pytest.raises(SparkError, match="No such file"):
        program.jars()
