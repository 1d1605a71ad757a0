"""Two in-memory stores behind the listener: the final offsets in both, also after a crash."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from async_tests import async_test
from stopwatch import Stopwatch
from store_backend_setup import A, B, SlowStore, commit, dual, fetch, offsets_in, running, until

from offsetmgr.core import errors
from offsetmgr.core.model import Committed, OffsetAndMetadata
from offsetmgr.core.offset_store import Change, GroupEdit, GroupEditResult
from offsetmgr.stores.dual import DualStore
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore

DONE = (0, {})
"""The response to a successful commit."""


@async_test
async def test_a_failure_of_the_secondary_is_acknowledged_logged_and_repaired(caplog: pytest.LogCaptureFixture) -> None:
    first, second, store = dual()
    async with running(store) as backend:
        await backend.commit(commit("g", 5))
        second.fail("write")

        assert await backend.commit(commit("g", 6)) == DONE
        assert (offsets_in(first), offsets_in(second)) == ({A: 6}, {A: 5})
        metrics = backend.metrics()
        assert (metrics["secondary_pending"], metrics["secondary_failing"]) == (1, 1)
        assert metrics["secondary_failures_total"] >= 1
        assert "writes to the secondary store fail" in caplog.text

        second.heal()
        await until(lambda: offsets_in(second) == {A: 6}, "the repair")
        await until(lambda: backend.metrics()["secondary_failing"] == 0, "the end of the failure")


@async_test
async def test_a_repair_survives_another_failure_and_writes_only_the_newest_value() -> None:
    _, second, store = dual()
    async with running(store) as backend:
        second.fail("write")
        for offset in range(1, 50):
            assert await backend.commit(commit("g", offset, A, B)) == DONE
        second.heal()
        second.fail("write", errors.TimedOut("second"), group="g", partition=B, times=2)
        await until(lambda: offsets_in(second) == {A: 49, B: 49}, "the repair")
        assert second.writes <= 4


@async_test
async def test_a_rewind_reaches_both_at_once_or_late_and_is_never_hidden_by_the_larger_offset() -> None:
    _, second, store = dual()
    async with running(store) as backend:
        await backend.commit(commit("g", 50))
        await backend.commit(commit("g", 40))
        assert offsets_in(second) == {A: 40}
        second.fail("write")
        await backend.commit(commit("g", 10))

        assert (await backend.fetch(fetch("g", 0))).topics == [("t", [(0, 10, -1, "", 0)])]
        assert (await backend.fetch(fetch("g"))).topics == [("t", [(0, 10, -1, "", 0)])]
        second.heal()
        await until(lambda: offsets_in(second) == {A: 10}, "the rewind")


@pytest.mark.parametrize(
    ("before", "ours", "primary", "secondary", "expected", "dropped"),
    [
        # Another client's commit to the secondary is kept, except if ours is larger.
        (5, 6, None, 60, 60, 1),
        (5, 3, None, 60, 60, 1),
        (5, 3, None, 4, 4, 1),
        (5, 20, None, 15, 20, 0),
        # The primary has a larger offset now.
        (None, 5, 6, None, 5, 0),
    ],
)
@async_test
async def test_a_late_write_after_a_commit_of_another_client(before, ours, primary, secondary, expected, dropped):
    first, second, store = dual()
    async with running(store) as backend:
        if before is not None:
            await backend.commit(commit("g", before))
        second.fail("write")
        await backend.commit(commit("g", ours))
        if primary is not None:
            _set(first, primary)
        if secondary is not None:
            _set(second, secondary)
        second.heal()
        await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")

        assert offsets_in(second) == {A: expected}
        assert backend.metrics()["secondary_dropped_total"] == dropped
        assert (await backend.fetch(fetch("g", 0))).topics[0][1][0][1] == max(expected, primary or 0)


@async_test
async def test_a_late_write_of_an_offset_that_the_primary_no_longer_holds_is_dropped() -> None:
    """The topic was deleted and recreated while the secondary was unavailable, so the broker deleted the offset."""
    first, second, store = dual()
    async with running(store) as backend:
        await backend.commit(commit("g", 5, A, B))
        second.fail("write")
        await backend.commit(commit("g", 130, A, B))
        assert isinstance(first.store, MemoryStore)
        del first.store.data["g"][A]
        first.fail("read", times=1)
        second.heal()
        await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")

        assert offsets_in(second) == {A: 5, B: 130}
        assert backend.metrics()["secondary_dropped_total"] == 1


class Unanswered(MemoryStore):
    """Writes at once, and answers when ``go`` is set."""

    parallel_calls = 4

    def __init__(self) -> None:
        super().__init__("first")
        self.go = threading.Event()
        self.reads = 0

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        written = list(super().edit(edits))
        assert self.go.wait(60)
        return iter(written)

    def fetch(self, *arguments: Any) -> Any:
        self.reads += 1
        return super().fetch(*arguments)


@async_test
async def test_a_late_write_is_replaced_and_not_dropped_by_a_rewind_that_the_primary_has_not_answered() -> None:
    primary, second = Unanswered(), FaultyStore(MemoryStore("second"))
    async with running(DualStore(primary, second)) as backend:
        second.fail("write")
        primary.go.set()
        await backend.commit(commit("g", 500))
        primary.go.clear()
        rewind = asyncio.ensure_future(backend.commit(commit("g", 259)))
        await until(lambda: primary.data["g"][A].offset == 259, "the rewind in the primary")
        reads = primary.reads
        second.heal()
        await until(lambda: primary.reads > reads, "a late write")
        await asyncio.sleep(0.05)  # in which the listener can compare the offsets
        primary.go.set()
        assert await rewind == DONE
        await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")

        assert offsets_in(second) == {A: 259}
        assert backend.metrics()["secondary_dropped_total"] == 0


@pytest.mark.parametrize("then", [3, 12, 20])
@async_test
async def test_a_write_with_a_lost_response_is_recognized_as_our_own(then: int) -> None:
    """The secondary writes the rewind to 3, but its response is lost. The next commit overwrites the 3."""
    _, second, store = dual()
    async with running(store) as backend:
        await backend.commit(commit("g", 12))
        second.fail("write", errors.Unreachable("second"), times=1, after=True)
        assert await backend.commit(commit("g", 3)) == DONE
        assert await backend.commit(commit("g", then)) == DONE
        await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")

        assert offsets_in(second) == {A: then}
        assert backend.metrics()["secondary_dropped_total"] == 0


@async_test
async def test_a_deletion_reaches_both_at_once_or_late() -> None:
    first, second, store = dual()
    async with running(store) as backend:
        await backend.commit(commit("g", 5, A, B))
        await backend.delete_offsets("g", [("t", [0])])
        assert (offsets_in(first), offsets_in(second)) == ({B: 5}, {B: 5})
        second.fail("write")
        await backend.delete_offsets("g", [("t", [1])])
        assert (await backend.fetch(fetch("g", 1))).topics == [("t", [(1, -1, -1, "", 0)])]
        second.heal()
        await until(lambda: offsets_in(second) == {}, "the deletion")


@async_test
async def test_deleting_a_group_deletes_it_in_both() -> None:
    first, second, store = dual()
    _set(second, 7, group="only-there")
    async with running(store) as backend:
        await backend.commit(commit("g", 5, A, B))

        assert sorted((await backend.list_groups())[1]) == ["g", "only-there"]
        assert await backend.delete_group("g") == 0
        assert await backend.delete_group("only-there") == 0
        assert await backend.delete_group("unknown") == 69
        second.fail("write")
        await backend.commit(commit("g", 6, A, B))
        assert await backend.delete_group("g") == 0
        second.heal()
        await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end of pending writes")
        assert (offsets_in(first), offsets_in(second), offsets_in(second, "only-there")) == ({}, {}, {})


@async_test
async def test_a_fetch_fails_while_the_secondary_cannot_be_read() -> None:
    _, second, store = dual()
    async with running(store) as backend:
        await backend.commit(commit("g", 5))
        second.fail("read")

        assert await backend.fetch(fetch("g", 0)) == (15, ())


@pytest.mark.parametrize("written", [True, False])
@async_test
async def test_a_write_in_doubt_reaches_the_secondary_if_it_reached_the_primary(written: bool) -> None:
    first, second, store = dual()
    async with running(store) as backend:
        await backend.commit(commit("g", 5))
        first.fail("write", errors.CoordinatorNotAvailable("first"), group="g", times=1, after=written)

        assert await backend.commit(commit("g", 6)) == (0, {("t", 0): 15})
        assert offsets_in(second) == {A: 5}
        await until(lambda: backend.metrics()["primary_in_doubt"] == 0, "the end of the doubt")
        expected = {A: 6 if written else 5}
        await until(lambda: offsets_in(first) == offsets_in(second) == expected, "the write in doubt")


@async_test
async def test_a_slow_secondary_delays_only_one_commit() -> None:
    slow = SlowStore()
    _, second, store = dual(second=slow)
    loop = asyncio.get_running_loop()
    async with running(store, secondary_wait_s=0.2) as backend:
        with Stopwatch() as watch:
            begun = loop.time()
            assert await backend.commit(commit("g", 1)) == DONE
            assert loop.time() - begun >= 0.2
            for offset in range(2, 200):
                assert await backend.commit(commit("g", offset)) == DONE
        assert watch.seconds < 20  # 40 s if each commit waited
        slow.go.set()
        await until(lambda: offsets_in(second) == {A: 199}, "the repair")


@async_test
async def test_a_value_that_the_secondary_cannot_hold_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    _, second, store = dual()
    second.fail("write", errors.UsageError("t-0", "no such name there"), group="g", partition=A)
    async with running(store) as backend:
        assert await backend.commit(commit("g", 5, A, B)) == DONE
        await until(lambda: backend.metrics()["secondary_pending"] == 0, "the end")
        assert offsets_in(second) == {B: 5}
        assert backend.metrics()["secondary_dropped_total"] == 1
    assert "a commit was dropped for the secondary store" in caplog.text


@async_test
async def test_closing_writes_pending_values_or_logs_the_missing_ones(caplog: pytest.LogCaptureFixture) -> None:
    _, second, store = dual()
    async with running(store) as backend:
        second.fail("write")
        await backend.commit(commit("g", 5, A, B))
    assert offsets_in(second) == {}
    (last,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert last.partitions == 2  # type: ignore[attr-defined]


def _set(store: FaultyStore, offset: int, group: str = "g") -> None:
    assert isinstance(store.store, MemoryStore)
    list(store.store.edit([GroupEdit(group, {A: Change(OffsetAndMetadata(offset), None, True)})]))


# --- after a crash --------------------------------------------------------------------------------


@async_test
async def test_a_start_updates_the_secondary() -> None:
    first, second, store = dual()
    _set(first, 20)
    _set(second, 10)
    _set(first, 5, group="ahead")
    _set(second, 8, group="ahead")
    _set(first, 7, group="native")
    async with running(store):
        await until(lambda: offsets_in(second) == {A: 20}, "the catch-up")

        # The start does not lower what may be the progress of a consumer, and copies no group without offsets there.
        assert (offsets_in(second, "ahead"), offsets_in(second, "native")) == ({A: 8}, {})


@async_test
async def test_the_reconciliation_keeps_commits_made_meanwhile() -> None:
    slow = SlowStore()
    first, second, store = dual(second=slow)
    slow.data["g"] = {A: Committed(10)}
    _set(first, 20)
    async with running(store, secondary_wait_s=0.05) as backend:
        await until(lambda: slow.streams, "the catch-up's write")
        assert await backend.commit(commit("g", 5)) == DONE
        slow.data["g"] = {A: Committed(11)}
        slow.go.set()
        await until(lambda: backend.metrics()["secondary_pending"] == 0, "the commit")

        assert (offsets_in(first), offsets_in(second)) == ({A: 5}, {A: 5})


@async_test
async def test_the_reconciliation_logs_the_groups_that_it_cannot_read(caplog: pytest.LogCaptureFixture) -> None:
    first, second, store = dual()
    for group in ("g", "h"):
        _set(first, 20, group=group)
        _set(second, 10, group=group)
    first.fail("read", errors.CorruptData("group h", "cannot be decoded"), group="h")
    async with running(store):
        await until(lambda: offsets_in(second) == {A: 20}, "the catch-up")

        assert offsets_in(second, "h") == {A: 10}
        assert "was not brought up to date" in caplog.text


@async_test
async def test_the_reconciliation_waits_for_unreadable_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "offsetmgr.server.store_backends.secondary_reconcile._BACKOFF",
        SimpleNamespace(pause_s=lambda _failures: 0.05, max_retries=99),
    )
    first, second, store = dual()
    _set(first, 20)
    _set(second, 10)
    first.fail("read", times=2)
    second.fail("read", times=2).fail("write", times=1)
    async with running(store):
        await until(lambda: offsets_in(second) == {A: 20}, "the catch-up")
