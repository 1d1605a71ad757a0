"""The choice and the cache of a session's Kafka connector. A script that knows one version replaces Ivy."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetmgr.core.errors import SparkError
from offsetmgr.spark.connector import candidates, connector_jars

JAVA = """#!/bin/sh
echo run >> "$(dirname "$0")/runs"
while [ "$1" != "-ivy" ]; do shift; done
ivy="$2"
while [ "$1" != "-retrieve" ]; do shift; done
if grep -q 'rev="4.0.1"' "$ivy"; then
    directory="$(dirname "$2")"
    mkdir -p "$directory"
    touch "$directory/spark-sql-kafka-0-10_2.13-4.0.1.jar"
else
    echo ":: org.apache.spark#spark-sql-kafka-0-10_2.13;4.0.x: not found"
    exit 1
fi
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the script, in which the script records its runs."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(JAVA)
    script.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "4.0.3")
    return script.parent


def test_the_newest_version_comes_first_and_none_is_newer_than_pyspark() -> None:
    assert candidates("4.0.3") == ["4.0.3", "4.0.2", "4.0.1", "4.0.0"]
    assert candidates("4.1.0.dev1") == ["4.1.0"]
    assert candidates("4.3.1") == ["4.3.1", "4.3.0", "4.2.0"]
    with pytest.raises(SparkError, match="'unknown' is not that of a release"):
        candidates("unknown")


def test_the_newest_available_version_is_used_and_cached(java: Path, tmp_path: Path) -> None:
    found = connector_jars(cache=tmp_path / "cache")
    assert [jar.name for jar in found] == ["spark-sql-kafka-0-10_2.13-4.0.1.jar"]
    assert (java / "runs").read_text() == "run\n" * 3

    assert connector_jars(cache=tmp_path / "cache") == found
    assert (java / "runs").read_text() == "run\n" * 3


def test_without_a_connector_of_the_minor_version_the_last_resort_is_used_and_cached(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "4.3.1")
    script = java / "java"
    script.write_text(script.read_text().replace("4.0.1", "4.2.0"))

    found = connector_jars(cache=tmp_path / "cache")
    assert [jar.name for jar in found] == ["spark-sql-kafka-0-10_2.13-4.2.0.jar"]
    assert (java / "runs").read_text() == "run\n" * 3
    assert connector_jars(cache=tmp_path / "cache") == found
    assert (java / "runs").read_text() == "run\n" * 3

    script.write_text(script.read_text().replace("4.2.0", "4.3.0"))
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "4.3.0")
    found = connector_jars(cache=tmp_path / "cache")
    assert [jar.name for jar in found] == ["spark-sql-kafka-0-10_2.13-4.3.0.jar"]


def test_a_cached_connector_of_another_minor_version_is_not_used(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = java / "java"
    script.write_text(script.read_text().replace('rev="4.0.1"', 'rev="4.[23].0"').replace("13-4.0.1", "13-any"))
    (first,) = connector_jars("4.2.0", cache=tmp_path / "cache")
    assert first.parent.name == "4.2.0"
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "4.3.0")
    (second,) = connector_jars(cache=tmp_path / "cache")
    assert second.parent.name == "4.3.0"


def test_without_any_connector_the_error_names_each_version(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "4.3.0")
    with pytest.raises(SparkError, match=r"Kafka connector for Spark: 4\.3\.0: .*; 4\.2\.0: ") as refused:
        connector_jars(cache=tmp_path / "cache")
    assert "session(connector=VERSION)" in str(refused.value.hint)


def test_a_named_version_is_the_only_one_tried(java: Path, tmp_path: Path) -> None:
    with pytest.raises(SparkError) as refused:
        connector_jars("4.0.2", cache=tmp_path / "cache")

    assert str(refused.value) == (
        "cannot download a Kafka connector for Spark: "
        "4.0.2: org.apache.spark#spark-sql-kafka-0-10_2.13;4.0.x: not found"
    )
    assert [path.name for path in (tmp_path / "cache" / "spark").iterdir()] == ["resolve.lock"]


def test_the_cache_is_in_the_configured_directory(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CACHE", str(tmp_path / "mine"))

    (jar,) = connector_jars("4.0.1")

    assert jar.parent == tmp_path / "mine" / "spark" / "4.0.1"
