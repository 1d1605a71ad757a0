"""The jars of the servers, which Apache Ivy downloads (`spark.ivy`). The package maven-artifact finds Ivy.

Each set of jars is fetched once and kept in the cache directory (`paths.cache_directory`). This module writes no file
outside of that directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
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


def _sets() -> dict[str, tuple[Module, ...]]:
    found: dict[str, tuple[Module, ...]] = {}
    for line in Path(__file__).with_name("jars.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, module, *alone = line.split()
            organisation, artifact, revision = module.split(":")
            found[name] = (*found.get(name, ()), Module(organisation, artifact, revision, not alone))
    return found


SETS: Final = _sets()
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
