"""Reads committed offsets from the directories of a stopped Kafka cluster, in parallel, and merges the groups.

`disk_layout` finds the directories, and `replica_choice` selects one of several replicas. This module writes nothing.
Notes and errors go to a `RecoveryListener`. An error affects only one directory or one partition. The other directories
and partitions are still read (data rule "absent is not zero").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.model import Committed, TopicPartition, is_deleted
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.groups.disk_layout import TopicDirectories, report_problems
from offsetmgr.groups.replica_choice import RecoveryListener, read_most_advanced_replicas
from offsetmgr.manager.expiration import expires_at
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import OffsetValue
from offsetmgr.segments.committed_offsets import Activity, SavedGroup, SavedOffset
from offsetmgr.segments.offsets_partition import SavedPartition, read_decisions, read_partition
from offsetmgr.segments.partition import partition_of
from offsetmgr.segments.transaction_state import TOPIC as TRANSACTIONS

_SHOWN: Final = 5
"""The maximum number of groups that a message names."""


class Expiry(NamedTuple):
    """The rule that leaves out expired offsets. An offset has expired if a broker would delete it in an expiration
    check at the time ``at`` (ms since 1970).

    ``retention_ms`` is ``offsets.retention.minutes`` in milliseconds.
    """

    at: int
    retention_ms: int

    def has_expired(self, tp: TopicPartition, saved: SavedOffset, activity: Activity | None) -> bool:
        """Returns whether an offset has expired (KIP-211, GroupMetadata.removeExpiredOffsets)."""
        if activity is not None and activity.format == AvroRecordFormat.name:
            value = OffsetValue(saved.offset, None, "", saved.commit_timestamp, saved.expire_timestamp)
            kept_ms, age_ms = self.retention_ms, ManagerSettings.max_activity_age_ms
            return expires_at(value, activity.since_ms, kept_ms, age_ms) <= self.at
        base = saved.commit_timestamp
        if activity is not None and activity.members:
            if activity.subscribed is None or tp.topic in activity.subscribed:
                return False
        elif activity is not None and activity.protocol_type and activity.since_ms is not None:
            base = activity.since_ms
        expires_at_ms = base + self.retention_ms if saved.expire_timestamp is None else saved.expire_timestamp
        return expires_at_ms <= self.at


def saved_groups(
    sources: TopicDirectories, listener: RecoveryListener, *, processes: int = 1, expiry: Expiry | None = None
) -> Iterator[SavedGroup]:
    """Yields every group that has offsets, partition by partition. Within a partition, the groups are sorted by name.
    Uses at most ``processes`` processes.

    If the number of partitions was raised, a group may be in several partitions. In this case the function uses the
    offsets in the partition that the group's coordinator reads. Memory grows with the offsets of the partitions that
    are being read, and with the names of all groups.
    """
    report_problems(sources, listener)
    decisions = _decisions(sources, listener, processes)
    work = _GroupLocations(sources, listener)
    for result in _partitions(sources, decisions, listener, processes):
        if isinstance(result, int):
            work.failed.add(result)
            continue
        _report(result, listener)
        for group in result.decoded.groups:
            if work.is_in_coordinator_partition(result.partition.partition, group):
                yield from _unexpired(group, expiry, listener)
    for group in work.misplaced_groups():
        yield from _unexpired(group, expiry, listener)


def group_offsets(saved: SavedGroup) -> GroupOffsets:
    """Returns the group in the form that stores and snapshots use, without the offsets that offsetmgr marked as
    deleted."""
    new = tuple.__new__  # skips the argument handling of named tuples
    offsets = {
        tp: new(Committed, (*one[:4], None)) for tp, one in saved.offsets.items() if not is_deleted(one[0], one[1])
    }
    return GroupOffsets(saved.group, offsets, saved.errors)


def _unexpired(group: SavedGroup, expiry: Expiry | None, listener: RecoveryListener) -> Iterator[SavedGroup]:
    if expiry is None:
        yield group
        return
    if group.activity_error is not None:
        why = f"whether its offsets have expired is unknown, so all are kept: {group.activity_error}"
        listener.error(OffsetMgrError(f"group {group.group!r}", why, group.activity_error.hint))
        yield group
        return
    unexpired = {tp: saved for tp, saved in group.offsets.items() if not expiry.has_expired(tp, saved, group.activity)}
    if unexpired or group.errors:
        yield SavedGroup(group.group, unexpired, group.errors, group.activity, group.activity_error)


def _decisions(
    sources: TopicDirectories, listener: RecoveryListener, processes: int
) -> dict[TopicPartition, dict[int, bool]]:
    """Returns the known outcomes of transactions. For each partition, the result maps the id of a producer to True if
    the producer's transaction was committed, and otherwise to False."""
    found: dict[TopicPartition, dict[int, bool]] = defaultdict(dict)
    for number, result in read_most_advanced_replicas(
        sources.transactions, read_decisions, TRANSACTIONS, listener, processes
    ):
        if isinstance(result, OffsetMgrError):
            listener.error(result)
            continue
        decisions, errors = result
        for error in errors:
            listener.error(OffsetMgrError(f"{TRANSACTIONS}-{number}", str(error)))
        for decision in decisions:
            found[decision.partition][decision.producer] = decision.committed
    return found


def _partitions(
    sources: TopicDirectories,
    decisions: Mapping[TopicPartition, dict[int, bool]],
    listener: RecoveryListener,
    processes: int,
) -> Iterator[SavedPartition | int]:
    """Yields the content of every readable partition, and the number of every unreadable partition."""
    # A transaction may span several partitions, so ``decisions`` contains its outcome once for each partition, by
    # producer id.
    producers = {tp.partition: found for tp, found in decisions.items() if tp.topic == sources.topic}
    read = partial(_read_one, producers)
    unknown_starts: set[str] = set()

    for number, result in read_most_advanced_replicas(sources.partitions, read, sources.topic, listener, processes):
        if isinstance(result, OffsetMgrError):
            listener.error(result)
            yield number
        else:
            if result.unknown_start is not None and (text := str(result.unknown_start)) not in unknown_starts:
                unknown_starts.add(text)
                listener.note(f"{text}: assuming that each log begins with its first segment, as brokers do")
            yield result


def _read_one(
    decisions: Mapping[int, Mapping[int, bool]], directory: Path, tick: Callable[[int], None]
) -> SavedPartition:
    return read_partition(directory, decisions.get(partition_of(directory).partition), tick)


def _report(found: SavedPartition, listener: RecoveryListener) -> None:
    """Reports a truncated tail, open transactions, skipped keys and errors of a partition."""
    name = found.partition
    if found.ignored_tail is not None:
        listener.note(f"{name}: truncated as by a broker's recovery: {found.ignored_tail}")
    if found.pending:
        listener.note(
            f"{name}: offsetmgr leaves out {count_of(found.pending, 'offset')} of "
            f"{count_of(found.transactions, 'open transaction')}: whether they were committed is not known"
        )
    if found.decided_transactions:
        listener.note(
            f"{name}: offsetmgr takes the outcome of {count_of(found.decided_transactions, 'transaction')} "
            f"from {TRANSACTIONS}"
        )
    if found.keyless:
        listener.note(f"{name}: offsetmgr skips {count_of(found.keyless, 'record')} without a key")
    for error in (*found.decoded.unknown(), *found.decoded.errors):
        listener.error(OffsetMgrError(str(name), str(error)))


class _GroupLocations:
    """Selects the partition from which the offsets of a group are used, if several partitions contain the group."""

    def __init__(self, sources: TopicDirectories, listener: RecoveryListener) -> None:
        self._count = max(sources.partitions) + 1 if sources.complete else None
        self._topic = sources.topic
        self._listener = listener
        self._seen: dict[str, int] = {}
        self._misplaced: dict[str, tuple[int, SavedGroup]] = {}
        self.failed: set[int] = set()

    def is_in_coordinator_partition(self, partition: int, group: SavedGroup) -> bool:
        """Returns True if the group's offsets in this partition are used. If the group's coordinator reads another
        partition, the method keeps the group for `misplaced_groups`."""
        name = group.group
        if self._count is not None and shard_for(name, self._count) != partition:
            known = self._misplaced.get(name)
            if known is None or _latest(known[1]) < _latest(group):
                self._misplaced[name] = (partition, group)
            return False
        before = self._seen.setdefault(name, partition)
        if before == partition:
            return True
        self._listener.error(
            Conflict(
                f"group {name!r}",
                f"is in {self._topic}-{before}, which is used, and in {self._topic}-{partition}",
                "name all partitions of the topic, so that their number is known",
            )
        )
        return False

    def misplaced_groups(self) -> Iterator[SavedGroup]:
        """Yields the groups for which no offsets were found in the partition that their coordinator reads, with the
        offsets from another partition. Call this method after all partitions have been read."""
        stale, only_misplaced = 0, list[str]()
        for name, (partition, group) in sorted(self._misplaced.items()):
            if name in self._seen:
                stale += 1
            elif self._count is not None and (coordinator_partition := shard_for(name, self._count)) in self.failed:
                self._listener.error(
                    OffsetMgrError(
                        f"group {name!r}",
                        f"it belongs to {self._topic}-{coordinator_partition}, which cannot be read; its offsets in "
                        f"{self._topic}-{partition} may be old, so they are left out",
                    )
                )
            else:
                only_misplaced.append(name)
                yield group
        if only_misplaced:
            self._listener.note(
                f"offsetmgr uses {count_of(len(only_misplaced), 'group')} from partitions that their coordinator does "
                f"not read ({self._topic} has {self._count} partitions): {list_of(only_misplaced, _SHOWN)}"
            )
        if stale:
            self._listener.note(
                f"offsetmgr ignores older offsets of {count_of(stale, 'group')} in other partitions, from before the "
                "number of partitions was raised"
            )


def _latest(group: SavedGroup) -> int:
    return max((saved.commit_timestamp for saved in group.offsets.values()), default=-1)
