"""`OffsetCommitter` without Spark: the tests write the checkpoints of the queries and report their events."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from processes import wait_for
from streaming_queries import Driver, Query, source

from offsetmgr.core.errors import GroupActive, OffsetMgrError, Unreachable
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
DAMAGED = "v7\n{}\n{}"
until = partial(wait_for, description="the condition is true", seconds=120)


class TopicsStore(MemoryStore):
    """A store that knows the id of topic t. `recreate` recreates the topic and deletes its offsets, as brokers do."""

    ids: ClassVar[Mapping[str, str]] = {"t": "1"}

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic in topics or self.ids if topic in self.ids}

    def recreate(self) -> None:
        self.ids = {"t": self.ids["t"] + "+"}  # type: ignore[misc]
        self.data.clear()

    def committed(self) -> dict[TopicPartition, int]:
        return {tp: found.offset for tp, found in self.data.get("g", {}).items()}


@pytest.fixture
def memory() -> TopicsStore:
    return TopicsStore()


@pytest.fixture
def store(memory: MemoryStore) -> FaultyStore:
    return FaultyStore(memory)


@pytest.fixture
def make(store: FaultyStore) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def driver(*queries: Query, **options: Any) -> Driver:
        made.append(Driver(store, **options))
        made[-1].start(*queries)
        return made[-1]

    yield driver
    for one in made:
        one.committer.close(5)


def query_at(directory: Path, offset: int, topic: str = "t", **options: Any) -> Query:
    """A query that has finished one batch. Its id is the name of its directory."""
    found = Query(directory, directory.name, source(f"KafkaV2[Subscribe[{topic}]]", **options))
    found.finish(0, offset, topic)
    return found


def test_finished_batches_are_committed_and_planned_ones_are_not(tmp_path: Path, memory: TopicsStore, make) -> None:
    query = query_at(tmp_path, 10)
    query.plan(1, 20)
    driver = make(query)
    assert driver.reconcile()
    assert memory.committed() == {T0: 10}

    driver.finish(query, 1, 20)
    until(lambda: memory.committed() == {T0: 20})


def test_the_next_reconciliation_makes_up_for_a_lost_event(tmp_path: Path, memory: TopicsStore, make) -> None:
    query = Query(tmp_path)
    make(query, reconcile_s=0.02)
    query.finish(0, 10)

    until(lambda: memory.committed() == {T0: 10})


def test_a_query_that_started_before_the_committer_is_tracked_at_its_next_event(tmp_path, memory, make) -> None:
    driver, busy, idle = make(), query_at(tmp_path / "busy", 10), query_at(tmp_path / "idle", 5, "u")
    driver.running |= {"busy": busy, "idle": idle}
    driver.finish(busy, 1, 20)
    driver.committer.onQueryIdle(idle)

    assert driver.reconcile()
    assert memory.committed() == {T0: 20, U0: 5}


def test_a_reconciliation_repairs_foreign_changes_to_the_group(tmp_path: Path, memory: TopicsStore, make) -> None:
    driver = make(query_at(tmp_path, 10))
    assert driver.reconcile()
    memory.commit("g", {T0: OffsetAndMetadata(3)}, allow_rewind=True)

    assert driver.reconcile()
    assert memory.committed() == {T0: 10}


def test_two_queries_on_one_topic_commit_the_smaller_offset(tmp_path: Path, memory: TopicsStore, make) -> None:
    fast, slow = query_at(tmp_path / "fast", 90), query_at(tmp_path / "slow", 10)
    driver = make(slow, fast)
    assert driver.reconcile()
    assert memory.committed() == {T0: 10}

    driver.end(slow)
    assert driver.reconcile()
    assert memory.committed() == {T0: 10}

    driver.committer.forget("slow")
    assert driver.reconcile()
    assert memory.committed() == {T0: 90}


@pytest.mark.parametrize("same", ["name", "checkpoint", "id"])
def test_an_ended_query_is_replaced_by_its_successor(same: str, tmp_path: Path, memory: TopicsStore, make) -> None:
    old = query_at(tmp_path / "old", 10)
    old.name = "job"
    driver = make(old)
    assert driver.reconcile()
    driver.end(old)

    directory, id = tmp_path / ("old" if same == "checkpoint" else "new"), "old" if same == "id" else "new"
    new = Query(directory, id, name="job" if same == "name" else None)
    new.finish(0 if same != "checkpoint" else 1, 50)
    driver.start(new)

    assert driver.reconcile()
    assert memory.committed() == {T0: 50}


def test_an_ended_query_without_a_checkpoint_blocks_no_topic(tmp_path: Path, memory: TopicsStore, make) -> None:
    old, new = query_at(tmp_path / "old", 10), query_at(tmp_path / "new", 50)
    driver = make(old)
    assert driver.reconcile()
    driver.end(old)
    shutil.rmtree(old.directory)
    driver.start(new)

    assert driver.reconcile()
    assert memory.committed() == {T0: 50}


@pytest.mark.parametrize("how", ["not planned", "not planned, and it is the only query", "unreadable"])
def test_no_offset_is_committed_ahead_of_a_query_with_unknown_progress(how: str, tmp_path, memory, make) -> None:
    fast, slow = query_at(tmp_path / "f", 90), query_at(tmp_path / "s", 20)
    good = (tmp_path / "s" / "offsets" / "0").read_text()
    slow.planned = how == "unreadable"
    if slow.planned:
        (tmp_path / "s" / "offsets" / "0").write_text(DAMAGED)
    driver = make(slow) if "only" in how else make(slow, fast)
    assert not driver.reconcile(0.3)
    assert memory.committed() == {}

    slow.planned = True
    (tmp_path / "s" / "offsets" / "0").write_text(good)
    assert driver.reconcile()
    assert memory.committed() == {T0: 20}


def test_a_query_without_a_finished_batch_blocks_only_its_own_topics(tmp_path: Path, memory: TopicsStore, make) -> None:
    fast, slow, other = query_at(tmp_path / "f", 90), Query(tmp_path / "s", "s"), query_at(tmp_path / "o", 5, "u")
    slow.plan(0, 20)
    driver = make(slow, fast, other)  # the blocking query first, so that the thread cannot commit in between
    assert driver.reconcile()
    assert memory.committed() == {U0: 5}

    slow.finish(0, 20)
    assert driver.reconcile()
    assert memory.committed() == {T0: 20, U0: 5}


def test_a_query_that_failed_before_it_was_planned_blocks_the_topics_of_its_checkpoint(tmp_path, memory, make) -> None:
    fast, slow, other = query_at(tmp_path / "f", 90), query_at(tmp_path / "s", 20), query_at(tmp_path / "o", 5, "u")
    slow.planned = False
    driver = make(slow, cluster="k")
    driver.end(slow)
    driver.start(fast, other)
    assert driver.reconcile()
    assert memory.committed() == {U0: 5}

    driver.committer.forget("s")
    assert driver.reconcile()
    assert memory.committed() == {T0: 90, U0: 5}


def test_with_expected_queries_nothing_is_committed_before_all_of_them_have_started(tmp_path, memory, make) -> None:
    # Given a restarted driver: the group is at the offset of the slower of two queries, and the faster one starts first
    memory.commit("g", {T0: OffsetAndMetadata(10)})
    fast, slow, other = (query_at(tmp_path / name, at) for name, at in (("fast", 90), ("slow", 20), ("other", 1)))
    fast.name, slow.name = "fast", "slow"
    driver = make(queries=["fast", "slow"])
    assert not driver.reconcile()
    driver.start(fast, other)
    assert not driver.reconcile()
    assert memory.committed() == {T0: 10}

    driver.start(slow)
    assert driver.reconcile()
    assert memory.committed() == {T0: 20}


def test_nothing_counts_as_committed_after_a_query_that_cannot_be_tracked(make) -> None:
    driver = make()
    assert driver.reconcile()
    driver.start(SimpleNamespace(id="q"))  # a query of Spark Connect has no Java object
    assert not driver.reconcile()
    driver.committer.forget("q")
    assert driver.reconcile()


def test_a_late_report_of_the_end_of_an_earlier_run_does_not_end_the_query(tmp_path, store: FaultyStore, make) -> None:
    first, again = Query(tmp_path, run="1"), Query(tmp_path, run="2")
    driver = make(first, again, stop_on_failure=True)
    driver.end(first)
    again.finish(0, 10)
    store.fail("write", GroupActive("group g", "injected failure"))

    assert not driver.reconcile()
    assert again.stopped.wait(60)


def test_the_failure_of_one_query_is_not_cleared_by_another_querys_event(tmp_path, memory, make, caplog) -> None:
    broken, well = query_at(tmp_path / "b", 10), query_at(tmp_path / "w", 1, "u")
    (tmp_path / "b" / "offsets" / "0").write_text(DAMAGED)
    driver = make(broken, well)
    assert not driver.reconcile()
    for number in range(3):
        driver.finish(well, number, 20 + number, "u")
        until(lambda number=number: memory.committed() == {U0: 20 + number})  # type: ignore[misc]

    assert not driver.reconcile()
    assert driver.failing == f"checkpoint {tmp_path}/b/offsets/0: its version is v7; offsetmgr supports v1 and v2"
    assert [r.message for r in caplog.records if "committed again" in r.message] == []


def test_a_failed_commit_is_retried_and_the_newest_wins(tmp_path, memory, store, make, caplog) -> None:
    query = query_at(tmp_path, 10)
    store.fail("write", times=2)
    driver = make(query)
    until(lambda: memory.committed() == {T0: 10})
    assert driver.committer.state.failures == 2

    query.finish(1, 20)
    store.fail("write", times=2)
    assert driver.reconcile(), "a reconciliation waits for retries"
    assert memory.committed() == {T0: 20}
    assert driver.committer.state.failing is None
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_failure_after_all_retries_is_reported_once_and_repaired_when_it_ends(tmp_path, memory, store, make, caplog):
    query = query_at(tmp_path, 10)
    store.fail("write", Unreachable("store s", "injected failure"))
    driver = make(query)
    until(lambda: driver.committer.state.failures >= 6)

    assert driver.failing == "store s: injected failure"
    logged = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert logged == ["cannot commit offsets of group g: store s: injected failure"]
    assert not query.stopped.is_set()

    store.heal()
    until(lambda: memory.committed() == {T0: 10} and driver.committer.state.failing is None)


@pytest.mark.parametrize(
    "error", [GroupActive("group g", "it has active members"), Unreachable("store s", "injected failure")]
)
def test_a_query_is_stopped_only_if_that_option_is_set(error: OffsetMgrError, tmp_path, store, make) -> None:
    store.fail("write", error)
    query = query_at(tmp_path, 10)
    driver = make(query, stop_on_failure=True)

    assert query.stopped.wait(60)
    assert driver.committer.state.failing is error


def test_one_partition_that_fails_does_not_block_the_others(tmp_path, memory, store, make) -> None:
    store.fail("write", GroupActive("group g", "injected failure"), partition=T0)
    driver = make(query_at(tmp_path / "1", 10), query_at(tmp_path / "2", 20, "u"))

    assert not driver.reconcile()
    assert memory.committed() == {U0: 20}


def test_the_group_is_not_rewound_unless_that_is_allowed(tmp_path, memory: TopicsStore, make, caplog) -> None:
    memory.commit("g", {T0: OffsetAndMetadata(40)})
    query = Query(tmp_path)
    careful = make(query)
    for number in range(3):
        query.finish(number, 10 + number)
        assert not careful.reconcile()
        assert f"from 40 to {10 + number}" in careful.failing
    assert memory.data["g"][T0].offset == 40
    assert careful.committer.state.rejected_rewinds == (T0,)
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "a failure with other numbers"

    assert make(query, allow_rewind=True).reconcile()
    assert memory.data["g"][T0].offset == 12


def test_an_offset_that_appears_together_with_a_recreated_topic_may_belong_to_either_log(tmp_path, memory, make):
    query = query_at(tmp_path, 130)
    driver = make(query)
    assert driver.reconcile()

    memory.recreate()
    query.finish(1, 140)
    assert not driver.reconcile()
    assert memory.committed() == {}

    query.finish(2, 150)
    assert driver.reconcile()
    assert memory.committed() == {T0: 150}


def test_a_recreated_topic_permits_no_rewind_of_an_offset_of_another_client(tmp_path, memory, make) -> None:
    query = query_at(tmp_path, 130)
    driver = make(query)
    assert driver.reconcile()
    memory.recreate()
    assert not driver.reconcile()

    memory.commit("g", {T0: OffsetAndMetadata(50)})
    query.finish(1, 20)
    assert not driver.reconcile()
    assert memory.committed() == {T0: 50}
    assert driver.committer.state.rejected_rewinds == (T0,)


def test_a_commit_with_the_same_offset_keeps_its_metadata(tmp_path: Path, memory: TopicsStore, make) -> None:
    memory.commit("g", {T0: OffsetAndMetadata(10, "of a client")})

    assert make(query_at(tmp_path, 10)).reconcile()
    assert memory.data["g"][T0] == Committed(10, "of a client", version=0)


def test_closing_commits_finished_batches_and_rejects_further_queries(tmp_path, memory, make, caplog) -> None:
    query = Query(tmp_path)
    driver = make(query)
    query.finish(0, 10)

    assert driver.committer.close(10)
    assert memory.data["g"] == {T0: Committed(10, version=0)}
    driver.start(query)
    assert "query q is not tracked: the committer is closed" in caplog.text
