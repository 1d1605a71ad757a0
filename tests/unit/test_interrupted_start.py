"""A manager process that receives a stop signal while it starts."""

from __future__ import annotations

import asyncio

import pytest

from offsetmgr.core.errors import Unreachable
from offsetmgr.server.process.manager_process import _cancel_start


def test_a_cancelled_start_has_ended_before_anything_is_closed() -> None:
    opened: list[str] = []

    async def start() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            opened.append("connection")

    async def work() -> None:
        starting = asyncio.create_task(start())
        await asyncio.sleep(0)
        await _cancel_start(starting)
        assert opened == ["connection"]

    asyncio.run(work())


def test_a_start_that_fails_while_it_is_interrupted_raises_its_error() -> None:
    async def start() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Unreachable("brokers")

    async def work() -> None:
        starting = asyncio.create_task(start())
        await asyncio.sleep(0)
        with pytest.raises(Unreachable):
            await _cancel_start(starting)

    asyncio.run(work())
