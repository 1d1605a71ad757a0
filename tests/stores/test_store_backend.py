"""Stores behind the listener, with stores in memory: clients' results while the store answers and while it fails."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NoReturn

import pytest
from async_tests import async_test
from confluent_kafka import KafkaError
from store_backend_setup import A, B, SlowStore, commit, dual, fetch, offsets_in, running, until

from offsetmgr.core.errors import CoordinatorNotAvailable, NotAuthorized, OffsetMetadataTooLarge, Unreachable
from offsetmgr.core.model import Committed, OffsetAndMetadata
from offsetmgr.core.offset_store import Capabilities, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchResponse
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore

NOT_ATTEMPTED = CommitResponse(0, {("t", 0): KafkaError.OPERATION_NOT_ATTEMPTED})
UNAVAILABLE = CommitResponse(0, {("t", 0): KafkaError.COORDINATOR_NOT_AVAILABLE})
NO_OFFSETS = FetchResponse(KafkaError.COORDINATOR_NOT_AVAILABLE, ())

# --- availability of the store --------------------------------------------------------------------


@async_test
async def test_a_failing_store_is_reported_until_it_answers_again_even_without_requests() -> None:
    store = FaultyStore(MemoryStore())
    store.fail("read", Unreachable("store", "connection refused"))
    async with running(store, probe_interval_s=0.02) as backend:
        await until(backend.failure, "the failure")
        assert "connection refused" in (backend.failure() or "")
        assert backend.metrics()["store_failing"] == 1
        store.heal()
        await until(lambda: backend.failure() is None, "the end of the failure")
        assert backend.metrics()["store_failing"] == 0


@async_test
async def test_errors_of_one_group_do_not_count_as_a_failure_of_the_store() -> None:
    store = FaultyStore(MemoryStore())
    async with running(store, probe_interval_s=60) as backend:
        store.fail("read", NotAuthorized("group g", "not for you"))
        assert (await backend.fetch(fetch("g", 0))).error
        assert backend.failure() is None
        store.heal()
        store.fail("read", CoordinatorNotAvailable("group g", "its broker is away"), group="g")
        assert (await backend.fetch(fetch("h", 0))).error == 0
        await backend.fetch(fetch("g", 0))
        assert backend.failure() is None


@pytest.mark.parametrize("half", [0, 1])
@async_test
async def test_a_failure_of_either_half_of_a_dual_store_is_reported(half: int) -> None:
    *halves, store = dual()
    halves[half].fail("read", Unreachable("half", "connection refused"))
    async with running(store, probe_interval_s=0.02) as backend:
        await until(backend.failure, "the failure")
        halves[half].heal()
        await until(lambda: backend.failure() is None, "the end of the failure")


# --- one store ------------------------------------------------------------------------------------


@async_test
async def test_committed_offsets_are_fetched_and_others_are_absent() -> None:
    async with running(MemoryStore()) as backend:
        assert await backend.commit(commit("g", 5, A, metadata="m")) == CommitResponse()
        assert await backend.fetch(fetch("g", 0, 1)) == FetchResponse(
            0, [("t", [(0, 5, -1, "m", 0), (1, -1, -1, "", 0)])]
        )
        assert await backend.fetch(fetch("g")) == FetchResponse(0, [("t", [(0, 5, -1, "m", 0)])])
        assert await backend.fetch(fetch("unknown")) == FetchResponse(0, [])
        await backend.commit(commit("g", 3))  # the last commit wins, even if it is lower
        assert await backend.fetch(fetch("g")) == FetchResponse(0, [("t", [(0, 3, -1, "", 0)])])


@pytest.mark.parametrize("two", [False, True])
@async_test
async def test_only_negative_partitions_and_offsets_are_rejected_and_they_never_reach_the_store(two: bool) -> None:
    one = MemoryStore()
    *_, both = dual()
    async with running(both if two else one) as backend:
        rows = [(0, 5, -1, ""), (-1, 2, -1, ""), (1, -1, -1, ""), (2, -5, -1, "")]
        assert await backend.commit(CommitRequest("g", [("t", rows)])) == CommitResponse(
            errors={("t", -1): 3, ("t", 1): 42, ("t", 2): 42}
        )
        assert await backend.fetch(fetch("g")) == FetchResponse(0, [("t", [(0, 5, -1, "", 0)])])
        assert await backend.commit(commit("g", -1)) == CommitResponse(errors={("t", 0): 42})
        assert backend.metrics()["store_commits_total"] == 1
        assert "store_errors_total" not in str(backend.metrics())


@async_test
async def test_commits_that_arrive_during_an_edit_share_the_next_one() -> None:
    store = SlowStore()
    async with running(store) as backend:
        first = asyncio.ensure_future(backend.commit(commit("g0", 1)))
        await until(lambda: store.streams, "the first stream")
        more = [asyncio.ensure_future(backend.commit(commit(f"g{n % 3}", n))) for n in range(10, 40)]
        await asyncio.sleep(0.05)
        store.go.set()
        assert await asyncio.gather(first, *more) == [CommitResponse()] * 31
    assert [len(stream) for stream in store.streams] == [1, 3]
    assert {g: found[A].offset for g, found in store.data.items()} == {"g0": 39, "g1": 37, "g2": 38}


@async_test
async def test_a_commit_with_metadata_is_not_merged_with_an_earlier_one() -> None:
    """The store may reject it for the metadata's length, which must not affect the earlier commit."""
    store = SlowStore()
    async with running(store) as backend:
        first = asyncio.ensure_future(backend.commit(commit("g", 1)))
        await until(lambda: store.streams, "the first stream")
        plain = asyncio.ensure_future(backend.commit(commit("g", 2)))
        described = asyncio.ensure_future(backend.commit(commit("g", 3, metadata="m")))
        plain_again = asyncio.ensure_future(backend.commit(commit("g", 4)))
        await asyncio.sleep(0.05)
        store.go.set()
        await asyncio.gather(first, plain, described, plain_again)
    written = [stream[0].changes[A].after for stream in store.streams]
    assert written == [OffsetAndMetadata(1), OffsetAndMetadata(2), OffsetAndMetadata(4)]


@async_test
async def test_an_error_of_one_partition_does_not_affect_the_others() -> None:
    faulty = FaultyStore(MemoryStore()).fail("write", OffsetMetadataTooLarge("t-1"), group="g", partition=B)
    async with running(faulty) as backend:
        refused = {("t", 1): KafkaError.OFFSET_METADATA_TOO_LARGE}
        assert await backend.commit(commit("g", 5, A, B)) == CommitResponse(0, refused)
        assert offsets_in(faulty) == {A: 5}
        faulty.heal()
        await backend.commit(commit("g", 5, A, B))
        faulty.fail("read", NotAuthorized("t-1"), group="g", partition=B)
        rows = [(0, 5, -1, "", 0), (1, -1, -1, "", KafkaError.GROUP_AUTHORIZATION_FAILED)]
        assert await backend.fetch(fetch("g", 0, 1)) == FetchResponse(0, [("t", rows)])


@async_test
async def test_an_unreachable_store_is_a_retriable_error_and_never_an_empty_answer() -> None:
    faulty = FaultyStore(MemoryStore())
    async with running(faulty) as backend:
        await backend.commit(commit("g", 5))
        faulty.fail("read").fail("write")
        assert await backend.commit(commit("g", 6)) == UNAVAILABLE
        assert await backend.fetch(fetch("g", 0)) == NO_OFFSETS
        assert await backend.fetch(fetch("g")) == NO_OFFSETS
        assert await backend.list_groups() == (KafkaError.COORDINATOR_NOT_AVAILABLE, ())
        assert backend.metrics()['store_errors_total{error="Unreachable"}'] == 4


@pytest.mark.slow
@async_test
async def test_a_commit_times_out_and_is_not_written_if_it_has_not_started() -> None:
    store = SlowStore()
    async with running(store, commit_timeout_s=1.0) as backend:
        begun = asyncio.ensure_future(backend.commit(commit("g", 1)))
        await until(lambda: store.streams, "the first stream")
        waiting = asyncio.ensure_future(backend.commit(commit("g", 2)))
        assert [await begun, await waiting] == [CommitResponse(KafkaError.COORDINATOR_NOT_AVAILABLE)] * 2
        ended = asyncio.ensure_future(backend.wait_for_commits("g"))
        await asyncio.sleep(0.02)
        assert not ended.done()
        store.go.set()
        await ended
    assert store.data["g"][A].offset == 1
    assert len(store.streams) == 1


@async_test
async def test_deletions_of_offsets_and_groups() -> None:
    store = MemoryStore()
    async with running(store) as backend:
        await backend.commit(commit("g", 5, A, B))
        assert (await backend.delete_offsets("g", [("t", [0])])).errors == {}
        assert set(store.data["g"]) == {B}
        assert await backend.delete_group("g") == 0
        assert await backend.delete_group("g") == KafkaError.GROUP_ID_NOT_FOUND
        store.data["busy"] = {A: Committed(1)}
        store.active["busy"] = ("a member",)
        assert await backend.delete_group("busy") == KafkaError.NON_EMPTY_GROUP
        assert (await backend.delete_offsets("busy", [("t", [0])])).error == KafkaError.NON_EMPTY_GROUP
        assert (await backend.commit(commit("busy", 2))).errors == {("t", 0): KafkaError.UNKNOWN_MEMBER_ID}


@async_test
async def test_the_store_checks_the_condition_of_a_commit() -> None:
    store = MemoryStore()
    async with running(store) as backend:
        assert backend.features()["offsetmgr.conditional"] == 1
        assert await backend.commit(commit("g", 5, expected={("t", 0): -1})) == CommitResponse()
        assert await backend.commit(commit("g", 6, expected={("t", 0): -1})) == NOT_ATTEMPTED
        assert await backend.commit(commit("g", 7, expected={("t", 0): 5})) == CommitResponse()
        assert await backend.commit(commit("g", -1, expected={("t", 0): 5})) == NOT_ATTEMPTED
        assert store.data["g"][A].offset == 7
        assert await backend.commit(commit("g", -1, expected={("t", 0): 7})) == CommitResponse()
        assert store.data["g"] == {}
    async with running(MemoryStore(conditional="group-lock")) as backend:
        assert "offsetmgr.conditional" not in backend.features()
        refused = await backend.commit(commit("g", 5, expected={("t", 0): -1}))
        assert refused == CommitResponse(KafkaError.INVALID_REQUEST)


class OffsetsOnly(MemoryStore):
    """Keeps neither metadata nor leader epochs, as ZooKeeper."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, metadata=False, leader_epoch=False)

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        yield from super().edit(edits)
        self.data = {g: {tp: Committed(one.offset) for tp, one in kept.items()} for g, kept in self.data.items()}


@async_test
async def test_fields_that_a_store_cannot_keep_are_reported_once_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    async with running(OffsetsOnly()) as backend:
        await backend.commit(commit("g", 5, metadata="dropped"))
        await backend.commit(commit("g", 6, metadata="dropped"))
        assert (await backend.fetch(fetch("g", 0))).topics == [("t", [(0, 6, -1, "", 0)])]
        assert backend.features()["offsetmgr.drops-metadata"] == 1
    (record,) = caplog.records
    assert record.dropped == "metadata and leader epochs"  # type: ignore[attr-defined]


class StuckStore(MemoryStore):
    """Simulates groups of a broker that does not answer: a call for a group in ``stuck`` fails once ``go`` is set."""

    parallel_calls = 8

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()
        self.go = threading.Event()

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        for one in list(edits):
            if one.group in self.stuck:
                self.go.wait(120)
                failed = ChangeOutcome(EditStatus.FAILED, None, CoordinatorNotAvailable(one.group))
                yield GroupEditResult(one.group, dict.fromkeys(one.changes, failed))
            else:
                yield from super().edit([one])


@async_test
async def test_failing_groups_do_not_delay_the_others() -> None:
    store = StuckStore()
    failing = [f"failing-{n}" for n in range(20)]
    async with running(store, commit_timeout_s=60.0) as backend:
        store.stuck = set(failing)
        store.go.set()  # for now the calls fail immediately, so the backend learns which groups fail
        for group in failing:
            assert await backend.commit(commit(group, 1)) == UNAVAILABLE
        store.go.clear()
        stuck = [asyncio.ensure_future(backend.commit(commit(group, 2))) for group in failing]
        for n in range(100):
            assert await backend.commit(commit(f"healthy-{n}", n)) == CommitResponse()
        store.stuck.clear()
        store.go.set()
        await asyncio.gather(*stuck)
        assert {(await backend.commit(commit(group, 3))).error for group in failing} == {0}
    assert {store.data[group][A].offset for group in failing} == {3}


@async_test
async def test_commits_of_a_group_keep_their_order_when_it_fails_and_recovers() -> None:
    store = StuckStore()
    async with running(store) as backend:
        store.stuck = {"g"}
        store.go.set()
        results = [asyncio.ensure_future(backend.commit(commit("g", n, metadata="m"))) for n in range(1, 30)]
        await results[3]
        store.stuck.clear()
        results += [asyncio.ensure_future(backend.commit(commit("g", n, metadata="m"))) for n in range(30, 60)]
        await asyncio.gather(*results)
    assert store.data["g"][A].offset == 59


@async_test
async def test_an_unexpected_exception_of_a_store_is_only_an_error_for_its_clients(caplog):
    class Broken(MemoryStore):
        def edit(self, edits: Iterable[GroupEdit]) -> NoReturn:
            raise KeyError("a defect")

        def scan(self, groups: Iterable[str]) -> NoReturn:
            raise RuntimeError("a defect")

    async with running(Broken()) as backend:
        assert await backend.commit(commit("g", 5)) == CommitResponse(0, {("t", 0): KafkaError.UNKNOWN})
        assert await backend.fetch(fetch("g")) == FetchResponse(-1, ())
        await backend.wait_for_commits("g")
    assert "an edit raised an unexpected exception" in caplog.text


@async_test
async def test_with_too_many_pending_commits_the_backend_signals_backpressure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsetmgr.server.store_backends.store_backend._MAX_PENDING", 10)
    store = SlowStore()
    async with running(store) as backend:
        assert backend.backpressure() is None
        commits = [asyncio.ensure_future(backend.commit(commit(f"g{n}", n))) for n in range(10)]
        relieved = backend.backpressure()
        assert relieved is not None and not relieved.done()
        store.go.set()
        await relieved
        await asyncio.gather(*commits)
        assert backend.backpressure() is None
