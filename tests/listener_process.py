"""A listener over an in-memory backend in its own process, for tests that try to break it.

Prints the ports of a listener without login and of one that requires SASL. Then it answers each line on stdin with a
line of metrics, until stdin is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
from pathlib import Path

from memory_listener import NODE_ID, MemoryBackend

from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import listener_apis
from offsetmgr.server.backend import ManagerAddress
from offsetmgr.server.network.socket_server import ServerListener, SocketServer
from offsetmgr.server.security.authentication import Authentication
from offsetmgr.server.security.credentials import load_credentials


def resident_bytes() -> int:
    """The current resident memory of this process, not its maximum."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(credentials: str) -> None:
    backend = MemoryBackend()
    backend.offsets["g"] = {"orders": {p: (p, -1, "") for p in range(50)}}
    authentication = Authentication(load_credentials(credentials))
    services = [
        SocketServer(listener_apis(ApiContext(backend, NODE_ID)), backpressure=backend.backpressure),
        SocketServer(listener_apis(ApiContext(backend, NODE_ID, authentication=authentication)), requires_login=True),
    ]
    ports = []
    for service in services:
        listener = ServerListener(service, "127.0.0.1", 0)
        await listener.start()
        ports.append(listener.port)
    backend.node = ManagerAddress(NODE_ID, "127.0.0.1", ports[0])
    write_line(" ".join(map(str, ports)))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        metrics = [service.metrics() for service in services]
        write_line(json.dumps({"resident": resident_bytes(), "services": metrics}))
        # The mutated requests also create groups with mangled names. The backend stores them as requested; deleting
        # them here keeps that memory from being counted as a leak of the listener.
        for name in [name for name in backend.offsets if name not in ("g", "witness")]:
            del backend.offsets[name]
    for service in services:
        await service.close()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    asyncio.run(main(sys.argv[1]))
