"""The Spark data source ``format("offsetmgr")``: reads any offset store as a table, and commits a table to a store.

The table has the columns of `SCHEMA` and one row for each committed offset. A read distributes the groups over the
executors, and each executor reads its groups in bulk. If a group or partition cannot be read, the query fails (data
rule "absent is not zero"); with the option ``errors``, the group or partition becomes a row with its ``error`` instead.

A write with mode ``append`` commits the rows. A write never lowers an offset, and each commit is conditional on the
present value (data rules "no accidental rewind" and "conditional writes"). All rows of a group must be in one task;
`offsetmgr.spark.store_tables` ensures that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.offset_store import EditStatus
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.spark import source_options
from offsetmgr.spark.data_source_api import (
    DataSourceWriter,
    InputPartition,
    TableReader,
    TableSource,
    WriterCommitMessage,
)
from offsetmgr.spark.log_rows import arrow_columns, arrow_types
from offsetmgr.spark.store_rows import (
    RECREATED,
    SCHEMA,
    RowOrigin,
    cross_cluster_check,
    read_rows,
    select_groups,
    write_rows,
)

__all__ = ["NAME", "SCHEMA", "StoreSource"]

NAME: Final = "offsetmgr"
_READ_OPTIONS: Final = ("store", "group", "topic", "errors")
_WRITE_OPTIONS: Final = (*_READ_OPTIONS, "origin", "translate")
_EXAMPLE: Final = "zookeeper://host:2181"
_DEFAULT_TASKS: Final = 16
_ROWS_PER_BATCH: Final = 20_000
_MAX_ERRORS_SHOWN: Final = 5


class StoreReader(TableReader):
    """Lists the groups on the driver and reads them on the executors. The value of a task is the groups that it
    reads."""

    NAME = NAME
    OPTIONS = _READ_OPTIONS

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._uri = _store(self._options)
        errors = self._options.get("errors", "false")
        if errors.lower() not in ("true", "false"):
            raise source_options.invalid(NAME, f"option 'errors' is {errors!r}", "use true or false")
        self._errors = errors.lower() == "true"

    def partitions(self) -> Sequence[InputPartition]:
        """Raises `UnsupportedOperation` for stores of Kafka 0.7, whose partitions are not numbers."""
        named = source_options.group_patterns(NAME, self._options)
        names = select_groups(self._uri, self._connection(), GroupSelection(named or None))
        tasks = min(source_options.number(NAME, self._options, "tasks", _DEFAULT_TASKS), len(names))
        return [InputPartition(tuple(names[first::tasks])) for first in range(tasks)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Raises `PartialFailure` for unreadable rows, unless ``errors`` is ``true``."""
        if partition is None:  # Spark's placeholder for "nothing to read"
            return
        topics = TopicSelection.parse(source_options.listed(self._options.get("topic")))
        types = arrow_types(SCHEMA)
        rows = read_rows(partition.value, self._uri, self._connection(), topics, errors=self._errors)
        for batch in batched(rows, _ROWS_PER_BATCH):
            yield pa.RecordBatch.from_arrays(arrow_columns(batch, types.values()), names=list(types))


@dataclass
class WriteSummary(WriterCommitMessage):
    """The numbers of one task's rows that are committed and that failed, and its first errors."""

    committed: int = 0
    failed: int = 0
    shown: list[str] = field(default_factory=list)


class StoreWriter(DataSourceWriter):
    """Commits rows on the executors and adds up the outcomes on the driver."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `OtherCluster` if the origin belongs to another Kafka cluster and the option ``translate`` is
        missing."""
        self._options = source_options.checked(NAME, options, _WRITE_OPTIONS)
        self._uri = _store(self._options)
        with cross_cluster_check(self._origin(), self._uri, source_options.connection(NAME, self._options)):
            pass  # raises before anything is written

    def _origin(self) -> RowOrigin | None:
        uri, translate = self._options.get("origin"), self._options.get("translate")
        if translate is not None and translate not in tuple(OffsetTranslation):
            raise source_options.invalid(NAME, f"option 'translate' is {translate!r}", "'none' is the only value")
        if uri is None:
            return None
        config = source_options.connection(NAME, self._options)
        return RowOrigin(uri, config, None if translate is None else OffsetTranslation(translate))

    def write(self, iterator: Iterable[Row]) -> WriteSummary:
        config = source_options.connection(NAME, self._options)
        found = WriteSummary()
        for outcome in write_rows(iterator, self._uri, config, self._origin()):
            failed = outcome.status in (EditStatus.FAILED.value, RECREATED)
            found.failed += failed
            found.committed += not failed
            if outcome.error is not None and len(found.shown) < _MAX_ERRORS_SHOWN:
                found.shown.append(f"{outcome.group} {outcome.topic}-{outcome.partition}: {outcome.error}")
        return found

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Raises `OffsetMgrError` if the commit of any offset was rejected or failed. The other offsets are
        committed."""
        outcome = [message for message in messages if isinstance(message, WriteSummary)]
        if failed := sum(message.failed for message in outcome):
            shown = [line for message in outcome for line in message.shown][:_MAX_ERRORS_SHOWN]
            succeeded = sum(message.committed for message in outcome)
            raise OffsetMgrError(
                f"{failed} of {failed + succeeded} offsets were not committed to {self._uri}",
                "; ".join(shown),
                "offsetmgr.spark.store_tables.copy returns the outcome of every row",
            )


class StoreSource(TableSource):
    """The data source ``offsetmgr``.

    Reads and writes have these options:

    * ``store``: the URI of the store, unless it is the argument of ``load`` or ``save``.
    * ``group`` and ``topic``: names or globs, separated by commas, which select the rows to read.
    * ``errors``: see the module's docstring.
    * ``tasks``: the maximum number of tasks.
    * ``commandConfig``: the path of a ``.properties`` file with connection settings.
    * ``timeout``: in milliseconds.

    A write has two more options: ``origin``, the URI of the store that the rows come from, and ``translate`` (see
    `OffsetTranslation`). Without ``origin``, a write writes no leader epochs.
    """

    SCHEMA = SCHEMA
    READER = StoreReader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise source_options.invalid(NAME, "overwriting a store is not supported", 'write with mode("append")')
        if missing := {"group", "topic", "partition", "offset"}.difference(schema.fieldNames()):
            raise source_options.invalid(NAME, f"the table has no column {min(missing)!r}", f"needed: {SCHEMA}")
        return StoreWriter(dict(self.options))


def _store(options: Mapping[str, str]) -> str:
    return options.get("path") or source_options.required(NAME, options, "store", _EXAMPLE)
