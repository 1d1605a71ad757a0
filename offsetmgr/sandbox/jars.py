"""The jars of the servers, fetched from the public repository by Apache Ivy, which is part of PySpark's wheel.

Each set of jars is fetched once and kept in the cache directory (`paths.cache_directory`). This module writes no file
outside of that directory. The address of the repository comes from Ivy's default settings.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox.java import java_program
from offsetmgr.sandbox.paths import cache_directory

Progress = Callable[[str], None]
"""A function that receives a line of text about each step."""


class Module(NamedTuple):
    """A module of the repository, in one release. If ``transitive`` is False, the dependencies of the module are not
    fetched."""

    organisation: str
    name: str
    revision: str
    transitive: bool = True


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
_EXIT_TIMEOUT_S: Final = 900.0
"""Seconds for which Ivy may continue to run after it has closed its output."""
_COMPLETE: Final = ".complete"


def resolve(name: str, progress: Progress | None = None) -> Path:
    """Returns the directory with the jars of a set (a key of `SETS`), and fetches them first if needed.

    Several processes may call this function at the same time: one process fetches the jars, and the others wait. Raises
    `SandboxError`.
    """
    if name not in SETS:
        raise SandboxError(f"unknown set of jars {name!r}", f"known are {', '.join(SETS)}")
    cache = cache_directory()
    directory = cache / "jars" / f"{name}-{_fingerprint(name)}"
    if (directory / _COMPLETE).exists():
        return directory
    report = progress or (lambda _line: None)
    with _locked(cache / "resolve.lock", report):
        if not (directory / _COMPLETE).exists():
            _fetch(name, directory, cache, report)
    return directory


def pyspark_jar(prefix: str) -> Path:
    """Returns the jar in PySpark's wheel whose name starts with ``prefix``, without importing PySpark. Raises
    `SandboxError`."""
    hint = "pip install 'offsetmgr[sandbox]'"
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise SandboxError("the sandbox needs PySpark's wheel", "it contains the tools that fetch and run jars", hint)
    matches = sorted((Path(found.submodule_search_locations[0]) / "jars").glob(f"{prefix}[0-9]*.jar"))
    if not matches:
        raise SandboxError(f"no {prefix}*.jar in PySpark's wheel", "the installed PySpark is incomplete", hint)
    return matches[-1]


def _fingerprint(name: str) -> str:
    """Returns a hash of the set's definition, so that a release of offsetmgr does not use jars that another release
    fetched for a different definition."""
    return hashlib.sha256(repr(SETS[name]).encode()).hexdigest()[:8]


@contextmanager
def _locked(path: Path, report: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that fetches jars")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(name: str, directory: Path, cache: Path, report: Progress) -> None:
    ivy, java = pyspark_jar("ivy-"), java_program()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=directory.parent) as scratch:
        module, target = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
        module.write_text(_module_descriptor(name), encoding="utf-8")
        command = [
            java,
            # Ivy gets its own home directory: an incomplete artifact in the default one, ~/.ivy2, would make Ivy fail.
            f"-Divy.home={cache / 'ivy'}",
            f"-Duser.home={cache / 'ivy'}",
            # Source and documentation jars are not needed, and looking for them would take most of the time.
            "-Divy.maven.lookup.sources=false",
            "-Divy.maven.lookup.javadoc=false",
            *("-jar", str(ivy), "-cache", str(cache / "ivy" / "cache"), "-ivy", str(module), "-confs", "default"),
            # Some jars have the type `bundle`.
            *("-types", "jar", "bundle"),
            *("-retrieve", str(target / "[artifact]-[revision](-[classifier]).[ext]")),
        ]
        report(f"fetching the jars of {name}")
        _run_ivy(name, command, Path(scratch), report)
        count = len(list(target.glob("*.jar")))
        if not count:
            raise SandboxError(f"cannot fetch the jars of {name}", "Ivy retrieved none")
        (target / _COMPLETE).write_text(f"{count}\n", encoding="utf-8")
        if directory.exists():  # an incomplete directory, without the marker file
            shutil.rmtree(directory)
        target.rename(directory)
        report(f"fetched {count} jars of {name}")


def _module_descriptor(name: str) -> str:
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)}"
        f' rev={quoteattr(module.revision)} transitive="{str(module.transitive).lower()}" conf="default"/>'
        for module in SETS[name]
    )
    return f"""<ivy-module version="2.0">
  <info organisation="offsetmgr" module={quoteattr(name)}/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconfmapping="default->default">
{dependencies}
  </dependencies>
</ivy-module>
"""


def _run_ivy(name: str, command: list[str], scratch: Path, report: Progress) -> None:
    lines: list[str] = []
    downloaded = 0
    process = subprocess.Popen(
        command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("downloading"):
                downloaded += 1
                if downloaded % 10 == 0:
                    report(f"fetching the jars of {name}: {downloaded} so far")
        code = process.wait(_EXIT_TIMEOUT_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code != 0 or any("UNRESOLVED DEPENDENCIES" in line or "FAILED DOWNLOADS" in line for line in lines):
        useful = [line.strip(" :\t") for line in lines if _explains_failure(line)]
        raise SandboxError(
            f"cannot fetch the jars of {name}",
            "; ".join(dict.fromkeys(useful[-4:])) or f"Ivy ended with exit code {code}",
            "check the network connection and the proxy settings, then try again; fetched files are kept",
        )


def _explains_failure(line: str) -> bool:
    words = ("not found", "ERROR", "Exception", "FAILED", "unresolved", "timed out", "refused", "unknown host")
    return any(word.lower() in line.lower() for word in words) and "0 unresolved" not in line
