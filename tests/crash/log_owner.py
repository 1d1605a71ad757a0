"""A process that owns a shard group of the manager's log: claims it on command, appends until another owner has claimed
it, and records what was acknowledged.

Each line of the standard input is the number of a command to claim the shard group. The process writes ``ready``,
``claimed NUMBER`` and ``lost NUMBER`` to its standard output, and ends when its standard input is closed. The argument
is a JSON object, see `Settings`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from takeover_checker import Acknowledged, Claimed, Event, Rejected, Unknown, WasFenced, line_of, record_of

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.manager.log.base import AppendOutcome, AppendRejected, Fenced, OutcomeUnknown
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter

CLAIM_TIMEOUT_S = 5.0
APPEND_TIMEOUT_S = 2.0
MAX_RECORDS = 5
"""The largest number of records of a batch."""
PAUSE_S = 0.0005
"""The pause after each append, in which the other processes of the test can run."""
RETRY_PAUSE_S = 0.02


class Owner:
    """See the module. ``via`` replaces addresses of brokers by addresses of proxies."""

    def __init__(
        self, *, name: str, bootstrap: str, topic: str, partitions: int, shard_group: int, events: str,
        via: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._name = name
        self._log = KafkaLog(bootstrap, topic, partitions, manager=name)
        self._shard_group = shard_group
        self._events: TextIO = Path(events).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._dice = random.Random(name)
        self._number = 0
        self._command: int | None = None
        self._commanded = asyncio.Event()
        self._ended = False
        connect_via(via)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read_commands, args=(loop,), daemon=True).start()
        _report("ready")
        while not self._ended:
            await self._commanded.wait()
            self._commanded.clear()
            command, self._command = self._command, None
            if command is not None:
                await self._obey(command)

    def _read_commands(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(self._on_command, int(line))
        loop.call_soon_threadsafe(self._on_end)

    def _on_command(self, command: int) -> None:
        self._command = command
        self._commanded.set()

    def _on_end(self) -> None:
        self._ended = True
        self._commanded.set()

    async def _obey(self, command: int) -> None:
        writer = self._log.writer(self._shard_group)
        try:
            while not self._commanded.is_set():
                if await self._claim(writer):
                    _report(f"claimed {command}")
                    await self._append_until_unknown(writer)
        except Fenced:
            self._record(WasFenced(self._name, time.monotonic_ns()))
            _report(f"lost {command}")
        finally:
            writer.close()

    async def _claim(self, writer: KafkaShardGroupWriter) -> bool:
        """Claims and reads the shard group. Returns False after an error, after which the caller tries again."""
        begin = time.monotonic_ns()
        try:
            ends = await writer.claim(CLAIM_TIMEOUT_S)
            states: dict[int, dict[bytes, bytes | None]] = {partition: {} for partition in ends}
            reached = await asyncio.to_thread(self._load, ends, states)
            end, loaded_ms = time.monotonic_ns(), time.time_ns() // 1_000_000
            for outcome in (await writer.complete_claim(CLAIM_TIMEOUT_S)).values():
                if isinstance(outcome, OffsetMgrError):
                    raise outcome
        except Fenced:
            raise
        except OffsetMgrError:
            await asyncio.sleep(RETRY_PAUSE_S)
            return False
        for partition, state in states.items():
            texts = {key.decode(): (value or b"").decode() for key, value in state.items()}
            where = ends[partition], reached[partition]
            self._record(Claimed(self._name, partition, begin, end, loaded_ms, *where, texts))
        self._claim_offsets = {partition: offset - 1 for partition, offset in ends.items()}
        return True

    def _load(self, ends: Mapping[int, int], states: Mapping[int, dict[bytes, bytes | None]]) -> Mapping[int, int]:
        reader = self._log.reader()
        try:
            return reader.load(dict.fromkeys(ends, 0), ends, states)
        finally:
            reader.close()

    async def _append_until_unknown(self, writer: KafkaShardGroupWriter) -> None:
        """Appends until the outcome of a batch is unknown, or until the next command. Raises `Fenced`."""
        while not self._commanded.is_set():
            numbers = {partition: self._next_numbers() for partition in self._claim_offsets}
            records = {partition: [record_of(self._name, n) for n in found] for partition, found in numbers.items()}
            begin = time.monotonic_ns()
            outcomes = await writer.append(records, APPEND_TIMEOUT_S)
            end = time.monotonic_ns()
            for partition, outcome in outcomes.items():
                self._record_outcome(partition, numbers[partition], begin, end, outcome)
            for outcome in outcomes.values():
                if isinstance(outcome, Fenced):
                    raise outcome
            if any(isinstance(outcome, OutcomeUnknown) for outcome in outcomes.values()):
                return
            await asyncio.sleep(PAUSE_S)

    def _next_numbers(self) -> range:
        first = self._number
        self._number += self._dice.randint(1, MAX_RECORDS)
        return range(first, self._number)

    def _record_outcome(self, partition: int, numbers: range, begin: int, end: int, outcome: AppendOutcome) -> None:
        if isinstance(outcome, int):
            first = outcome - len(numbers) + 1
            where = self._claim_offsets[partition], first, numbers.start, len(numbers)
            self._record(Acknowledged(self._name, partition, begin, end, *where))
        elif isinstance(outcome, AppendRejected):
            self._record(Rejected(self._name, partition, numbers.start, len(numbers)))
        elif isinstance(outcome, OutcomeUnknown):
            self._record(Unknown(self._name, partition))

    def _record(self, event: Event) -> None:
        self._events.write(line_of(event))


def connect_via(via: Mapping[str, str]) -> None:
    """Makes every connection to a broker go through a proxy."""
    connect = BrokerConnection._connect

    async def connect_to_proxy(address: Address, security: Security) -> BrokerConnection:
        return await connect(Address.parse(via.get(str(address), str(address))), security)

    BrokerConnection._connect = staticmethod(connect_to_proxy)  # type: ignore[method-assign]


def _report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Owner(**json.loads(sys.argv[1])).run())
