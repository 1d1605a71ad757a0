"""A process with a runtime that owns every shard group and commits without end: for tests that kill and freeze it.

Arguments: bootstrap servers, topic, file. A line of the file is a commit that was acknowledged: group and offset; one
that was refused: ``refused``, group, offset and error code.
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


class Always:
    """Thinks that it owns everything, whatever happens."""

    def valid(self) -> bool:
        return True

    def on_fenced(self, shard_group: int, why: str) -> None:
        pass


async def commit_without_end(runtime: ManagerRuntime, group: str, out: TextIO) -> None:
    offset = 0
    while True:
        offset += 1
        response = await runtime.commit(CommitRequest(group, [("t", [(p, offset, -1, "") for p in range(10)])]))
        if response.error == ErrorCode.NONE:
            out.write(f"{group} {offset}\n")
        else:
            out.write(f"refused {group} {offset} {response.error}\n")
            await asyncio.sleep(0.05)


async def main(bootstrap: str, topic: str, file: str) -> None:
    log = KafkaLog(bootstrap, topic, PARTITIONS)
    runtime = ManagerRuntime(log, AvroRecordFormat(), Always(), ManagerConfig(standby=False))
    await runtime.start()
    for shard_group in range(runtime.shard_groups):
        runtime.on_assigned(shard_group)
    while any(status.state != "active" for status in runtime.status()):
        await asyncio.sleep(0.01)
    with Path(file).open("w", buffering=1) as out:
        await asyncio.gather(*[commit_without_end(runtime, f"g{number}", out) for number in range(GROUPS)])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
