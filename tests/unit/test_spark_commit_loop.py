"""The committer's thread without Spark: the tests write the checkpoints and define the sources of the queries."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from offsetmgr.core.errors import GroupActive, OffsetMgrError, Unreachable, UsageError
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.spark.checkpoint_files import LocalFiles
from offsetmgr.spark.commit_loop import QueryTracker
from offsetmgr.spark.commit_policy import CommitPolicy
from offsetmgr.spark.group_committer import GroupCommitter
from offsetmgr.spark.query_plan import Source
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
PROMPT = {"reconcile_s": 60.0, "retries": 2, "pause_s": 0.001}


class Query:
    """A query that reads topic t of a cluster. `plan` and `finish` write a batch to its checkpoint."""

    def __init__(
        self, directory: Path, id: str = "q", *, name: str | None = None, cluster: str = "k", run: str = "1"
    ) -> None:
        self.id = id
        self.run = run
        self.name = name
        self.directory = directory
        self.files = LocalFiles(str(directory))
        self.planned: tuple[Source, ...] | None = (Source("KafkaV2[Subscribe[t]]", cluster),)
        self.stopped = threading.Event()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "metadata").write_text('{"id":"q"}')

    def sources(self) -> tuple[Source, ...] | None:
        return self.planned

    def stop(self) -> None:
        self.stopped.set()

    def plan(self, batch: int, offset: int, topic: str = "t") -> None:
        (self.directory / "offsets").mkdir(parents=True, exist_ok=True)
        (self.directory / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps({topic: {"0": offset}}))

    def finish(self, batch: int, offset: int, topic: str = "t") -> None:
        self.plan(batch, offset, topic)
        (self.directory / "commits").mkdir(exist_ok=True)
        (self.directory / "commits" / str(batch)).write_text("v1\n{}")


class TopicsStore(MemoryStore):
    """A store that knows the id of topic t. `recreate` recreates the topic and deletes its offsets, as brokers do."""

    ids: ClassVar[Mapping[str, str]] = {"t": "1"}

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic in topics or self.ids if topic in self.ids}

    def recreate(self) -> None:
        self.ids = {"t": self.ids["t"] + "+"}  # type: ignore[misc]
        self.data.clear()


@pytest.fixture
def memory() -> TopicsStore:
    return TopicsStore()


@pytest.fixture
def store(memory: MemoryStore) -> FaultyStore:
    return FaultyStore(memory)


@pytest.fixture
def make(store: FaultyStore) -> Iterator[Callable[..., QueryTracker]]:
    made: list[QueryTracker] = []

    def follower(expected: frozenset[str] = frozenset(), **options: Any) -> QueryTracker:
        policy = CommitPolicy(**{**PROMPT, **options})
        found = QueryTracker(GroupCommitter(store, "g", allow_rewind=policy.allow_rewind), policy, expected)
        made.append(found)
        return found

    yield follower
    for found in made:
        found.close(5)


def committed(memory: MemoryStore) -> dict[TopicPartition, int]:
    return {tp: found.offset for tp, found in memory.data.get("g", {}).items()}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true within 120 s"
        time.sleep(0.002)


def test_finished_batches_are_committed_and_planned_ones_are_not(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower, query = make(), Query(tmp_path)
    query.finish(0, 10)
    query.plan(1, 20)

    follower.track(query)
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 10}

    query.finish(1, 20)
    assert follower.schedule_check("q")
    until(lambda: committed(memory) == {T0: 20})


def test_the_next_reconciliation_makes_up_for_a_lost_event(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower, query = make(reconcile_s=0.02), Query(tmp_path)
    follower.track(query)
    query.finish(0, 10)

    until(lambda: committed(memory) == {T0: 10})


def test_a_reconciliation_repairs_foreign_changes_to_the_group(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower, query = make(), Query(tmp_path)
    query.finish(0, 10)
    follower.track(query)
    assert follower.reconcile(60)
    memory.commit("g", {T0: OffsetAndMetadata(3)}, allow_rewind=True)

    assert follower.reconcile(60)
    assert committed(memory) == {T0: 10}


def test_two_queries_on_one_topic_commit_the_smaller_offset(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower = make()
    fast, slow = Query(tmp_path / "fast", "fast"), Query(tmp_path / "slow", "slow")
    fast.finish(0, 90)
    slow.finish(0, 10)
    follower.track(slow)
    follower.track(fast)
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 10}

    follower.schedule_check("slow", ended="1")
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 10}

    follower.forget("slow")
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 90}


@pytest.mark.parametrize("same", ["name", "checkpoint", "id"])
def test_an_ended_query_is_replaced_by_its_successor(same: str, tmp_path: Path, memory: MemoryStore, make) -> None:
    follower = make()
    old = Query(tmp_path / "old", "old", name="job")
    old.finish(0, 10)
    follower.track(old)
    assert follower.reconcile(60)
    follower.schedule_check("old", ended="1")

    new = Query(
        tmp_path / ("old" if same == "checkpoint" else "new"),
        "old" if same == "id" else "new",
        name="job" if same == "name" else None,
    )
    new.finish(0 if same != "checkpoint" else 1, 50)
    follower.track(new)

    assert follower.reconcile(60)
    assert committed(memory) == {T0: 50}


def test_an_ended_query_without_a_checkpoint_blocks_no_topic(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower = make()
    old, new = Query(tmp_path / "old", "old"), Query(tmp_path / "new", "new")
    old.finish(0, 10)
    follower.track(old)
    assert follower.reconcile(60)
    follower.schedule_check("old", ended="1")
    shutil.rmtree(old.directory)

    new.finish(0, 50)
    follower.track(new)

    assert follower.reconcile(60)
    assert committed(memory) == {T0: 50}


def test_a_query_is_read_once_it_is_planned_and_reconciliation_is_incomplete_until_then(
    tmp_path: Path, memory: MemoryStore, make
) -> None:
    follower, query = make(), Query(tmp_path)
    query.finish(0, 10)
    planned, query.planned = query.planned, None
    follower.track(query)
    assert not follower.reconcile(0.3)
    assert committed(memory) == {}

    query.planned = planned
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 10}


def test_a_query_without_a_finished_batch_blocks_only_its_own_topics(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower = make()
    fast, slow, other = Query(tmp_path / "f", "f"), Query(tmp_path / "s", "s"), Query(tmp_path / "o", "o")
    fast.finish(0, 90)
    slow.plan(0, 20)
    other.planned = (Source("KafkaV2[Subscribe[u]]", "k"),)
    other.finish(0, 5, "u")
    for query in (slow, fast, other):  # the blocking query first, so that the thread cannot commit in between
        follower.track(query)

    assert follower.reconcile(60)
    assert committed(memory) == {U0: 5}

    slow.finish(0, 20)
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 20, U0: 5}


@pytest.mark.parametrize("how", ["not planned", "unreadable"])
def test_no_offset_is_committed_ahead_of_a_query_with_unknown_progress(
    how: str, tmp_path: Path, memory: MemoryStore, make
) -> None:
    follower, fast, slow = make(), Query(tmp_path / "f", "f"), Query(tmp_path / "s", "s")
    fast.finish(0, 90)
    slow.finish(0, 20)
    good = (tmp_path / "s" / "offsets" / "0").read_text()
    planned = slow.planned
    if how == "not planned":
        slow.planned = None
    else:
        (tmp_path / "s" / "offsets" / "0").write_text("v7\n{}\n{}")
    follower.track(slow)
    follower.track(fast)
    assert not follower.reconcile(0.3)
    assert committed(memory) == {}

    slow.planned = planned
    (tmp_path / "s" / "offsets" / "0").write_text(good)
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 20}


def test_a_query_that_failed_before_it_was_planned_blocks_the_topics_of_its_checkpoint(
    tmp_path: Path, memory: MemoryStore, make
) -> None:
    follower, fast, slow = make(), Query(tmp_path / "f", "f"), Query(tmp_path / "s", "s")
    fast.finish(0, 90)
    slow.finish(0, 20)
    slow.planned = None
    follower.track(slow)
    follower.schedule_check("s", ended="1")
    follower.track(fast)
    assert follower.reconcile(60)
    assert committed(memory) == {}

    follower.forget("s")
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 90}


def test_with_expected_queries_nothing_is_committed_before_all_of_them_have_started(
    tmp_path: Path, memory: MemoryStore, make
) -> None:
    # Given a restarted driver: the group is at the offset of the slower of two queries, and the faster one starts first
    memory.commit("g", {T0: OffsetAndMetadata(10)})
    follower = make(expected=frozenset({"fast", "slow"}))
    fast, slow = Query(tmp_path / "f", "f", name="fast"), Query(tmp_path / "s", "s", name="slow")
    fast.finish(0, 90)
    slow.finish(0, 20)
    follower.track(fast)
    assert not follower.reconcile(60)
    assert committed(memory) == {T0: 10}

    follower.track(slow)
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 20}


def test_a_late_report_of_the_end_of_an_earlier_run_does_not_end_the_query(
    tmp_path: Path, store: FaultyStore, make
) -> None:
    follower = make(stop_on_failure=True)
    follower.track(Query(tmp_path, run="1"))
    again = Query(tmp_path, run="2")
    follower.track(again)
    follower.schedule_check("q", ended="1")
    again.finish(0, 10)
    store.fail("write", GroupActive("group g", "injected failure"))

    assert not follower.reconcile(60)
    assert again.stopped.wait(60)


def test_a_cluster_that_no_source_reads_from_is_reported_and_does_not_count_as_committed(
    tmp_path: Path, memory: MemoryStore, make
) -> None:
    follower = make(cluster="localhost:9092")
    query = Query(tmp_path, cluster="127.0.0.1:9092")
    query.finish(0, 10)
    follower.track(query)

    assert not follower.reconcile(60)
    assert str(follower.state.failing) == (
        "nothing is committed: no source reads from the configured cluster; the sources read from 127.0.0.1:9092"
    )
    assert committed(memory) == {}


def test_the_failure_of_one_query_is_not_cleared_by_another_querys_event(
    tmp_path: Path, memory: MemoryStore, make, caplog: pytest.LogCaptureFixture
) -> None:
    follower, broken, well = make(), Query(tmp_path / "b", "b"), Query(tmp_path / "w", "w")
    well.planned = (Source("KafkaV2[Subscribe[u]]", "k"),)
    broken.finish(0, 10)
    (tmp_path / "b" / "offsets" / "0").write_text("v7\n{}\n{}")
    follower.track(broken)
    follower.track(well)
    assert not follower.reconcile(60)
    for number in range(3):
        well.finish(number, 20 + number, "u")
        follower.schedule_check("w")
        until(lambda number=number: committed(memory) == {U0: 20 + number})  # type: ignore[misc]

    assert not follower.reconcile(60)
    assert "its version is v7" in str(follower.state.failing)
    assert [r.message for r in caplog.records if "committed again" in r.message] == []


def test_a_reconciliation_waits_for_retries(tmp_path: Path, memory: MemoryStore, store: FaultyStore, make) -> None:
    follower, query = make(), Query(tmp_path)
    follower.track(query)
    assert follower.reconcile(60)
    query.finish(0, 10)
    store.fail("write", Unreachable("store s", "injected failure"), times=2)

    assert follower.reconcile(60)
    assert committed(memory) == {T0: 10}


def test_a_failed_commit_is_retried_and_the_newest_wins(
    tmp_path: Path, memory: MemoryStore, store: FaultyStore, make, caplog: pytest.LogCaptureFixture
) -> None:
    follower, query = make(), Query(tmp_path)
    store.fail("write", times=2)
    query.finish(0, 10)
    follower.track(query)

    until(lambda: committed(memory) == {T0: 10})
    assert follower.state.failures == 2
    assert follower.state.failing is None
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_failure_after_all_retries_is_reported_once_and_repaired_when_it_ends(
    tmp_path: Path, memory: MemoryStore, store: FaultyStore, make, caplog: pytest.LogCaptureFixture
) -> None:
    follower, query = make(), Query(tmp_path)
    store.fail("write", Unreachable("store s", "injected failure"))
    query.finish(0, 10)
    follower.track(query)
    until(lambda: follower.state.failures >= 6)

    assert str(follower.state.failing) == "store s: injected failure"
    logged = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert logged == ["cannot commit offsets of group g: store s: injected failure"]
    assert not query.stopped.is_set()

    store.heal()
    until(lambda: committed(memory) == {T0: 10} and follower.state.failing is None)


@pytest.mark.parametrize(
    "error", [GroupActive("group g", "it has active members"), Unreachable("store s", "injected failure")]
)
def test_a_query_is_stopped_only_if_that_option_is_set(
    error: OffsetMgrError, tmp_path: Path, store: FaultyStore, make
) -> None:
    follower, query = make(stop_on_failure=True), Query(tmp_path)
    store.fail("write", error)
    query.finish(0, 10)
    follower.track(query)

    assert query.stopped.wait(60)
    assert follower.state.failing is error


def committed_130(make, tmp_path: Path):
    """A committer, and a query whose offset 130 it has committed."""
    follower, query = make(), Query(tmp_path)
    query.finish(0, 130)
    follower.track(query)
    assert follower.reconcile(60)
    return follower, query


def test_the_group_is_not_rewound_unless_that_is_allowed(tmp_path: Path, memory: MemoryStore, make) -> None:
    memory.commit("g", {T0: OffsetAndMetadata(40)})
    query = Query(tmp_path)
    query.finish(0, 10)

    careful = make()
    careful.track(query)
    assert not careful.reconcile(60)
    assert memory.data["g"][T0].offset == 40
    assert careful.state.rejected_rewinds == (T0,)

    allowed = make(allow_rewind=True)
    allowed.track(query)
    assert allowed.reconcile(60)
    assert memory.data["g"][T0].offset == 10


def test_an_offset_that_appears_together_with_a_recreated_topic_may_belong_to_either_log(
    tmp_path: Path, memory: TopicsStore, make
) -> None:
    follower, query = committed_130(make, tmp_path)

    memory.recreate()
    query.finish(1, 140)
    assert not follower.reconcile(60)
    assert committed(memory) == {}

    query.finish(2, 150)
    assert follower.reconcile(60)
    assert committed(memory) == {T0: 150}


def test_a_recreated_topic_permits_no_rewind_of_an_offset_of_another_client(
    tmp_path: Path, memory: TopicsStore, make
) -> None:
    follower, query = committed_130(make, tmp_path)
    memory.recreate()
    assert not follower.reconcile(60)

    memory.commit("g", {T0: OffsetAndMetadata(50)})
    query.finish(1, 20)
    assert not follower.reconcile(60)
    assert committed(memory) == {T0: 50}
    assert follower.state.rejected_rewinds == (T0,)


def test_a_commit_with_the_same_offset_keeps_its_metadata(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower, query = make(), Query(tmp_path)
    memory.commit("g", {T0: OffsetAndMetadata(10, "of a client")})
    query.finish(0, 10)
    follower.track(query)

    assert follower.reconcile(60)
    assert memory.data["g"][T0] == Committed(10, "of a client", version=0)


def test_a_failure_with_other_numbers_is_logged_once(
    tmp_path: Path, memory: MemoryStore, make, caplog: pytest.LogCaptureFixture
) -> None:
    memory.commit("g", {T0: OffsetAndMetadata(100)})
    follower, query = make(), Query(tmp_path)
    follower.track(query)
    for number in range(3):
        query.finish(number, 10 + number)
        assert not follower.reconcile(60)
        assert f"from 100 to {10 + number}" in str(follower.state.failing)

    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_nothing_counts_as_committed_before_an_expected_query_or_after_one_that_cannot_be_tracked(make) -> None:
    assert not make(expected=frozenset({"job"})).reconcile(60)

    follower = make()
    assert follower.reconcile(60)
    follower.cannot_track("q", UsageError("query q is not tracked", "Spark Connect does not give access to its plan"))
    assert not follower.reconcile(60)
    follower.forget("q")
    assert follower.reconcile(60)


def test_one_partition_that_fails_does_not_block_the_others(
    tmp_path: Path, memory: MemoryStore, store: FaultyStore, make
) -> None:
    follower = make()
    first, second = Query(tmp_path / "1", "1"), Query(tmp_path / "2", "2")
    first.finish(0, 10)
    second.finish(0, 20, "u")
    store.fail("write", GroupActive("group g", "injected failure"), partition=T0)
    follower.track(first)
    follower.track(second)

    assert not follower.reconcile(60)
    assert committed(memory) == {U0: 20}


def test_an_unreadable_checkpoint_is_reported_and_commits_nothing(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower, query = make(), Query(tmp_path)
    query.finish(0, 10)
    (tmp_path / "offsets" / "0").write_text("v7\n{}\n{}")
    follower.track(query)

    assert not follower.reconcile(60)
    failing = str(follower.state.failing)
    assert failing == f"checkpoint {tmp_path}/offsets/0: its version is v7; offsetmgr supports v1 and v2"
    assert committed(memory) == {}


def test_a_topic_of_two_clusters_is_reported_by_name(tmp_path: Path, memory: MemoryStore, make) -> None:
    follower = make()
    east, west = Query(tmp_path / "e", "e", cluster="east:1"), Query(tmp_path / "w", "w", cluster="west:1")
    follower.track(east)
    follower.track(west)
    # The order in which the queries finish does not matter: the plan of each shows that it reads the topic.
    east.finish(0, 10)
    west.finish(0, 20)

    assert not follower.reconcile(60)
    assert str(follower.state.failing) == "topic t is not committed: it is read from east:1 and from west:1"
    assert committed(memory) == {}


def test_closing_commits_finished_batches_and_rejects_further_queries(
    tmp_path: Path, memory: MemoryStore, make
) -> None:
    follower, query = make(), Query(tmp_path)
    follower.track(query)
    query.finish(0, 10)

    assert follower.close(10)
    assert memory.data["g"] == {T0: Committed(10, version=0)}
    with pytest.raises(UsageError, match="the committer is closed"):
        follower.track(query)
