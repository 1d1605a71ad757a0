"""Requests of a program to its embedded manager: rejected offsets and rewinds, over an in-memory log."""

from __future__ import annotations

import pytest
from runtimes import PARTITIONS, manager, scenario

from offsetmgr.core.errors import PartialFailure, RewindRefused, UsageError
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.manager.embedded.request_adapter import RequestAdapter
from offsetmgr.manager.log.memory import MemoryLog

A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.mark.parametrize("allow_rewind", [False, True])
def test_a_negative_offset_is_an_error_and_neither_a_commit_nor_a_deletion(allow_rewind: bool) -> None:
    async def work() -> None:
        async with manager(MemoryLog(PARTITIONS)) as runtime:
            requests = RequestAdapter(runtime, lambda group: None, 20.0)
            await requests.commit("g", {A: OffsetAndMetadata(5)}, allow_rewind=False)

            with pytest.raises(PartialFailure) as failed:
                await requests.commit(
                    "g",
                    {A: OffsetAndMetadata(-1), B: OffsetAndMetadata(-1), C: OffsetAndMetadata(7)},
                    allow_rewind=allow_rewind,
                )

            assert {tp: type(error) for tp, error in failed.value.failures.items()} == {A: UsageError, B: UsageError}
            assert "-1 is not an offset" in str(failed.value.failures[B])
            found = await requests.fetch("g", [A, B, C])
            assert [found[tp] for tp in (A, B, C)] == [Committed(5), ABSENT, Committed(7)]

    scenario(work)


def test_a_commit_that_would_rewind_is_rejected_unless_allowed() -> None:
    async def work() -> None:
        async with manager(MemoryLog(PARTITIONS)) as runtime:
            requests = RequestAdapter(runtime, lambda group: None, 20.0)
            await requests.commit("g", {A: OffsetAndMetadata(5)}, allow_rewind=False)

            with pytest.raises(PartialFailure) as failed:
                await requests.commit("g", {A: OffsetAndMetadata(4), B: OffsetAndMetadata(1)}, allow_rewind=False)

            (refused,) = failed.value.failures.values()
            assert isinstance(refused, RewindRefused)
            assert str(refused) == "group g, t-0: would go back from 5 to 4"
            assert (await requests.fetch("g", [A, B])) == {A: Committed(5), B: Committed(1)}
            await requests.commit("g", {A: OffsetAndMetadata(4)}, allow_rewind=True)
            assert (await requests.fetch("g", [A])) == {A: Committed(4)}

    scenario(work)
