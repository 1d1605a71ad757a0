"""The progress of a migration, read from its journal: completed, started and remaining groups.

Memory grows with the groups (a few numbers each) and not with the offsets: a group's intent is read again from its
position in the journal when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.errors import JournalError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.migration.journal import Record, check_opening, read_journal, record_at
from offsetmgr.migration.plan import PlanStep
from offsetmgr.migration.plan_codec import decode_step

NOT_WRITTEN_ERRORS: Final = frozenset(
    {
        "GroupActive",
        "Conflict",
        "RewindRefused",
        "UnknownTopicOrPartition",
        "OffsetOutOfRange",
        "OffsetMetadataTooLarge",
        "RecreatedTopic",
        "CorruptData",
        "UsageError",
        "NotAuthorized",
        "AuthenticationFailed",
        "GroupNotFound",
        "UnsupportedOperation",
    }
)
"""Errors after which certainly nothing was written; after any other one the outcome is unknown."""


def decode_steps(encoded: Mapping[str, list[dict[str, Any]]]) -> list[PlanStep]:
    return [decode_step(topic, step) for topic, steps in encoded.items() for step in steps]


def encode_partitions(partitions: Iterable[TopicPartition]) -> dict[str, list[int | str]]:
    topics: dict[str, list[int | str]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(BrokerPartition.to_json(tp.partition))
    return topics


def decode_partitions(encoded: Mapping[str, list[int | str]]) -> set[TopicPartition]:
    return {TopicPartition(topic, BrokerPartition.from_json(p)) for topic, numbers in encoded.items() for p in numbers}


@dataclass(slots=True)
class GroupProgress:
    """One kind of work (apply, undo, or delete) over the groups of a plan, according to the journal.

    ``intents`` has the position of each group's first intent, ``outcomes`` those of its outcomes; ``done`` the groups
    with nothing left to do; ``unknown`` those with an attempt without a recorded outcome.
    """

    opened: bool = False
    complete: bool = False
    intents: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, list[int]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    _pending: set[str] = field(default_factory=set)
    _has_written: bool = False

    @property
    def may_have_written(self) -> bool:
        """Returns whether this work has, or may have, written anything."""
        return self._has_written or bool(self.unknown)

    def add_record(self, step: str, position: int, record: Record) -> None:
        if step == "open":
            self.opened, self.complete = True, False
        elif step == "complete":
            self.complete = True
        elif step == "intent":
            self.intents.setdefault(record["group"], position)
            if record["group"] in self._pending:
                self.unknown.add(record["group"])
            self._pending.add(record["group"])
        elif step == "outcome":
            self._add_outcome(position, record)

    def _add_outcome(self, position: int, record: Record) -> None:
        group = record["group"]
        self.outcomes.setdefault(group, []).append(position)
        self._pending.discard(group)
        failed = record.get("failed", ())
        self._has_written = (
            self._has_written or bool(record.get("written")) or any(f[2] not in NOT_WRITTEN_ERRORS for f in failed)
        )
        if failed:
            self.done.discard(group)
        else:
            self.done.add(group)

    def close(self) -> None:
        """The journal has been read to its end: the outcome of pending attempts was never recorded."""
        self.unknown |= self._pending


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """A group's partitions by the outcome of one kind of work, over all its runs.

    ``written`` by us; ``unchanged`` unchanged, for a reason; ``in_doubt``: the outcome of an attempt is unknown, so a
    partition that holds the wanted value was (inferred) written by us.
    """

    written: frozenset[TopicPartition]
    unchanged: frozenset[TopicPartition]
    in_doubt: frozenset[TopicPartition]


@dataclass(slots=True)
class MigrationState:
    """The state of a journal by kind of work. A plan without a journal has an empty state."""

    path: Path
    apply: GroupProgress = field(default_factory=GroupProgress)
    undo: GroupProgress = field(default_factory=GroupProgress)
    delete: GroupProgress = field(default_factory=GroupProgress)
    finalized_at: int | None = None
    refreshed_at: int | None = None
    last_at: int | None = None

    @classmethod
    def read(cls, path: Path, plan_sha256: str) -> MigrationState:
        """Reads a journal. Raises `JournalError` for a damaged journal or one of another plan."""
        state = cls(path)
        if not path.exists():
            return state
        kinds = {"apply": state.apply, "undo": state.undo, "delete": state.delete}
        for position, record in read_journal(path):
            if position == 0:
                check_opening(path, record, plan_sha256)
                continue
            state.last_at = record["at"]
            name, _, step = record["kind"].partition("-")
            if name in kinds and step:
                kinds[name].add_record(step, position, record)
            elif record["kind"] == "finalized":
                state.finalized_at = record["at"]
            elif record["kind"] == "refreshed":
                state.refreshed_at = record["at"]
            else:
                raise JournalError(f"journal {path}", f"unknown kind of record {record['kind']!r} at byte {position}")
        for work in kinds.values():
            work.close()
        return state

    def intended(self, work: GroupProgress, group: str) -> list[PlanStep]:
        """Returns the steps of a group's first intent, whose before-images are correct, whatever was retried later."""
        position = work.intents.get(group)
        return [] if position is None else decode_steps(record_at(self.path, position)["topics"])

    def outcomes(self, work: GroupProgress, group: str) -> Iterator[Record]:
        for position in work.outcomes.get(group, ()):
            yield record_at(self.path, position)

    def partitions(self, work: GroupProgress, group: str) -> PartitionSet:
        """Returns the outcome of each partition of a group so far."""
        written: set[TopicPartition] = set()
        unchanged: set[TopicPartition] = set()
        in_doubt: set[TopicPartition] = set()
        for record in self.outcomes(work, group):
            written |= decode_partitions(record.get("written", {}))
            unchanged |= decode_partitions(record.get("left", {}))
            in_doubt |= {
                TopicPartition(f[0], BrokerPartition.from_json(f[1]))
                for f in record.get("failed", ())
                if f[2] not in NOT_WRITTEN_ERRORS
            }
        if group in work.unknown:
            in_doubt |= {step.tp for step in self.intended(work, group)}
        return PartitionSet(frozenset(written), frozenset(unchanged - written), frozenset(in_doubt - written))
