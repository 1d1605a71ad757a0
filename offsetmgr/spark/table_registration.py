"""`table_session` creates a SparkSession with offsetmgr's tables; `register` adds the tables to any other session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from offsetmgr.core.errors import SparkError
from offsetmgr.spark.data_source import StoreSource
from offsetmgr.spark.log_source import LogSource
from offsetmgr.spark.source_options import dotted
from offsetmgr.spark.versions import require_supported

LOCAL: Final = "local[*,4]"
"""Runs Spark on this machine. Unlike ``local[*]``, this master retries a task whose Python worker died."""
_LOOPBACK: Final = "127.0.0.1"
_A_CORE: Final = 4
"""Number of shuffle partitions for each core of this machine."""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "FATAL",
}


def register(spark: SparkSession) -> SparkSession:
    """Registers the formats ``offsetmgr`` and ``offsetmgr-log`` in a session, and returns this session. Raises
    `UnsupportedOperation` if PySpark is not installed, `SparkError` if its version is not supported.

    Example::

        from pyspark.sql import SparkSession

        from offsetmgr.spark import register

        spark = register(SparkSession.builder.appName("shop-job").master("local[1]").getOrCreate())
        print(spark.read.format("offsetmgr").load("kafka://h1:9092").columns)
    """
    require_supported("offsetmgr's tables in Spark")
    spark.dataSource.register(StoreSource)
    spark.dataSource.register(LogSource)
    return spark


def table_session(name: str, *, master: str | None = None, **conf: object) -> SparkSession:
    """Returns the running session, or a new one, with offsetmgr's tables registered.

    ``master`` is Spark's master, by default `LOCAL`. ``conf`` are Spark's settings, with two underscores for each dot.
    Workers run the same Python as this process, unless ``PYSPARK_PYTHON`` names another Python. On a cluster, offsetmgr
    must be installed for the Python of the workers. Raises the errors of `register`, and the errors of Spark if the
    session cannot be created.

    Example::

        from offsetmgr.spark import table_session

        spark = table_session("shop-job", master="local[1]")
        offsets = spark.read.format("offsetmgr").option("group", "shop").load("zookeeper://h1:2181")
        offsets.select("topic", "partition", "offset").show()
    """
    require_supported("a Spark session with offsetmgr's tables")
    running = SparkSession.getActiveSession()
    if running is not None:
        return register(running)
    settings: dict[str, Any] = {**_SETTINGS}
    if master is None:
        # Spark's default of 200 suits a cluster. On one machine, an audit with 200 shuffle partitions would spend most
        # of its time starting tasks.
        settings["spark.sql.shuffle.partitions"] = _A_CORE * (os.cpu_count() or 1)
        # Only this machine needs to reach the driver.
        settings |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings |= dotted(conf)
    return register(SparkSession.builder.appName(name).master(master or LOCAL).config(map=settings).getOrCreate())


@contextmanager
def table_job(name: str, master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yields a session for one job: the running session, or a new one that is stopped at the end.

    Converts errors of Spark to `SparkError` with the reason.
    """
    own = None
    try:
        running = SparkSession.getActiveSession()
        spark = table_session(name, master=master, **conf)
        own = None if running is not None else spark
        yield spark
    except (PySparkException, Py4JError) as error:
        raise SparkError("the Spark job failed", _reason(str(error))) from error
    finally:
        if own is not None:
            own.stop()


def _reason(text: str) -> str:
    """Returns the line that names the cause, from the text of a Spark error: the line of offsetmgr's error if a worker
    raised one, otherwise the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("offsetmgr.")]
    return ours[-1].partition(": ")[2] if ours else next(iter(lines), "Spark reports no reason")
