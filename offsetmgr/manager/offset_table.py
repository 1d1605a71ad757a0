"""`OffsetTable`: the state of a shard, as the newest raw value of each key, and what applying a record does to it.

Values stay the bytes that they are in the log; whoever asks for one decodes it.  A topic's partitions lie in one dict
that is reached in two ways: by the prefix of its keys (replay from the log, which decodes names once a prefix) and by
group and topic (everything else).  No I/O, no clock, no rules of who may change what: those are in `shard`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.records.base import GroupKey, OffsetKey, Record, RecordFormat, UnknownKey

MOST_PROBLEMS: Final = 1000
"""So many unreadable records are named; all are counted."""


class RecordRun(NamedTuple):
    """Records that stand one after the other in an append: one commit's records of one topic, by partition."""

    group: str
    topic: str
    partitions: Sequence[int]


class OffsetTable:
    """See the module's docstring. Used by one thread."""

    def __init__(self, record_format: RecordFormat) -> None:
        self._format = record_format
        self._by_prefix: dict[bytes, dict[int, bytes]] = {}
        self._groups: dict[str, dict[str, dict[int, bytes]]] = {}
        self._aliases: dict[tuple[str, str], set[bytes]] = {}
        self._last_active: dict[str, int | None] = {}
        self._named: dict[bytes, str] = {}
        self._unknown: dict[bytes, int] = {}
        self.offset_count = 0

    # --- what it holds -----------------------------------------------------------------------------

    def topics(self, group: str) -> Mapping[str, Mapping[int, bytes]]:
        """Raw values of a group by topic and partition; empty if it has none."""
        return self._groups.get(group, {})

    def groups(self) -> Iterator[str]:
        """Groups with offsets, as they are now: the table may change meanwhile."""
        return iter(tuple(self._groups))

    @property
    def group_count(self) -> int:
        """How many groups have offsets."""
        return len(self._groups)

    def has_offsets(self, group: str) -> bool:
        return group in self._groups

    def size(self, group: str) -> int:
        """How many offsets a group has."""
        return sum(map(len, self.topics(group).values()))

    def group_records(self) -> Iterator[str]:
        """Groups that have a record of their own, with offsets or without."""
        return iter(tuple(self._last_active))

    def has_group_record(self, group: str) -> bool:
        return group in self._last_active

    def last_active(self, group: str) -> int | None:
        """When the group was last known to have members (ms since 1970); None if its record is unreadable or it has
        none: ask `has_group_record`."""
        return self._last_active.get(group)

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read, by name: at most `MOST_PROBLEMS`, without those that were overwritten since."""
        return tuple(text for text in self._named.values() if text)

    @property
    def unreadable(self) -> int:
        """How many keys have a record that was found to break its format, or whose value has a version that is not
        known; those that were overwritten since are not among them."""
        return len(self._named)

    @property
    def unknown_keys(self) -> int:
        """How many keys were skipped because of their version, without those that were deleted since."""
        return len(self._unknown)

    @property
    def unknown_versions(self) -> Mapping[int, int]:
        """The same by version."""
        return Counter(self._unknown.values())

    def note(self, key: bytes, name: str, error: Exception) -> None:
        """Names and counts an unreadable record, once."""
        if key not in self._named:
            self._named[key] = f"{name}: {error}" if len(self._named) < MOST_PROBLEMS else ""

    # --- its keys ----------------------------------------------------------------------------------

    def key(self, group: str, topic: str, partition: int) -> bytes:
        """The key of an offset in the log."""
        return self._format.offset_prefix(group, topic) + self._format.partition_suffix(partition)

    def tombstones(self, group: str, doomed: Iterable[tuple[str, int]], *, with_record: bool) -> list[Record]:
        """What deletes these offsets of a group (by topic and partition), and the group's own record if asked."""
        records: list[Record] = [(self.key(group, topic, partition), None) for topic, partition in sorted(doomed)]
        if with_record:
            records.append((self._format.encode_group_key(group), None))
        return records

    # --- what changes it ---------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record. Raises `FormatMismatch`; what cannot be understood is counted, named and skipped."""
        try:
            parts = self._format.split(key)
        except (CorruptData, UnknownVersion) as error:
            self.note(key, f"key {_shown(key)}", error)
            return
        if self._named:
            self._named.pop(key, None)
        if parts is None:
            self._apply_other(key, value)
            return
        prefix, partition = parts
        values = self._by_prefix.get(prefix)
        if value is None:
            if values is not None and partition in values:
                del values[partition]
                self.offset_count -= 1
                if not values:
                    self._drop(prefix, key)
            return
        if values is None:
            values = self._open(prefix, key)
            if values is None:
                return
        before = len(values)
        values[partition] = value
        self.offset_count += len(values) - before

    def apply_newest(self, newest: Mapping[bytes, bytes | None]) -> None:
        """The newest values of many keys: the same as `apply` of each, but quicker."""
        split, by_prefix = self._format.split, self._by_prefix
        values: dict[int, bytes] = {}
        latest_prefix: bytes | None = None
        added = 0
        try:
            for key, value in newest.items():
                try:
                    parts = split(key)
                except (CorruptData, UnknownVersion):
                    parts = None
                if parts is None or value is None or self._named:
                    self.apply(key, value)
                    latest_prefix = None
                    continue
                prefix, partition = parts
                if prefix != latest_prefix:
                    found = by_prefix.get(prefix)
                    if found is None:
                        self.apply(key, value)
                        continue
                    values, latest_prefix = found, prefix
                if partition not in values:
                    added += 1
                values[partition] = value
        finally:
            self.offset_count += added

    def apply_run(self, run: RecordRun, values: Sequence[bytes | None]) -> None:
        """The records of `run`, whose values (none a tombstone) these are: the same as `apply` of each, but quicker."""
        known = self._groups.get(run.group)
        held = known.get(run.topic) if known is not None else None
        if held is None:
            held = {}
            self._by_prefix[self._format.offset_prefix(run.group, run.topic)] = held
            self._groups.setdefault(run.group, {})[run.topic] = held
        if self._named:
            self._forget_problems(run)
        before = len(held)
        held.update(zip(run.partitions, values, strict=True))  # type: ignore[arg-type]
        self.offset_count += len(held) - before

    def _forget_problems(self, run: RecordRun) -> None:
        for partition in run.partitions:
            self._named.pop(self.key(run.group, run.topic, partition), None)

    def _apply_other(self, key: bytes, value: bytes | None) -> None:
        """A record that is no offset."""
        try:
            decoded = self._format.decode_key(key)
        except (CorruptData, UnknownVersion) as error:
            self.note(key, f"key {_shown(key)}", error)
            return
        if isinstance(decoded, UnknownKey):
            if value is None:
                self._unknown.pop(key, None)
            else:
                self._unknown[key] = decoded.version
        elif isinstance(decoded, GroupKey):
            self._apply_group(key, decoded.group, value)

    def _apply_group(self, key: bytes, group: str, value: bytes | None) -> None:
        if value is None:
            self._last_active.pop(group, None)
            return
        try:
            self._last_active[group] = self._format.decode_group(value).last_active
        except (CorruptData, UnknownVersion) as error:
            self._last_active[group] = None
            self.note(key, f"group {group!r}", error)

    def _open(self, prefix: bytes, key: bytes) -> dict[int, bytes] | None:
        """The dict of a topic that had no offsets until now; None if its key tells no group after all."""
        try:
            decoded = self._format.decode_key(key)
        except (CorruptData, UnknownVersion) as error:
            self.note(key, f"key {_shown(key)}", error)
            return None
        if not isinstance(decoded, OffsetKey):
            self.note(key, f"key {_shown(key)}", CorruptData("key", "not an offset's"))
            return None
        topics = self._groups.setdefault(decoded.group, {})
        if decoded.topic in topics or prefix != self._format.offset_prefix(decoded.group, decoded.topic):
            # Kafka's key versions 0 and 1 mean the same offset, so one topic's keys may have several prefixes.
            self._aliases.setdefault((decoded.group, decoded.topic), set()).add(prefix)
        values = topics.setdefault(decoded.topic, {})
        self._by_prefix[prefix] = values
        return values

    def _drop(self, prefix: bytes, key: bytes) -> None:
        """A topic's last offset is gone."""
        decoded = self._format.decode_key(key)
        assert isinstance(decoded, OffsetKey)  # the same key, or one of the same prefix, opened the topic
        group, topic, _ = decoded
        for alias in self._aliases.pop((group, topic), ()):
            self._by_prefix.pop(alias, None)
        self._by_prefix.pop(self._format.offset_prefix(group, topic), None)
        self._by_prefix.pop(prefix, None)
        topics = self._groups[group]
        del topics[topic]
        if not topics:
            del self._groups[group]


def _shown(key: bytes) -> str:
    """Enough of a key to find it again."""
    return key[:40].hex() + ("..." if len(key) > 40 else "")
