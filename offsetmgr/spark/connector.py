"""Downloads Spark's Kafka connector into offsetmgr's cache.

The module prefers the connector with the same version as the installed PySpark. If the repositories have no connector
of this version, it tries older patch versions of the same minor version. For PySpark 4.3 it finally tries the connector
4.2.0. It uses no other connectors: with PySpark 4.3, queries with the connectors 4.0.0 and 4.1.1 end with a
NoSuchMethodError, and a connector newer than Spark itself is not supported.

Ivy, which is part of PySpark's wheel, does the download. Ivy gets a separate home directory, because an incomplete
artifact in the user's Ivy cache would make the download fail. The repositories are those of Ivy's default settings.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import SparkError
from offsetmgr.spark.versions import installed

SCALA: Final = "2.13"
FALLBACK_VERSION: Final = "4.2.0"
"""The version of the connector for PySpark 4.3 if the repositories have no connector 4.3."""
TIMEOUT_S: Final = 600.0
_COMPLETE: Final = ".complete"
_FALLBACK_SUFFIX: Final = ".unavailable"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_BUNDLED: Final = (
    "org.apache.hadoop",
    "org.slf4j",
    "org.lz4",
    "org.xerial.snappy",
    "org.scala-lang",
    "org.scala-lang.modules",
)
"""Organizations of dependencies that PySpark's own jars already contain."""


def candidates(pyspark: str) -> list[str]:
    """Returns the connector versions to try for a version of PySpark, in order. Raises `SparkError` if the version is
    not of the form 4.0.1."""
    found = _VERSION.match(pyspark)
    if found is None:
        raise SparkError("no Kafka connector", f"PySpark's version {pyspark!r} is not that of a release")
    own = [f"{found[1]}.{found[2]}.{patch}" for patch in range(int(found[3]), -1, -1)]
    return own if (int(found[1]), int(found[2])) < (4, 3) else [*own, FALLBACK_VERSION]


def connector_jars(version: str | None = None, *, cache: Path | None = None) -> list[Path]:
    """Returns the paths of the connector's jars, and downloads the jars at the first call.

    ``version`` requests exactly one version. Many processes may call this function at the same time: one process
    downloads the connector, and the others wait. Raises `SparkError` if no connector can be downloaded.
    """
    versions = [version] if version else candidates(installed())
    directory = (cache or _cache()) / "spark"
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / "resolve.lock"):
        fallback_mark = directory / f"{versions[0]}{_FALLBACK_SUFFIX}"
        """This file exists if no connector of PySpark's minor version could be downloaded, so that later calls do not
        try to download such a connector again."""
        own = [name for name in versions if fallback_mark.exists() or _minor(name) == _minor(versions[0])]
        for name in own:
            if (directory / name / _COMPLETE).exists():
                return sorted((directory / name).glob("*.jar"))
        reasons = []
        for name in versions:
            why = None if (directory / name / _COMPLETE).exists() else _fetch(name, directory)
            if why is None:
                if name not in own:
                    fallback_mark.touch()
                return sorted((directory / name).glob("*.jar"))
            reasons.append(f"{name}: {why}")
    hint = "check the network and its proxy, or request an available version: session(connector=VERSION)"
    raise SparkError("cannot download a Kafka connector for Spark", "; ".join(reasons), hint)


def _minor(version: str) -> str:
    return version.rpartition(".")[0]


def _fetch(version: str, directory: Path) -> str | None:
    """Downloads one version. Returns None after success, and otherwise the reason of the failure."""
    with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=directory) as scratch:
        module, target = Path(scratch) / "ivy.xml", Path(scratch) / "jars"
        module.write_text(_module(version), encoding="utf-8")
        home = directory / "ivy"
        command = [_java(), f"-Divy.home={home}", f"-Duser.home={home}"]
        command += ["-Divy.maven.lookup.sources=false", "-Divy.maven.lookup.javadoc=false", "-jar", str(_ivy())]
        command += ["-cache", str(home / "cache"), "-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
        command += ["-retrieve", str(target / "[artifact]-[revision].[ext]")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=scratch)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        output = done.stdout + done.stderr
        if done.returncode != 0 or "UNRESOLVED DEPENDENCIES" in output or "FAILED DOWNLOADS" in output:
            errors = [line.strip(" :\t") for line in output.splitlines() if "not found" in line or "rror" in line]
            return errors[-1] if errors else f"Ivy ended with exit code {done.returncode}"
        (target / _COMPLETE).touch()
        shutil.rmtree(directory / version, ignore_errors=True)
        target.rename(directory / version)
    return None


def _module(version: str) -> str:
    excludes = "\n".join(f'    <exclude org="{name}"/>' for name in _BUNDLED)
    return f"""<ivy-module version="2.0">
  <info organisation="offsetmgr" module="connector"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconfmapping="default->default">
    <dependency org="org.apache.spark" name="spark-sql-kafka-0-10_{SCALA}" rev="{version}" conf="default"/>
{excludes}
    <exclude org="org.apache.spark" module="spark-tags_{SCALA}"/>
  </dependencies>
</ivy-module>
"""


def _ivy() -> Path:
    found = importlib.util.find_spec("pyspark")
    jars = Path(found.submodule_search_locations[0]) / "jars" if found and found.submodule_search_locations else None
    matches = sorted(jars.glob("ivy-[0-9]*.jar")) if jars else []
    if not matches:
        raise SparkError(
            "no Kafka connector",
            "PySpark is not installed, or its installation has no jars",
            "pip install 'offsetmgr[spark]'",
        )
    return matches[-1]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise SparkError(
            "Spark needs Java 17 or later", "no java in JAVA_HOME or on PATH", "install it, or set JAVA_HOME"
        )
    return found


def _cache(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the directory for downloads: ``OFFSETMGR_CACHE``, or otherwise offsetmgr's directory in the user's
    cache."""
    env = os.environ if environ is None else environ
    if env.get("OFFSETMGR_CACHE"):
        return Path(env["OFFSETMGR_CACHE"]).absolute()
    xdg = env.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache") / "offsetmgr"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
