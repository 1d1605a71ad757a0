"""Checks that the installed version of PySpark is supported."""

from __future__ import annotations

import importlib.metadata
import re
from contextlib import suppress
from typing import Final

from offsetmgr.core.errors import SparkError, UnsupportedOperation, install_hint

OLDEST: Final = (4, 0)
NEWEST: Final = (4, 3)
SUPPORTED: Final = "4.0 to 4.3"


def installed() -> str:
    """Returns the version of the installed PySpark package, or the version of the module ``pyspark`` if PySpark is on
    the path but not installed as a package.

    Raises `UnsupportedOperation` if PySpark is not installed.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("pyspark")
    try:
        import pyspark
    except ModuleNotFoundError as missing:
        hint = install_hint("spark")
        raise UnsupportedOperation("Spark", f"{missing.name} is not installed", hint) from missing
    return str(pyspark.__version__)


def require_supported(what: str) -> None:
    """Raises `SparkError` for an unsupported version of PySpark. ``what`` names the feature in the error.

    Without this check, a committer on PySpark 3.5 would commit nothing, and tables and period jobs would fail only
    after they have started.
    """
    version = installed()
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        raise SparkError(
            what,
            f"PySpark {version} is installed, but offsetmgr supports PySpark {SUPPORTED}",
            f"pip install 'pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'",
        )
