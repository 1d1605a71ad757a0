"""`Shard`: the offsets of the groups of one partition of the log. Pure: no I/O, no threads, no clock.

Handlers (`commit`, `delete_offsets`, `delete_group`, `expire`) check and answer with what is to be appended; `replay`
and its bulk forms are the only code that changes what is served, for loads, live traffic and standbys alike (rule 6).

Ordering contract: what the handlers prepared is appended at most once each, in the order in which it was prepared;
after its append `acknowledged` is called, in log order, and `discarded` if it certainly is not in the log, or if the
log was read to its end since and `replay` has seen whatever there was of it.  What failed is prepared anew, not
appended again.  Between preparing and either call a commit counts as in flight: nobody sees its offsets, and expiry
leaves its group alone, so that no tombstone of ours ever stands behind a commit that it did not know of.

The semantics are Kafka's (GroupCoordinator and GroupMetadataManager of 3.9, KIP-211 for expiry); where they differ, the
docstrings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from offsetmgr.errors import UnknownVersion, Unreadable
from offsetmgr.manager.expiration import HOUR_MS, ExpiryReport, Terms, activity_is_old, expires_at
from offsetmgr.manager.requests import (
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    NONE,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_SERVER_ERROR,
    CommitRequest,
    CommitResponse,
    DeleteResponse,
    FetchRequest,
    FetchResponse,
    PartitionOffset,
)
from offsetmgr.manager.table import OffsetTable, Run
from offsetmgr.records.base import GroupValue, OffsetKey, OffsetValue, PartitionCommit, Record, RecordFormat

LATEST_MS: Final = 2**63 - 1
_PARTITION = itemgetter(0)
_METADATA = itemgetter(3)

R = TypeVar("R")


class ShardLimits(NamedTuple):
    """What the manager is told to allow and to keep."""

    metadata_bytes: int = 4096
    """Longest metadata of a commit. Counted as Kafka counts its ``offset.metadata.max.bytes``: UTF-16 code units."""
    retention_ms: int = 7 * 24 * HOUR_MS
    """See `Terms.retention_ms`."""
    activity_ms: int = 6 * HOUR_MS
    """See `Terms.activity_ms`."""
    tombstones: int = 20_000
    """Once `Shard.expire` has so many it looks at no further group."""


class Prepared(NamedTuple, Generic[R]):
    """An answer, and the records that must be acknowledged before it may be given (none: it may be given at once)."""

    response: R
    records: Sequence[Record]
    groups: Sequence[str]
    """The groups that the records belong to."""
    runs: Sequence[Run] = ()
    """What the first of the records are, so that nobody has to find out from their keys; the others follow."""


class Shard:
    """See the module's docstring. Used by one thread at a time."""

    def __init__(self, partition: int, format: RecordFormat, limits: ShardLimits) -> None:
        self.partition = partition
        self._format = format
        self._limits = limits
        self._terms = Terms(limits.retention_ms, limits.activity_ms)
        self._table = OffsetTable(format)
        self._in_flight: dict[str, list[Prepared[CommitResponse]]] = {}
        self._position = 0

    # --- what it holds -----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The next offset of the log to be replayed."""
        return self._position

    @property
    def offset_count(self) -> int:
        """How many committed offsets it holds, unreadable ones among them."""
        return self._table.offset_count

    @property
    def problems(self) -> Sequence[str]:
        """What was found that breaks its format, by name. A value is looked at when somebody asks for it (a fetch, a
        dump, an expiry pass), so it may be in the log for a while before it is here."""
        return self._table.problems

    @property
    def unreadable(self) -> int:
        """How many such records were met."""
        return self._table.unreadable

    @property
    def unknown_versions(self) -> Mapping[int, int]:
        """How many records were skipped because their key has a version that we do not know, by version."""
        return self._table.unknown_versions

    def groups(self) -> Iterator[str]:
        """Groups with offsets."""
        return self._table.groups()

    def has_group(self, group: str) -> bool:
        """Whether the group has offsets."""
        return self._table.has_offsets(group)

    def size(self, group: str) -> int:
        """How many offsets the group has."""
        return sum(map(len, self._table.topics(group).values()))

    def last_active(self, group: str) -> int | None:
        """When the group is recorded to have had members, ms since 1970; None where nothing is recorded or readable."""
        return self._table.last_active(group)

    def entries(self) -> Iterator[tuple[OffsetKey, OffsetValue]]:
        """Every readable offset, sorted; the others are in `problems` afterwards."""
        for group in sorted(self.groups()):
            for topic, values in sorted(self._table.topics(group).items()):
                for partition, raw in sorted(values.items()):
                    value = self._value(group, topic, partition, raw)
                    if value is not None:
                        yield OffsetKey(group, topic, partition), value

    def fetch(self, request: FetchRequest) -> FetchResponse:
        """The last acknowledged offsets. What was never committed has offset -1 and no error; what cannot be read has
        the error UNKNOWN_SERVER_ERROR, so nobody takes it for absent.

        The empty group id is a group like any other here, as in Kafka.
        """
        held = self._table.topics(request.group)
        if request.topics is None:
            wanted = [(topic, sorted(values)) for topic, values in sorted(held.items())]
            return FetchResponse(NONE, [self._fetch_topic(request.group, t, held[t], ps) for t, ps in wanted])
        answers: list[tuple[str, Sequence[PartitionOffset]]] = []
        for topic, partitions in request.topics:
            values = held.get(topic)
            if values is None:
                answers.append((topic, [(partition, -1, -1, "", NONE) for partition in partitions]))
            else:
                answers.append(self._fetch_topic(request.group, topic, values, partitions))
        return FetchResponse(NONE, answers)

    def _fetch_topic(
        self, group: str, topic: str, values: Mapping[int, bytes], partitions: Sequence[int]
    ) -> tuple[str, Sequence[PartitionOffset]]:
        read = self._format.read_offset
        answers: list[PartitionOffset] = []
        for partition in partitions:
            raw = values.get(partition)
            if raw is None:
                answers.append((partition, -1, -1, "", NONE))
                continue
            try:
                answers.append((partition, *read(raw), NONE))
            except (Unreadable, UnknownVersion) as error:
                self._note(group, topic, partition, error)
                answers.append((partition, -1, -1, "", UNKNOWN_SERVER_ERROR))
        return topic, answers

    def _value(self, group: str, topic: str, partition: int, raw: bytes) -> OffsetValue | None:
        """A decoded value; None if it is unreadable, which is noted."""
        try:
            return self._format.decode_value(raw)
        except (Unreadable, UnknownVersion) as error:
            self._note(group, topic, partition, error)
            return None

    def _note(self, group: str, topic: str, partition: int, error: Exception) -> None:
        self._table.note(self._key(group, topic, partition), f"{group}/{topic}-{partition}", error)

    def _key(self, group: str, topic: str, partition: int) -> bytes:
        return self._format.offset_prefix(group, topic) + self._format.partition_suffix(partition)

    # --- what is asked of it -----------------------------------------------------------------------

    def commit(self, request: CommitRequest, now_ms: int) -> Prepared[CommitResponse]:
        """Commits, at ``now_ms`` (since 1970). Partitions whose metadata is too long fail alone.

        As broker 3.9.1 does (tried), any offset is taken, negative ones too, and the empty group id unless a generation
        comes with it: nobody can be a member of that group.  Other claims of membership are for the caller to check; a
        commit with a generation is taken for a proof that the group has members, which is recorded now and then (see
        `expiration`).
        """
        group = request.group
        if not group and request.generation >= 0:
            refusal = UNKNOWN_MEMBER_ID if self.has_group(group) else ILLEGAL_GENERATION
            return Prepared(CommitResponse(refusal), (), ())
        expire = None if request.retention_ms is None else min(now_ms + request.retention_ms, LATEST_MS)
        records: list[Record] = []
        runs: list[Run] = []
        errors: dict[tuple[str, int], int] = {}
        for topic, asked in request.topics:
            accepted = asked if self._all_short(asked) else self._short_ones(topic, asked, errors)
            if accepted:
                records += self._format.encode_commit(group, topic, accepted, now_ms, expire)
                runs.append(Run(group, topic, [*map(_PARTITION, accepted)]))
        if not records:
            return Prepared(CommitResponse(NONE, errors), (), ())
        if request.generation >= 0 and activity_is_old(self._table.last_active(group), now_ms, self._terms):
            records.append(self._format.encode_group(group, GroupValue(now_ms)))
        prepared = Prepared(CommitResponse(NONE, errors), records, (group,), runs)
        self._in_flight.setdefault(group, []).append(prepared)
        return prepared

    def _all_short(self, partitions: Sequence[PartitionCommit]) -> bool:
        """Whether no metadata can be too long: the quick look, a character being two units at most."""
        return max(map(len, map(_METADATA, partitions)), default=0) <= self._limits.metadata_bytes // 2

    def _short_ones(
        self, topic: str, partitions: Sequence[PartitionCommit], errors: dict[tuple[str, int], int]
    ) -> list[PartitionCommit]:
        accepted = []
        for commit in partitions:
            if len(_METADATA(commit).encode("utf-16-le", "surrogatepass")) // 2 <= self._limits.metadata_bytes:
                accepted.append(commit)
            else:
                errors[topic, _PARTITION(commit)] = OFFSET_METADATA_TOO_LARGE
        return accepted

    def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> Prepared[DeleteResponse]:
        """Deletes single offsets; one that does not exist is no error. Commits in flight count as done before."""
        if not group:
            return Prepared(DeleteResponse(INVALID_GROUP_ID), (), ())
        known = self._known(group)
        if not known:
            return Prepared(DeleteResponse(GROUP_ID_NOT_FOUND), (), ())
        doomed = {(topic, partition) for topic, partitions in topics for partition in partitions} & known
        return Prepared(DeleteResponse(), self._tombstones(group, doomed, last=doomed == known), (group,))

    def delete_group(self, group: str) -> Prepared[int]:
        """Deletes all offsets of a group and its record; the answer is an error code. Commits in flight count as done
        before."""
        known = self._known(group)
        if not known:
            return Prepared(GROUP_ID_NOT_FOUND, (), ())
        return Prepared(NONE, self._tombstones(group, known, last=True), (group,))

    def _known(self, group: str) -> set[tuple[str, int]]:
        """The partitions that the group has offsets of, or will have."""
        known = {(topic, partition) for topic, values in self._table.topics(group).items() for partition in values}
        for prepared in self._in_flight.get(group, ()):
            known.update((run.topic, partition) for run in prepared.runs for partition in run.partitions)
        return known

    def _tombstones(self, group: str, doomed: Iterable[tuple[str, int]], *, last: bool) -> list[Record]:
        """What deletes these offsets, and the group's record with the ``last`` of them."""
        records: list[Record] = [(self._key(group, topic, partition), None) for topic, partition in sorted(doomed)]
        if last and (self._table.has_group_record(group) or group in self._in_flight):
            records.append((self._format.encode_group_key(group), None))
        return records

    # --- expiry ------------------------------------------------------------------------------------

    def expire(
        self, now_ms: int, active: Callable[[str], bool | None], groups: Iterable[str] | None = None
    ) -> Prepared[ExpiryReport]:
        """Tombstones for what expired by ``now_ms``, of these groups or of all, and new records of activity.

        ``active`` says whether a group has members; None where that is not known, and then nothing of the group
        expires.  It is asked only for groups for which `expirable` gives True.
        """
        records: list[Record] = []
        touched: list[str] = []
        report = ExpiryReport()
        for group in self.expiry_groups() if groups is None else groups:
            if len(records) >= self._limits.tombstones:
                report = report._replace(cut=True)
                break
            found, part = self._expire_group(group, now_ms, active)
            report = report.plus(part)
            if found:
                records += found
                touched.append(group)
        return Prepared(report, records, touched)

    def expiry_groups(self) -> Iterator[str]:
        """What a whole pass looks at: groups with offsets, and those of which only their own record is left."""
        yield from self._table.groups()
        yield from (group for group in self._table.group_records() if not self._table.has_offsets(group))

    def expirable(self, group: str, now_ms: int) -> bool:
        """Whether `expire` would do something now, one way or the other, if it knew whether the group has members."""
        if group in self._in_flight:
            return False
        if self._table.has_group_record(group) and activity_is_old(self._table.last_active(group), now_ms, self._terms):
            return True
        return bool(self._due(group, now_ms))

    def _expire_group(
        self, group: str, now_ms: int, active: Callable[[str], bool | None]
    ) -> tuple[Sequence[Record], ExpiryReport]:
        if group in self._in_flight:
            return (), ExpiryReport(groups=1, busy=1)
        if not self.expirable(group, now_ms):
            return (), ExpiryReport(groups=1)
        has_members = active(group)
        last_active = self._table.last_active(group)
        if has_members:
            if not activity_is_old(last_active, now_ms, self._terms):
                return (), ExpiryReport(groups=1)
            return [self._format.encode_group(group, GroupValue(now_ms))], ExpiryReport(groups=1, refreshed=1)
        if has_members is None or (last_active is None and self._table.has_group_record(group)):
            return (), ExpiryReport(groups=1, unknown=1)
        due = self._due(group, now_ms)
        size = self.size(group)
        if size == 0 and not self._record_is_due(last_active, now_ms):
            return (), ExpiryReport(groups=1)
        emptied = len(due) == size
        found = self._tombstones(group, due, last=emptied)
        return found, ExpiryReport(groups=1, offsets=len(due), emptied=int(emptied))

    def _record_is_due(self, last_active: int | None, now_ms: int) -> bool:
        """Whether the record of a group without offsets may go."""
        return last_active is not None and now_ms - last_active >= self._terms.retention_ms + self._terms.activity_ms

    def _due(self, group: str, now_ms: int) -> list[tuple[str, int]]:
        """The offsets that may go if the group has no members. Unreadable ones never do: nobody knows their age."""
        last_active = self._table.last_active(group)
        due = []
        for topic, values in self._table.topics(group).items():
            for partition, raw in values.items():
                value = self._value(group, topic, partition, raw)
                if value is not None and expires_at(value, last_active, self._terms) <= now_ms:
                    due.append((topic, partition))
        return due

    # --- replay ------------------------------------------------------------------------------------

    def acknowledged(self, prepared: Prepared[R], first_offset: int) -> None:
        """The append has happened, its records standing from ``first_offset`` on: replays them, ends being in flight.

        Records that were replayed already (read from the log meanwhile) are passed over.
        """
        self.discarded(prepared)
        after = first_offset + len(prepared.records)
        if first_offset < self._position:
            for offset, (key, value) in enumerate(prepared.records, first_offset):
                self.replay(offset, key, value)
            return
        records, start = prepared.records, 0
        for run in prepared.runs:
            stop = start + len(run.partitions)
            self._table.apply_run(run, [value for _, value in records[start:stop]])
            start = stop
        for key, value in records[start:]:
            self._table.apply(key, value)
        self._position = after

    def discarded(self, prepared: Prepared[R]) -> None:
        """The append did not happen, or `replay` has seen what there was of it: ends being in flight."""
        for group in prepared.groups:
            waiting = self._in_flight.get(group, [])
            for index, held in enumerate(waiting):
                if held is prepared:
                    del waiting[index]
                    break
            if not waiting:
                self._in_flight.pop(group, None)

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Applies one record of the log. Below `position` it was applied already, and is ignored.

        Raises `OtherFormat`, and then the position stays.
        """
        if offset < self._position:
            return
        self._table.apply(key, value)
        self._position = offset + 1

    def replay_newest(self, newest: Mapping[bytes, bytes | None], position: int) -> None:
        """Applies the newest value of each key of all that stands from the present position up to ``position``.

        A large load may be handed over in parts, all but the last with the present position; nothing may be fetched
        until the last is applied.  A load of what was replayed already (a lower position) is ignored.  Raises
        `OtherFormat`, and then the position stays.
        """
        if position < self._position:
            return
        self._table.apply_newest(newest)
        self._position = position
