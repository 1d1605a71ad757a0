"""The jars of the servers, which Apache Ivy downloads (`spark.ivy`).

Each set of jars is fetched once and kept in the cache directory (`paths.cache_directory`). This module writes no file
outside of that directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox.java import java_program
from offsetmgr.sandbox.paths import cache_directory
from offsetmgr.spark.ivy import DownloadFailed, Ivy, Module, cache_lock, is_complete, wheel_jar

Progress = Callable[[str], None]
"""A function that receives a line of text about each step."""


SETS: Final[Mapping[str, tuple[Module, ...]]] = {
    # This set contains ZooKeeper 3.8. kafka-tools is fetched without its dependencies: its only further dependency is
    # Kafka Connect, which the sandbox does not use.
    "kafka-3.9": (
        Module("org.apache.kafka", "kafka_2.13", "3.9.1"),
        Module("org.apache.kafka", "kafka-tools", "3.9.1", transitive=False),
        Module("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ),
    "kafka-4.1": (
        Module("org.apache.kafka", "kafka_2.13", "4.1.1"),
        Module("org.apache.kafka", "kafka-tools", "4.1.1", transitive=False),
        Module("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3", transitive=False),
    ),
    # Contains the old high-level consumer and ZooKeeper 3.4.9.
    "kafka-0.10.2": (Module("org.apache.kafka", "kafka_2.11", "0.10.2.2"),),
    # Older brokers and their tools.
    "kafka-0.8.2": (Module("org.apache.kafka", "kafka_2.10", "0.8.2.2"),),
    "kafka-0.9": (Module("org.apache.kafka", "kafka_2.11", "0.9.0.1"),),
    "kafka-1.1": (
        Module("org.apache.kafka", "kafka_2.12", "1.1.1"),
        Module("org.slf4j", "slf4j-log4j12", "1.7.25"),
    ),
    "kafka-2.8": (
        Module("org.apache.kafka", "kafka_2.12", "2.8.2"),
        Module("org.slf4j", "slf4j-log4j12", "1.7.30"),
    ),
    # Kafka 0.10.2 needs these classes, which recent releases of Java no longer contain.
    "jaxb": (Module("javax.xml.bind", "jaxb-api", "2.3.1"),),
}
DEFAULT_SETS: Final = ("kafka-3.9", "kafka-4.1", "kafka-0.10.2")
"""The sets of jars that the servers of the sandbox need in their default releases."""


def resolve(name: str, progress: Progress | None = None) -> Path:
    """Returns the directory with the jars of a set (a key of `SETS`), and fetches them first if needed.

    Several processes may call this function at the same time: one process fetches the jars, and the others wait. Raises
    `SandboxError`.
    """
    if name not in SETS:
        raise SandboxError(f"unknown set of jars {name!r}", f"known are {', '.join(SETS)}")
    cache = cache_directory()
    directory = cache / "jars" / f"{name}-{_fingerprint(name)}"
    if is_complete(directory):
        return directory
    report = progress or (lambda _line: None)
    with cache_lock(cache / "resolve.lock", lambda: report("waiting for another process that fetches jars")):
        if not is_complete(directory):
            _download(name, directory, cache, report)
    return directory


def pyspark_jar(prefix: str) -> Path:
    """Returns the jar in PySpark's wheel whose name starts with ``prefix``, without importing PySpark. Raises
    `SandboxError`."""
    found = wheel_jar(prefix)
    if found is None:
        raise SandboxError(
            f"the sandbox needs {prefix}*.jar of PySpark's wheel",
            "PySpark is not installed, or its installation is incomplete",
            "pip install 'offsetmgr[sandbox]'",
        )
    return found


def _fingerprint(name: str) -> str:
    """Returns a hash of the set's definition, so that a release of offsetmgr does not use jars that another release
    fetched for a different definition."""
    return hashlib.sha256(repr(SETS[name]).encode()).hexdigest()[:8]


def _download(name: str, directory: Path, cache: Path, report: Progress) -> None:
    ivy = Ivy(pyspark_jar("ivy-"), java_program(), cache / "ivy")
    report(f"fetching the jars of {name}")
    try:
        count = ivy.download(
            directory, SETS[name], progress=lambda number: report(f"fetching the jars of {name}: {number} so far")
        )
    except DownloadFailed as failed:
        raise SandboxError(
            f"cannot fetch the jars of {name}",
            "; ".join(failed.reasons[-4:]),
            "check the network connection and the proxy settings, then try again; fetched files are kept",
        ) from failed
    report(f"fetched {count} jars of {name}")
