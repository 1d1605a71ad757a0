"""Runs `manager serve` with brokers that forget producers within seconds, and stops itself (SIGSTOP) just before it
sends the first batch that contains `TRIGGER`.

With `IGNORE_LEASE` in its environment the manager is faulty: it always treats its lease as valid, so that only the
fence of the log protects the commits.

python late_manager.py manager serve ...
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from offsetmgr.cli.app import run
from offsetmgr.manager.lease import OwnershipLease
from offsetmgr.manager.log.kafka.leader_connections import LeaderConnection
from offsetmgr.server import manager_process

TRIGGER: Final = "freeze before this is sent"
IGNORE_LEASE: Final = "TEST_IGNORE_LEASE"
MIN_EXPIRATION_S: Final = 5.0

_produce = LeaderConnection.produce
_calls = itertools.count()


async def produce(self: LeaderConnection, batches: Mapping[int, bytes], deadline: float) -> Any:
    if any(TRIGGER.encode() in batch for batch in batches.values()) and next(_calls) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return await _produce(self, batches, deadline)


if __name__ == "__main__":
    LeaderConnection.produce = produce  # type: ignore[method-assign]
    run_manager = manager_process.run_manager
    manager_process.run_manager = lambda settings: run_manager(replace(settings, min_expiration_s=MIN_EXPIRATION_S))
    if os.environ.get(IGNORE_LEASE):
        OwnershipLease.valid = lambda self: True  # type: ignore[method-assign]
    sys.exit(run(sys.argv[1:]))
