"""Runs the blocks of a page in order, in one process: ``doc_runner.py PAGE ADDRESSES``.

``ADDRESSES`` is a JSON object for `doc_blocks.with_addresses`. Prints only what the blocks print.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from doc_blocks import SHELL, blocks, with_addresses

PYTHON = shlex.quote(sys.executable)
PRELUDE = f'set -e; python() {{ {PYTHON} "$@"; }}; offsetmgr() {{ python -m offsetmgr "$@"; }}\n'


def main(page: Path, addresses: dict[str, str]) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        text = with_addresses(block.text, addresses)
        if block.runs and block.language in SHELL:
            subprocess.run(["bash", "-c", PRELUDE + text], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        elif block.runs:
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), namespace)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
