"""`OffsetTable`: the state of a shard, which is the newest raw value of each key. The table applies records to this
state.

Values stay undecoded until a fetch, a dump or a single read needs them. An unreadable value is added to the table's
problems, and is never reported as absent. The values of a group's topic are in one `PackedValues`. Replay finds this
object by the prefix of the topic's keys, so that it decodes the names of the group and the topic only once for each
prefix. All other methods find the object by group and topic. Groups with the same topic share its name. The rules about
which changes are allowed are in `shard`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

from offsetmgr.core.errors import CorruptData, ErrorCode, UnknownVersion
from offsetmgr.manager.packed_values import PackedValues
from offsetmgr.manager.results import FetchRequest, FetchResponse, PartitionOffset, RecordRun
from offsetmgr.records.base import (
    EncodedRecord,
    FormatMismatch,
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    RecordFormat,
    UnknownKey,
)

MAX_LISTED_PROBLEMS: Final = 1000
"""The maximum number of unreadable records that `OffsetTable.problems` describes. All of them are counted."""
_NO_VALUES: Final = PackedValues()


class OffsetTable:
    """The table of one shard. Only one thread may use it at a time."""

    def __init__(self, record_format: RecordFormat) -> None:
        self.record_format = record_format
        self._by_prefix: dict[bytes, PackedValues] = {}
        self._groups: dict[str, dict[str, PackedValues]] = {}
        self._aliases: dict[tuple[str, str], set[bytes]] = {}
        self._last_active: dict[str, int | None] = {}
        self._problems: dict[bytes, str] = {}
        self._unknown_keys: dict[bytes, int] = {}
        self.offset_count = 0
        """The number of committed offsets, including unreadable ones."""

    # --- content -------------------------------------------------------------------------------------

    def topics(self, group: str) -> Mapping[str, PackedValues]:
        """Returns the raw values of a group by topic and partition; empty if the group has no offsets."""
        return self._groups.get(group, {})

    def groups(self) -> Iterator[str]:
        """Yields the groups with offsets. The table may change during the iteration."""
        return iter(tuple(self._groups))

    @property
    def group_count(self) -> int:
        """The number of groups with offsets."""
        return len(self._groups)

    def has_group(self, group: str) -> bool:
        """Returns whether the group has offsets."""
        return group in self._groups

    def size(self, group: str) -> int:
        """Returns the number of offsets of a group."""
        return sum(map(len, self.topics(group).values()))

    def has_group_record(self, group: str) -> bool:
        return group in self._last_active

    def last_active(self, group: str) -> int | None:
        """Returns when the group was last known to have members (ms since 1970); None if the group's activity record is
        missing or unreadable (see `has_group_record`)."""
        return self._last_active.get(group)

    @property
    def problems(self) -> Sequence[str]:
        """Descriptions of at most `MAX_LISTED_PROBLEMS` unreadable records. Records that were overwritten later are not
        included. A value is decoded only when it is needed (by a fetch, a dump, an expiration pass or
        `check_versions`), so an unreadable value may be in the log for a while before it is listed."""
        return tuple(text for text in self._problems.values() if text)

    @property
    def unreadable(self) -> int:
        """The number of keys with an invalid record or with a value of an unknown version. Records that were
        overwritten later are not counted."""
        return len(self._problems)

    @property
    def unknown_keys(self) -> int:
        """The number of keys that were skipped because their version is unknown. Keys that were deleted later are not
        counted."""
        return len(self._unknown_keys)

    @property
    def unknown_versions(self) -> Mapping[int, int]:
        """The number of skipped keys by version."""
        return Counter(self._unknown_keys.values())

    def add_problem(self, key: bytes, name: str, error: Exception) -> None:
        """Counts and describes an unreadable record, once for each key."""
        if key not in self._problems:
            self._problems[key] = f"{name}: {error}" if len(self._problems) < MAX_LISTED_PROBLEMS else ""

    # --- reading -------------------------------------------------------------------------------------

    def fetch(self, request: FetchRequest) -> FetchResponse:
        """Returns the last acknowledged offsets. An offset that was never committed is -1 without an error. An
        unreadable offset has the error UNKNOWN_SERVER_ERROR, so that no client treats it as absent.

        The empty group id is a valid group, as in Kafka.
        """
        by_topic, requested = self.topics(request.group), request.topics
        if request.topics_only:
            return FetchResponse(ErrorCode.NONE, [(topic, ()) for topic in by_topic])
        if requested is None:
            requested = [(topic, list(values)) for topic, values in sorted(by_topic.items(), key=itemgetter(0))]
        return FetchResponse(
            ErrorCode.NONE,
            [
                self._topic(request.group, topic, by_topic.get(topic, _NO_VALUES), partitions)
                for topic, partitions in requested
            ],
        )

    def _topic(
        self, group: str, topic: str, values: PackedValues, partitions: Sequence[int]
    ) -> tuple[str, Sequence[PartitionOffset]]:
        read = self.record_format.read_offset
        results: list[PartitionOffset] = []
        for partition, raw in zip(partitions, values.get_many(partitions), strict=True):
            if raw is None:
                results.append((partition, -1, -1, "", ErrorCode.NONE))
                continue
            try:
                offset, epoch, metadata = read(raw)
                results.append((partition, offset, epoch, metadata, ErrorCode.NONE))
            except (CorruptData, UnknownVersion) as error:
                self._record_problem(group, topic, partition, error)
                results.append((partition, -1, -1, "", ErrorCode.UNKNOWN_SERVER_ERROR))
        return topic, results

    def check_versions(self) -> None:
        """Adds values of unknown versions to `problems`, at the end of a load, without decoding every value. The first
        two bytes of a value are its version in every format, so one readable value proves that the version is
        known."""
        known: set[bytes] = set()
        for group in self.groups():
            for topic, values in self.topics(group).items():
                if known.issuperset({raw[:2] for _, raw in values.items()}):
                    continue
                for partition, raw in values.items():
                    if raw[:2] not in known and self.value(group, topic, partition, raw) is not None:
                        known.add(raw[:2])

    def offset(self, group: str, topic: str, partition: int) -> int:
        """Returns the committed offset of a partition, -1 if no offset is committed. Raises `CorruptData` or
        `UnknownVersion` if the value is unreadable."""
        raw = self.topics(group).get(topic, _NO_VALUES).get(partition)
        return -1 if raw is None else self.record_format.read_offset(raw)[0]

    def entries(self) -> Iterator[tuple[OffsetKey, OffsetValue]]:
        """Yields every readable offset, sorted by group, topic and partition. Afterwards `problems` contains the
        unreadable offsets. The iteration may miss a change that is made during the iteration."""
        for group in sorted(self.groups()):
            for topic, values in sorted(self.topics(group).items(), key=itemgetter(0)):
                for partition, raw in values.items():
                    value = self.value(group, topic, partition, raw)
                    if value is not None:
                        yield OffsetKey(group, topic, partition), value

    def value(self, group: str, topic: str, partition: int, raw: bytes) -> OffsetValue | None:
        """Returns a decoded value; None if it is unreadable."""
        try:
            return self.record_format.decode_value(raw)
        except (CorruptData, UnknownVersion) as error:
            self._record_problem(group, topic, partition, error)
            return None

    def _record_problem(self, group: str, topic: str, partition: int, error: Exception) -> None:
        self.add_problem(self.key(group, topic, partition), f"{group}/{topic}-{partition}", error)

    # --- keys ----------------------------------------------------------------------------------------

    def key(self, group: str, topic: str, partition: int) -> bytes:
        """Returns the key of an offset in the log."""
        return self.record_format.offset_prefix(group, topic) + self.record_format.partition_suffix(partition)

    def tombstones(self, group: str, to_delete: Iterable[tuple[str, int]], *, with_record: bool) -> list[EncodedRecord]:
        """Returns the tombstones for these offsets of a group (by topic and partition). With ``with_record``, also
        returns the tombstone for the group's activity record."""
        records: list[EncodedRecord] = [
            (self.key(group, topic, partition), None) for topic, partition in sorted(to_delete)
        ]
        if with_record:
            records.append((self.record_format.encode_group_key(group), None))
        return records

    def record(self, key: bytes) -> EncodedRecord | None:
        """Returns a record that sets a key to its value in the table, or deletes the key if the table has no value for
        it. Returns None for a key that is neither the key of an offset nor of a group."""
        try:
            parts = self.record_format.split(key)
            if parts is not None:
                prefix, partition = parts
                values = self._by_prefix.get(prefix)
                return key, None if values is None else values.get(partition)
            decoded = self.record_format.decode_key(key)
        except (CorruptData, UnknownVersion, FormatMismatch):
            return None
        if not isinstance(decoded, GroupKey):
            return None
        if (last_active := self._last_active.get(decoded.group)) is None:
            return key, None
        return self.record_format.encode_group(decoded.group, GroupValue(last_active))

    def records(self) -> Iterator[EncodedRecord]:
        """Yields the record of every offset and every readable activity record, as they are at the time of the call of
        ``next``. The iteration may miss a change that is made during the iteration."""
        for group in self.groups():
            for topic in tuple(self.topics(group)):
                for partition in [number for number, _ in self.topics(group).get(topic, _NO_VALUES).items()]:
                    raw = self.topics(group).get(topic, _NO_VALUES).get(partition)
                    if raw is not None:
                        yield self.key(group, topic, partition), raw
        for group in tuple(self._last_active):
            if (last_active := self._last_active.get(group)) is not None:
                yield self.record_format.encode_group(group, GroupValue(last_active))

    # --- changes -------------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Applies one record. The method skips an invalid record and adds the record to `problems`. Raises
        `FormatMismatch`."""
        try:
            parts = self.record_format.split(key)
        except (CorruptData, UnknownVersion) as error:
            self.add_problem(key, _name(key), error)
            return
        if self._problems:
            self._problems.pop(key, None)
        if parts is None:
            self._apply_other(key, value)
            return
        prefix, partition = parts
        values = self._by_prefix.get(prefix)
        if value is None:
            if values is not None:
                self._set_many({prefix: {partition: None}}, {prefix: key})
            return
        if values is None:
            values = self._add_topic(prefix, key)
            if values is None:
                return
        self.offset_count += values.put(partition, value)

    def apply_newest(self, newest: Mapping[bytes, bytes | None]) -> None:
        """Applies the newest values of many keys. Has the effect of `apply` for each key, but is faster."""
        split, by_prefix = self.record_format.split, self._by_prefix
        # The values of a topic are set together at the end, because a change of a `PackedValues` copies a part of it.
        changed: dict[bytes, dict[int, bytes | None]] = {}
        keys: dict[bytes, bytes] = {}
        values: dict[int, bytes | None] = {}
        latest_prefix: bytes | None = None
        try:
            for key, value in newest.items():
                try:
                    parts = split(key)
                except (CorruptData, UnknownVersion):
                    parts = None
                if parts is None or self._problems or self._aliases:
                    self._set_many(changed, keys)
                    changed, latest_prefix = {}, None
                    self.apply(key, value)
                    continue
                prefix, partition = parts
                if prefix != latest_prefix:
                    if prefix not in by_prefix and (value is None or self._add_topic(prefix, key) is None):
                        continue
                    values, latest_prefix = changed.setdefault(prefix, {}), prefix
                    keys[prefix] = key
                values[partition] = value
        finally:
            self._set_many(changed, keys)

    def _set_many(self, changed: Mapping[bytes, dict[int, bytes | None]], keys: Mapping[bytes, bytes]) -> None:
        """Sets or removes values by prefix and partition. ``keys`` contains one key for each prefix."""
        for prefix, values in changed.items():
            packed = self._by_prefix[prefix]
            removed: list[int] = []
            if None in values.values():
                removed = [partition for partition, value in values.items() if value is None]
                for partition in removed:
                    del values[partition]
            self.offset_count += packed.put_many(list(values), list(values.values()))  # type: ignore[arg-type]
            if removed:
                self.offset_count -= packed.remove_many(removed)
                if not packed:
                    self._remove_topic(prefix, keys[prefix])

    def apply_run(self, run: RecordRun, values: Sequence[bytes | None]) -> None:
        """Applies the records of ``run`` with these values, which contain no tombstone. Has the effect of `apply` for
        each record, but is faster."""
        known = self._groups.get(run.group)
        values_of_topic = known.get(run.topic) if known is not None else None
        if values_of_topic is None:
            values_of_topic = PackedValues()
            self._by_prefix[self.record_format.offset_prefix(run.group, run.topic)] = values_of_topic
            self._groups.setdefault(run.group, {})[sys.intern(run.topic)] = values_of_topic
        for partition in run.partitions if self._problems else ():
            self._problems.pop(self.key(run.group, run.topic, partition), None)
        self.offset_count += values_of_topic.put_many(run.partitions, values)  # type: ignore[arg-type]

    def _apply_other(self, key: bytes, value: bytes | None) -> None:
        """Applies a record that is not an offset: an activity record, or one with an unknown key version."""
        try:
            decoded = self.record_format.decode_key(key)
        except (CorruptData, UnknownVersion) as error:
            self.add_problem(key, _name(key), error)
            return
        if isinstance(decoded, UnknownKey):
            if value is None:
                self._unknown_keys.pop(key, None)
            else:
                self._unknown_keys[key] = decoded.version
        elif not isinstance(decoded, GroupKey):
            return
        elif value is None:
            self._last_active.pop(decoded.group, None)
        else:
            try:
                self._last_active[decoded.group] = self.record_format.decode_group(value).last_active
            except (CorruptData, UnknownVersion) as error:
                self._last_active[decoded.group] = None
                self.add_problem(key, f"group {decoded.group!r}", error)

    def _add_topic(self, prefix: bytes, key: bytes) -> PackedValues | None:
        """Adds a topic for a new key prefix and returns its values; None if the key is invalid."""
        try:
            decoded = self.record_format.decode_key(key)
        except (CorruptData, UnknownVersion) as error:
            self.add_problem(key, _name(key), error)
            return None
        if not isinstance(decoded, OffsetKey):
            self.add_problem(key, _name(key), CorruptData("key", "not an offset's"))
            return None
        topics = self._groups.setdefault(decoded.group, {})
        if decoded.topic in topics or prefix != self.record_format.offset_prefix(decoded.group, decoded.topic):
            # Kafka's key versions 0 and 1 identify the same offset, so the keys of a topic may have several prefixes.
            self._aliases.setdefault((decoded.group, decoded.topic), set()).add(prefix)
        values = topics.setdefault(sys.intern(decoded.topic), PackedValues())
        self._by_prefix[prefix] = values
        return values

    def _remove_topic(self, prefix: bytes, key: bytes) -> None:
        """Removes a topic whose last offset was deleted."""
        decoded = self.record_format.decode_key(key)
        assert isinstance(decoded, OffsetKey)  # `_add_topic` has decoded a key with this prefix
        group, topic, _ = decoded
        for alias in self._aliases.pop((group, topic), ()):
            self._by_prefix.pop(alias, None)
        self._by_prefix.pop(self.record_format.offset_prefix(group, topic), None)
        self._by_prefix.pop(prefix, None)
        topics = self._groups[group]
        del topics[topic]
        if not topics:
            del self._groups[group]


def _name(key: bytes) -> str:
    """Names a key by its first 40 bytes in hexadecimal, enough to find it in the log."""
    return f"key {key[:40].hex()}{'...' if len(key) > 40 else ''}"
