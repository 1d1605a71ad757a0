"""Runs a command whose clock is ahead by a number of seconds. `manager serve` looks for expired offsets all the time.

python wrong_clock.py SECONDS manager serve ...
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from offsetmgr.cli.app import run
from offsetmgr.server import manager_process

if __name__ == "__main__":
    ahead = int(sys.argv[1])
    time_s, time_ns = time.time, time.time_ns
    time.time = lambda: time_s() + ahead
    time.time_ns = lambda: time_ns() + ahead * 1_000_000_000
    run_manager = manager_process.run_manager
    manager_process.run_manager = lambda settings: run_manager(replace(settings, expiry_interval_s=0.2))
    sys.exit(run(sys.argv[2:]))
