"""Runs `manager serve`, but stops itself (SIGSTOP) just before it claims its first shard group: the shard group is
assigned and not yet claimed.

python frozen_manager.py manager serve ...
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Mapping

from offsetmgr.cli.app import run
from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter

_claim = KafkaShardGroupWriter.claim
_calls = itertools.count()


async def claim(self: KafkaShardGroupWriter, timeout_s: float) -> Mapping[int, int]:
    if next(_calls) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return await _claim(self, timeout_s)


if __name__ == "__main__":
    KafkaShardGroupWriter.claim = claim  # type: ignore[method-assign]
    sys.exit(run(sys.argv[1:]))
