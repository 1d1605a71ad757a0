"""Finds Java, and builds command lines that start its programs quickly."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from offsetmgr.core.errors import SandboxError

OLDEST_JAVA = 17
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
"""Flags for servers that run for seconds: no parallel collector threads and no optimizing compiler. Benchmarks that
compare with a warm server replace them."""


def java_program(environ: Mapping[str, str] | None = None) -> str:
    """The path of a ``java`` of version 17 or later: ``JAVA_HOME``'s, else the one on ``PATH``.

    Raises `SandboxError` if there is none, or only an older one.
    """
    env = os.environ if environ is None else environ
    hint = f"install Java {OLDEST_JAVA} or later, or set JAVA_HOME to one"
    candidate: str | None = None
    if env.get("JAVA_HOME"):
        candidate = shutil.which("java", path=str(Path(env["JAVA_HOME"]) / "bin"))
    candidate = candidate or shutil.which("java", path=env.get("PATH", os.defpath))
    if candidate is None:
        raise SandboxError("the sandbox needs Java", "no java program found in JAVA_HOME or on PATH", hint)
    version = _major_version(candidate)
    if version < OLDEST_JAVA:
        raise SandboxError("the sandbox needs Java", f"{candidate} is version {version}", hint)
    return candidate


@functools.cache
def _major_version(java: str) -> int:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"cannot run {java} -version", str(error)) from error
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if not found:
        raise SandboxError(f"cannot tell the version of {java}", (answer.stderr or answer.stdout).strip()[:200])
    # Up to Java 8 the version has the form 1.8.0.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def class_path(*jars: Path) -> str:
    """A class path of whole directories of jars and of single jars."""
    return os.pathsep.join(str(jar / "*") if jar.is_dir() else str(jar) for jar in jars)


def java_command(
    jars: Iterable[Path], main_class: str, arguments: Sequence[str] = (), *, jvm: Sequence[str] = QUICK_START
) -> list[str]:
    """The command line that runs a class of these jars (directories or files)."""
    return [java_program(), *jvm, "-cp", class_path(*jars), main_class, *arguments]
