"""Reads committed offsets from the directories of a stopped Kafka cluster, many at a time, and merges the groups.
`disk_layout` finds the directories, `replica_choice` selects among several brokers.

It writes nothing. Notes go to a `ReplicaProgress`; an error concerns one directory or one partition, and the others
continue (data rule "absent is not zero").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.model import Committed, TopicPartition, is_deleted
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.disk_layout import Sources, look_over
from offsetmgr.groups.replica_choice import ReplicaProgress, most_advanced_replica
from offsetmgr.manager import expiration
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import OffsetValue
from offsetmgr.records.kafka import KEY_NAMES
from offsetmgr.segments.committed_offsets import Activity, SavedGroup, SavedOffset
from offsetmgr.segments.offsets_partition import SavedPartition, read_decisions, read_partition
from offsetmgr.segments.partition import partition_of
from offsetmgr.segments.transaction_state import TOPIC as TRANSACTIONS

_SHOWN: Final = 5
"""The maximum number of groups in a message."""


class Expiry(NamedTuple):
    """Leaves out offsets that a broker's check at ``at`` (ms since 1970) would have deleted.

    ``retention_ms`` is ``offsets.retention.minutes`` in milliseconds.
    """

    at: int
    retention_ms: int

    def over(self, tp: TopicPartition, saved: SavedOffset, activity: Activity | None) -> bool:
        """Returns whether an offset has expired (KIP-211, GroupMetadata.removeExpiredOffsets)."""
        if activity is not None and activity.format == AvroRecordFormat.name:
            terms = expiration.RetentionPolicy(retention_ms=self.retention_ms)
            value = OffsetValue(saved.offset, None, "", saved.commit_timestamp, saved.expire_timestamp)
            return expiration.expires_at(value, activity.since, terms) <= self.at
        base = saved.commit_timestamp
        if activity is not None and activity.members:
            if activity.subscribed is None or tp.topic in activity.subscribed:
                return False
        elif activity is not None and activity.protocol_type and activity.since is not None:
            base = activity.since
        over = base + self.retention_ms if saved.expire_timestamp is None else saved.expire_timestamp
        return over <= self.at


def saved_groups(
    sources: Sources, listener: ReplicaProgress, *, processes: int = 1, expiry: Expiry | None = None
) -> Iterator[SavedGroup]:
    """Yields every group with offsets, partition by partition, and by name within one. Uses at most ``processes``.

    If a group is in several partitions, because their number was raised, the one of its coordinator counts. Memory
    grows with the offsets of the partitions in work, and with the names of all groups.
    """
    look_over(sources, listener)
    decided = _decisions(sources, listener, processes)
    gathering = _RecoveryWork(sources, listener)
    for result in _partitions(sources, decided, listener, processes):
        if isinstance(result, int):
            gathering.failed.add(result)
            continue
        _report(result, listener)
        for group in result.decoded.groups:
            if gathering.at_home(result.partition.partition, group):
                yield from _kept(group, expiry, listener)
    for group in gathering.strays():
        yield from _kept(group, expiry, listener)


def group_offsets(saved: SavedGroup) -> GroupOffsets:
    """Returns the group for stores and snapshots, without offsets that offsetmgr has deleted."""
    new = tuple.__new__  # skips the argument handling of named tuples
    offsets = {
        tp: new(Committed, (*one[:4], None)) for tp, one in saved.offsets.items() if not is_deleted(one[0], one[1])
    }
    return GroupOffsets(saved.group, offsets, saved.errors)


def _kept(group: SavedGroup, expiry: Expiry | None, listener: ReplicaProgress) -> Iterator[SavedGroup]:
    if expiry is None:
        yield group
        return
    if group.activity_error is not None:
        why = f"whether its offsets have expired is not known, so all are kept: {group.activity_error}"
        listener.error(OffsetMgrError(f"group {group.group!r}", why, group.activity_error.hint))
        yield group
        return
    left = {tp: saved for tp, saved in group.offsets.items() if not expiry.over(tp, saved, group.activity)}
    if left or group.errors:
        yield SavedGroup(group.group, left, group.errors, group.activity, group.activity_error)


def _decisions(sources: Sources, listener: ReplicaProgress, processes: int) -> dict[TopicPartition, dict[int, bool]]:
    """Returns by partition the producers whose transaction was decided."""
    found: dict[TopicPartition, dict[int, bool]] = defaultdict(dict)
    for number, result in most_advanced_replica(
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
    sources: Sources, decided: Mapping[TopicPartition, dict[int, bool]], listener: ReplicaProgress, processes: int
) -> Iterator[SavedPartition | int]:
    """Yields every readable partition, and the numbers of the unreadable ones."""
    # A transaction may concern one partition of this topic or several: a decision is looked up by both.
    producers = {tp.partition: found for tp, found in decided.items() if tp.topic == sources.topic}
    read = partial(_read_one, producers)
    unknown_starts: set[str] = set()

    for number, result in most_advanced_replica(sources.partitions, read, sources.topic, listener, processes):
        if isinstance(result, OffsetMgrError):
            listener.error(result)
            yield number
        else:
            if result.unknown_start is not None and (text := str(result.unknown_start)) not in unknown_starts:
                unknown_starts.add(text)
                listener.note(f"{text}: logs are taken to begin with their first segment, as brokers do")
            yield result


def _read_one(
    decided: Mapping[int, Mapping[int, bool]], directory: Path, tick: Callable[[int], None]
) -> SavedPartition:
    return read_partition(directory, decided.get(partition_of(directory).partition), tick)


def _report(found: SavedPartition, listener: ReplicaProgress) -> None:
    """Reports notes about a partition, and what in it could not be read."""
    name = found.partition
    if found.ignored_tail is not None:
        listener.note(f"{name}: cut as a broker's recovery would: {found.ignored_tail}")
    if found.pending:
        listener.note(
            f"{name}: offsetmgr leaves out {count_of(found.pending, 'offset')} of "
            f"{count_of(found.transactions, 'open transaction')}: whether they were committed is not known"
        )
    if found.decided_transactions:
        listener.note(
            f"{name}: offsetmgr takes the end of {count_of(found.decided_transactions, 'transaction')} "
            f"from {TRANSACTIONS}"
        )
    if found.keyless:
        listener.note(f"{name}: offsetmgr skips {count_of(found.keyless, 'record')} without a key")
    for what, count in sorted(found.decoded.other.items()):
        if what.startswith("of"):
            listener.error(OffsetMgrError(str(name), f"{count} keys are {what}"))
        elif int(what.rpartition(" ")[2]) not in KEY_NAMES:
            listener.note(f"{name}: {count} keys are of {what}, which is not known; they are left out")
    for error in found.decoded.errors:
        listener.error(OffsetMgrError(str(name), str(error)))


class _RecoveryWork:
    """Decides which partition counts if a group is in several."""

    def __init__(self, sources: Sources, listener: ReplicaProgress) -> None:
        self._count = max(sources.partitions) + 1 if sources.complete else None
        self._topic = sources.topic
        self._listener = listener
        self._seen: dict[str, int] = {}
        self._strays: dict[str, tuple[int, SavedGroup]] = {}
        self.failed: set[int] = set()

    def at_home(self, partition: int, group: SavedGroup) -> bool:
        """Returns whether to take the group from this partition at once."""
        name = group.group
        if self._count is not None and shard_for(name, self._count) != partition:
            known = self._strays.get(name)
            if known is None or _latest(known[1]) < _latest(group):
                self._strays[name] = (partition, group)
            return False
        before = self._seen.setdefault(name, partition)
        if before == partition:
            return True
        self._listener.error(
            Conflict(
                f"group {name!r}",
                f"lies in {self._topic}-{before} and {self._topic}-{partition}; the former is used",
                "name all partitions of the topic, so that their number is known",
            )
        )
        return False

    def strays(self) -> Iterator[SavedGroup]:
        """Yields groups that were found only in partitions of other coordinators, after all partitions were read."""
        stale, strange = 0, list[str]()
        for name, (partition, group) in sorted(self._strays.items()):
            if name in self._seen:
                stale += 1
            elif self._count is not None and (home := shard_for(name, self._count)) in self.failed:
                self._listener.error(
                    OffsetMgrError(
                        f"group {name!r}",
                        f"{self._topic}-{home}, where it belongs, cannot be read; what "
                        f"{self._topic}-{partition} says of it may be old, and is left out",
                    )
                )
            else:
                strange.append(name)
                yield group
        if strange:
            more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
            self._listener.note(
                f"offsetmgr takes {count_of(len(strange), 'group')} from where a coordinator does not look, "
                f"{self._topic} having {self._count} partitions: {', '.join(strange[:_SHOWN])}{more}"
            )
        if stale:
            self._listener.note(
                f"offsetmgr found {count_of(stale, 'group')} in another partition as well, from before their number "
                "was raised"
            )


def _latest(group: SavedGroup) -> int:
    return max((saved.commit_timestamp for saved in group.offsets.values()), default=-1)
