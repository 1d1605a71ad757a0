"""Decides on edits of a snapshot file, and encodes the decisions in a temporary file."""

from __future__ import annotations

import io
import pickle
from typing import IO, Any, Final

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.evaluation import evaluate, stopped
from offsetmgr.core.model import (
    ABSENT,
    BrokerPartition,
    Committed,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    is_valid_offset,
)
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
)
from offsetmgr.snapshots.base import MAX_PARTITION, Format, SnapshotHeader

HOW: Final = "the file was locked and replaced as a whole"
"""The value of `GroupEditResult.how` for snapshot files."""


class SnapshotEditor:
    """Decides on edits of groups of one snapshot file. Does not write to the file."""

    def __init__(self, form: Format, capabilities: Capabilities) -> None:
        self._form = form
        self._capabilities = capabilities
        self._name_errors: dict[tuple[str, str], OffsetMgrError | None] = {}

    def decide(self, entry: GroupOffsets, edit: GroupEdit) -> tuple[GroupEditResult, GroupOffsets | None]:
        """Returns the result of an edit of the group ``entry``, and the new entry (None if nothing changes)."""
        self._name_errors.clear()  # the cache holds the names of one group only
        offsets = dict(entry.offsets)
        outcomes = {tp: self._decide_one(entry, tp, change, offsets) for tp, change in edit.changes.items()}
        if edit.whole:
            written_partitions = [tp for tp, outcome in outcomes.items() if outcome.status is EditStatus.WRITTEN]
            outcomes |= stopped(edit.group, outcomes, written_partitions)
        written = any(outcome.status is EditStatus.WRITTEN for outcome in outcomes.values())
        after = GroupOffsets(edit.group, offsets, entry.errors, entry.error) if written else None
        return GroupEditResult(edit.group, outcomes, atomic=True, how=HOW), after

    def _decide_one(
        self, entry: GroupOffsets, tp: TopicPartition, change: Change, offsets: dict[TopicPartition, Committed]
    ) -> ChangeOutcome:
        if unreadable := entry.error or entry.errors.get(tp):
            return ChangeOutcome(EditStatus.FAILED, None, unreadable)
        current: Offset = entry.offsets.get(tp, ABSENT)
        if change.after is not None and (error := self._value_error(entry.group, tp, change.after)):
            return ChangeOutcome(EditStatus.FAILED, current, error)
        if outcome := evaluate(entry.group, tp, change, current, self._capabilities):
            return outcome
        if change.after is None:
            del offsets[tp]
        else:
            offsets[tp] = self._storable(change.after)
        return ChangeOutcome(EditStatus.WRITTEN, current)

    def _storable(self, value: OffsetAndMetadata) -> Committed:
        can = self._capabilities
        return Committed(
            value.offset,
            value.metadata if can.metadata else "",
            value.leader_epoch if can.leader_epoch else None,
            value.commit_timestamp if can.commit_timestamp else None,
        )

    def _value_error(self, group: str, tp: TopicPartition, after: OffsetAndMetadata) -> OffsetMgrError | None:
        """Returns the error of an offset, partition or name that the format cannot contain; None if the format can
        contain all of them."""
        where = f"group {group}, {tp}"
        if not tp.topic:
            return UsageError(where, "the topic has no name")
        if not is_valid_offset(after.offset):
            return UsageError(where, f"{after.offset} is not an offset")
        if not (0 <= tp.partition <= MAX_PARTITION or isinstance(tp.partition, BrokerPartition)):
            return UsageError(where, f"{tp.partition} is not the number of a partition")
        if not self._capabilities.partitions.includes(tp):
            return UsageError(where, "is a byte position of Kafka 0.7, which this format cannot tell from an offset")
        return self._name_error(group, tp.topic)

    def _name_error(self, group: str, topic: str) -> OffsetMgrError | None:
        """Returns an error if the format cannot contain the group's or the topic's name; otherwise None. To find this
        out, the method encodes both names and discards the result."""
        if (group, topic) not in self._name_errors:
            probe = GroupOffsets(group, {TopicPartition(topic, 0): Committed(0)})
            try:
                self._form.write(io.BytesIO(), SnapshotHeader("", 0), [probe])
                self._name_errors[group, topic] = None
            except OffsetMgrError as error:
                self._name_errors[group, topic] = error
        return self._name_errors[group, topic]


def append_decision(result: GroupEditResult, after: GroupOffsets | None, stream: IO[bytes]) -> None:
    """Appends an edit's result and the group's new entry to a stream. The values are pickled as plain tuples, which is
    much faster than pickling the objects."""
    outcomes = [
        (tp[0], tp[1], o.status.value, tuple(o.before) if isinstance(o.before, Committed) else o.before, o.error)
        for tp, o in result.outcomes.items()
    ]
    entry = None
    if after is not None:
        offsets = [(tp[0], tp[1], tuple(found)) for tp, found in after.offsets.items()]
        entry = (offsets, after.errors, after.error)
    pickle.dump((result.group, outcomes, entry), stream, pickle.HIGHEST_PROTOCOL)


def read_result(stream: IO[bytes]) -> GroupEditResult:
    """Reads the decision at the stream's position and returns its result."""
    group, outcomes, _ = pickle.load(stream)
    return GroupEditResult(
        group,
        {
            TopicPartition(topic, partition): ChangeOutcome(EditStatus(status), _committed(before), error)
            for topic, partition, status, before, error in outcomes
        },
        atomic=True,
        how=HOW,
    )


def read_entry(stream: IO[bytes], position: int) -> GroupOffsets:
    """Reads the decision at a position of the stream and returns the group's new entry. The decision must contain a new
    entry."""
    stream.seek(position)
    group, _, (offsets, errors, error) = pickle.load(stream)
    found = {TopicPartition(topic, partition): Committed(*values) for topic, partition, values in offsets}
    return GroupOffsets(group, found, errors, error)


def _committed(before: Any) -> Offset | None:
    return Committed(*before) if isinstance(before, tuple) else before
