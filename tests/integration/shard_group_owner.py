"""A process that owns shard groups and does nothing with them but write down when: for tests that kill and freeze it.

Arguments: bootstrap servers, group, port that it says it listens on, file, session timeout in seconds. Lines of the
file are JSON; times are CLOCK_BOOTTIME.
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

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.groups.group_member import KafkaGroupMember
from offsetmgr.manager.assignment import SharedConfig
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.ownership import ASSIGNMENT_RULES, PROTOCOL, PROTOCOL_TYPE, OwnershipManager

BETWEEN_SAMPLES = 0.02


class Notebook:
    """Also a `OwnershipListener` that takes no time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, event: str, at: float | None = None, **what: Any) -> None:
        self._file.write(json.dumps({"t": boottime() if at is None else at, "event": event, **what}) + "\n")

    def on_assigned(self, shard_group: int) -> None:
        self.write("take", shard_group=shard_group)

    async def on_revoked(self, shard_group: int) -> None:
        self.write("give_up", shard_group=shard_group)


def watch(ownership: OwnershipManager, notebook: Notebook) -> None:
    """Samples the lease in a thread of its own: what another thread is told, at any moment.

    The time is taken first: a process may be frozen between any two steps, and what it says after that moment was then
    looked at after it too."""
    while True:
        now = boottime()
        valid, left = ownership.valid(), ownership.lease_remaining
        notebook.write("lease", now, valid=valid, left=left, generation=ownership.generation)
        time.sleep(BETWEEN_SAMPLES)


async def main(bootstrap: str, group: str, port: str, path: str, session: str) -> None:
    seconds = float(session)
    client = Client(bootstrap, Security.of({}))
    ownership = OwnershipManager(
        "127.0.0.1",
        int(port),
        SharedConfig("offsets", 50, 8, "avro", ASSIGNMENT_RULES, 1, False),
        lambda events: KafkaGroupMember(
            client,
            group,
            events,
            protocol_type=PROTOCOL_TYPE,
            protocol=PROTOCOL,
            session_timeout_s=seconds,
            rebalance_timeout_s=3 * seconds,
            clock=boottime,
        ),
        session_timeout_s=seconds,
        rebalance_timeout_s=3 * seconds,
    )
    notebook = Notebook(Path(path))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    threading.Thread(target=watch, args=(ownership, notebook), daemon=True).start()
    await ownership.start(notebook)
    await stop.wait()
    notebook.write("stopping")
    await ownership.stop()
    notebook.write("stopped")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
