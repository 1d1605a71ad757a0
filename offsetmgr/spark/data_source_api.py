"""Spark's interface for data sources in Python, and the base class of offsetmgr's tables.

Other modules import the interface from this module, so that an unsupported version of PySpark causes one clear
error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.spark import source_options
from offsetmgr.spark.versions import require_supported

require_supported("offsetmgr's tables in Spark")

from pyspark.sql.datasource import (  # noqa: E402 - only after the check
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType  # noqa: E402

__all__ = ["DataSourceWriter", "InputPartition", "TableReader", "TableSource", "WriterCommitMessage"]


class TableReader(DataSourceReader):
    """A reader of a table, with the options of the query. Subclasses define the format's name and its options."""

    NAME: ClassVar[str]
    OPTIONS: ClassVar[Sequence[str]]

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `UsageError` for an unknown option."""
        self._options = source_options.checked(self.NAME, options, self.OPTIONS)

    def _connection(self) -> ConnectionConfig:
        return source_options.connection(self.NAME, self._options)


class TableSource(DataSource):
    """A data source. Subclasses define its columns, as Spark's DDL, and the class of its reader."""

    SCHEMA: ClassVar[str]
    READER: ClassVar[type[TableReader]]

    @classmethod
    def name(cls) -> str:
        return cls.READER.NAME

    def schema(self) -> str:
        return self.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return self.READER(self.options)
