"""The jars of the servers, which Apache Ivy downloads (`spark.ivy`). The package maven-artifact finds Ivy.

Each set of jars is fetched once and kept in the cache directory (`paths.cache_directory`). This module writes no file
outside of that directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.errors import SandboxError, install_hint
from offsetmgr.sandbox.java import java_program
from offsetmgr.sandbox.paths import cache_directory
from offsetmgr.spark.ivy import DownloadFailed, Ivy, Module, cache_lock, is_complete

Progress = Callable[[str], None]
"""A function that receives a line of text about each step."""


def silent(_line: str) -> None:
    """A `Progress` that ignores the text."""


_IVY_VERSION: Final = "2.5.3"
_IVY_SHA256: Final = "9502aa5aabf0b1484924a13ef4b5d24f121f7f91aab6768f11cc9d0906c0803b"
_TIMEOUT_S: Final = 60.0
_NETWORK_HINT: Final = "check the network connection and the proxy settings, then try again"


def _without_zookeeper(release: str, *, log4j: str) -> tuple[Module, ...]:
    """Returns the modules of a release without ZooKeeper. ``log4j`` is the version of Log4j in that release."""
    return (
        Module("org.apache.kafka", "kafka_2.13", release),
        Module("org.apache.kafka", "kafka-tools", release, transitive=False),
        Module("org.apache.logging.log4j", "log4j-slf4j-impl", log4j, transitive=False),
    )


SETS: Final[Mapping[str, tuple[Module, ...]]] = {
    # This set contains ZooKeeper 3.8. kafka-tools is fetched without its dependencies: its only further dependency is
    # Kafka Connect, which the sandbox does not use.
    "kafka-3.9": (
        Module("org.apache.kafka", "kafka_2.13", "3.9.1"),
        Module("org.apache.kafka", "kafka-tools", "3.9.1", transitive=False),
        Module("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ),
    # Only kafka-tools depends on jackson-dataformat-csv.
    "kafka-4.4": (
        *_without_zookeeper("4.4.0", log4j="2.25.5"),
        Module("com.fasterxml.jackson.dataformat", "jackson-dataformat-csv", "2.21.7", transitive=False),
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
    "kafka-4.1": _without_zookeeper("4.1.1", log4j="2.24.3"),
    "kafka-4.2": _without_zookeeper("4.2.2", log4j="2.25.5"),
    "kafka-4.3": _without_zookeeper("4.3.1", log4j="2.25.4"),
    # Kafka 0.10.2 needs these classes, which recent releases of Java no longer contain.
    "jaxb": (Module("javax.xml.bind", "jaxb-api", "2.3.1"),),
    "mirror-maker": (
        Module("org.apache.kafka", "connect-mirror", "4.1.1"),
        Module("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
    ),
    # Applications whose groups are no plain consumer groups, for tests.
    "connect": (
        Module("org.apache.kafka", "connect-runtime", "4.4.0"),
        Module("org.slf4j", "slf4j-nop", "1.7.36"),
    ),
    "streams": (Module("org.apache.kafka", "kafka-streams", "4.4.0", transitive=False),),
    # A Java compiler, for the programs of the sandbox.
    "janino": (Module("org.codehaus.janino", "janino", "3.1.9"),),
}
DEFAULT_SETS: Final = ("kafka-3.9", "kafka-4.4", "kafka-0.10.2", "janino")
"""The sets of jars that the servers of the sandbox need in their default releases."""


def resolve(name: str, report: Progress = silent) -> Path:
    """Returns the directory with the jars of a set (a key of `SETS`), and fetches them first if needed.

    Several processes may call this function at the same time: one process fetches the jars, and the others wait. Raises
    `SandboxError`.
    """
    if name not in SETS:
        raise SandboxError(f"unknown set of jars {name!r}", f"known are {', '.join(SETS)}")
    cache = cache_directory()
    # The name has a hash of the set's definition, so that a release of offsetmgr does not use jars that another release
    # fetched for a different definition.
    directory = cache / "jars" / f"{name}-{hashlib.sha256(repr(SETS[name]).encode()).hexdigest()[:8]}"
    if is_complete(directory):
        return directory
    with cache_lock(cache / "resolve.lock", lambda: report("waiting for another process that fetches jars")):
        if not is_complete(directory):
            _download(name, directory, cache, report)
    return directory


def _download(name: str, directory: Path, cache: Path, report: Progress) -> None:
    jar = cache / f"ivy-{_IVY_VERSION}.jar"
    if not jar.exists():
        report("fetching Apache Ivy")
        content = _fetch_ivy()
        if hashlib.sha256(content).hexdigest() != _IVY_SHA256:
            raise SandboxError("cannot fetch Apache Ivy", "the file that arrived has another SHA-256 than expected")
        replace_file(jar, lambda stream: stream.write(content), overwrite=True)
    ivy = Ivy(jar, java_program(), cache / "ivy")
    report(f"fetching the jars of {name}")
    try:
        count = ivy.download(
            directory, SETS[name], progress=lambda number: report(f"fetching the jars of {name}: {number} so far")
        )
    except DownloadFailed as failed:
        raise SandboxError(
            f"cannot fetch the jars of {name}",
            "; ".join(failed.reasons[-4:]),
            f"{_NETWORK_HINT}; fetched files are kept",
        ) from failed
    report(f"fetched {count} jars of {name}")


def _fetch_ivy() -> bytes:
    try:
        from maven_artifact import Artifact, Downloader
        from requests import RequestException, get
    except ImportError as error:
        raise SandboxError("cannot fetch Apache Ivy", f"{error.name} is missing", install_hint("sandbox")) from error
    address = Downloader().resolver.uri_for_artifact(Artifact("org.apache.ivy", "ivy", _IVY_VERSION))
    try:
        response = get(address, timeout=_TIMEOUT_S)
        response.raise_for_status()
        return bytes(response.content)
    except RequestException as error:
        raise SandboxError("cannot fetch Apache Ivy", str(error), _NETWORK_HINT) from error
