"""Owns shard groups and records assignments and lease samples, in a process that tests kill and freeze.

Arguments: bootstrap servers, group and topic (they have the same name), advertised port, output file, session timeout
in seconds. Each line of the file is a JSON object; its time is CLOCK_BOOTTIME. The event ``assigned`` has the time from
which the process may claim the shard group.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.groups.group_member import GroupMemberConfig, KafkaGroupMember
from offsetmgr.manager.assignment import SharedConfig
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.ownership import ASSIGNMENT_RULES, PROTOCOL, PROTOCOL_TYPE, OwnershipManager

SAMPLE_INTERVAL_S = 0.02


class EventWriter:
    """Writes one line per event. As an `OwnershipListener` it returns at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._waiting: dict[int, asyncio.TimerHandle] = {}

    def write(self, event: str, at: float | None = None, **fields: Any) -> None:
        self._file.write(json.dumps({"t": boottime() if at is None else at, "event": event, **fields}) + "\n")

    def on_assigned(self, shard_group: int, not_before: float) -> None:
        if (wait_s := not_before - boottime()) > 0:
            timer = asyncio.get_running_loop().call_later(wait_s, self.on_assigned, shard_group, not_before)
            self._waiting[shard_group] = timer
        else:
            self._waiting.pop(shard_group, None)
            self.write("assigned", shard_group=shard_group)

    async def on_revoked(self, shard_group: int) -> None:
        if (timer := self._waiting.pop(shard_group, None)) is not None:
            timer.cancel()
        else:
            self.write("revoked", shard_group=shard_group)


def watch(ownership: OwnershipManager, writer: EventWriter) -> None:
    """Samples the lease in a separate thread, as a thread that serves requests does.

    The time is read before the lease. The process may freeze between the two steps, so the lease was read at that time
    or later."""
    while True:
        now = boottime()
        valid, left = ownership.valid(), ownership.lease_remaining
        writer.write("lease", now, valid=valid, left=left, generation=ownership.generation)
        time.sleep(SAMPLE_INTERVAL_S)


async def main(bootstrap: str, group: str, port: str, path: str, session: str) -> None:
    seconds = float(session)
    client = Client(bootstrap, Security.of({}))
    ownership = OwnershipManager(
        "127.0.0.1",
        int(port),
        SharedConfig("offsets", 50, 8, "avro", ASSIGNMENT_RULES, 1, False),
        lambda events: KafkaGroupMember(
            client,
            GroupMemberConfig(group, PROTOCOL_TYPE, PROTOCOL, seconds, 20 * seconds, proof=TopicPartition(group, 0)),
            events,
            clock=boottime,
        ),
        rebalance_timeout_s=20 * seconds,
    )
    writer = EventWriter(Path(path))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    threading.Thread(target=watch, args=(ownership, writer), daemon=True).start()
    await ownership.start(writer)
    await stop.wait()
    writer.write("stopping")
    await ownership.stop()
    writer.write("stopped")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
