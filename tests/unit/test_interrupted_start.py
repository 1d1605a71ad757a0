"""A manager process that is told to stop while it starts."""

from __future__ import annotations

import asyncio

import pytest

from offsetmgr.core.errors import Unreachable
from offsetmgr.server.process.manager_process import _cancel_start


def test_what_a_start_opens_while_it_ends_is_there_before_anything_is_closed() -> None:
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


def test_a_start_that_fails_while_it_is_interrupted_says_why() -> None:
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
