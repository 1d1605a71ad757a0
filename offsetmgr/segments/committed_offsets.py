"""Decodes the newest record of each key of an offsets topic. The result is the groups with their committed offsets and
activity.

Pure. The decoder determines for each key whether the key has Kafka's format or offsetmgr's format. If the value of a
committed offset is unreadable, only the partition of that offset gets an error, and decoding continues (data rule
"versioned formats"). Keys that belong neither to an offset nor to a group are counted by version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import NEGATIVE_OFFSET, TopicPartition
from offsetmgr.records.base import GroupKey, OffsetKey, RecordFormat, UnknownKey
from offsetmgr.records.claim import KEY_VERSION
from offsetmgr.records.kafka import KEY_NAMES, KafkaFieldReader, KafkaRecordFormat, decode_group_metadata
from offsetmgr.records.registry import FORMATS, format_of
from offsetmgr.segments.offsets import Newest

_MEMBER_KEY: Final = 5
"""ConsumerGroupMemberMetadata: a member of a group of the KIP-848 protocol."""
_NO_FORMAT: Final = "of no known format"
_KNOWN: Final = frozenset(f"of version {version}" for version in (*KEY_NAMES, KEY_VERSION))


class SavedOffset(NamedTuple):
    """A committed offset as stored in the log. ``log_offset`` is the offset of its record in the offsets topic. Times
    are in milliseconds since 1970."""

    offset: int
    metadata: str
    leader_epoch: int | None
    commit_timestamp: int
    expire_timestamp: int | None
    log_offset: int


class Activity(NamedTuple):
    """The members of a group, according to the log.

    ``since_ms`` (milliseconds since 1970, None if unknown) is the time at which the group entered its state; in the
    offset manager's records it is the time at which the group last had members. ``subscribed`` are the topics of the
    members' subscriptions, None if unknown."""

    format: str
    members: int
    since_ms: int | None = None
    protocol_type: str | None = None
    subscribed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class SavedGroup:
    """One group. ``errors`` are the partitions with unreadable values. ``activity`` is None if the group has never had
    members."""

    name: str
    offsets: Mapping[TopicPartition, SavedOffset]
    errors: Mapping[TopicPartition, OffsetMgrError]
    activity: Activity | None = None
    activity_error: OffsetMgrError | None = None


@dataclass(slots=True)
class DecodedPartition:
    """The decoded content of one partition of an offsets topic.

    ``groups`` are the groups with offsets, sorted by name. ``other`` is the number of keys of other kinds (keys that
    belong neither to an offset nor to a group), by version. ``errors`` are the errors of unreadable keys.
    """

    groups: list[SavedGroup] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)
    errors: list[OffsetMgrError] = field(default_factory=list)
    foreign: int = 0
    """The number of keys that are neither in Kafka's format nor in offsetmgr's. If no key is in one of these formats,
    the topic is not an offsets topic."""

    def unknown(self) -> list[OffsetMgrError]:
        """Returns an error for each kind of keys that this release does not know, because they may be commits."""
        kinds = {what: count for what, count in sorted(self.other.items()) if what not in _KNOWN}
        text = "{} keys are {}, so offsets may be missing"
        return [UnknownVersion("offsets topic", text.format(count, what)) for what, count in kinds.items()]


def decode(newest: Newest) -> DecodedPartition:
    """Decodes the newest record of every key.

    A partition of a group may have two keys in the log (versions 0 and 1). As in Kafka's coordinator, the record with
    the larger log offset is used.
    """
    return _DecodeState().run(newest)


class _DecodeState:
    def __init__(self) -> None:
        self._formats: dict[str, RecordFormat] = {name: make() for name, make in FORMATS.items()}
        self._result = DecodedPartition()
        self._offsets: dict[str, dict[TopicPartition, tuple[int, bytes | None, RecordFormat]]] = {}
        self._activity: dict[str, Activity] = {}
        self._activity_errors: dict[str, OffsetMgrError] = {}

    def run(self, newest: Newest) -> DecodedPartition:
        prefixes: dict[bytes, tuple[dict[TopicPartition, tuple[int, bytes | None, RecordFormat]], str]] = {}
        for key, (at, value) in newest.items():
            name = format_of(key)
            if name is None:
                self._result.foreign += 1
                self._result.other[_NO_FORMAT] += 1
                continue
            form = self._formats[name]
            try:
                parts = form.split(key)
                if parts is None:
                    if value is not None:
                        self._add_other(form, key, value)
                    continue
                prefix, partition = parts
                entry = prefixes.get(prefix)
                if entry is None:
                    decoded = form.decode_key(key)
                    if not isinstance(decoded, OffsetKey):
                        raise AssertionError("only an offset's key can be split")
                    entry = prefixes[prefix] = (self._offsets.setdefault(decoded.group, {}), decoded.topic)
            except OffsetMgrError as error:
                self._result.errors.append(error)
                continue
            records, topic = entry
            tp = TopicPartition(topic, partition)
            previous = records.get(tp)
            if previous is None or previous[0] < at:
                records[tp] = (at, value, form)
        for group in sorted(self._offsets):
            self._add_group(group, self._offsets[group])
        return self._result

    def _add_other(self, form: RecordFormat, key: bytes, value: bytes) -> None:
        decoded = form.decode_key(key)
        if isinstance(decoded, GroupKey):
            try:
                self._activity[decoded.group] = _activity(form, value)
            except OffsetMgrError as error:
                self._activity_errors[decoded.group] = error
        elif isinstance(decoded, UnknownKey):
            self._result.other[f"of version {decoded.version}"] += 1
            if form.name == KafkaRecordFormat.name and decoded.version == _MEMBER_KEY:
                group = KafkaFieldReader(key, "key").string("groupId")
                entry = self._activity.get(group)
                self._activity[group] = Activity(form.name, 1 + (entry.members if entry else 0))

    def _add_group(self, group: str, found: Mapping[TopicPartition, tuple[int, bytes | None, RecordFormat]]) -> None:
        offsets: dict[TopicPartition, SavedOffset] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        for tp in sorted(found):
            at, value, form = found[tp]
            if value is None:
                continue
            try:
                offset, epoch, metadata, committed, expires, _ = form.decode_value(value)
            except OffsetMgrError as error:
                errors[tp] = error
            else:
                if offset < 0:
                    errors[tp] = CorruptData(f"offset {offset}", NEGATIVE_OFFSET)
                else:
                    offsets[tp] = SavedOffset(offset, metadata, epoch, committed, expires, at)
        if offsets or errors:
            self._result.groups.append(
                SavedGroup(group, offsets, errors, self._activity.get(group), self._activity_errors.get(group))
            )


def _activity(form: RecordFormat, value: bytes) -> Activity:
    """Decodes a group's metadata record. Raises `UnknownVersion`, `CorruptData`."""
    if form.name != KafkaRecordFormat.name:
        return Activity(form.name, 0, form.decode_group(value).last_active)
    group = decode_group_metadata(value)
    topics: frozenset[str] | None = frozenset()
    for member in group.members:
        of_member = _subscribed(member.subscription)
        topics = None if topics is None or of_member is None else topics | of_member
    if group.protocol_type != "consumer":
        topics = None
    return Activity(form.name, len(group.members), group.current_state_timestamp, group.protocol_type, topics)


def _subscribed(subscription: bytes) -> frozenset[str] | None:
    """Returns the topics of a ConsumerProtocolSubscription of any version. Returns None for other bytes."""
    reader = KafkaFieldReader(subscription, "subscription")  # begins after the version
    try:
        return frozenset(reader.string("topic") for _ in range(reader.count("topics")))
    except OffsetMgrError:
        return None
