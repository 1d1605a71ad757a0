"""Commands of the documentation's shell blocks that need help in the tests: ``documented_commands.py NAME ARGUMENTS``.

``manager serve`` runs in the background, so that the next command of a page can use the manager. Kafka's own tools run
from the jars of the sandbox.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from processes import OFFSETMGR, wait_for

from offsetmgr.sandbox import jars, ports
from offsetmgr.sandbox.java import java_command
from offsetmgr.sandbox.process_ref import ProcessRef

TOOLS: Final = {
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}
SERVERS: Final = Path(".servers")
"""The directory, in the directory of a page, with a file for each running manager. The name of the file is the
manager's address, and the file contains the id of the manager's process."""


def serve(arguments: Sequence[str]) -> None:
    """Starts a manager and returns when the manager is ready. Stops an earlier manager with the same address first."""
    options = dict(pairwise(arguments))
    address = options.get("--advertise", options["--listen"])
    metrics = options.get("--metrics-listen", f"{ports.HOST}:{ports.free_port()}")
    SERVERS.mkdir(exist_ok=True)
    file, log = SERVERS / address, SERVERS / f"{address}.log"
    stop(file)
    command = [*OFFSETMGR, *arguments, *([] if "--metrics-listen" in options else ["--metrics-listen", metrics])]
    process = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True)
    file.write_text(str(process.pid))

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://{metrics}/ready", timeout=60) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    wait_for(ready, f"the manager at {address} is ready")


def stop(file: Path) -> None:
    if file.exists():
        ProcessRef.of(int(file.read_text())).stop()
        file.unlink()


def stop_all() -> None:
    """Stops the managers that the blocks of a page started."""
    for file in SERVERS.glob("*"):
        if file.suffix != ".log":
            stop(file)


def main(name: str, *arguments: str) -> None:
    if name == "serve":
        serve(arguments)
        return
    command = java_command([jars.resolve("kafka-3.9")], TOOLS[name], arguments)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
