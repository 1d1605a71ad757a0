"""A store's offsets as rows, and rows into a store: shared by the data source and the functions of `store_tables`.

Runs on executors, independent of Spark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import GroupNotFound, PartialFailure, UnsupportedOperation
from offsetmgr.core.log_origin import Translate
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import (
    Change,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    Partitions,
)
from offsetmgr.groups.selection import (
    KNOWN_GROUPS,
    TopicSelection,
    choose_groups,
    is_pattern,
    matching_groups,
    named_groups,
    require_known,
)
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.uri import open_store

_ROWS_AT_ONCE: Final = 10_000
SCHEMA: Final = (
    "group string, topic string, partition int, offset bigint, metadata string, leader_epoch int, "
    "commit_timestamp bigint, error string"
)
"""Committed offsets as a table, in Spark's DDL: `offsetmgr.core.model.Committed`, null where unknown."""
COLUMNS: Final = tuple(column.split()[0] for column in SCHEMA.split(", "))
OUTCOMES: Final = (
    "group string, topic string, partition int, offset bigint, status string, before bigint, atomic boolean, "
    "error string"
)
"""`RowOutcome` as Spark's DDL."""
RECREATED: Final = "refuse-recreated"
"""The status of a row whose offset belongs to the deleted log of a recreated topic."""


class RowOrigin(NamedTuple):
    """The store that rows come from, and the user's statement if it belongs to another cluster than the target."""

    uri: str
    config: ConnectionConfig
    translate: Translate | None = None


class RowOutcome(NamedTuple):
    """The outcome of one row; fields that were null in the row are null.

    ``status`` is that of `offsetmgr.core.offset_store.EditStatus`, or `RECREATED`. ``before`` is the previous offset,
    null if there was none or it is unknown. ``atomic`` is False if others could have written between our comparison and
    our write.
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
    """All offsets of these groups in these topics, in the order of `COLUMNS`.

    An unreadable offset is a row with its ``error`` (without a topic if the whole group is unreadable). Unless
    ``errors``, it ends the reading and raises `PartialFailure`, or the group's own error.
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


def select_groups(uri: str, config: ConnectionConfig, wanted: Iterable[str]) -> list[str]:
    """The selected groups (names and globs; empty: all), sorted.

    Raises `UnsupportedOperation` for stores of Kafka 0.7, whose partitions are not numbers, and `GroupNotFound` for a
    name or a glob without a match, since a misspelt one would return an empty table.
    """
    names = list(wanted)
    with _open_with_numbered_partitions(uri, config) as store:
        chosen = choose_groups(store, names, all_groups=not names)
        if named := sorted(named_groups(names, chosen)):
            require_known(store, [found.group for found in store.scan(named) if _empty(found)])
        return chosen


def select_groups_of_stores(uris: Iterable[tuple[str, ConnectionConfig]], wanted: Iterable[str]) -> list[str]:
    """Like `select_groups`, for several stores; a group need not be in each of them."""
    names, known = list(wanted), set[str]()
    for uri, config in uris:
        with _open_with_numbered_partitions(uri, config) as store:
            known.update(store.groups())
            # A store may hold offsets of a group that it does not list.
            asked = [name for name in names if name not in known and not is_pattern(name)]
            known.update(found.group for found in store.scan(asked) if not _empty(found))
    for name in names:
        if not matching_groups([name], known):
            raise GroupNotFound(f"group {name!r}", "is in none of the stores", KNOWN_GROUPS)
    return matching_groups(names, sorted(known))


def _open_with_numbered_partitions(uri: str, config: ConnectionConfig) -> OffsetStore:
    store = open_store(uri, config)
    if store.capabilities.partitions is Partitions.OF_BROKERS:
        store.close()
        raise UnsupportedOperation(store.uri, "its offsets are byte positions of Kafka 0.7", "see migrate plan")
    return store


def _empty(found: GroupOffsets) -> bool:
    return not found.offsets and not found.errors and found.error is None


@contextmanager
def cross_cluster_check(
    origin: RowOrigin | None, uri: str, config: ConnectionConfig
) -> Iterator[CrossClusterCheck | None]:
    """The relation between the logs of the rows' origin and those of the store at ``uri``; None if no origin is known.

    Raises `OtherCluster` for another cluster that the user has not accepted, and as `OffsetStore.log_origin`.
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
    """Group, topic, partition and reason of those rows that `write_rows` would reject."""
    with cross_cluster_check(origin, uri, config) as crossing:
        assert crossing is not None  # the origin is given
        remaining = iter(rows)
        while batch := list(islice(remaining, _ROWS_AT_ONCE)):
            good = [row for row in batch if _invalid_reason(row) is None]
            crossing.learn({row["topic"] for row in good})
            for row in good:
                if (why := _recreated(row, crossing)) is not None:
                    yield row["group"], row["topic"], row["partition"], why


def write_rows(
    rows: Iterable[Mapping[str, Any] | Any], uri: str, config: ConnectionConfig, origin: RowOrigin | None = None
) -> Iterator[RowOutcome]:
    """Commits rows, forward only, and yields the outcome of each; rows of one group should be adjacent.

    ``origin``: the store that the rows come from. The rows' leader epochs are written only if it belongs to the
    target's cluster; rows of recreated topics are rejected if the origin reveals them.

    Rows that are written again, because a task's worker died, are unchanged. An invalid row (for example without an
    offset) fails alone, and so do rows with different commits for one partition, since the right one is unknown. Raises
    `Unreachable`, `TimedOut` if the store as a whole cannot be reached.
    """
    pending: dict[str, list[dict[TopicPartition, Change]]] = {}
    refused: deque[RowOutcome] = deque()

    def edits() -> Iterator[GroupEdit]:
        for group, same in groupby(rows, key=lambda row: row["group"]):
            changes = _changes(same, refused, crossing)
            if changes:
                pending.setdefault(group, []).append(changes)
                yield GroupEdit(group, changes)

    # The check uses its own stores, because the target is in the middle of an edit then.
    with cross_cluster_check(origin, uri, config) as crossing, open_store(uri, config) as store:
        for result in store.edit(edits()):
            changes = _pop_changes(pending, result)
            for tp, outcome in result.outcomes.items():
                after = changes[tp].after
                assert after is not None  # no row deletes
                before = getattr(outcome.before, "offset", None)
                error = None if outcome.error is None else str(outcome.error)
                yield RowOutcome(result.group, *tp, after.offset, outcome.status.value, before, result.atomic, error)
            while refused:
                yield refused.popleft()
    yield from refused


def _changes(
    rows: Iterable[Any], refused: deque[RowOutcome], crossing: CrossClusterCheck | None = None
) -> dict[TopicPartition, Change]:
    """The changes of one group's rows; invalid rows go to ``refused``."""
    group: str | None = None
    if crossing is not None:
        rows = list(rows)
        crossing.learn({row["topic"] for row in rows if isinstance(row["topic"], str)})
    offered: dict[TopicPartition, dict[tuple[int, str], OffsetAndMetadata]] = {}
    for row in rows:
        group = row["group"]
        if (why := _invalid_reason(row)) is not None:
            refused.append(_failed(group, row["topic"], row["partition"], row["offset"], why))
            continue
        if crossing is not None and (why := _recreated(row, crossing)) is not None:
            outcome = _failed(group, row["topic"], row["partition"], row["offset"], why)
            refused.append(outcome._replace(status=RECREATED))
            continue
        commit = _commit(row)
        commit = commit._replace(leader_epoch=None) if crossing is None else crossing.carry(commit)
        of_partition = offered.setdefault(TopicPartition(row["topic"], row["partition"]), {})
        of_partition[commit.offset, commit.metadata] = commit
    changes: dict[TopicPartition, Change] = {}
    for tp, commits in offered.items():
        if len(commits) == 1:
            changes[tp] = Change(next(iter(commits.values())))
            continue
        why = "the table contains several commits for this partition"
        refused.extend(_failed(group, *tp, commit.offset, why) for commit in commits.values())
    return changes


def _pop_changes(pending: dict[str, list[dict[TopicPartition, Change]]], result: GroupEditResult) -> Any:
    """The changes that belong to a result: a group may have been edited in several parts."""
    of_group = pending[result.group]
    found = next(one for one in of_group if one.keys() == result.outcomes.keys())
    of_group.remove(found)
    if not of_group:
        del pending[result.group]
    return found


def _invalid_reason(row: Any) -> str | None:
    """Why a row cannot be committed; None if it can."""
    columns = row.__fields__ if hasattr(row, "__fields__") else row
    if "error" in columns and row["error"] is not None:
        return f"it could not be read: {row['error']}"
    for name, kind in (("group", str), ("topic", str), ("partition", int), ("offset", int)):
        if type(row[name]) is not kind:
            return f"its {name} is {'null' if row[name] is None else repr(row[name])}"
    return None


def _recreated(row: Any, crossing: CrossClusterCheck) -> str | None:
    """Why a row's offset belongs to a deleted log; None if it does not, or if that is unknown."""
    commit = _commit(row)
    found = Committed(commit.offset, commit_timestamp=commit.commit_timestamp)
    refused = crossing.refusal(TopicPartition(row["topic"], row["partition"]), found)
    return None if refused is None else refused.why


def _failed(group: Any, topic: Any, partition: Any, offset: Any, why: str) -> RowOutcome:
    return RowOutcome(group, topic, partition, offset, EditStatus.FAILED.value, None, True, why)


def _commit(row: Any) -> OffsetAndMetadata:
    """A row's commit; missing columns are unknown."""
    columns = row.__fields__ if hasattr(row, "__fields__") else row

    def value(name: str) -> Any:
        return row[name] if name in columns else None

    return OffsetAndMetadata(row["offset"], value("metadata") or "", value("leader_epoch"), value("commit_timestamp"))
