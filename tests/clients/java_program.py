"""Runs a Java source file of this directory with the jars of Kafka 0.10.2: compiles and runs it in one JVM."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from offsetmgr.sandbox import jars
from offsetmgr.sandbox.java import java_command


def run_java(name: str, arguments: Sequence[str] = (), *, stdin: str = "", timeout: float = 600) -> list[str]:
    """The lines that ``NAME.java`` prints. ``timeout`` is in seconds."""
    command = java_command(
        [jars.resolve("kafka-0.10.2"), jars.resolve("janino")],
        "org.codehaus.janino.SimpleCompiler",
        [str(Path(__file__).with_name(f"{name}.java")), name, *arguments],
    )
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()
