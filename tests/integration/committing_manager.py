"""Runs a manager that owns every shard group and commits until it is killed: for tests that kill and freeze it.

Arguments: bootstrap servers, topic, output file. Each line of the file is one commit: ``GROUP OFFSET`` if the manager
acknowledged it, or ``rejected GROUP OFFSET ERROR_CODE``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TextIO

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.protocol_values import CommitRequest
from offsetmgr.manager.runtime import ManagerConfig, ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat

GROUPS = 40
PARTITIONS = 8


class PermanentLease:
    """A lease that is always valid."""

    def valid(self) -> bool:
        return True

    def on_fenced(self, shard_group: int, why: str) -> None:
        pass


async def commit_forever(runtime: ManagerRuntime, group: str, out: TextIO) -> None:
    offset = 0
    while True:
        offset += 1
        response = await runtime.commit(CommitRequest(group, [("t", [(p, offset, -1, "") for p in range(10)])]))
        if response.error == ErrorCode.NONE:
            out.write(f"{group} {offset}\n")
        else:
            out.write(f"rejected {group} {offset} {response.error}\n")
            await asyncio.sleep(0.05)


async def main(bootstrap: str, topic: str, file: str) -> None:
    log = KafkaLog(bootstrap, topic, PARTITIONS)
    runtime = ManagerRuntime(log, AvroRecordFormat(), PermanentLease(), ManagerConfig(standby=False))
    await runtime.start()
    for shard_group in range(runtime.shard_groups):
        runtime.on_assigned(shard_group)
    while any(status.state != "active" for status in runtime.status()):
        await asyncio.sleep(0.01)
    with Path(file).open("w", buffering=1) as out:
        await asyncio.gather(*[commit_forever(runtime, f"g{number}", out) for number in range(GROUPS)])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
