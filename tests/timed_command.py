"""Runs a command of offsetmgr and writes its duration to a file, without the start of Python and without the time for
which it waited for a processor (see `stopwatch`). Tests of timeouts compare this duration, also on a busy machine.

    python timed_command.py FILE ARGUMENTS...
"""

from __future__ import annotations

import sys
from pathlib import Path

from stopwatch import Stopwatch

from offsetmgr.cli.app import main

if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    with Stopwatch() as watch:
        try:
            main()
        finally:
            file.write_text(str(watch.seconds), encoding="ascii")
