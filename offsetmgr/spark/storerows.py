"""A store's offsets as rows, and rows into a store: what the data source and the functions of `copying` have in common.

Runs on executors; knows nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from offsetmgr.config import ConnectionConfig
from offsetmgr.errors import PartialFailure, UnsupportedOperation
from offsetmgr.model import OffsetAndMetadata, TopicPartition
from offsetmgr.operations.selection import TopicSelection, choose_groups
from offsetmgr.stores.base import Change, GroupEdit, Partitions
from offsetmgr.stores.uri import open_store

SCHEMA: Final = (
    "group string, topic string, partition int, offset bigint, metadata string, leader_epoch int, "
    "commit_timestamp bigint, error string"
)
"""Committed offsets as a table, in Spark's DDL: `offsetmgr.model.Committed`, null where unknown."""
COLUMNS: Final = tuple(column.split()[0] for column in SCHEMA.split(", "))
OUTCOMES: Final = (
    "group string, topic string, partition int, offset bigint, verdict string, before bigint, atomic boolean, "
    "error string"
)
"""`Outcome` as Spark's DDL."""


class Outcome(NamedTuple):
    """What became of one row.

    ``verdict`` is `offsetmgr.stores.base.Verdict`'s; ``before`` the offset that was there, null where nothing was or
    it is not known; ``atomic`` False where others could have written between our comparison and our write.
    """

    group: str
    topic: str
    partition: int
    offset: int
    verdict: str
    before: int | None
    atomic: bool
    error: str | None


def read_rows(
    groups: Iterable[str], uri: str, config: ConnectionConfig, topics: TopicSelection, *, errors: bool
) -> Iterator[tuple[Any, ...]]:
    """All offsets of these groups in these topics, in the order of `COLUMNS`.

    What could not be read is a row with its ``error`` (without a topic where it is the group as a whole), or, unless
    ``errors``, ends the reading: raises `PartialFailure`, or the group's own error.
    """
    with open_store(uri, config) as store:
        for found in store.scan(groups):
            broken = {tp: error for tp, error in found.errors.items() if topics.matches(tp)}
            if not errors and found.error is not None:
                raise found.error
            if not errors and broken:
                raise PartialFailure(f"reading group {found.group}", successes=found.offsets, failures=broken)
            if found.error is not None:
                yield (found.group, None, None, None, None, None, None, str(found.error))
            for tp, committed in found.offsets.items():
                if topics.matches(tp):
                    yield (found.group, *tp, *committed[:4], None)
            for tp, error in broken.items():
                yield (found.group, *tp, None, None, None, None, str(error))


def groups_of(uri: str, config: ConnectionConfig, wanted: Iterable[str]) -> list[str]:
    """The groups that are meant (names and globs; none: all), sorted.

    Raises `UnsupportedOperation` for stores of Kafka 0.7, whose partitions no number tells, and `GroupNotFound`.
    """
    names = list(wanted)
    with open_store(uri, config) as store:
        if store.capabilities.partitions is Partitions.OF_BROKERS:
            raise UnsupportedOperation(store.uri, "its offsets are byte positions of Kafka 0.7", "see migrate plan")
        return choose_groups(store, names, all_groups=not names)


def write_rows(rows: Iterable[Mapping[str, Any] | Any], uri: str, config: ConnectionConfig) -> Iterator[Outcome]:
    """Commits rows, forward only, and tells what became of each; rows of one group must follow each other.

    Written again, as a task is whose worker died, they are unchanged. Raises `Unreachable`, `TimedOut` where the store
    as a whole cannot be reached.
    """
    wanted: dict[str, Mapping[TopicPartition, Change]] = {}

    def edits() -> Iterator[GroupEdit]:
        for group, same in groupby(rows, key=lambda row: row["group"]):
            changes = {TopicPartition(row["topic"], row["partition"]): Change(_commit(row)) for row in same}
            wanted[group] = changes
            yield GroupEdit(group, changes)

    with open_store(uri, config) as store:
        for result in store.edit(edits()):
            changes = wanted.pop(result.group)
            for tp, outcome in result.outcomes.items():
                after = changes[tp].after
                assert after is not None  # nothing is deleted here
                before = getattr(outcome.before, "offset", None)
                error = None if outcome.error is None else str(outcome.error)
                yield Outcome(result.group, *tp, after.offset, outcome.verdict.value, before, result.atomic, error)


def _commit(row: Any) -> OffsetAndMetadata:
    """A row's commit; columns that the table does not have are unknown."""
    there = row.__fields__ if hasattr(row, "__fields__") else row

    def value(name: str) -> Any:
        return row[name] if name in there else None

    return OffsetAndMetadata(row["offset"], value("metadata") or "", value("leader_epoch"), value("commit_timestamp"))
