"""The wait between two transactions of a shard group."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from offsetmgr.manager.log.kafka.linger import MAX_WAIT_S, REJECTION_S, AdaptiveLinger
from offsetmgr.manager.log.memory import MemoryLog
from offsetmgr.manager.protocol_values import CommitRequest
from offsetmgr.manager.runtime import ManagerConfig, ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import EncodedRecord


def test_a_rejection_increases_the_wait_at_once_and_each_other_transaction_decreases_it_a_little() -> None:
    linger = AdaptiveLinger()
    first = linger.wait_s
    linger.on_confirmed(REJECTION_S)
    longer = linger.wait_s
    linger.on_confirmed(0.003)
    assert first < linger.wait_s < longer
    assert longer - first > 100 * (longer - linger.wait_s), (
        "only many transactions without a rejection undo the increase"
    )


def test_the_wait_has_a_maximum_and_drops_to_zero_if_the_broker_needs_none() -> None:
    linger = AdaptiveLinger()
    for _ in range(20):
        linger.on_confirmed(0.030)
    assert linger.wait_s == MAX_WAIT_S
    for _ in range(5_000):
        linger.on_confirmed(0.001)
    assert linger.wait_s == 0.0


@pytest.mark.parametrize("needed", [0.0005, 0.002, 0.004])
def test_few_transactions_are_rejected_whatever_time_the_broker_needs(needed: float) -> None:
    linger = AdaptiveLinger()
    rejected = 0
    for _ in range(10_000):
        late = linger.wait_s < needed
        rejected += late
        linger.on_confirmed(0.022 if late else 0.002)
    assert rejected <= 50
    assert linger.wait_s <= needed + 0.001


class PausingLog(MemoryLog):
    """A log whose writers pause after every append until ``awake`` is set. It records the sizes of the appends."""

    def __init__(self) -> None:
        super().__init__(1)
        self.awake = threading.Event()
        self.appends: list[int] = []

    def writer(self, shard_group: int) -> Any:
        inner, log = super().writer(shard_group), self

        class PausingWriter:
            claim, close = inner.claim, inner.close

            @property
            def ready_at(self) -> float:
                """The runtime reads this time before every append. The read waits for ``awake``."""
                assert not log.appends or log.awake.wait(60)
                return 0.0

            def append(self, batches: Mapping[int, Sequence[EncodedRecord]], timeout: float) -> Mapping[int, int]:
                log.appends.append(sum(map(len, batches.values())))
                return inner.append(batches, timeout)

        return PausingWriter()


def test_commits_that_arrive_during_the_wait_are_in_one_append() -> None:
    log = PausingLog()

    def commit(group: str) -> CommitRequest:
        return CommitRequest(group, [("t", [(0, 1, -1, "")])])

    async def work() -> None:
        runtime = ManagerRuntime(log, AvroRecordFormat(), PermanentOwnership(), ManagerConfig())
        await runtime.start()
        try:
            for shard_group in range(runtime.shard_groups):
                runtime.on_assigned(shard_group)
            async with asyncio.timeout(60):
                while any(s.state != "active" for s in runtime.status()):
                    await asyncio.sleep(0.001)
            await runtime.commit(commit("a"))
            answers = [runtime.commit(commit("b"))]
            await asyncio.sleep(0)  # it is queued for the shard group's thread, which pauses
            answers += [runtime.commit(commit(group)) for group in ("c", "d")]
            await asyncio.sleep(0)
            log.awake.set()
            await asyncio.gather(*answers)
        finally:
            await runtime.close()

    asyncio.run(asyncio.wait_for(work(), 120))
    assert log.appends == [1, 3]


class PermanentOwnership:
    """An `Ownership` that is never lost."""

    def valid(self) -> bool:
        return True

    def on_fenced(self, shard_group: int, why: str) -> None:
        raise AssertionError(f"shard group {shard_group} was lost: {why}")
