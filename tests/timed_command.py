"""A command of offsetmgr that writes down how long it took by its own clock, without the start of Python and without
what it waited for a processor (`stopwatch`): what "within its timeout" means on a machine that is busy.

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
