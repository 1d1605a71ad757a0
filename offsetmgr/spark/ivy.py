"""Downloads jars with Apache Ivy, which is part of PySpark's wheel. PySpark itself is not imported.

`spark.connector` downloads Spark's Kafka connector with this module, and the sandbox downloads its servers. Ivy gets a
home directory of its own, because an incomplete artifact in the default one, ``~/.ivy2``, would make a download fail.
The addresses of the repositories come from Ivy's default settings.
"""

from __future__ import annotations

import fcntl
import importlib.util
import locale
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

_COMPLETE: Final = ".complete"
_EXIT_TIMEOUT_S: Final = 900.0
"""Seconds for which Ivy may continue to run after it has closed its output."""
_FAILURE: Final = re.compile(
    "not found|no such|error|exception|failed|unresolved|timed out|refused|unknown host", re.IGNORECASE
)
"""The words of a line that may explain why a download failed."""
_PROGRESS_STEP: Final = 10
"""The number of downloads between two calls of a progress function."""


class Module(NamedTuple):
    """A module of the repository, in one release. If ``transitive`` is False, the dependencies of the module are not
    downloaded."""

    organisation: str
    name: str
    revision: str
    transitive: bool = True


class DownloadFailed(Exception):
    """Ivy did not download the jars. ``reasons`` has its messages about the failure, at least one, in their order."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Ivy:
    """Apache Ivy: its jar, the program ``java`` that runs it, and its home directory."""

    jar: Path
    java: str
    home: Path

    def download(
        self,
        directory: Path,
        modules: Iterable[Module],
        *,
        excluded: Sequence[tuple[str, str]] = (),
        timeout_s: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Downloads modules with their dependencies into ``directory``, and returns the number of jars.

        The directory is created, or replaced, after all jars are in it; `is_complete` is then True. ``excluded`` are
        dependencies to leave out, each an organisation and a name, or ``*`` for all names. ``progress`` is called with
        the number of files that Ivy has downloaded so far. Raises `DownloadFailed`.
        """
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
            descriptor, target = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
            descriptor.write_text(_descriptor(directory.name, modules, excluded), encoding="utf-8")
            self._run(self._command(descriptor, target), Path(scratch), timeout_s, progress)
            count = len(list(target.glob("*.jar")))
            if not count:
                raise DownloadFailed("Ivy retrieved none")
            (target / _COMPLETE).write_text(f"{count}\n", encoding="utf-8")
            if directory.exists():  # an incomplete directory, without the marker file
                shutil.rmtree(directory)
            target.rename(directory)
        return count

    def _command(self, descriptor: Path, target: Path) -> list[str]:
        return [
            *in_utf8(self.java),
            f"-Divy.home={self.home}",
            f"-Duser.home={self.home}",
            # Source and documentation jars are not needed, and looking for them would take most of the time.
            "-Divy.maven.lookup.sources=false",
            "-Divy.maven.lookup.javadoc=false",
            *("-jar", str(self.jar), "-cache", str(self.home / "cache"), "-ivy", str(descriptor), "-confs", "default"),
            # Some jars have the type `bundle`.
            *("-types", "jar", "bundle"),
            *("-retrieve", str(target / "[artifact]-[revision](-[classifier]).[ext]")),
        ]

    def _run(
        self, command: list[str], scratch: Path, timeout_s: float | None, progress: Callable[[int], None] | None
    ) -> None:
        try:
            process = subprocess.Popen(
                command,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise DownloadFailed(str(error)) from error
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(timeout_s or 0, expire)
        if timeout_s is not None:
            timer.start()
        try:
            lines = _output(process, progress)
            code = process.wait(_EXIT_TIMEOUT_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DownloadFailed(str(error)) from error
            raise
        finally:
            timer.cancel()
        if expired.is_set():
            raise DownloadFailed(f"Ivy has not ended within {timeout_s:g} s")
        if code != 0 or any("UNRESOLVED DEPENDENCIES" in line or "FAILED DOWNLOADS" in line for line in lines):
            useful = [line.strip(" :\t") for line in lines if _FAILURE.search(line) and "0 unresolved" not in line]
            raise DownloadFailed(*(dict.fromkeys(useful) or [f"Ivy ended with exit code {code}"]))


def _output(process: subprocess.Popen[str], progress: Callable[[int], None] | None) -> list[str]:
    """Reads Ivy's output to its end, and returns its lines."""
    lines: list[str] = []
    downloaded = 0
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("downloading"):
            downloaded += 1
            if progress is not None and downloaded % _PROGRESS_STEP == 0:
                progress(downloaded)
    return lines


def _descriptor(title: str, modules: Iterable[Module], excluded: Sequence[tuple[str, str]]) -> str:
    dependencies = [
        f"    <dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)}"
        f' rev={quoteattr(module.revision)} transitive="{str(module.transitive).lower()}" conf="default"/>'
        for module in modules
    ]
    exclusions = [f"    <exclude org={quoteattr(org)} module={quoteattr(name)}/>" for org, name in excluded]
    content = "\n".join([*dependencies, *exclusions])
    return f"""<ivy-module version="2.0">
  <info organisation="offsetmgr" module={quoteattr(title)}/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconfmapping="default->default">
{content}
  </dependencies>
</ivy-module>
"""


def is_complete(directory: Path) -> bool:
    """Returns whether `Ivy.download` has filled the directory."""
    return (directory / _COMPLETE).exists()


@contextmanager
def cache_lock(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds a lock file, so that one process at a time downloads. Calls ``waiting`` if another process holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wheel_jar(prefix: str) -> Path | None:
    """Returns the jar in PySpark's wheel whose name consists of ``prefix`` and a version, for example ``ivy-``. Returns
    None if there is none."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        return None
    matches = sorted((Path(found.submodule_search_locations[0]) / "jars").glob(f"{prefix}[0-9]*.jar"))
    return matches[-1] if matches else None


def java_path(environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the program ``java`` in ``JAVA_HOME`` or, if there is none, the one on ``PATH``. Returns None if neither
    has it. The version is not checked."""
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    return found or shutil.which("java", path=environ.get("PATH", os.defpath))


def in_utf8(java: str) -> list[str]:
    """Returns the beginning of the command line of a Java program.

    Java reads arguments and names of files, and writes its output, in the encoding of the locale. If this encoding is
    not UTF-8, for example with ``LC_ALL=C``, the command line sets a locale with UTF-8.
    """
    return [java] if locale.getencoding().lower() in ("utf-8", "utf8") else ["env", "LC_ALL=C.UTF-8", java]
