"""The background work of the runtime: expiration, metrics, and calls between its threads and its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from runtimes import PARTITIONS, QUICK, commit, manager, offset, scenario, shard_group_of, until, written

from offsetmgr.manager.expiration import HOUR_MS
from offsetmgr.manager.log.memory import Failure, MemoryLog
from offsetmgr.manager.runtime import ManagerConfig
from offsetmgr.manager.runtime.loop_proxy import LoopProxy
from offsetmgr.manager.shard import ShardLimits


def test_a_thread_receives_the_timeout_error_that_its_call_on_the_loop_raised() -> None:
    def fails() -> None:
        raise TimeoutError("its own")

    async def work() -> None:
        proxy = LoopProxy(asyncio.get_running_loop())
        with pytest.raises(TimeoutError, match="its own"):
            await asyncio.wait_for(asyncio.to_thread(proxy.run, fails), 90)

    scenario(work)


@pytest.mark.slow
def test_a_request_for_members_without_an_answer_does_not_stop_the_housekeeping() -> None:
    log, requested = MemoryLog(PARTITIONS), []

    async def members(groups: Sequence[str]) -> Mapping[str, bool]:
        requested.append(groups)
        await asyncio.Event().wait()
        return {}

    config = replace(
        QUICK, limits=ShardLimits(retention_ms=1), expiry_interval_s=0.05, members=members, commit_timeout_s=1.0
    )

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            await written([runtime.commit(commit("g", 1))])
            await until(lambda: len(requested) > 2)
            assert offset(runtime, "g") == 1

    scenario(work)


def test_offsets_expire_but_not_those_of_groups_with_members() -> None:
    log = MemoryLog(PARTITIONS)
    requested: list[str] = []

    async def members(groups: Sequence[str]) -> Mapping[str, bool]:
        requested.extend(groups)
        return {group: group == "active" for group in groups if group != "unknown"}

    config = ManagerConfig(
        limits=ShardLimits(retention_ms=0, max_activity_age_ms=HOUR_MS),
        expiry_interval_s=0.2,
        standby=False,
        members=members,
    )

    async def work() -> None:
        async with manager(log, config=config) as runtime:
            await written([runtime.commit(commit(group, 1)) for group in ("idle", "active", "unknown")])
            await until(lambda: offset(runtime, "idle") == -1)
            await until(lambda: set(requested) == {"idle", "active", "unknown"})
            assert offset(runtime, "active") == 1
            assert offset(runtime, "unknown") == 1
            assert runtime.counters.expired == 1

    scenario(work)


@pytest.mark.parametrize("turns", range(6))
def test_the_housekeeping_ends_if_an_answer_about_members_arrives_during_the_close(turns: int) -> None:
    """``turns``: turns of the loop between the two. After one of them the answer has arrived, but is not processed."""
    config = ManagerConfig(limits=ShardLimits(retention_ms=0), expiry_interval_s=0.02, standby=False)

    async def work() -> None:
        requested, answer = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def members(groups: Sequence[str]) -> Mapping[str, bool]:
            requested.set()
            found: Mapping[str, bool] = await answer
            return found

        async with manager(MemoryLog(PARTITIONS), config=replace(config, members=members)) as runtime:
            await written([runtime.commit(commit("g", 1))])
            await requested.wait()
            answer.set_result({"g": True})
            for _ in range(turns):
                await asyncio.sleep(0)
            closing = asyncio.create_task(runtime.close())
            await asyncio.wait({closing}, timeout=240)
            assert closing.done()

    scenario(work)


def test_the_metrics_endpoint_accepts_the_names_of_the_metrics() -> None:
    from offsetmgr.server.metrics import Metrics

    log = MemoryLog(PARTITIONS)

    async def work() -> None:
        async with manager(log) as runtime:
            await written([runtime.commit(commit("g", 1, partitions=3))])
            log.fail_next_append(shard_group_of(runtime, "g"), Failure.NOT_WRITTEN)
            await runtime.commit(commit("g", 2))
            text = Metrics(runtime.metrics).text().decode()
            assert 'offsetmgr_shards{role="owner",state="active"} 16.0' in text
            assert "offsetmgr_cache_entries 3.0" in text
            assert 'offsetmgr_commit_errors_total{code="15"} 1.0' in text

    scenario(work)
