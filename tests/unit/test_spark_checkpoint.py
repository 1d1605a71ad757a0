"""Real checkpoints of queries with two Kafka sources and a rate source: Spark 4.0.5, killed in batch 4, and Spark 4.3.0
with named sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.spark.checkpoint import kafka_offsets, newest_batch, parse_offsets
from offsetmgr.spark.checkpoint_files import LocalFiles, directory_of, newest_finished, planned_batch
from offsetmgr.spark.query_plan import Source, progress_of

GOLDEN = Path(__file__).parent / "data" / "spark-4.0-checkpoint"
NAMED = Path(__file__).parent / "data" / "spark-4.3-checkpoint"
KAFKA = Source("KafkaV2[Subscribe[t]]", "k", "0")
INVALID = [
    "",
    '{"t":{"0":9',
    '{"t":{"0":-1}}',
    '{"t":{"0":true}}',
    '{"t":{"0":"7"}}',
    '{"t":{"01":7}}',
    '{"t":{"0":9223372036854775808}}',
    '{"t":{"0":7},"u":{"x":1}}',
    '{"a/b":{"0":7}}',
]
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


def test_only_a_deleted_checkpoint_of_an_ended_query_counts_as_empty(tmp_path: Path) -> None:
    missing = LocalFiles(str(tmp_path / "none"))

    assert newest_finished(missing, may_be_gone=True) is None
    with pytest.raises(CorruptData, match="does not exist, or it is not the checkpoint of a query"):
        newest_finished(missing)


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
    with pytest.raises(UnknownVersion, match="its version is v3; offsetmgr supports v1 and v2"):
        parse_offsets("v3\n{}\n{}\n", 1, "checkpoint c/offsets/1")


@pytest.mark.parametrize("text", ["", "{}", "v1", "v1\n{}", "v2\n{}", "v2\n{}\na", "v2\n{}\na:", "v2\n{}\na:6\na:7"])
def test_an_invalid_offsets_file_is_unreadable(text: str) -> None:
    with pytest.raises(CorruptData, match="checkpoint c/offsets/1"):
        parse_offsets(text, 1, "checkpoint c/offsets/1")


FOREIGN = ["6", '{"logOffset":3}', "not JSON", "[1]", '{"t":{"x":1}}', '{"t":3}']


@pytest.mark.parametrize("line", ["-", *FOREIGN])
def test_without_a_plan_offsets_of_other_sources_are_not_kafkas(line: str) -> None:
    assert parse_offsets(f"v1\n{{}}\n{line}", 1, "c").ends == (None,)
    assert parse_offsets(f"v2\n{{}}\nname:{line}", 1, "c").ends == (None,)


@pytest.mark.parametrize("line", INVALID)
def test_a_damaged_offset_of_a_kafka_source_is_unreadable_with_and_without_a_plan(line: str) -> None:
    batch = parse_offsets(f"v1\n{{}}\n{line}\n", 1, "checkpoint c/offsets/1")

    with pytest.raises(CorruptData, match="checkpoint c/offsets/1"):
        _ = batch.ends
    with pytest.raises(CorruptData, match="checkpoint c/offsets/1"):
        progress_of(batch, (KAFKA,), "query q")


@pytest.mark.parametrize("line", FOREIGN)
def test_the_plan_decides_whether_a_line_is_kafkas(line: str) -> None:
    batch = parse_offsets(f"v1\n{{}}\n{line}", 1, "checkpoint c/offsets/1")

    assert progress_of(batch, (Source("RateStreamV2[]"),), "query q")[0] == []
    with pytest.raises(CorruptData, match="checkpoint c/offsets/1"):
        progress_of(batch, (KAFKA,), "query q")


def test_a_kafka_source_without_offsets_reads_no_partition() -> None:
    assert kafka_offsets("{}", "c") == {}
    assert kafka_offsets('{"a.b":{"0":7,"11":0}}', "c") == {TopicPartition("a.b", 0): 7, TopicPartition("a.b", 11): 0}


@pytest.mark.parametrize("names", [("east", "west"), ("0", "1")])
def test_in_version_2_each_source_has_the_offset_of_its_name_whatever_the_order(names: tuple[str, str]) -> None:
    first, second = (Source(f"KafkaV2[Subscribe[{topic}]]", "k", name) for topic, name in zip("tu", names, strict=True))
    lines = [f'{names[1]}:{{"u":{{"0":5}}}}', 'gone:{"v":{"0":9}}', f'{names[0]}:{{"t":{{"0":7}}}}']
    batch = parse_offsets("\n".join(["v2", "{}", *lines]), 1, "c")

    assert [dict(found.offsets) for found in progress_of(batch, (first, second), "q")[0]] == [
        {TopicPartition("t", 0): 7},
        {TopicPartition("u", 0): 5},
    ]
    new = Source("KafkaV2[Subscribe[w]]", "k", "new")
    assert [block.topics for block in progress_of(batch, (first, new, second), "q")[1]] == [frozenset("w")]


def test_a_checkpoint_of_spark_4_3_with_named_sources_is_read_by_their_names() -> None:
    found = newest_finished(LocalFiles(str(NAMED)))
    assert found is not None
    plan = [("KafkaV2[Subscribe[ex.b]]", "bees"), ("RateStreamV2[]", "clock"), ("KafkaV2[Subscribe[ex.a]]", "ants")]
    sources = tuple(Source(description, "k", name) for description, name in plan)

    b, a = ({TopicPartition(f"ex.{t}", p): at for p in range(2)} for t, at in (("b", 6), ("a", 10)))
    assert [found.offsets for found in progress_of(found, sources, "query q")[0]] == [b, a]
    assert found.ends == (None, a, b)


def test_in_version_2_a_source_that_the_plan_contains_twice_has_one_line() -> None:
    twice = Source("KafkaV2[Subscribe[t]]", "k", "0")
    batch = parse_offsets('v2\n{}\n1:{"t":{"0":7}}', 1, "c")

    assert [found.offsets for found in progress_of(batch, (twice, twice), "q")[0]] == [{TopicPartition("t", 0): 7}] * 2


def test_a_checkpoint_that_was_upgraded_is_read_in_both_versions(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "copy")
    upgraded = 'v2\n{}\n2:6\n1:{"ex.b":{"0":13}}\n0:{"ex.a":{"0":21}}'
    (tmp_path / "copy" / "offsets" / "4").write_text(upgraded)
    plan = (*(Source(f"KafkaV2[Subscribe[ex.{t}]]", "k", str(n)) for n, t in enumerate("ab")), Source("Rate"))

    def offsets() -> list[dict[TopicPartition, int]]:
        found = newest_finished(LocalFiles(str(tmp_path / "copy")))
        assert found is not None
        return [dict(one.offsets) for one in progress_of(found, plan, "query q")[0]]

    assert offsets() == [A, B]
    (tmp_path / "copy" / "commits" / "4").write_text("v1\n{}")
    assert offsets() == [{TopicPartition("ex.a", 0): 21}, {TopicPartition("ex.b", 0): 13}]
