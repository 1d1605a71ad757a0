"""Reads an offset store's content as rows, and commits rows to a store.

The data source and the functions of `store_tables` use it on executors. It does not depend on Spark.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final, NamedTuple

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import GroupActive, PartialFailure, UnsupportedOperation
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import (
    Change,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    PartitionKinds,
)
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.groups.scan import choose_groups, require_known
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.uri import open_store

_ROWS_AT_ONCE: Final = 10_000
SCHEMA: Final = (
    "group string, topic string, partition int, offset bigint, metadata string, leader_epoch int, "
    "commit_timestamp bigint, error string"
)
"""The columns of a table of committed offsets (`offsetmgr.core.model.Committed`), as Spark's DDL. Unknown values are
null."""
COLUMNS: Final = tuple(column.split()[0] for column in SCHEMA.split(", "))
OUTCOMES: Final = (
    "group string, topic string, partition int, offset bigint, status string, before bigint, atomic boolean, "
    "error string"
)
"""`RowOutcome` as Spark's DDL."""
RECREATED: Final = "refuse-recreated"
"""The status of a row whose offset belongs to the deleted log of a recreated topic."""


class RowOrigin(NamedTuple):
    """The store that rows come from. ``translate`` is the user's permission to copy offsets between two clusters."""

    uri: str
    config: ConnectionConfig
    translate: OffsetTranslation | None = None


class RowDifference(NamedTuple):
    """A row of `audit.compare.differences`, which defines ``kind``. A group that could not be read has no topic."""

    group: str
    topic: str | None
    partition: int | None
    kind: str
    left_offset: int | None
    right_offset: int | None
    left_metadata: str | None
    right_metadata: str | None
    error: str | None


class RowOutcome(NamedTuple):
    """The outcome of one row. Fields that were null in the row are None.

    ``status`` is a value of `offsetmgr.core.offset_store.EditStatus`, or `RECREATED`. ``before`` is the previous
    offset; None if no offset was committed or the previous offset is unknown. ``atomic`` is False if another client
    could have committed between the comparison and the write.
    """

    group: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    status: str
    before: int | None
    atomic: bool
    error: str | None


def read_rows(
    groups: Iterable[str], uri: str, config: ConnectionConfig, topics: TopicSelection, *, errors: bool
) -> Iterator[tuple[Any, ...]]:
    """Yields the offsets of these groups in these topics, as rows in the order of `COLUMNS`.

    With ``errors`` an unreadable offset becomes a row with its ``error``; if the whole group is unreadable, the row has
    no topic. Without ``errors``, an unreadable offset raises `PartialFailure`, and an unreadable group raises the
    group's error.
    """
    with open_store(uri, config) as store:
        for found in store.scan(groups):
            broken = {tp: error for tp, error in found.errors.items() if topics.matches(tp)}
            failed = found.error or found.hidden
            if not errors and failed is not None:
                raise failed
            if not errors and broken:
                raise PartialFailure(f"reading group {found.name}", successes=found.offsets, failures=broken)
            if failed is not None:
                yield (found.name, None, None, None, None, None, None, str(failed))
            for tp, committed in found.offsets.items():
                if topics.matches(tp):
                    yield (found.name, *tp, *committed[:4], None)
            for tp, error in broken.items():
                yield (found.name, *tp, None, None, None, None, str(error))


def select_groups(uri: str, config: ConnectionConfig, selection: GroupSelection) -> list[str]:
    """Returns the selected groups, sorted.

    Raises `UnsupportedOperation` for stores of Kafka 0.7, whose partitions are not numbers. Raises `GroupNotFound` for
    a name or glob without a match, because the table of a misspelt name would be empty.
    """
    with _open_with_numbered_partitions(uri, config) as store:
        chosen = choose_groups(store, selection)
        if named := sorted(selection.named(chosen)):
            require_known([store], [found.name for found in store.scan(named) if _empty(found)])
        return chosen


def select_groups_of_stores(uris: Iterable[tuple[str, ConnectionConfig]], selection: GroupSelection) -> list[str]:
    """Does the same as `select_groups` for several stores. A group is selected if it exists in at least one of the
    stores."""
    known = set[str]()
    for uri, config in uris:
        with _open_with_numbered_partitions(uri, config) as store:
            known.update(store.groups())
            # A store may hold offsets of a group that it does not list.
            asked = selection.names - known
            known.update(found.name for found in store.scan(asked) if not _empty(found))
    return selection.within(known, "any of the stores")


def _open_with_numbered_partitions(uri: str, config: ConnectionConfig) -> OffsetStore:
    store = open_store(uri, config)
    if store.capabilities.partitions is PartitionKinds.OF_BROKERS:
        store.close()
        raise UnsupportedOperation(store.uri, "its offsets are byte positions of Kafka 0.7", "see migrate plan")
    return store


def _empty(found: GroupOffsets) -> bool:
    return not found.offsets and not found.errors and found.error is None


@contextmanager
def cross_cluster_check(
    origin: RowOrigin | None, uri: str, config: ConnectionConfig
) -> Iterator[CrossClusterCheck | None]:
    """Yields a check of whether offsets of the rows' origin are valid in the store at ``uri``; None if there is no
    origin.

    Raises `OtherCluster` if the stores belong to different clusters and ``origin`` contains no translation. Also raises
    the errors of `OffsetStore.log_origin`.
    """
    if origin is None:
        yield None
        return
    with open_store(origin.uri, origin.config) as source, open_store(uri, config) as target:
        crossing = CrossClusterCheck(source, target, origin.translate)
        crossing.check(f"copy to {target.uri}")
        yield crossing


def rejected_rows(
    rows: Iterable[Any], uri: str, config: ConnectionConfig, origin: RowOrigin
) -> Iterator[tuple[str, str, int, str]]:
    """Yields the group, topic, partition and reason of each row that `write_rows` would reject because its topic was
    recreated."""
    with cross_cluster_check(origin, uri, config) as crossing:
        assert crossing is not None  # the origin is given
        for batch in batched(map(_mapping, rows), _ROWS_AT_ONCE):
            good = [row for row in batch if _invalid_reason(row) is None]
            crossing.load_topics({row["topic"] for row in good})
            for row in good:
                if (why := _recreated(row, crossing)) is not None:
                    yield row["group"], row["topic"], row["partition"], why


def write_rows(
    rows: Iterable[Mapping[str, Any] | Any], uri: str, config: ConnectionConfig, origin: RowOrigin | None = None
) -> Iterator[RowOutcome]:
    """Commits rows and yields the outcome of each row. It never lowers an offset. Rows of one group should be adjacent.

    A row without metadata leaves the metadata of a commit with the same offset. ``origin`` is the store that the rows
    come from. If the origin belongs to the target's cluster, the rows' leader
    epochs are written too. Rows of a recreated topic are rejected if the origin shows that the topic was recreated.

    If Spark repeats a task because its worker died, the status of the rows that are already committed is ``unchanged``.
    The dead worker may have locked groups: they are edited once more, last, when their locks have ended.
    If a row is invalid, for example without an offset, only that row fails. If rows have different commits for one
    partition, all these rows fail, because the right commit is unknown. Raises `Unreachable` or `TimedOut` if the store
    cannot be reached.
    """
    pending: defaultdict[tuple[str, frozenset[TopicPartition]], list[dict[TopicPartition, Change]]] = defaultdict(list)
    """The changes of the edits without a result, by group and partitions."""
    rejected: deque[RowOutcome] = deque()

    def edits() -> Iterator[GroupEdit]:
        for group, same in groupby(map(_mapping, rows), key=lambda row: row["group"]):
            changes = _changes(same, rejected, crossing)
            if changes:
                pending[group, frozenset(changes)].append(changes)
                yield GroupEdit(group, changes)

    # The check opens separate stores, because it runs while `store` executes an edit.
    with cross_cluster_check(origin, uri, config) as crossing, open_store(uri, config) as store:
        todo: Iterable[GroupEdit] = edits()
        for waits in (True, False):
            locked: list[tuple[GroupEdit, float]] = []
            for result in store.edit(todo):
                edited = result.group, frozenset(result.outcomes)
                changes = pending[edited].pop(0)
                if waits and (lock_ends_s := _lock_ends_s(result)):
                    pending[edited].append(changes)
                    locked.append((GroupEdit(result.group, changes), lock_ends_s))
                    continue
                if not pending[edited]:
                    del pending[edited]
                for tp, outcome in result.outcomes.items():
                    after = changes[tp].after
                    assert after is not None  # no row deletes
                    before = getattr(outcome.before, "offset", None)
                    error = None if outcome.error is None else str(outcome.error)
                    status = outcome.status.value
                    yield RowOutcome(result.group, *tp, after.offset, status, before, result.atomic, error)
                while rejected:
                    yield rejected.popleft()
            if not locked:
                break
            time.sleep(max(seconds for _, seconds in locked))
            todo = [edit for edit, _ in locked]
    yield from rejected


def _changes(
    rows: Iterable[Mapping[str, Any]], rejected: deque[RowOutcome], crossing: CrossClusterCheck | None = None
) -> dict[TopicPartition, Change]:
    """Returns the changes of one group's rows. Appends the outcomes of invalid rows to ``rejected``."""
    group: str | None = None
    if crossing is not None:
        rows = list(rows)
        crossing.load_topics({row["topic"] for row in rows if isinstance(row["topic"], str)})
    offered: dict[TopicPartition, dict[tuple[int, str], OffsetAndMetadata]] = {}
    for row in rows:
        group, status, why = row["group"], EditStatus.FAILED.value, _invalid_reason(row)
        if why is None and crossing is not None:
            status, why = RECREATED, _recreated(row, crossing)
        if why is not None:
            place = row["topic"], row["partition"]
            rejected.append(RowOutcome(group, *place, row["offset"], status, None, True, why))
            continue
        commit = _commit(row)
        commit = commit._replace(leader_epoch=None) if crossing is None else crossing.adapt(commit)
        of_partition = offered.setdefault(TopicPartition(row["topic"], row["partition"]), {})
        of_partition[commit.offset, commit.metadata] = commit
    changes: dict[TopicPartition, Change] = {}
    for tp, commits in offered.items():
        if len(commits) == 1:
            (commit,) = commits.values()
            changes[tp] = Change(commit, keeps_metadata=not commit.metadata)
            continue
        status, why = EditStatus.FAILED.value, "the table contains several commits for this partition"
        rejected.extend(RowOutcome(group, *tp, one.offset, status, None, True, why) for one in commits.values())
    return changes


def _lock_ends_s(result: GroupEditResult) -> float:
    """Returns the seconds until the lock ends that another run of offsetmgr has on the group; 0 without a lock."""
    errors = [outcome.error for outcome in result.outcomes.values()]
    return max((error.lock_ends_s for error in errors if isinstance(error, GroupActive)), default=0.0)


def _mapping(row: Any) -> Mapping[str, Any]:
    """Returns a row of Spark as a mapping, and a mapping unchanged."""
    found: Mapping[str, Any] = row.asDict() if hasattr(row, "asDict") else row
    return found


def _invalid_reason(row: Mapping[str, Any]) -> str | None:
    """Returns why a row cannot be committed; None if the row can be committed."""
    if row.get("error") is not None:
        return f"it could not be read: {row['error']}"
    for name, kind in (("group", str), ("topic", str), ("partition", int), ("offset", int)):
        if type(row[name]) is not kind:
            return f"its {name} is {'null' if row[name] is None else repr(row[name])}"
    return None


def _recreated(row: Mapping[str, Any], crossing: CrossClusterCheck) -> str | None:
    """Returns why a row's offset belongs to the log of a deleted topic; None if the offset does not belong to such a
    log, or if the answer is unknown."""
    commit = _commit(row)
    found = Committed(commit.offset, commit_timestamp=commit.commit_timestamp)
    rejected = crossing.recreation_error(TopicPartition(row["topic"], row["partition"]), found)
    return None if rejected is None else rejected.why


def _commit(row: Mapping[str, Any]) -> OffsetAndMetadata:
    """Returns the commit of a row. Columns that the table does not have count as unknown."""
    known = row.get("metadata") or "", row.get("leader_epoch"), row.get("commit_timestamp")
    return OffsetAndMetadata(row["offset"], *known)
