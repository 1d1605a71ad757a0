"""Writes archives of loaded classes (JEP 350), with which the JVMs of the tests start in half the time.

    python scripts/class_archives.py            for the default servers and for Spark
    python scripts/class_archives.py --matrix   for the older brokers as well

A JVM writes its archive when it ends, so this script starts each server once. It keeps the archives that exist.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyspark

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.broker import BROKER_JARS, BROKER_JVM, DEFAULT_VERSION, KRAFT_JARS, NEWEST_VERSION
from offsetmgr.sandbox.java import class_archive
from offsetmgr.spark.ivy import cache_lock

SPARK_PROGRAM = """
from offsetmgr.spark import session
from offsetmgr.spark.table_registration import register

spark = register(session("classes", master="local[2]", **{"spark.ui.enabled": "false"}))
spark.range(9).selectExpr("id % 2 AS k", "id").groupBy("k").count().collect()
query = spark.readStream.format("rate").load().writeStream.format("memory").queryName("rates").start()
query.processAllAvailable()
query.stop()
spark.stop()
"""


def write(archive: Path, run: Callable[[Path, str], object]) -> None:
    """Calls ``run`` with an empty directory and with the JVM's flag that writes the archive."""
    archive.parent.mkdir(exist_ok=True)
    with cache_lock(archive.parent / "lock"), tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        if archive.exists():
            return
        written = Path(directory) / "classes.jsa"
        run(Path(directory) / "server", f"-XX:ArchiveClassesAtExit={written}")
        # The JVM writes the header last: a JVM that was killed has left zeros or no file.
        if written.exists() and any(written.open("rb").read(4)):
            written.replace(archive)


def run_spark(_directory: Path, flag: str) -> None:
    environment = os.environ | {"SPARK_SUBMIT_OPTS": f"-XX:+UseSerialGC {flag}", "SPARK_LOCAL_IP": "127.0.0.1"}
    # The JVM ends after Python; `run` waits until both have closed their output.
    subprocess.run([sys.executable, "-c", SPARK_PROGRAM], env=environment, check=True, capture_output=True)


def run_kraft(directory: Path, flag: str) -> None:
    KraftBroker(directory, jvm=(*BROKER_JVM, flag)).start().stop()


def main() -> None:
    write(class_archive([jars.resolve(name) for name in KRAFT_JARS[NEWEST_VERSION]]), run_kraft)
    write(class_archive([Path(pyspark.__file__).with_name("jars")]), run_spark)
    with tempfile.TemporaryDirectory() as temporary, ZooKeeperServer(temporary) as zookeeper:
        for release in sorted(BROKER_JARS) if "--matrix" in sys.argv else [DEFAULT_VERSION]:

            def run_broker(directory: Path, flag: str, release: str = release) -> None:
                address = f"{zookeeper.connect}/{release}"
                KafkaBroker(directory, zookeeper=address, version=release, jvm=(*BROKER_JVM, flag)).start().stop()

            write(class_archive([jars.resolve(name) for name in BROKER_JARS[release]]), run_broker)


if __name__ == "__main__":
    main()
