"""The scenarios of a reset, as in kafka-consumer-groups: the positions to which a group moves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets


def _require_int(name: str, value: int) -> None:
    if not isinstance(value, int):
        raise UsageError(f"reset with {name}", f"{value!r} is no int", f"pass a whole number, as in {name}(100)")


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The start of the log: the group consumes every record that the brokers still have.

    >>> ToEarliest()
    ToEarliest()
    """


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The end of the log: the group consumes only records that are produced after the reset.

    >>> ToLatest()
    ToLatest()
    """


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """The committed offset, or the end of the log if the partition has no committed offset.

    >>> ToCurrent()
    ToCurrent()
    """


@dataclass(frozen=True, slots=True)
class ToOffset:
    """A fixed offset, clamped to the log.

    >>> ToOffset(1_000).offset
    1000
    """

    offset: int

    def __post_init__(self) -> None:
        _require_int("ToOffset", self.offset)


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """The committed offset plus ``by`` (which may be negative), clamped to the log.

    >>> ShiftBy(-100).by  # repeats the last 100 records
    -100
    """

    by: int

    def __post_init__(self) -> None:
        _require_int("ShiftBy", self.by)


@dataclass(frozen=True, slots=True)
class ToTime:
    """The offset of the first record at or after a time, or the end of the log if there is no such record.

    ``timestamp_ms`` is in milliseconds since 1970 UTC. Raises `UsageError` if it is negative or no int.

    >>> from datetime import UTC, datetime
    >>> ToTime.at(datetime(2026, 3, 1, tzinfo=UTC))
    ToTime(timestamp_ms=1772323200000)
    """

    timestamp_ms: int

    @classmethod
    def at(cls, time: datetime) -> ToTime:
        """Returns the scenario for an aware time. Raises `UsageError` if it is no datetime or has no time
        zone."""
        if not isinstance(time, datetime) or time.tzinfo is None:
            raise UsageError("reset to a time", f"{time} has no time zone", "as in datetime.now(UTC)")
        return cls(round(time.timestamp() * 1000))

    def __post_init__(self) -> None:
        # Brokers use negative numbers for other positions.
        if not isinstance(self.timestamp_ms, int) or not 0 <= self.timestamp_ms < 2**63:
            why = f"{self.timestamp_ms!r} is not a number of milliseconds since 1970"
            hint = "ToTime.at takes a datetime; ToEarliest goes to the log's start, ToLatest to its end"
            raise UsageError("reset to a time", why, hint)


def to_time(at_ms: int, what: str, text: str) -> ToTime:
    """Returns the scenario for a time that a user wrote as ``text``. Raises `UsageError` of ``what`` for a time that no
    record can have."""
    if not 0 <= at_ms < 2**63:
        why = f"{text} is {'before 1970' if at_ms < 0 else 'beyond all times'}, and no record has such a time"
        raise UsageError(what, why, Advice("{to_earliest} goes to the log's start, {to_latest} to its end"))
    return ToTime(at_ms)


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """An offset for each partition of each group, for example from a file, clamped to the log. The reset rejects each
    partition in ``rejected`` with the error there, and each partition of a group in ``unread``.

    >>> from offsetmgr import TopicPartition
    >>> wanted = ToOffsets({"shop": {TopicPartition("orders", 0): 42}})
    >>> wanted.offsets["shop"]
    {TopicPartition(topic='orders', partition=0): 42}
    """

    offsets: Mapping[str, Mapping[TopicPartition, int]]
    rejected: Mapping[TopicPartition, OffsetMgrError] = field(default_factory=dict)
    """The partitions whose offsets must not be used, for example because their topic was recreated, each with the
    reason."""
    unread: Mapping[str, GroupOffsets] = field(default_factory=dict)
    """The groups that could not be read completely when the file was written, with the errors."""


Scenario: TypeAlias = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToTime | ToOffsets


class FromFile(NamedTuple):
    """The offsets in a snapshot file, clamped to the log. ``accept_unterminated`` accepts a text file whose last line
    has no line end. ``translate`` states that offsets of another Kafka cluster are valid in the store."""

    path: str | os.PathLike[str]
    accept_unterminated: bool = False
    translate: OffsetTranslation | None = None


class PastRecords(NamedTuple):
    """The offset after the next ``number`` records of the only partition of the only group."""

    number: int
