"""Stores behind the listener, over stores in memory: what clients are told, and what two stores hold in the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stopwatch import Stopwatch

from offsetmgr.errors import CoordinatorNotAvailable, NotAuthorized, OffsetMetadataTooLarge, TimedOut, Unreachable
from offsetmgr.manager.requests import CommitRequest, CommitResponse, FetchRequest, FetchResponse
from offsetmgr.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.server.backend import Backend, ManagerNode
from offsetmgr.server.storebackend import StoreBackend
from offsetmgr.stores.base import Change, ChangeOutcome, GroupEdit, GroupEditResult, GroupOffsets, Verdict
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.testing.faulty import FaultyStore
from offsetmgr.testing.memory import MemoryStore

HERE = ManagerNode(1, "127.0.0.1", 9192)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class SlowStore(MemoryStore):
    """Waits in each stream of edits until it is let go, and remembers what each stream was."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.streams: list[list[GroupEdit]] = []

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        taken = list(edits)
        self.streams.append(taken)
        assert self.go.wait(60)
        return super().edit(taken)


@asynccontextmanager
async def running(store: Any, **options: Any) -> AsyncIterator[StoreBackend]:
    # A second store that is slow because the machine is busy is waited for, unless that is what is tested.
    backend = StoreBackend(store, HERE, **{"secondary_patience": 20.0, **options})
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close(grace=0.2)


def commit(group: str, offset: int, *partitions: TopicPartition, metadata: str = "", **more: Any) -> CommitRequest:
    rows = [(tp.partition, offset, -1, metadata) for tp in partitions or (A,)]
    return CommitRequest(group, [("t", rows)], **more)


def fetch(group: str, *partitions: int) -> FetchRequest:
    return FetchRequest(group, [("t", list(partitions))] if partitions else None)


async def until(condition: Any, what: str) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what} has not come")


def dual(first: Any = None, second: Any = None) -> tuple[FaultyStore, FaultyStore, DualStore]:
    primary, secondary = FaultyStore(first or MemoryStore("first")), FaultyStore(second or MemoryStore("second"))
    return primary, secondary, DualStore(primary, secondary)


def held(store: FaultyStore, group: str = "g") -> dict[TopicPartition, int]:
    assert isinstance(store.store, MemoryStore)
    return {tp: found.offset for tp, found in store.store.data.get(group, {}).items()}


def test_it_is_a_backend() -> None:
    backend: Backend = StoreBackend(MemoryStore(), HERE)

    assert (backend.nodes(), backend.coordinator("any"), backend.owns("any")) == ([HERE], HERE, 0)


# --- whether the store answers --------------------------------------------------------------------


def test_a_store_that_fails_is_told_of_until_it_answers_again_even_if_no_client_asks() -> None:
    async def scenario() -> None:
        store = FaultyStore(MemoryStore())
        store.fail("read", Unreachable("store", "nobody listens"))
        async with running(store, look_every=0.02) as backend:
            await until(backend.trouble, "trouble")
            assert "nobody listens" in (backend.trouble() or "")
            assert backend.metrics()["store_failing"] == 1
            store.heal()
            await until(lambda: backend.trouble() is None, "the end of the trouble")
            assert backend.metrics()["store_failing"] == 0

    asyncio.run(scenario())


def test_what_a_store_refuses_or_one_group_lacks_is_no_trouble_of_the_store() -> None:
    async def scenario() -> None:
        store = FaultyStore(MemoryStore())
        async with running(store, look_every=60) as backend:
            store.fail("read", NotAuthorized("group g", "not for you"))
            assert (await backend.fetch(fetch("g", 0))).error
            assert backend.trouble() is None
            store.heal()
            store.fail("read", CoordinatorNotAvailable("group g", "its broker is away"), group="g")
            assert (await backend.fetch(fetch("h", 0))).error == 0
            await backend.fetch(fetch("g", 0))
            assert backend.trouble() is None

    asyncio.run(scenario())


@pytest.mark.parametrize("half", [0, 1])
def test_either_half_of_a_dual_store_is_told_of(half: int) -> None:
    async def scenario() -> None:
        *halves, store = dual()
        halves[half].fail("read", Unreachable("half", "nobody listens"))
        async with running(store, look_every=0.02) as backend:
            await until(backend.trouble, "trouble")
            halves[half].heal()
            await until(lambda: backend.trouble() is None, "the end of the trouble")

    asyncio.run(scenario())


# --- one store ------------------------------------------------------------------------------------


def test_what_was_committed_is_fetched_and_what_was_not_is_absent() -> None:
    async def scenario() -> None:
        async with running(MemoryStore()) as backend:
            assert await backend.commit(commit("g", 5, A, metadata="m")) == CommitResponse()

            assert await backend.fetch(fetch("g", 0, 1)) == FetchResponse(
                0, [("t", [(0, 5, -1, "m", 0), (1, -1, -1, "", 0)])]
            )
            assert await backend.fetch(fetch("g")) == FetchResponse(0, [("t", [(0, 5, -1, "m", 0)])])
            assert await backend.fetch(fetch("unknown")) == FetchResponse(0, [])

    asyncio.run(scenario())


def test_the_last_commit_wins_even_if_it_goes_back() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as backend:
            await backend.commit(commit("g", 50))
            await backend.commit(commit("g", 10))

        assert store.data["g"][A].offset == 10

    asyncio.run(scenario())


def test_commits_that_come_while_an_edit_runs_share_the_next_one() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_commit_with_metadata_is_not_put_together_with_one_before_it() -> None:
    """It may be refused for its length, which is nothing to the one before it."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_one_partitions_error_is_its_own() -> None:
    async def scenario() -> None:
        faulty = FaultyStore(MemoryStore()).fail("write", OffsetMetadataTooLarge("t-1"), group="g", partition=B)
        async with running(faulty) as backend:
            assert await backend.commit(commit("g", 5, A, B)) == CommitResponse(0, {("t", 1): 12})

        assert held(faulty) == {A: 5}

    asyncio.run(scenario())


def test_a_store_that_cannot_be_reached_is_a_retriable_error_and_never_an_empty_answer() -> None:
    async def scenario() -> None:
        faulty = FaultyStore(MemoryStore())
        async with running(faulty) as backend:
            await backend.commit(commit("g", 5))
            faulty.fail("read").fail("write")

            assert await backend.commit(commit("g", 6)) == CommitResponse(0, {("t", 0): 15})
            assert await backend.fetch(fetch("g", 0)) == FetchResponse(15, ())
            assert await backend.fetch(fetch("g")) == FetchResponse(15, ())
            assert await backend.list_groups() == (15, ())
            assert backend.metrics()['store_errors_total{error="Unreachable"}'] == 4

    asyncio.run(scenario())


def test_a_partition_that_cannot_be_read_is_an_error_beside_the_others() -> None:
    async def scenario() -> None:
        faulty = FaultyStore(MemoryStore())
        async with running(faulty) as backend:
            await backend.commit(commit("g", 5, A, B))
            faulty.fail("read", NotAuthorized("t-1"), group="g", partition=B)

            found = await backend.fetch(fetch("g", 0, 1))

        assert found == FetchResponse(0, [("t", [(0, 5, -1, "", 0), (1, -1, -1, "", 30)])])

    asyncio.run(scenario())


def test_a_commit_that_takes_too_long_is_told_so_and_one_not_begun_by_then_is_not_made() -> None:
    async def scenario() -> None:
        store = SlowStore()
        async with running(store, commit_timeout=1.0) as backend:
            begun = asyncio.ensure_future(backend.commit(commit("g", 1)))
            await until(lambda: store.streams, "the first stream")
            waiting = asyncio.ensure_future(backend.commit(commit("g", 2)))

            assert (await begun, await waiting) == (CommitResponse(15), CommitResponse(15))
            settled = asyncio.ensure_future(backend.settled("g"))
            await asyncio.sleep(0.02)
            assert not settled.done()
            store.go.set()
            await settled

        assert store.data["g"][A].offset == 1
        assert len(store.streams) == 1

    asyncio.run(scenario())


def test_deletions_of_offsets_and_groups() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as backend:
            await backend.commit(commit("g", 5, A, B))

            assert (await backend.delete_offsets("g", [("t", [0])])).errors == {}
            assert set(store.data["g"]) == {B}
            assert await backend.delete_group("g") == 0
            assert await backend.delete_group("g") == 69
            store.data["busy"] = {A: Committed(1)}
            store.active["busy"] = ("a member",)
            assert await backend.delete_group("busy") == 68
            assert (await backend.delete_offsets("busy", [("t", [0])])).error == 68
            assert (await backend.commit(commit("busy", 2))).errors == {("t", 0): 25}

    asyncio.run(scenario())


def test_a_conditional_commit_is_compared_by_the_store() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as backend:
            assert backend.features()["offsetmgr.conditional"] == 1
            assert await backend.commit(commit("g", 5, expected={("t", 0): -1})) == CommitResponse()
            assert await backend.commit(commit("g", 6, expected={("t", 0): -1})) == CommitResponse(0, {("t", 0): 55})
            assert await backend.commit(commit("g", 7, expected={("t", 0): 5})) == CommitResponse()
            assert await backend.commit(commit("g", -1, expected={("t", 0): 5})) == CommitResponse(0, {("t", 0): 55})
            assert store.data["g"][A].offset == 7
            assert await backend.commit(commit("g", -1, expected={("t", 0): 7})) == CommitResponse()
            assert store.data["g"] == {}

    asyncio.run(scenario())


def test_a_store_that_cannot_compare_says_so_and_refuses() -> None:
    async def scenario() -> None:
        async with running(MemoryStore(conditional="group-lock")) as backend:
            assert "offsetmgr.conditional" not in backend.features()
            assert await backend.commit(commit("g", 5, expected={("t", 0): -1})) == CommitResponse(42)

    asyncio.run(scenario())


def test_what_a_store_cannot_keep_is_said_once_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(SnapshotStore(tmp_path / "offsets.zk")) as backend:
            await backend.commit(commit("g", 5, metadata="dropped"))
            await backend.commit(commit("g", 6, metadata="dropped"))
            assert (await backend.fetch(fetch("g", 0))).topics == [("t", [(0, 6, -1, "", 0)])]
            assert backend.features()["offsetmgr.drops-metadata"] == 1

    asyncio.run(scenario())

    (record,) = caplog.records
    assert record.dropped == "metadata and leader epochs"  # type: ignore[attr-defined]


class StuckStore(MemoryStore):
    """Groups of a broker that does not answer: each call that is about one of them ends only when told, and fails."""

    parallel_calls = 8

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()
        self.go = threading.Event()

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        for one in list(edits):
            if one.group in self.stuck:
                self.go.wait(10)
                failed = ChangeOutcome(Verdict.FAILED, None, CoordinatorNotAvailable(one.group))
                yield GroupEditResult(one.group, dict.fromkeys(one.changes, failed))
            else:
                yield from super().edit([one])


def test_groups_in_trouble_do_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        store = StuckStore()
        troubled = [f"troubled-{n}" for n in range(20)]
        async with running(store, commit_timeout=5.0) as backend:
            store.stuck = set(troubled)
            store.go.set()  # for now they fail at once: the backend gets to know them
            for group in troubled:
                assert await backend.commit(commit(group, 1)) == CommitResponse(0, {("t", 0): 15})
            store.go.clear()
            stuck = [asyncio.ensure_future(backend.commit(commit(group, 2))) for group in troubled]

            for n in range(100):
                assert await backend.commit(commit(f"healthy-{n}", n)) == CommitResponse()

            store.stuck.clear()
            store.go.set()
            await asyncio.gather(*stuck)
            assert {(await backend.commit(commit(group, 3))).error for group in troubled} == {0}
        assert {store.data[group][A].offset for group in troubled} == {3}

    asyncio.run(scenario())


def test_commits_of_a_group_keep_their_order_when_it_gets_into_trouble_and_out() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_defect_of_a_store_is_an_error_for_its_clients_and_nothing_worse(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStore):
        def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
            raise KeyError("a defect")

        def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
            raise RuntimeError("a defect")

    async def scenario() -> None:
        async with running(Broken()) as backend:
            assert await backend.commit(commit("g", 5)) == CommitResponse(0, {("t", 0): -1})
            assert await backend.fetch(fetch("g")) == FetchResponse(-1, ())
            await backend.settled("g")

    asyncio.run(scenario())
    assert "an edit failed in an unforeseen way" in caplog.text


def test_while_too_much_is_on_its_way_the_listener_is_asked_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsetmgr.server.storebackend._FULL", 10)

    async def scenario() -> None:
        store = SlowStore()
        async with running(store) as backend:
            assert backend.room() is None
            commits = [asyncio.ensure_future(backend.commit(commit(f"g{n}", n))) for n in range(10)]
            room = backend.room()
            assert room is not None and not room.done()
            store.go.set()
            await room
            await asyncio.gather(*commits)
            assert backend.room() is None

    asyncio.run(scenario())


# --- two stores -----------------------------------------------------------------------------------


def test_a_commit_goes_to_both_and_what_the_first_refused_only_there() -> None:
    async def scenario() -> None:
        first, second, store = dual()
        first.fail("write", OffsetMetadataTooLarge("t-1"), group="g", partition=B)
        async with running(store) as backend:
            assert await backend.commit(commit("g", 5, A, B)) == CommitResponse(0, {("t", 1): 12})

        assert (held(first), held(second)) == ({A: 5}, {A: 5})

    asyncio.run(scenario())


def test_a_failure_of_the_second_is_acknowledged_reported_and_repaired(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        first, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 5))
            second.fail("write")

            assert await backend.commit(commit("g", 6)) == CommitResponse()
            assert (held(first), held(second)) == ({A: 6}, {A: 5})
            figures = backend.metrics()
            assert (figures["secondary_pending"], figures["secondary_failing"]) == (1, 1)
            assert figures["secondary_failures_total"] >= 1
            assert "the secondary store cannot be written" in caplog.text

            second.heal()
            await until(lambda: held(second) == {A: 6}, "the repair")
            await until(lambda: backend.metrics()["secondary_failing"] == 0, "the end of the failure")

    asyncio.run(scenario())


def test_it_is_repaired_across_a_later_failure_and_only_the_newest_value_is_written() -> None:
    async def scenario() -> None:
        _, second, store = dual()
        async with running(store) as backend:
            second.fail("write")
            for offset in range(1, 50):
                assert await backend.commit(commit("g", offset, A, B)) == CommitResponse()
            second.heal()
            second.fail("write", TimedOut("second"), group="g", partition=B, times=2)
            await until(lambda: held(second) == {A: 49, B: 49}, "the repair")
            assert second.writes <= 4

    asyncio.run(scenario())


def test_a_rewind_reaches_both_at_once_or_late_and_is_never_hidden_by_the_larger() -> None:
    async def scenario() -> None:
        _, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 50))
            await backend.commit(commit("g", 40))
            assert held(second) == {A: 40}
            second.fail("write")
            await backend.commit(commit("g", 10))

            assert (await backend.fetch(fetch("g", 0))).topics == [("t", [(0, 10, -1, "", 0)])]
            assert (await backend.fetch(fetch("g"))).topics == [("t", [(0, 10, -1, "", 0)])]
            second.heal()
            await until(lambda: held(second) == {A: 10}, "the rewind")

    asyncio.run(scenario())


@pytest.mark.parametrize(("ours", "others"), [(6, 60), (3, 60), (3, 4)])
def test_a_late_value_does_not_undo_what_others_committed_meanwhile(ours: int, others: int) -> None:
    async def scenario() -> None:
        _, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 5))
            second.fail("write")
            await backend.commit(commit("g", ours))
            _set(second, others)
            second.heal()
            await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")

            assert held(second) == {A: others}
            assert backend.metrics()["secondary_dropped_total"] == 1
            assert (await backend.fetch(fetch("g", 0))).topics[0][1][0][1] == others

    asyncio.run(scenario())


def test_a_late_value_that_leads_further_is_written_over_what_others_committed() -> None:
    async def scenario() -> None:
        _, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 5))
            second.fail("write")
            await backend.commit(commit("g", 20))
            _set(second, 15)
            second.heal()
            await until(lambda: held(second) == {A: 20}, "the repair")

    asyncio.run(scenario())


@pytest.mark.parametrize("then", [3, 12, 20])
def test_an_answer_that_was_lost_is_our_own_value_and_not_somebody_elses(then: int) -> None:
    """The rewind to 3 was carried out though its answer was lost; what follows is written over it."""

    async def scenario() -> None:
        _, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 12))
            second.fail("write", Unreachable("second"), times=1, after=True)
            assert await backend.commit(commit("g", 3)) == CommitResponse()
            assert await backend.commit(commit("g", then)) == CommitResponse()
            await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")

            assert held(second) == {A: then}
            assert backend.metrics()["secondary_dropped_total"] == 0

    asyncio.run(scenario())


def test_a_deletion_reaches_both_at_once_or_late() -> None:
    async def scenario() -> None:
        first, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 5, A, B))
            await backend.delete_offsets("g", [("t", [0])])
            assert (held(first), held(second)) == ({B: 5}, {B: 5})
            second.fail("write")
            await backend.delete_offsets("g", [("t", [1])])
            assert (await backend.fetch(fetch("g", 1))).topics == [("t", [(1, -1, -1, "", 0)])]
            second.heal()
            await until(lambda: held(second) == {}, "the deletion")

    asyncio.run(scenario())


def test_deleting_a_group_deletes_what_was_on_its_way_too() -> None:
    async def scenario() -> None:
        first, second, store = dual()
        async with running(store) as backend:
            second.fail("write")
            await backend.commit(commit("g", 5, A, B))
            assert await backend.delete_group("g") == 0
            second.heal()
            await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")
            assert (held(first), held(second)) == ({}, {})

    asyncio.run(scenario())


def test_deleting_a_group_deletes_it_in_both() -> None:
    async def scenario() -> None:
        first, second, store = dual()
        _set(second, 7, group="only-there")
        async with running(store) as backend:
            await backend.commit(commit("g", 5, A, B))

            assert sorted((await backend.list_groups())[1]) == ["g", "only-there"]
            assert await backend.delete_group("g") == 0
            assert await backend.delete_group("only-there") == 0
            assert await backend.delete_group("unknown") == 69
            assert (held(first), held(second), held(second, "only-there")) == ({}, {}, {})

    asyncio.run(scenario())


def test_while_the_second_cannot_be_read_a_fetch_is_an_error() -> None:
    async def scenario() -> None:
        _, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 5))
            second.fail("read")

            assert await backend.fetch(fetch("g", 0)) == FetchResponse(15, ())

    asyncio.run(scenario())


def test_a_write_to_the_first_that_happened_though_it_failed_reaches_the_second() -> None:
    async def scenario() -> None:
        first, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 5))
            first.fail("write", CoordinatorNotAvailable("first"), group="g", times=1, after=True)

            assert await backend.commit(commit("g", 6)) == CommitResponse(0, {("t", 0): 15})
            assert (held(first), held(second)) == ({A: 6}, {A: 5})
            await until(lambda: held(second) == {A: 6}, "what was in doubt")
            await until(lambda: backend.metrics()["primary_doubts"] == 0, "the end of the doubt")

    asyncio.run(scenario())


def test_a_write_to_the_first_that_did_not_happen_does_not_reach_the_second() -> None:
    async def scenario() -> None:
        first, second, store = dual()
        async with running(store) as backend:
            await backend.commit(commit("g", 5))
            first.fail("write", CoordinatorNotAvailable("first"), group="g", times=1)
            await backend.commit(commit("g", 6))
            await until(lambda: backend.metrics()["primary_doubts"] == 0, "the end of the doubt")

            assert (held(first), held(second)) == ({A: 5}, {A: 5})

    asyncio.run(scenario())


def test_a_second_that_answers_slowly_holds_up_one_commit_and_no_more() -> None:
    async def scenario() -> None:
        slow = SlowStore()
        _, second, store = dual(second=slow)
        loop = asyncio.get_running_loop()
        async with running(store, secondary_patience=0.2) as backend:
            with Stopwatch() as watch:
                begun = loop.time()
                assert await backend.commit(commit("g", 1)) == CommitResponse()
                assert loop.time() - begun >= 0.2
                for offset in range(2, 20):
                    assert await backend.commit(commit("g", offset)) == CommitResponse()
            assert watch.seconds < 1
            slow.go.set()
            await until(lambda: held(second) == {A: 19}, "the repair")

    asyncio.run(scenario())


def test_what_the_second_can_never_hold_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        from offsetmgr.errors import UsageError

        _, second, store = dual()
        second.fail("write", UsageError("t-0", "no such name there"), group="g", partition=A)
        async with running(store) as backend:
            assert await backend.commit(commit("g", 5, A, B)) == CommitResponse()
            await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")
            assert held(second) == {B: 5}
            assert backend.metrics()["secondary_dropped_total"] == 1

    asyncio.run(scenario())
    assert "a value is not written to the secondary store" in caplog.text


def test_closing_lets_what_is_on_its_way_arrive_or_says_what_is_lacking(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        _, second, store = dual()
        async with running(store) as backend:
            second.fail("write")
            await backend.commit(commit("g", 5, A, B))
        assert held(second) == {}

    asyncio.run(scenario())
    (last,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert last.partitions == 2  # type: ignore[attr-defined]


def _set(store: FaultyStore, offset: int, group: str = "g") -> None:
    assert isinstance(store.store, MemoryStore)
    list(store.store.edit([GroupEdit(group, {A: Change(OffsetAndMetadata(offset), None, True)})]))


# --- after a crash --------------------------------------------------------------------------------


def test_a_start_brings_the_second_forward_where_it_was_left_behind() -> None:
    async def scenario() -> None:
        first, second, store = dual()
        _set(first, 20)
        _set(second, 10)
        _set(first, 5, group="ahead")
        _set(second, 8, group="ahead")
        _set(first, 7, group="native")
        async with running(store):
            await until(lambda: held(second) == {A: 20}, "the catch-up")

            assert held(second, "ahead") == {A: 8}  # may be somebody's progress: never back without being told
            assert held(second, "native") == {}  # has never been in the secondary, and is none of its business

    asyncio.run(scenario())


def test_a_catch_up_gives_way_to_what_is_committed_meanwhile() -> None:
    async def scenario() -> None:
        slow = SlowStore()
        first, second, store = dual(second=slow)
        slow.data["g"] = {A: Committed(10)}
        _set(first, 20)
        async with running(store, secondary_patience=0.05) as backend:
            await until(lambda: slow.streams, "the catch-up's write")
            assert await backend.commit(commit("g", 5)) == CommitResponse()
            slow.data["g"] = {A: Committed(11)}
            slow.go.set()
            await until(lambda: backend.metrics()["secondary_pending"] == 0, "the commit")

            assert (held(first), held(second)) == ({A: 5}, {A: 5})

    asyncio.run(scenario())


def test_a_catch_up_waits_for_stores_that_cannot_be_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsetmgr.server.catchup._PAUSE", 0.05)

    async def scenario() -> None:
        first, second, store = dual()
        _set(first, 20)
        _set(second, 10)
        first.fail("read", times=2)
        second.fail("read", times=2).fail("write", times=1)
        async with running(store):
            await until(lambda: held(second) == {A: 20}, "the catch-up")

    asyncio.run(scenario())
