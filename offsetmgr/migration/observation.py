"""An observation of a group of old consumers at one moment, as a value and as JSON.

Pure. `group_observer` makes observations, `ownership_history` combines them, and `evidence` draws conclusions from
them. A runbook stores one observation as the baseline.

Ordering contract, on which the evidence relies: an observation reads the owners first, then the offsets in ZooKeeper,
then the offsets in Kafka, then the owners again. If the two reads of the owners differ for a partition, the observation
has no owner for this partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from offsetmgr.core.errors import MalformedData, OffsetMgrError
from offsetmgr.core.field_reader import MAX_LONG, FieldReader
from offsetmgr.core.model import ABSENT, Committed, LogRange, Offset, TopicPartition

OffsetReadResult: TypeAlias = Offset | OffsetMgrError
"""The result of one read of one partition: a commit, its absence, or the error. An error never counts as absence."""


@dataclass(frozen=True, slots=True)
class RegisteredMember:
    """A member as registered in ``/consumers/GROUP/ids/ID``.

    ``host`` is part of a generated id (``GROUP_HOST-MILLISECONDS-8 hex digits``). ``host`` is None if the id was
    configured (``consumer.id``). A configured id stays the same after a restart. ``registered_at_ms`` (since 1970) and
    ``czxid`` describe the *last* registration: a process registers again after its session has expired. ``session`` is
    the id of the ZooKeeper session.
    """

    id: str
    host: str | None
    registered_at_ms: int | None
    czxid: int
    session: int
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionOwner:
    """One ownership of a partition: the member, and the transaction (czxid) that created the partition's owner znode.
    If the znode is deleted and created again, a new ownership begins, even if the member is the same."""

    member: str
    czxid: int


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of a group: its members and owners, its offsets in both stores, and the log ranges. ``at_ms`` is
    the time at which the observation was complete.

    ``partitions`` are the partitions of all topics to which live members subscribe, and all partitions with an owner. A
    partition that is not in ``owners`` had no owner, or its owner changed during the observation. ``unconsumed`` are
    partitions that have offsets, but are not in ``partitions``. ``unreadable`` names the znodes that could not be
    decoded. ``stores`` has the identity of each store, if the observation is the baseline of a file.
    """

    group: str
    at_ms: int
    members: Mapping[str, RegisteredMember]
    owners: Mapping[TopicPartition, PartitionOwner]
    partitions: tuple[TopicPartition, ...]
    zookeeper: Mapping[TopicPartition, OffsetReadResult]
    kafka: Mapping[TopicPartition, OffsetReadResult]
    logs: Mapping[TopicPartition, LogRange | OffsetMgrError]
    unconsumed: tuple[TopicPartition, ...] = ()
    unreadable: tuple[str, ...] = ()
    stores: Mapping[str, str] = field(default_factory=dict)

    def owned_by(self, member: str) -> tuple[TopicPartition, ...]:
        return tuple(sorted(tp for tp, owned in self.owners.items() if owned.member == member))

    def lag(self, tp: TopicPartition) -> int | None:
        """Returns the number of messages between the larger committed offset and the log's end; None if unknown."""
        log = self.logs.get(tp)
        known = [r.offset for r in (self.zookeeper.get(tp), self.kafka.get(tp)) if isinstance(r, Committed)]
        if not isinstance(log, LogRange) or not known:
            return None
        return max(0, log.end - max(*known, log.start))


def at(ms: int | None) -> str:
    """Returns a time in ISO 8601, UTC, to the second."""
    if ms is None:
        return "an unknown time"
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock_time(ms: int) -> str:
    """Returns the time of day (UTC) of an event within an observation."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%H:%M:%S.%f")[:-3]


def reading_text(reading: OffsetReadResult | None) -> str:
    """Returns an offset as text."""
    if isinstance(reading, Committed):
        return str(reading.offset)
    if isinstance(reading, OffsetMgrError):
        return "unreadable"
    return "unknown" if reading is None else "no offset"


# --- JSON ----------------------------------------------------------------------------------------


def to_json(observation: Observation) -> dict[str, Any]:
    """Returns the observation as plain JSON values. Errors become text, and unknown numbers null."""
    everything = sorted({*observation.partitions, *observation.unconsumed, *observation.zookeeper, *observation.kafka})
    return {
        "group": observation.group,
        "stores": dict(observation.stores),
        "at_ms": observation.at_ms,
        "at": at(observation.at_ms),
        "members": [
            {
                "id": m.id,
                "host": m.host,
                "registered_at_ms": m.registered_at_ms,
                "czxid": m.czxid,
                "session": m.session,
                "topics": list(m.topics),
            }
            for _, m in sorted(observation.members.items())
        ],
        "partitions": [_partition_to_json(observation, tp) for tp in everything],
        "unreadable": list(observation.unreadable),
    }


def _partition_to_json(observation: Observation, tp: TopicPartition) -> dict[str, Any]:
    owned, log = observation.owners.get(tp), observation.logs.get(tp)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "consumed": tp in set(observation.partitions),
        "owner": None if owned is None else owned.member,
        "owner_czxid": None if owned is None else owned.czxid,
        "zookeeper": _reading_to_json(observation.zookeeper.get(tp)),
        "kafka": _reading_to_json(observation.kafka.get(tp)),
        "log_start_offset": log.start if isinstance(log, LogRange) else None,
        "log_end_offset": log.end if isinstance(log, LogRange) else None,
        "lag": observation.lag(tp),
    }


def _reading_to_json(reading: OffsetReadResult | None) -> dict[str, Any]:
    if isinstance(reading, Committed):
        return {"state": "committed", "offset": reading.offset, "version": reading.version}
    if isinstance(reading, OffsetMgrError):
        return {"state": "unreadable", "error": str(reading)}
    return {"state": "unknown" if reading is None else "absent"}


@dataclass(slots=True)
class _Parts:
    owners: dict[TopicPartition, PartitionOwner] = field(default_factory=dict)
    partitions: list[TopicPartition] = field(default_factory=list)
    unconsumed: list[TopicPartition] = field(default_factory=list)
    zookeeper: dict[TopicPartition, OffsetReadResult] = field(default_factory=dict)
    kafka: dict[TopicPartition, OffsetReadResult] = field(default_factory=dict)
    logs: dict[TopicPartition, LogRange | OffsetMgrError] = field(default_factory=dict)


def from_json(data: Any, *, where: str) -> Observation:
    """Returns the observation that `to_json` encoded. Raises `MalformedData` with ``where`` and the invalid field."""
    if not isinstance(data, dict):
        raise MalformedData(where, "is not an observation of a group")
    found = FieldReader(data, where)
    parts = _Parts()
    for row in found.objects("partitions"):
        _take_partition(parts, row)
    return Observation(
        group=found.text("group"),
        at_ms=found.integer("at_ms"),
        members={m.text("id"): _member(m) for m in found.objects("members")},
        owners=parts.owners,
        partitions=tuple(parts.partitions),
        zookeeper=parts.zookeeper,
        kafka=parts.kafka,
        logs=parts.logs,
        unconsumed=tuple(parts.unconsumed),
        unreadable=tuple(found.text_list("unreadable")),
        stores=stores_from_json(found.values),
    )


def stores_from_json(data: Mapping[str, Any]) -> dict[str, str]:
    """Returns the identities of the stores; empty if an older release wrote the file without them."""
    found = data.get("stores")
    return {str(role): str(name) for role, name in found.items()} if isinstance(found, dict) else {}


def _member(m: FieldReader) -> RegisteredMember:
    return RegisteredMember(
        m.text("id"),
        m.optional_text("host"),
        m.optional_integer("registered_at_ms"),
        m.integer("czxid", -MAX_LONG),
        m.integer("session", -MAX_LONG - 1),  # ZooKeeper's session ids may be negative
        tuple(m.text_list("topics")),
    )


def _take_partition(parts: _Parts, row: FieldReader) -> None:
    tp = TopicPartition(row.text("topic"), row.integer("partition"))
    (parts.partitions if row.boolean("consumed") else parts.unconsumed).append(tp)
    owner = row.optional_text("owner")
    if owner is not None:
        parts.owners[tp] = PartitionOwner(owner, row.integer("owner_czxid", -MAX_LONG))
    for store, target in ((row.object("zookeeper"), parts.zookeeper), (row.object("kafka"), parts.kafka)):
        match store.text("state"):
            case "committed":
                target[tp] = Committed(store.integer("offset"), version=store.optional_integer("version"))
            case "absent":
                target[tp] = ABSENT
            case "unreadable":
                target[tp] = OffsetMgrError(f"offset of {tp}", store.text("error"))
            case "unknown":
                pass
            case _:
                raise store.invalid("state", "committed, absent, unreadable or unknown")
    start, end = row.optional_integer("log_start_offset"), row.optional_integer("log_end_offset")
    if start is not None and end is not None:
        parts.logs[tp] = LogRange(start, end)
