"""Finds Java, and builds command lines that start Java programs quickly."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox.paths import cache_directory
from offsetmgr.spark.ivy import in_utf8, java_path

MIN_JAVA_VERSION = 17
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
"""JVM flags for servers that run only for seconds: they disable the parallel garbage collector and the optimizing
compiler. Benchmarks of warmed-up servers use other flags."""
LOG4J_FLAGS = (
    f"-Dlog4j.configuration={Path(__file__).with_name('log4j.properties').as_uri()}",
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
)
"""JVM flags for a log on stderr, of level INFO, with one line for each message. The first one is for log4j 1 and its
replacement reload4j."""


def java_program(environ: Mapping[str, str] | None = None) -> str:
    """Returns the path of a ``java`` program of version 17 or later: the program in ``JAVA_HOME`` or, if there is none,
    the program on ``PATH``.

    Raises `SandboxError` if neither place contains a ``java`` program, or if the version of the program is below 17.
    """
    hint = f"install Java {MIN_JAVA_VERSION} or later, or set JAVA_HOME to one"
    candidate = java_path(environ)
    if candidate is None:
        raise SandboxError("the sandbox needs Java", "no java program found in JAVA_HOME or on PATH", hint)
    version = _major_version(candidate)
    if version < MIN_JAVA_VERSION:
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
        raise SandboxError(f"cannot determine the version of {java}", (answer.stderr or answer.stdout).strip()[:200])
    # Up to Java 8 the version has the form 1.8.0.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def class_path(*jars: Path) -> str:
    """Returns a class path of jars and of whole directories of jars."""
    return os.pathsep.join(str(jar / "*") if jar.is_dir() else str(jar) for jar in jars)


def class_archive(jars: Sequence[Path]) -> Path:
    """Returns the file for the loaded classes of a class path, a "dynamic archive" of the JVM (JEP 350). With this file
    a broker starts in half the time. ``scripts/class_archives.py`` writes such files; without them the JVM loads the
    classes from the jars."""
    key = hashlib.sha256(f"{os.path.realpath(java_path() or '')} {class_path(*jars)}".encode()).hexdigest()
    return cache_directory() / "classes" / f"{key[:16]}.jsa"


def java_command(
    jars: Iterable[Path], main_class: str, arguments: Sequence[str] = (), *, jvm: Sequence[str] = QUICK_START
) -> list[str]:
    """Returns the command line that runs a main class of these jars (directories or files)."""
    path = list(jars)
    # An archive also serves each longer class path that begins with its own.
    archives = (class_archive(path[:count]) for count in range(len(path), 0, -1))
    archive = next((file for file in archives if file.exists()), None)
    # The JVM ignores an archive of another release of Java. It would print a warning, which is switched off.
    archived = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"] if archive else []
    return [*in_utf8(java_program()), *archived, *jvm, "-cp", class_path(*path), main_class, *arguments]
