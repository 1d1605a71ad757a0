"""A real checkpoint of Spark 4.0.5: two Kafka sources and a rate source in one query, killed in batch 4."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.spark.checkpoint import kafka_offsets, newest_batch, parse_offsets
from offsetmgr.spark.checkpoint_files import LocalFiles, directory_of, newest_finished, planned_batch

GOLDEN = Path(__file__).parent / "data" / "spark-4.0-checkpoint"
A = {TopicPartition("ex.a", 0): 20, TopicPartition("ex.a", 1): 20}
B = {TopicPartition("ex.b", 0): 12, TopicPartition("ex.b", 1): 12, TopicPartition("ex.b", 2): 12}


def test_the_newest_finished_batch_is_the_newest_with_a_commit_and_not_the_planned_one() -> None:
    found = newest_finished(LocalFiles(str(GOLDEN)))

    assert found is not None
    assert found.number == 3
    assert found.ends == (A, B, None)


def test_a_running_batch_is_read_by_its_number() -> None:
    running = planned_batch(LocalFiles(f"file:{GOLDEN}"), 4)

    assert running is not None
    assert running.ends[0] == {TopicPartition("ex.a", 0): 25, TopicPartition("ex.a", 1): 25}
    assert planned_batch(LocalFiles(str(GOLDEN)), 5) is None


def test_a_missing_checkpoint_has_no_finished_batch(tmp_path: Path) -> None:
    assert newest_finished(LocalFiles(str(tmp_path / "none"))) is None


def test_a_commit_without_its_offsets_is_unreadable_and_not_absent(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "copy")
    (tmp_path / "copy" / "offsets" / "3").unlink()

    with pytest.raises(CorruptData, match="commits/3 has no offsets/3"):
        newest_finished(LocalFiles(str(tmp_path / "copy")))


@pytest.mark.parametrize(
    ("root", "directory"),
    [
        ("file:/a b/100%25#1", "/a b/100%25#1"),
        ("file:///a", "/a"),
        ("hdfs://name:8020/jobs/a/", "/jobs/a"),
        ("s3a://bucket/a", "/a"),
        ("/a", "/a"),
    ],
)
def test_a_checkpoint_is_the_same_directory_however_it_is_written(root: str, directory: str) -> None:
    assert directory_of(root) == directory


def test_a_relative_directory_is_below_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert directory_of("checkpoint") == str(tmp_path / "checkpoint")


def test_checksums_and_partial_writes_do_not_count_as_batches() -> None:
    assert newest_batch([".12.crc", "9", "10", "11.compact", ".13.1f2e.tmp", "007"]) == 10
    assert newest_batch([".0.crc"]) is None


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(UnknownVersion, match="its version is v2; offsetmgr supports v1"):
        parse_offsets("v2\n{}\n{}\n", 1, "checkpoint c/offsets/1")


@pytest.mark.parametrize("text", ["", "{}", "v1", "v1\n{}"])
def test_an_invalid_offsets_file_is_unreadable(text: str) -> None:
    with pytest.raises(CorruptData, match="checkpoint c/offsets/1"):
        parse_offsets(text, 1, "checkpoint c/offsets/1")


@pytest.mark.parametrize(
    "line",
    [
        "-",
        "6",
        '{"logOffset":3}',
        "not JSON",
        "[1]",
        '{"t":{"x":1}}',
        '{"t":{"0":-1}}',
        '{"t":{"0":true}}',
        '{"t":{"0":"7"}}',
        '{"t":{"01":7}}',
    ],
)
def test_offsets_of_other_sources_are_not_kafkas(line: str) -> None:
    assert kafka_offsets(line) is None


def test_a_kafka_source_without_offsets_reads_no_partition() -> None:
    assert kafka_offsets("{}") == {}
    assert kafka_offsets('{"a.b":{"0":7,"11":0}}') == {TopicPartition("a.b", 0): 7, TopicPartition("a.b", 11): 0}
