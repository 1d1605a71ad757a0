"""Unconditional writes after a comparison: an offset that was read too long ago is read again before the write."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.stores.protocol_edits import ProtocolEdits

TP = TopicPartition("t", 0)


class Edits(ProtocolEdits):
    """Edits of a group whose offset is 100. A consumer commits 200 while this process is stopped."""

    def __init__(self) -> None:
        self.at = 100

        async def commit(group: str, offsets: dict[TopicPartition, OffsetAndMetadata], *_: object) -> dict[Any, None]:
            assert group
            self.at = offsets[TP].offset
            return dict.fromkeys(offsets)

        super().__init__(cast(Client, SimpleNamespace(commit=commit)), 120)
        self.stops = 1

    async def fetch(self, *_: object) -> FetchedGroup:
        return FetchedGroup({TP: Committed(self.at)}, {})

    async def _write_as_simple_consumer(self, *arguments: Any, **named: Any) -> GroupEditResult:
        if self.stops:
            self.stops -= 1
            self.at = 200
            time.sleep(0.1)  # the process pauses, as after SIGSTOP
        return await super()._write_as_simple_consumer(*arguments, **named)


def test_a_process_that_was_stopped_between_reading_and_writing_reads_again() -> None:
    edits = Edits()

    async def edit() -> GroupEditResult:
        return await edits._compare_and_write(
            GroupEdit("g", {TP: Change(OffsetAndMetadata(150))}), edits.deadline(), None
        )

    result = asyncio.run(edit())
    assert result.outcomes[TP].status is EditStatus.FAILED
    assert result.outcomes[TP].before == Committed(200)
    assert edits.at == 200
