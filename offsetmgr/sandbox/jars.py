"""Real servers' jars, fetched from their public repository by Apache Ivy, which is part of PySpark's wheel.

A set of jars is resolved once and kept in the user's cache directory. Nothing outside that directory is written, and no
repository is named here: Ivy's default settings contain the location of released artifacts.
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
"""Receives one line about each step."""


class Module(NamedTuple):
    """A released module. If it is not ``transitive``, its dependencies are left out."""

    organisation: str
    name: str
    revision: str
    transitive: bool = True


SETS: Final[Mapping[str, tuple[Module, ...]]] = {
    # Contains ZooKeeper 3.8. The tools' other dependencies are Kafka Connect's, which no tool of ours needs.
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
    # The broker 0.10.2 needs these classes of Java 8.
    "jaxb": (Module("javax.xml.bind", "jaxb-api", "2.3.1"),),
}
USUAL: Final = ("kafka-3.9", "kafka-4.1", "kafka-0.10.2")
"""The sets that the sandbox uses unless another release is requested."""
RESOLUTION_TIMEOUT_S: Final = 900.0
_COMPLETE: Final = ".complete"


def resolve(name: str, progress: Progress | None = None) -> Path:
    """The directory with the jars of a set (a key of `SETS`), fetched first if it is missing.

    Safe to call from many processes at once: one fetches, the others wait for it. Raises `SandboxError`.
    """
    if name not in SETS:
        raise SandboxError(f"unknown set of jars {name!r}", f"known are {', '.join(SETS)}")
    cache = cache_directory()
    directory = cache / "jars" / f"{name}-{_fingerprint(name)}"
    if (directory / _COMPLETE).exists():
        return directory
    say = progress or (lambda _line: None)
    with _locked(cache / "resolve.lock", say):
        if not (directory / _COMPLETE).exists():
            _fetch(name, directory, cache, say)
    return directory


def pyspark_jar(prefix: str) -> Path:
    """The jar of PySpark's wheel whose name starts with ``prefix``, without importing PySpark."""
    hint = "pip install 'offsetmgr[sandbox]'"
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise SandboxError("the sandbox needs PySpark's wheel", "it carries the tools that fetch and run jars", hint)
    matches = sorted((Path(found.submodule_search_locations[0]) / "jars").glob(f"{prefix}[0-9]*.jar"))
    if not matches:
        raise SandboxError(f"no {prefix}*.jar in PySpark's wheel", "the installed PySpark is not a full one", hint)
    return matches[-1]


def _fingerprint(name: str) -> str:
    """Changes with the set's definition, so that a newer offsetmgr does not use an older one's jars."""
    return hashlib.sha256(repr(SETS[name]).encode()).hexdigest()[:8]


@contextmanager
def _locked(path: Path, say: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that fetches jars")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(name: str, directory: Path, cache: Path, say: Progress) -> None:
    ivy, java = pyspark_jar("ivy-"), java_program()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=directory.parent) as scratch:
        module, target = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
        module.write_text(_module_descriptor(name), encoding="utf-8")
        command = [
            java,
            # By default Ivy uses ~/.ivy2, where an incomplete artifact would make it fail; it gets a home of its own.
            f"-Divy.home={cache / 'ivy'}",
            f"-Duser.home={cache / 'ivy'}",
            # Unused, and requesting each takes most of the time.
            "-Divy.maven.lookup.sources=false",
            "-Divy.maven.lookup.javadoc=false",
            *("-jar", str(ivy), "-cache", str(cache / "ivy" / "cache"), "-ivy", str(module), "-confs", "default"),
            # Without `bundle` some jars are missing.
            *("-types", "jar", "bundle"),
            *("-retrieve", str(target / "[artifact]-[revision](-[classifier]).[ext]")),
        ]
        say(f"fetching the jars of {name}")
        _run_ivy(name, command, Path(scratch), say)
        count = len(list(target.glob("*.jar")))
        if not count:
            raise SandboxError(f"cannot fetch the jars of {name}", "Ivy retrieved none")
        (target / _COMPLETE).write_text(f"{count}\n", encoding="utf-8")
        if directory.exists():  # an incomplete one, without our marker
            shutil.rmtree(directory)
        target.rename(directory)
        say(f"fetched {count} jars of {name}")


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


def _run_ivy(name: str, command: list[str], scratch: Path, say: Progress) -> None:
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
                    say(f"fetching the jars of {name}: {downloaded} so far")
        code = process.wait(RESOLUTION_TIMEOUT_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if code != 0 or any("UNRESOLVED DEPENDENCIES" in line or "FAILED DOWNLOADS" in line for line in lines):
        useful = [line.strip(" :\t") for line in lines if _tells_why(line)]
        raise SandboxError(
            f"cannot fetch the jars of {name}",
            "; ".join(dict.fromkeys(useful[-4:])) or f"Ivy ended with exit code {code}",
            "check the network and its proxy, then try again; fetched files are kept",
        )


def _tells_why(line: str) -> bool:
    words = ("not found", "ERROR", "Exception", "FAILED", "unresolved", "timed out", "refused", "unknown host")
    return any(word.lower() in line.lower() for word in words) and "0 unresolved" not in line
