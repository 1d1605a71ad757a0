"""Spark's interface for data sources in Python.

Other modules import the interface from this module, so that an unsupported version of PySpark causes one clear
error."""

from __future__ import annotations

from offsetmgr.spark.versions import require_supported

require_supported("offsetmgr's tables in Spark")

from pyspark.sql.datasource import (  # noqa: E402 - only after the check
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

__all__ = ["DataSource", "DataSourceReader", "DataSourceWriter", "InputPartition", "WriterCommitMessage"]
