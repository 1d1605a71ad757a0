"""`session`: a SparkSession that reads Kafka and whose workers find the driver's packages."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import UsageError
from offsetmgr.spark.connector import connector_jars
from offsetmgr.spark.versions import require_supported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JARS: Final = "spark.jars"
_JVM_END_S: Final = 30.0


def session(name: str, *, master: str | None = None, connector: str | None = None, **conf: object) -> SparkSession:
    """A Spark session with the Kafka connector.

    ``master`` is Spark's (None: as configured outside, else ``local[*]``). ``connector``: a version of the connector
    instead of PySpark's own, or the newest available one. ``conf``: Spark's settings, dots written as two underscores
    (``spark__sql__shuffle__partitions=4``) or as ``**{"spark.sql.shuffle.partitions": 4}``.

    Workers run the Python of this process, unless ``PYSPARK_PYTHON`` or the configuration names another. The
    connector's jars are fetched once, into their own directory. Raises `SparkError` if no connector can be fetched, and
    `UsageError` if a session without it is already running: jars cannot be added to it.
    """
    require_supported("a Spark session with the Kafka connector")
    settings = {key.replace("__", "."): value for key, value in conf.items()}
    jars = [str(jar) for jar in connector_jars(connector)]
    given = str(settings.pop(_JARS, "") or "")
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None and "spark-sql-kafka" not in running.sparkContext.getConf().get(_JARS, ""):
        raise UsageError("no new Spark session", "one without the Kafka connector runs already", "stop it first")
    if running is None:
        _end_jvm_without(jars)
    if "spark.pyspark.python" not in settings:
        # Otherwise workers use the python3 of their PATH, which may lack the packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config(_JARS, ",".join([*filter(None, given.split(",")), *jars]))
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _end_jvm_without(jars: list[str]) -> None:
    """PySpark keeps the JVM of a stopped session, with its class path; one without the connector is useless."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None or SparkContext._active_spark_context is not None:
        return
    if set(jars) <= set(str(gateway.jvm.System.getProperty(_JARS) or "").split(",")):
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_JVM_END_S)
