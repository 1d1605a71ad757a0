"""A listener over an in-memory backend in its own process, for tests that try to break it.

Prints the ports of a listener without login and of one that requires SASL. Then it answers each line on stdin with a
line of metrics, until stdin is closed.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path

from memory_listener import NODE_ID, MemoryListener

from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.runtime.process_settings import tune_process


def resident_bytes() -> int:
    """The current resident memory of this process, not its maximum."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(credentials: str) -> None:
    tune_process()
    with MemoryListener() as plain, MemoryListener(plain.backend, credentials=Path(credentials)) as secured:
        plain.backend.node = NodeAddress(NODE_ID, "127.0.0.1", plain.port)
        plain.backend.offsets["g"] = {"orders": {p: (p, -1, "") for p in range(50)}}
        write_line(f"{plain.port} {secured.port}")
        for _ in sys.stdin:
            metrics = [listener.service.metrics() for listener in (plain, secured)]
            write_line(json.dumps({"resident": resident_bytes(), "services": metrics}))
            # The mutated requests also create groups with mangled names. The backend stores them as requested; deleting
            # them here keeps that memory from being counted as a leak of the listener.
            for name in [name for name in plain.backend.offsets if name not in ("g", "witness")]:
                del plain.backend.offsets[name]


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    main(sys.argv[1])
