"""The offsets that the committers commit for the plan and the checkpoint of a query.

A checkpoint that cannot be read is not an empty one. The stored checkpoints are those of queries with two Kafka sources
and a rate source: Spark 4.0.5, killed in batch 4, and Spark 4.3.0 with named sources."""

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from streaming_queries import Driver, Query, old_source, source

from offsetmgr.core.errors import SparkError, Unreachable
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.spark import BatchCommitter, CommitPolicy
from offsetmgr.testing.memory import MemoryStore

GOLDEN = Path(__file__).parents[1] / "data" / "spark-4.0-checkpoint"
NAMED = Path(__file__).parents[1] / "data" / "spark-4.3-checkpoint"
A = {"ex.a-0": 20, "ex.a-1": 20}
B = {"ex.b-0": 12, "ex.b-1": 12, "ex.b-2": 12}
INVALID = [
    "", '{"t":{"0":9', '{"t":{"0":-1}}', '{"t":{"0":true}}', '{"t":{"0":"7"}}', '{"t":{"01":7}}',
    '{"t":{"0":9223372036854775808}}', '{"t":{"0":7},"u":{"x":1}}', '{"a/b":{"0":7}}',
]  # fmt: skip
FOREIGN = ["6", '{"logOffset":3}', "not JSON", "[1]", '{"t":{"x":1}}', '{"t":3}']
T, RATE = "KafkaV2[Subscribe[t]]", "RateStreamV2[]"


def committed(store: MemoryStore) -> dict[str, int]:
    return {str(tp): found.offset for tp, found in store.data.get("g", {}).items()}


def checkpoint(root: Path, offsets: str = 'v1\n{}\n{"t":{"0":9}}') -> Path:
    Query(root).write(0, offsets)
    return root


def after_the_end(root: Path | str) -> tuple[dict[str, int], str | None]:
    """The offsets that `commit_last_batch` commits after the query has ended, and its error."""
    store = MemoryStore()
    batches = BatchCommitter(store, "g", lambda _frame, _number: None, checkpoint=str(root))
    done, failing = batches.commit_last_batch(), batches.state.failing
    assert done is (failing is None)
    return committed(store), None if failing is None else str(failing)


def while_running(*queries: Query, **policy: Any) -> tuple[dict[str, int], str | None]:
    """The offsets that an `OffsetCommitter` commits for running queries, and its error."""
    store = MemoryStore()
    driver = Driver(store, **policy)
    driver.start(*queries)
    planned = all(query.planned for query in queries)
    done, failing = driver.reconcile(60 if planned else 0.3), driver.committer.state.failing
    driver.committer.close(1)
    assert done is (failing is None and planned)
    return committed(store), None if failing is None else str(failing)


def test_the_newest_finished_batch_is_committed_and_not_the_planned_one(tmp_path: Path) -> None:
    assert after_the_end(GOLDEN) == (A | B, None)
    assert after_the_end(f"file:{GOLDEN}") == (A | B, None)
    (checkpoint(tmp_path / "c") / "commits" / "0").unlink()
    assert after_the_end(tmp_path / "c") == ({}, None)


def test_checksums_and_partial_writes_do_not_count_as_batches(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.finish(9, 9)
    query.finish(10, 10)
    query.plan(11, 11)
    for name in (".12.crc", "11.compact", ".13.1f2e.tmp", "007"):
        (tmp_path / "commits" / name).write_text("v1\n{}")

    assert after_the_end(tmp_path) == ({"t-0": 10}, None)


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("missing", ": the directory does not exist, or it is not the checkpoint of a query"),
        ("empty directory", ": the directory does not exist, or it is not the checkpoint of a query"),
        ("on another file system", ": it is not on this machine's file system"),
        ("no commits", ": it has offsets/1, but its directory commits is empty or missing"),
        ("no offsets", ": commits/0 has no offsets/0"),
        ("not a directory", "/commits: "),
        *((f"v1\n{{}}\n{line}\n", "/offsets/0: ") for line in INVALID),
        ('v1\n{}\n{"t":{"0":9}}\n\n', "/offsets/0: "),
        ('v2\n{}\norders:{"t":{"0":9', "/offsets/0: "),
        *((text, "/offsets/0: ") for text in ("", "{}", "v1", "v1\n{}", "v2\n{}", "v2\n{}\na", "v2\n{}\na:")),
        ("v2\n{}\na:6\na:7", "/offsets/0: "),
        ("v1\n{}\n6", ": "),
        ("v3\n{}\n{}\n", "/offsets/0: its version is v3; offsetmgr supports v1 and v2"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_named_and_does_not_count_as_committed(case, named, tmp_path, caplog):
    root = checkpoint(tmp_path / "c", case)
    where = str(root)
    match case:
        case "missing" | "empty directory":
            shutil.rmtree(root)
            if case == "empty directory":
                root.mkdir()
        case "on another file system":
            where = f"hdfs://name:8020{root}"
        case "no commits":
            shutil.rmtree(root / "commits")
            (root / "offsets" / "1").write_text("v1\n{}\n{}")
        case "no offsets":
            (root / "offsets" / "0").unlink()
        case "not a directory":
            shutil.rmtree(root / "commits")
            (root / "commits").write_text("")

    offsets, failing = after_the_end(where)

    assert offsets == {}
    assert failing is not None
    assert failing.startswith(f"checkpoint {where}{named}")
    assert [failing in record.getMessage() for record in caplog.records] == [True]


def test_without_a_plan_offsets_of_other_sources_are_not_kafkas(tmp_path: Path) -> None:
    for number, line in enumerate(["-", *FOREIGN]):
        for version, names in (("v1", ("", "")), ("v2", ("name:", "t:"))):
            text = f'{version}\n{{}}\n{names[0]}{line}\n{names[1]}{{"t":{{"0":9}}}}'
            root = checkpoint(tmp_path / f"{number}{version}", text)
            assert after_the_end(root) == ({"t-0": 9}, None), text
    assert after_the_end(checkpoint(tmp_path / "empty", "v1\n{}\n{}")) == ({}, None)
    assert after_the_end(checkpoint(tmp_path / "dot", 'v1\n{}\n{"a.b":{"0":7,"11":0}}'))[0] == {"a.b-0": 7, "a.b-11": 0}


def test_the_plan_decides_whether_a_line_is_kafkas(tmp_path: Path) -> None:
    for number, line in enumerate([*INVALID, *FOREIGN]):
        kafka = Query(tmp_path / f"kafka{number}")
        kafka.write(0, f"v1\n{{}}\n{line}\n")
        offsets, failing = while_running(kafka)
        assert (offsets, str(failing).startswith(f"checkpoint {kafka.directory}/offsets/0: ")) == ({}, True), line
        if line in FOREIGN:
            rate = Query(tmp_path / f"rate{number}", "rate", source(RATE))
            rate.write(0, f"v1\n{{}}\n{line}\n")
            assert while_running(rate) == ({}, None), line


EAST_AND_WEST = [(source(T, "east:9092"), '{"t":{"0":5},"u":{"0":2}}'), (source(T, "west:9092"), '{"t":{"0":700}}')]
NO_SUCH = "nothing is committed: no source reads from the configured cluster; the sources read from "
MERGES: list[tuple[str, list[tuple[Any, str]], Any, dict[str, int], str | None]] = [
    ("two sources on one topic", [(source(), '{"t":{"0":5,"1":9}}'), (source(), '{"t":{"0":7,"1":3},"u":{"0":1}}')],
     None, {"t-0": 5, "t-1": 3, "u-0": 1}, None),
    ("a topic of two clusters", EAST_AND_WEST,
     None, {"u-0": 2}, "topic t is not committed: it is read from east:9092 and from west:9092"),
    ("one of the clusters", EAST_AND_WEST, "west:9092", {"t-0": 700}, None),
    ("the other cluster", EAST_AND_WEST, "east:9092", {"t-0": 5, "u-0": 2}, None),
    ("both spellings of one cluster", EAST_AND_WEST, ["east:9092", "west:9092"], {"t-0": 5, "u-0": 2}, None),
    ("neither cluster", EAST_AND_WEST, "esat:9092", {}, f"{NO_SUCH}east:9092 and from west:9092"),
    ("an unknown cluster", [(old_source("KafkaV1[Subscribe[u]]"), '{"u":{"0":2}}'), EAST_AND_WEST[0]],
     "esat:1", {}, f"{NO_SUCH}an unknown cluster and from east:9092"),
    ("servers in another order", [(source(T, "h2:9092,h1:9092"), '{"t":{"0":5}}')],
     "h1:9092, h2:9092,", {"t-0": 5}, None),
    ("two clusters of which one has no batch", [(source(T, "east:1"), '{"t":{"0":5}}'), (source(T, "west:1"), "-")],
     None, {}, "topic t is not committed: it is read from east:1 and from west:1"),
    ("offsets of another source that look like Kafka's",
     [(source(), '{"t":{"0":5}}'), (source("OtherStream[u]"), '{"u":{"0":9}}'), (source("KafkaV2[Assign[v-0]]"), "-")],
     None, {"t-0": 5}, None),
    ("sources without a finished batch",
     [(source(), '{"s":{"0":4},"t":{"0":5},"u":{"0":6},"v.w":{"12":7}}'),
      (source("KafkaV2[Subscribe[s, t]]"), '{"s":{"0":3},"t":{"0":6}}'), (source("KafkaV2[Assign[u-0, v.w-12]]"), "-")],
     None, {"s-0": 3, "t-0": 5}, None),
    ("a list", [(source(), '{"t":{"0":5},"u":{"0":1}}'), (source("KafkaV2[Subscribe[t, u]]"), "-")], "k", {}, None),
    ("a pattern", [(source(), '{"t":{"0":5}}'), (source("KafkaV2[SubscribePattern[t.*]]"), "-")], "k", {}, None),
    ("another's pattern", [(source(), '{"t":{"0":5}}'), (source("KafkaV2[SubscribePattern[t.*]]", "o"), "-")],
     "k", {"t-0": 5}, None),
    ("a source of an unknown cluster",
     [(source(), '{"t":{"0":5},"u":{"0":1}}'), (old_source("KafkaV1[Subscribe[u]]"), "-")], "k", {"t-0": 5}, None),
]  # fmt: skip


@pytest.mark.parametrize(("case", "sources", "cluster", "offsets", "failing"), MERGES)
def test_the_group_commits_what_all_sources_of_its_cluster_have_processed(
    case: str,
    sources: list[tuple[Any, str]],
    cluster: Any,
    offsets: dict[str, int],
    failing: str | None,
    tmp_path: Path,
) -> None:
    query = Query(tmp_path, "q", *(one for one, _ in sources))
    query.write(3, "\n".join(["v1", "{}", *(line for _, line in sources)]))

    assert while_running(query, cluster=cluster) == (offsets, failing)


def test_a_cluster_may_be_that_of_a_query_that_is_not_planned_yet(tmp_path: Path) -> None:
    planned, new = Query(tmp_path / "planned"), Query(tmp_path / "new", "new")
    planned.finish(0, 5)
    new.planned = False

    assert while_running(planned, new, cluster="east:1") == ({}, None)


def test_a_plan_that_does_not_fit_the_checkpoint_is_an_error(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.write(3, 'v1\n{}\n{"t":{"0":5}}\n{"u":{"0":9}}')

    why = "query q is not tracked: its plan has 1 sources, but batch 3 of its checkpoint has 2"
    assert while_running(query) == ({}, why)


@pytest.mark.parametrize("names", [("east", "west"), ("0", "1")])
def test_in_version_2_each_source_has_the_offset_of_its_name_whatever_the_order(names, tmp_path: Path) -> None:
    lines = [f'{names[1]}:{{"u":{{"0":5}},"w":{{"0":1}}}}', 'gone:{"v":{"0":9}}', f'{names[0]}:{{"t":{{"0":7}}}}']
    first, second = (source(f"KafkaV2[Subscribe[{t}]]", t, name) for t, name in zip("tu", names, strict=True))
    new = source("KafkaV2[Subscribe[w]]", "u", "new")
    for cluster, offsets in (("t", {"t-0": 7}), ("u", {"u-0": 5}), (["t", "u"], {"t-0": 7, "u-0": 5})):
        query = Query(tmp_path, "q", first, new, second)
        query.write(1, "\n".join(["v2", "{}", *lines]))
        assert while_running(query, cluster=cluster) == (offsets, None), cluster


def test_a_checkpoint_of_spark_4_3_with_named_sources_is_read_by_their_names(tmp_path: Path) -> None:
    shutil.copytree(NAMED, tmp_path, dirs_exist_ok=True)
    plan = (source("KafkaV2[Subscribe[ex.b]]", "b", "bees"), source(RATE, name="clock"))
    b, a = ({f"ex.{topic}-{p}": at for p in range(2)} for topic, at in (("b", 6), ("a", 10)))
    for cluster, offsets in (("b", b), ("a", a)):
        query = Query(tmp_path, "q", *plan, source("KafkaV2[Subscribe[ex.a]]", "a", "ants"))
        assert while_running(query, cluster=cluster) == (offsets, None)
    assert after_the_end(NAMED) == (a | b, None)


def test_in_version_2_a_source_that_the_plan_contains_twice_has_one_line(tmp_path: Path) -> None:
    query = Query(tmp_path, "q", source(), source())
    query.write(1, 'v2\n{}\n1:{"t":{"0":7}}')

    assert while_running(query) == ({"t-0": 7}, None)


def test_a_checkpoint_that_was_upgraded_is_read_in_both_versions(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    plan = (*(source(f"KafkaV2[Subscribe[ex.{t}]]", name=str(n)) for n, t in enumerate("ab")), source(RATE, name="2"))
    upgraded = 'v2\n{}\n2:6\n1:{"ex.b":{"0":13}}\n0:{"ex.a":{"0":21}}'
    Query(tmp_path, "q").write(4, upgraded, finished=False)
    assert while_running(Query(tmp_path, "q", *plan)) == (A | B, None)

    Query(tmp_path, "q").write(4, upgraded)
    assert while_running(Query(tmp_path, "q", *plan)) == ({"ex.a-0": 21, "ex.b-0": 13}, None)


@pytest.mark.parametrize("root", ["{}", "file:{}", "file://{}", "hdfs://name:8020{}/", "s3a://bucket{}", "relative"])
def test_for_each_batch_finds_its_query_by_the_checkpoint_however_it_is_written(root, tmp_path, monkeypatch) -> None:
    directory = tmp_path / "a b" / "100%25#1"
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory.parent)
    store, calls = MemoryStore(), []
    query = Query(directory, root=f"file:{directory}")
    query.finish(0, 9)
    query.plan(1, 20)
    given = "100%25#1" if root == "relative" else root.format(directory)
    options: Any = {"spark": SimpleNamespace(streams=SimpleNamespace(active=[Query(tmp_path / "other"), query]))}
    batches = BatchCommitter(
        store, "g", lambda _, number: calls.append((number, committed(store))), checkpoint=given, **options
    )

    batches(None, 1)
    assert calls == [(1, {"t-0": 9})]
    assert committed(store) == {"t-0": 9}
    with pytest.raises(SparkError, match="no running query has the checkpoint"):
        BatchCommitter(store, "g", lambda *_: None, checkpoint=f"{given.rstrip('/')}2", **options)(None, 1)
    with pytest.raises(SparkError) as outside:  # of Spark
        BatchCommitter(store, "g", lambda *_: None, checkpoint=f"{given.rstrip('/')}3")(None, 1)
    assert "open_store(...).commit" in outside.value.hint


def test_ahead_of_the_checkpoint_the_running_batch_is_committed_after_its_output(tmp_path: Path) -> None:
    store, query = MemoryStore(), Query(tmp_path)
    query.plan(0, 10)
    session: Any = SimpleNamespace(streams=SimpleNamespace(active=[query]))
    batches = BatchCommitter(
        store, "g", lambda *_: None, checkpoint=str(tmp_path), spark=session, ahead_of_checkpoint=True
    )
    batches(None, 0)
    assert committed(store) == {"t-0": 10}

    batches(None, 5)
    assert str(batches.state.failing) == (f"checkpoint {tmp_path}: offsets/5 does not exist, although batch 5 runs")


@pytest.mark.parametrize("policy", [CommitPolicy(), CommitPolicy(stop_on_failure=True, retries=0)])
def test_the_end_of_a_block_commits_the_last_finished_batch_also_after_an_error(policy: CommitPolicy, tmp_path) -> None:
    store, query = MemoryStore(), Query(tmp_path)
    query.finish(0, 9)
    query.plan(1, 20)
    if policy.stop_on_failure:
        store.broken["g"] = Unreachable("store", "is down")  # this error does not replace the block's
    with pytest.raises(ZeroDivisionError), BatchCommitter(store, "g", print, checkpoint=str(tmp_path), policy=policy):
        raise ZeroDivisionError
    assert committed(store) == ({} if policy.stop_on_failure else {"t-0": 9})


def test_a_restarted_query_without_a_further_batch_is_read_where_its_checkpoint_is(tmp_path: Path) -> None:
    store, query, stream = MemoryStore(), Query(tmp_path), MagicMock()
    query.finish(0, 9)
    stream.foreachBatch().option().start.return_value = query
    with BatchCommitter(store, "g", print, checkpoint="hdfs://name:8020/batches") as batches:
        batches.start(stream)
    assert committed(store) == {"t-0": 9}


def test_two_threads_do_not_commit_at_the_same_time(tmp_path: Path) -> None:
    class OneCommitAtATime(MemoryStore):
        def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
            assert lock.acquire(blocking=False)
            time.sleep(0.05)
            lock.release()
            return super().edit(edits)

    lock = threading.Lock()
    batches = BatchCommitter(OneCommitAtATime(), "g", print, checkpoint=str(checkpoint(tmp_path)))
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda _: batches.commit_last_batch(), range(4)))


def test_a_block_listens_and_commits_the_last_finished_batch_also_after_an_error(tmp_path: Path) -> None:
    store, query = MemoryStore(), Query(tmp_path)
    driver = Driver(store)
    driver.listeners.append(driver.committer)  # by the program, which need not do it
    with pytest.raises(ZeroDivisionError), driver.committer as committer:
        assert driver.listeners == [committer] * 2
        driver.start(query)
        query.finish(0, 9)  # Spark has not reported it
        query.plan(1, 20)
        raise ZeroDivisionError
    assert (committed(store), driver.listeners) == ({"t-0": 9}, [])
