"""Members of an old consumer group that a shell command restarts in another phase."""

from __future__ import annotations

import shlex
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offsetmgr.sandbox import OldConsumer

LONG_SESSION = {"zookeeper.session.timeout.ms": 60_000}
"""A session that expires on a busy machine repeats messages."""


def old_member(directory: Path, zookeeper: str, group: str, topic: str, **options: Any) -> OldConsumer:
    """An old consumer that commits every 200 ms, with the options of `OldConsumer`. It is not started."""
    settings = {"auto_commit_interval_ms": 200, **options}
    return OldConsumer(directory, zookeeper=zookeeper, group=group, topic=topic, **settings)


class Fleet:
    """Old consumers of one group, and a small server through which `command` restarts one of them in another phase.

    The command represents an operator's ``ssh HOST systemctl restart app``. ``directory`` needs a short path, because a
    Unix socket lives there. `restarted` lists the ids of the members that the command restarted.
    """

    def __init__(self, directory: Path, members: Sequence[OldConsumer]) -> None:
        self.members = list(members)
        self.restarted: list[str] = []
        fleet = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                member, phase = self.rfile.readline().decode().split()
                fleet.restart(member, phase)
                self.wfile.write(b"restarted\n")

        socket = directory / "s"
        self._server = socketserver.ThreadingUnixStreamServer(str(socket), Handler)
        script = directory / "restart.py"
        script.write_text(
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            f"s.connect({str(socket)!r})\n"
            "s.sendall(' '.join(sys.argv[1:]).encode() + b'\\n')\n"
            "answer = s.makefile().readline()\n"
            "print(answer)\n"
            "sys.exit(answer != 'restarted\\n')\n"
        )
        self.command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{member}} {{phase}}"

    def member(self, member_id: str) -> OldConsumer:
        return next(m for m in self.members if m.member_id == member_id)

    def restart(self, member_id: str, phase: str) -> None:
        restart(self.member(member_id), phase)
        self.restarted.append(member_id)

    def seen(self) -> Counter[tuple[int, int]]:
        """How often each message number of each partition was consumed, over all members."""
        return Counter((m.partition, int(m.value or b"-1")) for each in self.members for m in each.messages())

    def __enter__(self) -> Fleet:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for member in self.members:
            member.stop()


def restart(member: OldConsumer, phase: str) -> None:
    """Stops a member cleanly and starts it with the settings of a phase: ``zookeeper``, ``dual`` or ``kafka``."""
    assert phase in ("zookeeper", "dual", "kafka")
    member.stop()
    member.offsets_storage = "zookeeper" if phase == "zookeeper" else "kafka"
    member.dual_commit = phase == "dual"
    member.start()
