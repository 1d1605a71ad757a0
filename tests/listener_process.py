"""A listener over a backend in memory, in a process of its own, for tests that try to break it.

Prints the ports of an open listener and of one that wants a login, then answers each line on stdin with a line of
figures; ends when stdin does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
from pathlib import Path

from listening import NODE_ID, MemoryBackend

from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import listener_apis
from offsetmgr.server.backend import ManagerAddress
from offsetmgr.server.network.socket_server import ServerListener, SocketServer
from offsetmgr.server.security.authentication import Authentication
from offsetmgr.server.security.credentials import load_credentials


def resident_bytes() -> int:
    """Memory of this process now (not its maximum)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def tell(line: str) -> None:
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
    tell(" ".join(map(str, ports)))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        figures = [service.metrics() for service in services]
        tell(json.dumps({"resident": resident_bytes(), "services": figures}))
        # Groups with mangled names are what the backend was asked to keep: no leak of the listener's.
        for name in [name for name in backend.offsets if name not in ("g", "witness")]:
            del backend.offsets[name]
    for service in services:
        await service.close()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    asyncio.run(main(sys.argv[1]))
