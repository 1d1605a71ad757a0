"""Commands of offsetmgr as processes, for the tests of this folder: what people type, and what they are told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

OFFSETMGR = [sys.executable, "-m", "offsetmgr"]


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)  # between looks, never instead of one


def create_topic(bootstrap: str, name: str, partitions: int, replicas: int = 1) -> str:
    """A topic whose partitions all have leaders."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replicas)], operation_timeout=30)[name].result(60)

    def usable() -> bool:
        found = admin.list_topics(name, timeout=10).topics[name]
        return found.error is None and [p.leader >= 0 for p in found.partitions.values()] == [True] * partitions

    wait_for(usable, f"{name} has leaders")
    return name


@dataclass
class Commands:
    """Runs commands in ``folder``, which also holds their config and state; ``environ`` is added to their own."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("OFFSETMGR_")}
        return subprocess.Popen(
            [*OFFSETMGR, *arguments],
            cwd=self.folder,
            env={
                **environ,
                "XDG_CONFIG_HOME": str(self.folder),
                "XDG_STATE_HOME": str(self.folder / "state"),
                **self.environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str, code: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        """To its end; ``code`` is the exit code that it must have, None for any."""
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(timeout=90)
        assert code is None or process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)
