"""`session`: creates a SparkSession that has the Kafka connector and whose Python workers have the driver's
packages."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import UsageError
from offsetmgr.spark.connector import connector_jars
from offsetmgr.spark.source_options import dotted
from offsetmgr.spark.versions import require_supported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JARS: Final = "spark.jars"
_JVM_END_S: Final = 30.0


def session(name: str, *, master: str | None = None, connector: str | None = None, **conf: object) -> SparkSession:
    """Returns a Spark session with the Kafka connector.

    ``master`` is Spark's master. The default is the master in Spark's configuration, or ``local[*]`` if the
    configuration names no master. ``connector`` requests a version of the connector; by default the version follows
    from PySpark's version. ``conf`` are Spark's settings, with two underscores for each dot
    (``spark__sql__shuffle__partitions=4``) or as ``**{"spark.sql.shuffle.partitions": 4}``.

    Workers run the same Python as this process, unless ``PYSPARK_PYTHON`` or the configuration names another Python.
    The connector is downloaded once, into offsetmgr's cache. Raises `SparkError` if the connector cannot be downloaded.
    Raises `UsageError` if a session without the connector is running, because jars cannot be added to a running
    session.

    Example::

        from offsetmgr.spark import session

        spark = session("shop-job", master="local[1]", spark__sql__shuffle__partitions=1)
        print(spark.version)
    """
    require_supported("a Spark session with the Kafka connector")
    settings = dotted(conf)
    jars = [str(jar) for jar in connector_jars(connector)]
    given = filter(None, str(settings.get(_JARS) or "").split(","))
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None and "spark-sql-kafka" not in running.sparkContext.getConf().get(_JARS, ""):
        raise UsageError(
            "no new Spark session", "a session without the Kafka connector is running", "stop that session first"
        )
    if running is None:
        _end_jvm_without(jars)
    if "spark.pyspark.python" not in settings:
        # By default workers run the python3 on their PATH, which may not have the packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)  # the configuration wins
    return builder.config(map={**settings, _JARS: ",".join([*given, *jars])}).getOrCreate()


def _end_jvm_without(jars: list[str]) -> None:
    """Ends the JVM of a stopped session if this JVM was started without these jars.

    PySpark would use that JVM, with its class path, for the next session.
    """
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
