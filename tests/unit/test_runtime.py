"""The runtime on a log in memory: what its threads and its loop do together, with the log's moments under control."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from offsetmgr.errors import TimedOut, Unreachable
from offsetmgr.log.base import partitions_of
from offsetmgr.log.memory import Failure, MemoryLog
from offsetmgr.manager.expiration import HOUR_MS
from offsetmgr.manager.requests import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    INVALID_COMMIT_OFFSET_SIZE,
    NONE,
    NOT_COORDINATOR,
    CommitRequest,
    CommitResponse,
    FetchRequest,
)
from offsetmgr.manager.runtime import ManagerConfig, ManagerRuntime, Role
from offsetmgr.manager.runtime.bridge import Bridge
from offsetmgr.manager.shard import ShardLimits
from offsetmgr.records.avro import AvroFormat
from offsetmgr.records.kafka import KafkaFormat

PARTITIONS = 16
QUICK = ManagerConfig(commit_timeout=5.0, retry_pause=0.01, standby_poll=0.01, lag_interval=0.02)
LOADING, UNAVAILABLE = CommitResponse(COORDINATOR_LOAD_IN_PROGRESS), CommitResponse(COORDINATOR_NOT_AVAILABLE)
ELSEWHERE = CommitResponse(NOT_COORDINATOR)


class Lease:
    """An `Ownership` whose lease a test holds in its hand."""

    def __init__(self) -> None:
        self.good = True
        self.losses: list[tuple[int, str]] = []

    def valid(self) -> bool:
        return self.good

    def lost(self, slot: int, why: str) -> None:
        self.losses.append((slot, why))


class SlowLog(MemoryLog):
    """Its readers wait for ``gate`` before they load."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.gate = threading.Event()

    def reader(self) -> Any:
        reader = super().reader()
        load = reader.load

        def gated(*args: Any, **options: Any) -> Mapping[int, int]:
            assert self.gate.wait(10)
            return load(*args, **options)

        reader.load = gated  # type: ignore[method-assign]
        return reader


def scenario(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def manager(
    log: MemoryLog, lease: Lease | None = None, config: ManagerConfig = QUICK, slots: Sequence[int] | None = None
) -> AsyncIterator[ManagerRuntime]:
    """A runtime that serves these slots, or all."""
    runtime = ManagerRuntime(log, AvroFormat(), lease or Lease(), config)
    await runtime.start()
    try:
        owned = range(runtime.slots) if slots is None else slots
        for slot in owned:
            runtime.take(slot)
        await until(lambda: all(s.state == "active" for s in runtime.status() if s.slot in owned))
        yield runtime
    finally:
        log.hold = False
        log.advance_high_watermark()
        await runtime.close()


def commit(group: str, offset: int, *, partitions: int = 1, metadata: str = "") -> CommitRequest:
    return CommitRequest(group, [("t", [(partition, offset, -1, metadata) for partition in range(partitions)])])


def offset(runtime: ManagerRuntime, group: str) -> int:
    """Of the topic's first partition; -1 where none is committed."""
    response = runtime.fetch(FetchRequest(group, [("t", [0])]))
    assert response.error == NONE
    return response.topics[0][1][0][1]


def refusal(runtime: ManagerRuntime, group: str) -> int:
    response = runtime.fetch(FetchRequest(group, [("t", [0])]))
    assert response.topics == ()
    return response.error


def slot_of(runtime: ManagerRuntime, group: str) -> int:
    return runtime.partition_of(group) % runtime.slots


async def written(answers: Sequence[Awaitable[CommitResponse]]) -> None:
    assert set(map(str, await asyncio.gather(*answers))) == {str(CommitResponse())}


# --- commits and fetches -----------------------------------------------------------------------------


def test_a_commit_is_seen_once_it_is_acknowledged_and_not_before() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 41))])
            log.hold = True
            answer = runtime.commit(commit("g", 42))
            await until(lambda: log.unfinished(slot_of(runtime, "g")))
            assert not answer.done()
            assert offset(runtime, "g") == 41
            log.advance_high_watermark()
            assert await answer == CommitResponse()
            assert offset(runtime, "g") == 42

    scenario(work)


def test_what_comes_during_a_transaction_goes_into_the_next_one() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            log.hold = True
            first = runtime.commit(commit("g", 0))
            await until(lambda: log.unfinished(slot_of(runtime, "g")))
            others = []
            for number in range(1, 100):
                others.append(runtime.commit(commit("g", number)))
                await asyncio.sleep(0)
            assert log.advance_high_watermark() == 1
            await first
            await until(lambda: log.unfinished(slot_of(runtime, "g")))
            assert log.advance_high_watermark() == 1
            await written(others)
            assert runtime.counters.transactions == 2
            assert offset(runtime, "g") == 99

    scenario(work)


def test_a_transaction_is_bounded_in_records() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(transaction_records=100, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            answers = [runtime.commit(commit("g", 0))]
            await until(lambda: log.unfinished(slot_of(runtime, "g")))
            for number in range(100):
                answers.append(runtime.commit(commit("g", number, partitions=10)))
                await asyncio.sleep(0)
            log.hold = False
            log.advance_high_watermark()
            await written(answers)
            assert runtime.counters.transactions == 11

    scenario(work)


def test_groups_of_all_slots_are_served_and_listed() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            groups = [f"group-{number}" for number in range(200)]
            await written([runtime.commit(commit(group, number)) for number, group in enumerate(groups)])
            assert [offset(runtime, group) for group in groups] == list(range(200))
            error, listed = runtime.list_groups()
            assert (error, sorted(listed)) == (NONE, sorted(groups))
            assert {slot_of(runtime, group) for group in groups} == set(range(8))

    scenario(work)


def test_deletes_go_through_the_log_and_an_unknown_group_is_said_to_be_unknown() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 5, partitions=3))])
            assert (await runtime.delete_offsets("g", [("t", [1])])).error == NONE
            assert runtime.fetch(FetchRequest("g", None)).topics == [("t", [(0, 5, -1, "", 0), (2, 5, -1, "", 0)])]
            assert await runtime.delete_group("g") == NONE
            assert offset(runtime, "g") == -1
            assert await runtime.delete_group("g") == GROUP_ID_NOT_FOUND
        async with manager(log) as runtime:
            assert offset(runtime, "g") == -1

    scenario(work)


def test_settled_waits_for_what_was_begun_before_and_for_nothing_else() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            assert runtime.settled("g").done()
            log.hold = True
            answer = runtime.commit(commit("g", 1))
            settled = runtime.settled("g")
            await until(lambda: log.unfinished(slot_of(runtime, "g")))
            later = runtime.commit(commit("g", 2))
            await asyncio.sleep(0)
            assert not settled.done()
            log.advance_high_watermark()
            await settled
            assert answer.done()
            assert not later.done()

    scenario(work)


def test_settled_waits_until_an_append_has_ended_though_its_commit_was_answered() -> None:
    log = MemoryLog(PARTITIONS)
    config = replace(QUICK, commit_timeout=0.2)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            slot = slot_of(runtime, "g")
            log.fail_next_append(slot, Failure.UNKNOWN_OPEN_WRITTEN)
            for _ in range(5):
                log.fail_next_claim(slot, Unreachable("broker"))
            answer = runtime.commit(commit("g", 1))
            settled = runtime.settled("g")
            assert await answer == UNAVAILABLE
            assert not settled.done()
            assert not runtime.settled("g").done()
            await settled
            assert offset(runtime, "g") == 1

    scenario(work)


def test_settled_gives_up_where_it_is_not_known_in_time_what_became_of_an_append() -> None:
    log = MemoryLog(PARTITIONS)
    config = replace(QUICK, commit_timeout=0.1, claim_timeout=0.1)
    lease = Lease()

    async def work() -> None:
        async with manager(log, lease, config) as runtime:
            log.fail_next_append(slot_of(runtime, "g"), Failure.UNKNOWN_OPEN_WRITTEN)
            answer = runtime.commit(commit("g", 1))
            settled = runtime.settled("g")
            lease.good = False
            assert await answer == UNAVAILABLE
            with pytest.raises(TimedOut):
                await settled

    scenario(work)


# --- failures of an append -----------------------------------------------------------------------------


def test_an_append_that_failed_for_certain_leaves_memory_as_it_was_and_the_next_one_succeeds() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            log.fail_next_append(slot_of(runtime, "g"), Failure.NOT_WRITTEN)
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            assert offset(runtime, "g") == 1
            await written([runtime.commit(commit("g", 3))])
            assert offset(runtime, "g") == 3

    scenario(work)


def test_a_commit_is_answered_when_its_time_is_up_counted_from_the_call() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(commit_timeout=0.2, retry_pause=0.01, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            loop = asyncio.get_running_loop()
            began = loop.time()
            first = runtime.commit(commit("g", 1))
            await until(lambda: log.unfinished(slot_of(runtime, "g")))
            second = runtime.commit(commit("g", 2))
            assert await asyncio.gather(first, second) == [UNAVAILABLE] * 2
            assert loop.time() - began < 0.2 + 0.2
            assert offset(runtime, "g") == -1
            log.hold = False
            await written([runtime.commit(commit("g", 3))])
            assert [record.value for record in log.records(runtime.partition_of("g"))] != []
            assert offset(runtime, "g") == 3

    scenario(work)


def test_only_the_commit_that_is_too_large_fails() -> None:
    log = MemoryLog(PARTITIONS, max_batch_bytes=20_000)

    async def work() -> None:
        async with manager(log) as runtime:
            answers = [runtime.commit(commit("g", number, partitions=4)) for number in range(10)]
            answers.append(runtime.commit(commit("g", 999, partitions=10, metadata="x" * 2_000)))
            answers += [runtime.commit(commit("g", number, partitions=4)) for number in range(10, 20)]
            results = await asyncio.gather(*answers)
            assert [result.error for result in results] == [0] * 10 + [INVALID_COMMIT_OFFSET_SIZE] + [0] * 10
            assert offset(runtime, "g") == 19
            assert runtime.status()[runtime.partition_of("g")].offsets == 4

    scenario(work)


def test_an_unknown_outcome_is_found_out_written() -> None:
    """And what came meanwhile is written after it."""
    _unknown(Failure.UNKNOWN_WRITTEN, found=2)
    _unknown(Failure.UNKNOWN_OPEN_WRITTEN, found=2)


def test_an_unknown_outcome_is_found_out_not_written() -> None:
    _unknown(Failure.UNKNOWN_NOT_WRITTEN, found=1)
    _unknown(Failure.UNKNOWN_OPEN, found=1)


def _unknown(failure: Failure, found: int) -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            slot = slot_of(runtime, "g")
            other = next(g for g in map(str, range(999)) if slot_of(runtime, g) == slot and g != "g")
            await written([runtime.commit(commit("g", 1))])
            log.fail_next_append(slot, failure)
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            await written([runtime.commit(commit(other, 7))])
            assert offset(runtime, "g") == found
            assert offset(runtime, other) == 7
            assert runtime.status()[runtime.partition_of("g")].state == "active"
            assert runtime.counters.unknown_outcomes == 1
            # Nothing is thought to be in flight any more.
            assert await runtime.delete_group("g") == NONE
            assert offset(runtime, "g") == -1
            assert await runtime.delete_group("g") == GROUP_ID_NOT_FOUND

    scenario(work)


def test_while_an_outcome_is_unknown_fetches_get_what_was_acknowledged_and_commits_wait() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            slot = slot_of(runtime, "g")
            await written([runtime.commit(commit("g", 1))])
            for _ in range(5):
                log.fail_next_claim(slot, Unreachable("broker"))
            log.fail_next_append(slot, Failure.UNKNOWN_WRITTEN)
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            waiting = runtime.commit(commit("g", 3))
            await until(lambda: runtime.status()[runtime.partition_of("g")].last_error.startswith("Unreachable"))
            assert runtime.status()[runtime.partition_of("g")].recovering
            assert offset(runtime, "g") == 1
            await written([waiting])
            assert offset(runtime, "g") == 3
            assert not runtime.status()[runtime.partition_of("g")].recovering

    scenario(work)


def test_after_an_unknown_outcome_nothing_is_claimed_without_a_lease() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()
    config = ManagerConfig(commit_timeout=0.2, standby=False)

    async def work() -> None:
        async with manager(log, lease, config) as runtime:
            slot = slot_of(runtime, "g")
            log.fail_next_append(slot, Failure.UNKNOWN_WRITTEN)
            lease.good = False
            successor = log.writer(slot)
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            successor.claim(1)
            assert await runtime.commit(commit("g", 3)) == UNAVAILABLE  # it waits for the lease until its time is up
            successor.append({runtime.partition_of("g"): [(b"\x00\x00k", None)]}, 1)  # not fenced by us
            assert refusal(runtime, "g") == NOT_COORDINATOR

    scenario(work)


def test_when_memory_cannot_follow_the_log_the_slot_is_read_anew() -> None:
    """A defect, or a full memory: nothing may be served that is not what the log says."""
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            shard = runtime._serving[runtime.partition_of("g")]
            assert shard is not None
            shard.acknowledged = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            assert runtime.owns("g") != NONE
            await until(lambda: runtime.owns("g") == NONE)
            assert offset(runtime, "g") == 2
            await written([runtime.commit(commit("g", 3))])

    scenario(work)


# --- ownership -----------------------------------------------------------------------------------------


def test_fenced_by_a_successor_it_acknowledges_nothing_and_leaves_the_slot() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()

    async def work() -> None:
        async with manager(log, lease) as runtime:
            slot = slot_of(runtime, "g")
            log.writer(slot).claim(1)
            answers = [runtime.commit(commit("g", 1)), runtime.commit(commit("g", 2))]
            assert await asyncio.gather(*answers) == [ELSEWHERE] * 2
            await until(lambda: bool(lease.losses))
            assert [lost for lost, _ in lease.losses] == [slot]
            assert refusal(runtime, "g") == NOT_COORDINATOR
            assert await runtime.commit(commit("g", 3)) == ELSEWHERE
            # Given to it again, it serves again.
            runtime.take(slot)
            await until(lambda: runtime.owns("g") == NONE)
            await written([runtime.commit(commit("g", 4))])

    scenario(work)


def test_without_a_lease_nothing_that_was_read_is_answered() -> None:
    log, lease = MemoryLog(PARTITIONS), Lease()

    async def work() -> None:
        async with manager(log, lease) as runtime:
            await written([runtime.commit(commit("g", 1))])
            lease.good = False
            assert refusal(runtime, "g") == NOT_COORDINATOR
            assert await runtime.delete_group("unknown") == NOT_COORDINATOR
            assert runtime.list_groups() == (NOT_COORDINATOR, ())
            assert runtime.owns("g") == NOT_COORDINATOR
            lease.good = True
            assert offset(runtime, "g") == 1

    scenario(work)


def test_a_claim_that_came_too_late_is_followed_by_nothing() -> None:
    """Frozen between being assigned a slot and claiming it: the lease is over when the claim returns."""
    log, lease = MemoryLog(PARTITIONS), Lease()
    claimed = threading.Event()
    plain = log.writer

    def writer(slot: int) -> Any:
        made = plain(slot)
        claim = made.claim

        def late(timeout: float) -> None:
            lease.good = False
            claim(timeout)
            claimed.set()

        made.claim = late  # type: ignore[method-assign]
        return made

    async def work() -> None:
        runtime = ManagerRuntime(log, AvroFormat(), lease, QUICK)
        await runtime.start()
        log.writer = writer  # type: ignore[method-assign]
        runtime.take(0)
        await until(claimed.is_set)
        group = next(g for g in map(str, range(999)) if slot_of(runtime, g) == 0)
        assert await runtime.commit(commit(group, 1)) == LOADING
        assert refusal(runtime, group) == COORDINATOR_LOAD_IN_PROGRESS
        log.writer = plain  # type: ignore[method-assign]
        await asyncio.sleep(0.1)  # long enough for it to go on, if it did
        assert runtime.status()[0].state == "loading"
        await runtime.give_up(0)
        assert log.records(0) == []
        await runtime.close()

    scenario(work)


def test_given_up_with_commits_in_flight_it_ends_them_and_takes_no_more() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            slot = slot_of(runtime, "g")
            log.hold = True
            answers = [runtime.commit(commit("g", 1))]
            await until(lambda: log.unfinished(slot))
            answers.append(runtime.commit(commit("g", 2)))
            leaving = asyncio.create_task(runtime.give_up(slot))
            await asyncio.sleep(0)
            assert await runtime.commit(commit("g", 3)) == ELSEWHERE
            assert refusal(runtime, "g") == NOT_COORDINATOR
            log.hold = False
            log.advance_high_watermark()
            await leaving
            await written(answers)
            assert runtime.status()[runtime.partition_of("g")].role is Role.STANDBY

    scenario(work)


def test_taken_while_it_is_given_up_it_is_served_again() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            slot = slot_of(runtime, "g")
            await written([runtime.commit(commit("g", 1))])
            tenure = runtime.tenure("g")
            leaving = asyncio.create_task(runtime.give_up(slot))
            await asyncio.sleep(0)
            runtime.take(slot)
            await leaving
            await until(lambda: runtime.owns("g") == NONE)
            assert offset(runtime, "g") == 1
            assert runtime.tenure("g") == tenure + 1

    scenario(work)


def test_a_slot_that_cannot_be_claimed_says_why_and_is_tried_again() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(retry_pause=0.05, standby=False)

    async def work() -> None:
        runtime = ManagerRuntime(log, AvroFormat(), Lease(), config)
        await runtime.start()
        log.fail_next_claim(3, Unreachable("broker", "no answer"))
        runtime.take(3)
        await until(lambda: runtime.status()[3].state == "failed")
        assert runtime.status()[3].last_error == "Unreachable: broker: no answer"
        group = next(g for g in map(str, range(999)) if slot_of(runtime, g) == 3)
        assert refusal(runtime, group) == COORDINATOR_NOT_AVAILABLE
        assert runtime.list_groups() == (COORDINATOR_NOT_AVAILABLE, [])
        await until(lambda: runtime.status()[3].state == "active")
        await runtime.close()

    scenario(work)


# --- loading and standing by -------------------------------------------------------------------------------


def test_while_it_loads_it_says_so_and_then_it_has_everything() -> None:
    log = SlowLog(PARTITIONS)
    log.gate.set()

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit(f"g{number}", number)) for number in range(100)])
        log.gate.clear()
        runtime = ManagerRuntime(log, AvroFormat(), Lease(), ManagerConfig(standby=False))
        await runtime.start()
        for slot in range(runtime.slots):
            runtime.take(slot)
        for number in range(100):
            assert refusal(runtime, f"g{number}") == COORDINATOR_LOAD_IN_PROGRESS
            assert await runtime.commit(commit(f"g{number}", 1)) == LOADING
        assert runtime.list_groups() == (COORDINATOR_LOAD_IN_PROGRESS, [])
        assert await runtime.delete_group("g1") == COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: any(status.load_total > 0 for status in runtime.status()))
        log.gate.set()
        await until(lambda: all(status.state == "active" for status in runtime.status()))
        assert [offset(runtime, f"g{number}") for number in range(100)] == list(range(100))
        assert sum(status.load_read for status in runtime.status()) > 0
        await runtime.close()

    scenario(work)


def test_a_standby_has_what_the_owner_acknowledged_and_takes_over_with_the_tail() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as owner, manager(log, slots=()) as standby:
            await until(lambda: standby.caught_up)
            await written([owner.commit(commit(f"g{number}", number)) for number in range(100)])
            await until(lambda: sum(status.offsets for status in standby.status()) == 100)
            await until(lambda: all(status.lag == 0 for status in standby.status()))
            assert refusal(standby, "g1") == NOT_COORDINATOR
            for slot in range(8):
                await owner.give_up(slot)
                standby.take(slot)
            await until(lambda: all(status.state == "active" for status in standby.status()))
            assert [offset(standby, f"g{number}") for number in range(100)] == list(range(100))
            await written([standby.commit(commit("g1", 1000))])
            await until(lambda: len(owner.dump(owner.partition_of("g1"))) > 0)
            await until(
                lambda: (("g1", "t", 0), 1000) in [(k, v.offset) for k, v in owner.dump(owner.partition_of("g1"))]
            )

    scenario(work)


def test_a_standby_that_has_read_all_has_no_lag_though_the_log_ends_with_a_marker() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as owner, manager(log, slots=()) as standby:
            await until(lambda: standby.caught_up)
            await written([owner.commit(commit(f"g{number}", number)) for number in range(100)])
            ends = log.end_offsets(range(PARTITIONS), 1.0)
            assert any(ends.values())
            await until(lambda: {s.partition: s.end_offset for s in standby.status()} == ends)
            await until(lambda: all(s.lag == 0 and s.position == ends[s.partition] for s in standby.status()))
            assert sum(status.offsets for status in standby.status()) == 100

    scenario(work)


def test_an_error_is_shown_until_something_has_succeeded_since() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            slot = slot_of(runtime, "g")

            def shown() -> set[str]:
                return {status.last_error for status in runtime.status() if status.slot == slot}

            log.fail_next_append(slot, Failure.NOT_WRITTEN)
            assert await runtime.commit(commit("g", 1)) != CommitResponse()
            assert shown() != {""}
            await written([runtime.commit(commit("g", 2))])
            assert shown() == {""}
            log.fail_next_append(slot, Failure.UNKNOWN_WRITTEN)
            assert await runtime.commit(commit("g", 3)) != CommitResponse()
            await until(lambda: not any(status.recovering for status in runtime.status()))
            assert shown() == {""}

    scenario(work)


def test_a_slot_taken_while_its_standby_loads_waits_for_that_load() -> None:
    log = SlowLog(PARTITIONS)
    log.gate.set()

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit(f"g{number}", number)) for number in range(100)])
        log.gate.clear()
        runtime = ManagerRuntime(log, AvroFormat(), Lease(), QUICK)
        await runtime.start()
        await until(lambda: any(status.state == "loading" and status.load_total for status in runtime.status()))
        for slot in range(runtime.slots):
            runtime.take(slot)
        assert {refusal(runtime, f"g{number}") for number in range(100)} == {COORDINATOR_LOAD_IN_PROGRESS}
        log.gate.set()
        await until(lambda: all(status.state == "active" for status in runtime.status()))
        assert [offset(runtime, f"g{number}") for number in range(100)] == list(range(100))
        await runtime.close()

    scenario(work)


def test_a_standby_that_was_away_for_too_long_reads_all_again() -> None:
    """The cleaner may have removed a tombstone that it never saw."""
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(standby=True, standby_poll=0.01, lag_interval=0.02, most_standby_age=0.3)

    async def work() -> None:
        async with manager(log) as owner:
            await written([owner.commit(commit("g", 1)), owner.commit(commit("other", 1))])
            partition = owner.partition_of("g")
            async with manager(log, config=config, slots=()) as standby:
                await until(lambda: sum(status.offsets for status in standby.status()) == 2)
                log.fail_next_read(Unreachable("broker"))
                await owner.delete_group("g")
                await written([owner.commit(commit("g2", 1))])
                for number in range(PARTITIONS):
                    log.compact(number)
                    log.compact(number)
                await until(lambda: standby.dump(partition) == owner.dump(partition))
                await until(lambda: sum(status.offsets for status in standby.status()) == 2)

    scenario(work)


def test_a_log_that_was_made_anew_is_read_anew() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            slot = slot_of(runtime, "g")
            await runtime.give_up(slot)
            for partition in partitions_of(slot, PARTITIONS):
                log._partitions[partition].__init__()  # type: ignore[misc]
            runtime.take(slot)
            await until(lambda: runtime.owns("g") == NONE)
            assert offset(runtime, "g") == -1

    scenario(work)


def test_a_slot_taken_again_after_its_log_was_made_anew_has_nothing_of_the_old_one() -> None:
    """Though the new log is longer already than the old one was read."""
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as first, manager(log, slots=()) as other:
            await written([first.commit(commit("g", 1))])
            slot, partition = slot_of(first, "g"), first.partition_of("g")
            await until(lambda: other.status()[partition].offsets == 1)
            await first.give_up(slot)
            log.recreate()
            _fill(log, slot)
            await until(lambda: other.status()[partition].offsets == 0)
            other.take(slot)
            await until(lambda: other.owns("g") == NONE)
            assert offset(other, "g") == -1

    scenario(work)


def test_a_slot_taken_at_once_after_its_log_was_made_anew_has_nothing_of_the_old_one() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(standby_poll=0.01, lag_interval=60)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            await written([runtime.commit(commit("g", 1))])
            slot = slot_of(runtime, "g")
            await runtime.give_up(slot)
            await until(lambda: runtime.caught_up)
            log.recreate()
            _fill(log, slot)
            runtime.take(slot)
            await until(lambda: runtime.owns("g") == NONE)
            assert offset(runtime, "g") == -1

    scenario(work)


def test_a_log_made_anew_while_an_outcome_is_unknown_is_read_anew() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        lease = Lease()
        async with manager(log, lease) as runtime:
            await written([runtime.commit(commit("g", 1))])
            slot = slot_of(runtime, "g")
            log.fail_next_append(slot, Failure.UNKNOWN_OPEN)
            lease.good = False
            assert await runtime.commit(commit("g", 2)) == UNAVAILABLE
            log.recreate()
            _fill(log, slot)
            lease.good = True
            await until(lambda: runtime.owns("g") == NONE and offset(runtime, "g") == -1)

    scenario(work)


def _fill(log: MemoryLog, slot: int) -> None:
    """Makes a slot's partitions longer, by what deletes nothing that anybody has."""
    writer = log.writer(slot)
    writer.claim(1)
    key = AvroFormat().encode_group_key("nobody's")
    for _ in range(10):
        writer.append({partition: [(key, None)] for partition in partitions_of(slot, PARTITIONS)}, 1)
    writer.close()


def test_a_log_that_is_made_anew_under_its_owner_is_read_anew_before_anything_else_is_acknowledged() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            for number in range(10):
                await written([runtime.commit(commit("g", number))])
            for partition in log._partitions:
                partition.__init__()  # type: ignore[misc]
            assert await runtime.commit(commit("g", 10)) == UNAVAILABLE
            await until(lambda: runtime.owns("g") == NONE)
            assert offset(runtime, "g") == 10
            await written([runtime.commit(commit("g", 11))])
            assert offset(runtime, "g") == 11

    scenario(work)


def test_an_owner_that_is_told_of_another_log_serves_nothing_of_the_old_one_any_more() -> None:
    log = SlowLog(PARTITIONS)
    log.gate.set()

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1)), runtime.commit(commit("h", 7))])
            runtime.note_generation(log.generation(1))
            assert offset(runtime, "g") == 1  # it is the one that it was filled from
            log.recreate()
            _fill(log, slot_of(runtime, "g"))
            log.gate.clear()
            runtime.note_generation(log.generation(1))
            assert refusal(runtime, "g") == NOT_COORDINATOR
            assert await runtime.commit(commit("g", 2)) == ELSEWHERE
            await until(lambda: refusal(runtime, "g") == COORDINATOR_LOAD_IN_PROGRESS)
            log.gate.set()
            await until(lambda: {status.state for status in runtime.status()} == {"active"})
            assert (offset(runtime, "g"), offset(runtime, "h")) == (-1, -1)
            await written([runtime.commit(commit("g", 3))])

    scenario(work)


def test_nobody_stops_because_it_is_not_known_which_log_it_is() -> None:
    """Brokers before 2.8 know of no ids."""
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1))])
            runtime.note_generation("")
            assert offset(runtime, "g") == 1

    scenario(work)


def test_a_thread_is_given_the_time_out_that_its_call_on_the_loop_raised() -> None:
    def fails() -> None:
        raise TimeoutError("its own")

    async def work() -> None:
        bridge = Bridge(asyncio.get_running_loop())
        with pytest.raises(TimeoutError, match="its own"):
            await asyncio.wait_for(asyncio.to_thread(bridge.run, fails), 5)

    scenario(work)


def test_a_question_for_members_that_is_never_answered_does_not_stop_the_house() -> None:
    log, asked = MemoryLog(PARTITIONS), []

    async def members(groups: Sequence[str]) -> Mapping[str, bool]:
        asked.append(groups)
        await asyncio.Event().wait()
        return {}

    config = replace(
        QUICK, limits=ShardLimits(retention_ms=1), expiry_interval=0.05, members=members, commit_timeout=0.2
    )

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            await written([runtime.commit(commit("g", 1))])
            await until(lambda: len(asked) > 2)
            assert offset(runtime, "g") == 1

    scenario(work)


# --- the rest ------------------------------------------------------------------------------------------------


def test_when_too_much_is_in_flight_there_is_no_room_until_half_of_it_has_ended() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(most_pending_records=100, transaction_records=10, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            assert runtime.room() is None
            answers = [runtime.commit(commit("g", number, partitions=10)) for number in range(10)]
            room = runtime.room()
            assert room is not None
            for _ in range(4):
                await until(lambda: log.advance_high_watermark() == 1)
            await asyncio.gather(*answers[:4])
            assert not room.done()
            log.hold = False
            log.advance_high_watermark()
            await room
            await written(answers)
            assert runtime.room() is None

    scenario(work)


def test_offsets_expire_but_not_those_of_groups_with_members() -> None:
    log = MemoryLog(PARTITIONS)
    asked: list[str] = []

    async def members(groups: Sequence[str]) -> Mapping[str, bool]:
        asked.extend(groups)
        return {group: group == "active" for group in groups if group != "unknown"}

    config = ManagerConfig(
        limits=ShardLimits(retention_ms=0, activity_ms=HOUR_MS), expiry_interval=0.2, standby=False, members=members
    )

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            await written([runtime.commit(commit(group, 1)) for group in ("idle", "active", "unknown")])
            await until(lambda: offset(runtime, "idle") == -1)
            await until(lambda: set(asked) == {"idle", "active", "unknown"})
            assert offset(runtime, "active") == 1
            assert offset(runtime, "unknown") == 1
            assert runtime.counters.expired == 1

    scenario(work)


def test_closing_waits_for_what_is_in_flight_and_refuses_the_rest() -> None:
    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            log.hold = True
            answer = runtime.commit(commit("g", 1))
            await until(lambda: log.unfinished(slot_of(runtime, "g")))
            closing = asyncio.create_task(runtime.close())
            await until(lambda: runtime.owns("g") == NOT_COORDINATOR)
            assert await runtime.commit(commit("g", 2)) == ELSEWHERE
            assert not closing.done()
            log.hold = False
            log.advance_high_watermark()
            await closing
            await written([answer])
            runtime.take(0)
            assert runtime.owns("g") == NOT_COORDINATOR
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("offsetmgr-")] == []

    scenario(work)


def test_closing_is_bounded_when_the_log_does_not_answer() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(commit_timeout=0.2, standby=False)

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            log.hold = True
            answers = [runtime.commit(commit(str(number), 1)) for number in range(50)]
            await asyncio.wait_for(runtime.close(), 1)
            assert await asyncio.gather(*answers) == [UNAVAILABLE] * 50

    scenario(work)


def test_figures_have_names_that_the_metrics_endpoint_takes() -> None:
    from offsetmgr.server.metrics import Metrics

    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1, partitions=3))])
            log.fail_next_append(slot_of(runtime, "g"), Failure.NOT_WRITTEN)
            await runtime.commit(commit("g", 2))
            text = Metrics(runtime.figures).text().decode()
            assert 'offsetmgr_shards{role="owner",state="active"} 16.0' in text
            assert "offsetmgr_cache_entries 3.0" in text
            assert 'offsetmgr_commit_errors_total{code="15"} 1.0' in text

    scenario(work)


def test_a_slot_that_nobody_here_can_read_leaves_the_other_standbys_alone() -> None:
    log = MemoryLog(PARTITIONS)
    config = ManagerConfig(standby=True, standby_poll=0.01, lag_interval=0.02)

    async def work() -> None:
        async with manager(log) as owner, manager(log, config=config, slots=()) as standby:
            await until(lambda: standby.caught_up)
            strange = slot_of(owner, "g")
            await owner.give_up(strange)
            writer = log.writer(strange)
            writer.claim(1)
            foreign = KafkaFormat().encode_commit("x", "t", [(0, 1, -1, "")], 1_700_000_000_000, None)
            writer.append({owner.partition_of("g"): foreign}, 1)
            others = [name for name in (f"o{n}" for n in range(50)) if slot_of(owner, name) != strange]

            await written([owner.commit(commit(name, 7)) for name in others])

            await until(lambda: sum(status.offsets for status in standby.status()) == len(others))
            await until(lambda: any(s.last_error for s in standby.status() if s.slot == strange))
            assert not [s for s in standby.status() if s.slot != strange and s.last_error]

    scenario(work)
