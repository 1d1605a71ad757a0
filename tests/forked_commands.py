"""`ForkedCommand`: a command of offsetmgr as a process of its own, without Python's start and the imports.

A server process imports the package once and forks for each command. Run as a program, this file is that server.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

_MAX_REQUEST: Final = 1 << 20
_HEAVY: Final = ("offsetmgr.spark", "offsetmgr.sandbox", "offsetmgr.__main__")
"""Parts of the package that most commands do not import."""
_AT_START: Final = re.compile(r"LANG|LC_|LD_|PYTHON(?!PATH$)")
"""Variables that Python reads only when it starts."""


class ForkedCommand(subprocess.Popen[Any]):
    """Like `subprocess.Popen`, but ``args`` are the arguments of ``offsetmgr``, and options that change the process
    before the program starts are not supported."""

    def _execute_child(self, args: Any, *options: Any) -> None:
        directory, environ, pipes = options[4], options[5], options[9:15]
        environ = dict(os.environ if environ is None else environ)
        assert fits(environ)
        request = {"arguments": args, "environ": environ, "directory": str(directory or Path.cwd())}
        streams = [given if given >= 0 else own for own, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._status, theirs = socket.socketpair()
        try:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*streams, theirs.fileno()])
        finally:
            theirs.close()
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = int.from_bytes(self._status.recv(4))
        self._child_created = True

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Returns the process id and the status that `os.waitpid` returned to the server; zeros if it still runs."""
        with selectors.SelectSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            if not selector.select(0 if flags & os.WNOHANG else None):
                return 0, 0
        return self.pid, int.from_bytes(self._status.recv(4) or signal.SIGKILL.to_bytes(4))

    def _internal_poll(self, *_arguments: Any, **_options: Any) -> int | None:
        if self.returncode is None and self._child_created:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fits(environ: dict[str, str]) -> bool:
    """Whether the server can run a command with this environment."""
    mine, given = ({k: v for k, v in one.items() if _AT_START.match(k)} for one in (os.environ, environ))
    return mine == given


@cache
def _server() -> socket.socket:
    """The socket to the server, which ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    return ours


def serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks for each request. Returns only in a forked process: its request and its descriptors."""
    ready = selectors.DefaultSelector()
    ready.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is requests:
                request, descriptors, *_ = socket.recv_fds(requests, _MAX_REQUEST, 4)
                if not request:
                    sys.exit()
                *streams, status = descriptors
                pid = os.fork()
                if not pid:
                    return json.loads(request), streams
                for stream in streams:
                    os.close(stream)
                os.write(status, pid.to_bytes(4))
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
            else:
                pid, status = key.data
                os.write(status, os.waitpid(pid, 0)[1].to_bytes(4))
                ready.unregister(key.fileobj)
                os.close(key.fd)
                os.close(status)


def main(descriptor: int) -> None:
    import gc

    import offsetmgr
    from offsetmgr.cli import entry

    for module in pkgutil.walk_packages(offsetmgr.__path__, "offsetmgr."):
        if not module.name.startswith(_HEAVY):
            importlib.import_module(module.name)
    importlib.import_module("kio.schema.types")  # kio's messages need it; it imports hypothesis, which takes long
    gc.freeze()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=descriptor)
    request, streams = serve(requests)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    requests.detach()
    os.closerange(3, 1 << 16)
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    os.chdir(request["directory"])
    signal.signal(signal.SIGINT, handler)
    sys.argv = ["offsetmgr", *request["arguments"]]
    entry.main()


if __name__ == "__main__":
    main(int(sys.argv[1]))
