"""Downloads Spark's Kafka connector into offsetmgr's cache.

The module prefers the connector with the same version as the installed PySpark. If the repositories have no connector
of this version, it tries older patch versions of the same minor version. For PySpark 4.3 it finally tries the connector
4.2.0. It uses no other connectors: with PySpark 4.3, queries with the connectors 4.0.0 and 4.1.1 end with a
NoSuchMethodError, and a connector newer than Spark itself is not supported.

`ivy` does the download.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from offsetmgr.config.user_directories import downloads_directory
from offsetmgr.core.errors import SparkError, install_hint
from offsetmgr.spark.ivy import DownloadFailed, Ivy, Module, cache_lock, is_complete, java_path, wheel_jar
from offsetmgr.spark.versions import installed

SCALA: Final = "2.13"
FALLBACK_VERSION: Final = "4.2.0"
"""The version of the connector for PySpark 4.3 if the repositories have no connector 4.3."""
TIMEOUT_S: Final = 600.0
_FALLBACK_SUFFIX: Final = ".unavailable"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_BUNDLED: Final = (
    ("org.apache.hadoop", "*"),
    ("org.slf4j", "*"),
    ("org.lz4", "*"),
    ("org.xerial.snappy", "*"),
    ("org.scala-lang", "*"),
    ("org.scala-lang.modules", "*"),
    ("org.apache.spark", f"spark-tags_{SCALA}"),
)
"""The dependencies that PySpark's own jars already contain."""


def candidates(pyspark: str) -> list[str]:
    """Returns the connector versions to try for a version of PySpark, in order. Raises `SparkError` if the version is
    not of the form 4.0.1."""
    found = _VERSION.match(pyspark)
    if found is None:
        raise SparkError("no Kafka connector", f"PySpark's version {pyspark!r} is not that of a release")
    own = [f"{found[1]}.{found[2]}.{patch}" for patch in range(int(found[3]), -1, -1)]
    return own if (int(found[1]), int(found[2])) < (4, 3) else [*own, FALLBACK_VERSION]


def connector_jars(version: str | None = None) -> list[Path]:
    """Returns the paths of the connector's jars, and downloads the jars at the first call.

    ``version`` requests exactly one version. Many processes may call this function at the same time: one process
    downloads the connector, and the others wait. Raises `SparkError` if no connector can be downloaded.
    """
    versions = [version] if version else candidates(installed())
    directory = downloads_directory() / "spark"
    directory.mkdir(parents=True, exist_ok=True)
    with cache_lock(directory / "resolve.lock"):
        fallback_mark = directory / f"{versions[0]}{_FALLBACK_SUFFIX}"
        """This file exists if no connector of PySpark's minor version could be downloaded, so that later calls do not
        try to download such a connector again."""
        own = [name for name in versions if fallback_mark.exists() or _minor(name) == _minor(versions[0])]
        for name in own:
            if is_complete(directory / name):
                return sorted((directory / name).glob("*.jar"))
        reasons = []
        for name in versions:
            why = None if is_complete(directory / name) else _download(name, directory)
            if why is None:
                if name not in own:
                    fallback_mark.touch()
                return sorted((directory / name).glob("*.jar"))
            reasons.append(f"{name}: {why}")
    hint = "check the network and its proxy, or request an available version: session(connector=VERSION)"
    raise SparkError("cannot download a Kafka connector for Spark", "; ".join(reasons), hint)


def _minor(version: str) -> str:
    return version.rpartition(".")[0]


def _download(version: str, directory: Path) -> str | None:
    """Downloads one version. Returns None after success, and otherwise the reason of the failure."""
    connector = Module("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", version)
    try:
        _ivy(directory / "ivy").download(directory / version, [connector], excluded=_BUNDLED, timeout_s=TIMEOUT_S)
    except DownloadFailed as failed:
        return next((reason for reason in reversed(failed.reasons) if "not found" in reason), failed.reasons[-1])
    return None


def _ivy(home: Path) -> Ivy:
    jar, java = wheel_jar("ivy-"), java_path()
    if jar is None:
        raise SparkError(
            "no Kafka connector",
            "PySpark is not installed, or its installation has no jars",
            install_hint("spark"),
        )
    if java is None:
        raise SparkError(
            "Spark needs Java 17 or later", "no java in JAVA_HOME or on PATH", "install it, or set JAVA_HOME"
        )
    return Ivy(jar, java, home)
