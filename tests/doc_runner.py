"""Runs the Python blocks of a page in order, in one process: ``doc_runner.py PAGE ADDRESSES``.

``ADDRESSES`` is a JSON object for `doc_blocks.with_addresses`. Prints only what the blocks print.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from doc_blocks import blocks, with_addresses


def main(page: Path, addresses: dict[str, str]) -> None:
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and block.not_run is None:
            source = "\n" * (block.line - 1) + with_addresses(block.text, addresses)
            exec(compile(source, str(page), "exec"), namespace)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
