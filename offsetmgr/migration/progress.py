"""The progress of a migration, read from its journal: which groups are started, completed or in doubt.

Memory grows with the number of groups and not with the number of offsets: only a few numbers are kept for each group.
When a group's intent is needed, it is read from the journal again.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Self

from offsetmgr.core.advice import Advice, Argument, Invocation, for_command_line
from offsetmgr.core.atomic_file import replace_file, sync_directory
from offsetmgr.core.batches import by_key
from offsetmgr.core.clock import Clock
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.document import moment
from offsetmgr.core.errors import JournalError, UnknownVersion, UsageError, os_error_as
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.groups.execute import may_have_written
from offsetmgr.migration.plan import GroupPlan, PlanStep, decode_step

# The journal of a plan: an append-only, fsynced file of intents and outcomes. Ordering contract: `Journal.append`
# returns only once its records are on disk (fsync). An intent with its before-images is appended *before* the store
# is written, and the outcome after the write. A crash may lose outcomes, so a resumed command checks the store for
# every intent without an outcome. Every line is a JSON object with a sequence number and a CRC-32 of its own bytes.
# If a crash during an append left a torn last line, the line is removed when the journal is opened for writing.
# Damage anywhere else is an error. Only one process at a time can have a journal open for writing.

VERSION = 3
VERSIONS = (2, VERSION)
"""The readable versions. A journal of an older version is continued with the records of `VERSION`: offsetmgr releases
that know only the older version reject them, because they would treat one finalized group as the whole plan."""

LOCK_BACKOFF: Final = Backoff.fixed(0.2)
"""The pause between two attempts to lock a journal that another process holds."""

JournalRecord = dict[str, Any]
"""One journal record; ``kind`` is one of: open, finalized, refreshed, renewed, group-finalized, group-blocked,
group-phase, and apply-, undo- or delete- with open, intent, outcome or complete."""


@dataclass(frozen=True, slots=True)
class EncodedJson:
    """A value in a record. The value is already encoded as JSON."""

    text: str


def journal_path(plan: Path) -> Path:
    """Returns the path of a plan's journal: ``plan.json`` -> ``plan.journal``."""
    return plan.with_suffix(".journal") if plan.suffix == ".json" else plan.with_name(plan.name + ".journal")


def _encode(number: int, now_ms: int, record: JournalRecord) -> bytes:
    plain = {name: value for name, value in record.items() if not isinstance(value, EncodedJson)}
    text = json.dumps({"n": number, "at": now_ms, **plain}, ensure_ascii=False, separators=(",", ":"))[:-1]
    for name, value in record.items():
        if isinstance(value, EncodedJson):
            text += f',"{name}":{value.text}'
    body = text.encode()
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def _decode(line: bytes) -> JournalRecord | None:
    """Returns the record in a line; None if the line is damaged or incomplete."""
    body, mark, crc = line.rpartition(b',"crc":"')
    if not mark or crc != b'%08x"}\n' % zlib.crc32(body):
        return None
    record: JournalRecord = json.loads(body + b"}")
    return record


def read_journal(path: Path) -> Iterator[tuple[int, JournalRecord]]:
    """Yields every record, in order, with its byte position. A torn last line is left out.

    Raises `JournalError` if an earlier line is damaged or missing, or if the file cannot be read.
    """
    with os_error_as(JournalError, f"journal {path}"), path.open("rb") as lines:
        position, expected = 0, 0
        damaged: int | None = None
        for line in lines:
            if damaged is not None:
                raise JournalError(f"journal {path}", f"damaged at byte {damaged}, before its end")
            record = _decode(line)
            if record is None:
                damaged = position
            else:
                if record["n"] != expected:
                    raise JournalError(f"journal {path}", f"record {expected} is missing at byte {position}")
                expected += 1
                yield position, record
            position += len(line)


def record_at(path: Path, position: int) -> JournalRecord:
    """Returns the record at a position that `read_journal` yielded."""
    with path.open("rb") as lines:
        lines.seek(position)
        record = _decode(lines.readline())
    if record is None:
        raise JournalError(f"journal {path}", f"damaged at byte {position}")
    return record


class Journal:
    """A journal, open for writing by this process only.

    The class is thread-safe. A store receives edits as a stream and may consume this stream in its own thread. The
    stream appends each edit's intent to the journal, so other threads call `append` too.
    """

    def __init__(self, path: Path, *, plan_sha256: str, clock: Clock, lock_wait_s: float = 0.0) -> None:
        """``lock_wait_s`` is the time in seconds for which `__enter__` waits while another process holds the
        journal."""
        self.path = path
        self._lock_wait_s = lock_wait_s
        self._plan = plan_sha256
        self._clock = clock
        self._lock = threading.Lock()
        self._fd = -1
        self._next = 0
        self._end = 0

    def __enter__(self) -> Self:
        """Opens or creates the journal, locks it, and removes a torn last line.

        Raises `JournalError` if another process has locked it, if it belongs to another plan, or if it is damaged.
        """
        created = not self.path.exists()
        hint = (
            "the journal is in its plan's directory: copy the plan (and its journal, if there is one) to a "
            "writable directory"
        )
        with os_error_as(JournalError, f"journal {self.path}", hint):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._take_lock()
            if created:
                sync_directory(self.path.parent)
            self._end = self._check()
            os.ftruncate(self._fd, self._end)
            if self._next == 0:
                self.append([{"kind": "open", "journal": VERSION, "plan": self._plan}])
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def _take_lock(self) -> None:
        retries = BlockingRetries(self._clock.monotonic() + self._lock_wait_s, LOCK_BACKOFF, self._clock)
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if not retries.pause():
                    why = "another process is working on this plan"
                    raise JournalError(f"journal {self.path}", why, "wait until it ends, or stop it") from error

    def _check(self) -> int:
        """Reads the whole journal; returns the position after its last valid record."""
        last = 0
        for position, record in read_journal(self.path):
            if self._next == 0:
                check_opening(self.path, record, self._plan)
            self._next += 1
            last = position
        with self.path.open("rb") as lines:
            lines.seek(last)
            return last + len(lines.readline()) if self._next else 0

    def append(self, records: Iterable[JournalRecord]) -> None:
        """Appends records and returns once they are on disk. Raises `JournalError`, for example if the disk is full.
        After this error the caller must not execute the writes that the records announce."""
        with self._lock:
            now = self._clock.now_ms()
            lines = [_encode(self._next + i, now, record) for i, record in enumerate(records)]
            if not lines:
                return
            data = b"".join(lines)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._fd, view) :]
                os.fsync(self._fd)
            except OSError as error:
                os.ftruncate(self._fd, self._end)  # a complete line must not follow a torn line
                raise JournalError(
                    f"journal {self.path}",
                    error.strerror or str(error),
                    "free disk space, then run the same command again",
                ) from error
            self._next += len(lines)
            self._end += len(data)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._fd)


def copy_journal(old: Path, new: Path, plan_sha256: str) -> None:
    """Writes the records of ``old``, with their times, to the new file ``new`` as the journal of another plan. Replaces
    ``new`` if it exists. Raises `JournalError` if ``old`` is damaged, and `FileFailure` if ``new`` cannot be
    written."""

    def write(out: BinaryIO) -> None:
        for _position, record in read_journal(old):
            number, at = record.pop("n"), record.pop("at")
            opening = {"journal": VERSION, "plan": plan_sha256} if number == 0 else {}
            out.write(_encode(number, at, record | opening))

    replace_file(new, write, overwrite=True)


def check_opening(path: Path, record: JournalRecord, plan_sha256: str) -> None:
    """Raises `JournalError` or `UnknownVersion` if a journal's first record is not an opening record of this plan and
    of the known version."""
    if record.get("kind") != "open":
        raise JournalError(f"journal {path}", "it does not begin with an opening record")
    if record["journal"] not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise UnknownVersion(f"journal {path}", f"version {record['journal']} is not known here (known: {known})")
    if record["plan"] != plan_sha256:
        raise JournalError(
            f"journal {path}",
            "it belongs to another plan of the same name",
            "move it away, or use the plan that it belongs to",
        )


def blocked_record(group: str, step: str, why: object, hint: object) -> JournalRecord:
    """Returns the record of a group that did not pass ``step``."""
    texts = {"step": step, "why": for_command_line(why), "hint": for_command_line(hint)}
    return {"kind": "group-blocked", "group": group, **texts}


def encode_partitions(partitions: Iterable[TopicPartition]) -> dict[str, list[int | str]]:
    return by_key((tp.topic, BrokerPartition.to_json(tp.partition)) for tp in partitions)


def decode_partitions(encoded: Mapping[str, list[int | str]]) -> set[TopicPartition]:
    return {TopicPartition(topic, BrokerPartition.from_json(p)) for topic, numbers in encoded.items() for p in numbers}


@dataclass(slots=True)
class GroupProgress:
    """The progress of one kind of work (apply, undo, or delete) according to the journal. Groups are identified by
    their names in the plan.

    ``intents`` has the position of each group's first intent. ``outcomes`` has the positions of each group's outcomes.
    ``done`` are the groups with nothing left to do; ``unknown`` are the groups with an attempt whose outcome was not
    recorded. ``written`` are the groups of which this work wrote, or may have written, an offset. ``at`` has the time
    of each group's last record. ``complete`` and ``whole_plan`` concern only runs over the whole plan, not runs over
    some of its groups: ``whole_plan`` is True if such a run wrote, or may have written, an offset. For the progress of
    one run of apply, ``operation`` is the id of the run in the operation log, which journals of older releases do not
    record.
    """

    operation: str = ""
    opened: bool = False
    complete: bool = False
    intents: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, list[int]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    at: dict[str, int] = field(default_factory=dict)
    whole_plan: bool = False
    _pending: dict[str, bool] = field(default_factory=dict)
    """The groups whose last attempt has no outcome yet. The value is True if the attempt belongs to a run over the
    whole plan."""
    _is_partial_run: bool = False

    def add_record(self, step: str, position: int, record: JournalRecord) -> None:
        """Adds a record of the journal. ``position`` is the record's first byte."""
        if step == "open":
            self.opened = True
            self._is_partial_run = "groups" in record
            self.complete = self.complete and self._is_partial_run
        elif step == "complete":
            self.complete = True
        elif step == "intent":
            group = record["group"]
            self.intents.setdefault(group, position)
            self.at[group] = record["at"]
            if group in self._pending:
                self._add_unknown(group)
            self._pending[group] = not self._is_partial_run
        elif step == "outcome":
            self._add_outcome(position, record)

    def _add_outcome(self, position: int, record: JournalRecord) -> None:
        group = record["group"]
        self.outcomes.setdefault(group, []).append(position)
        self.at[group] = record["at"]
        self._pending.pop(group, None)
        failed = record.get("failed", ())
        if record.get("written") or any(may_have_written(f[2]) for f in failed):
            self.written.add(group)
            self.whole_plan = self.whole_plan or not self._is_partial_run
        if failed:
            self.done.discard(group)
        else:
            self.done.add(group)

    def close(self) -> None:
        """Adds the groups whose last attempt has no recorded outcome to ``unknown``. Call this method after the last
        record of the journal."""
        for group in self._pending:
            self._add_unknown(group)

    def _add_unknown(self, group: str) -> None:
        self.unknown.add(group)
        self.written.add(group)
        self.whole_plan = self.whole_plan or self._pending[group]


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """A group's partitions by the outcome of one kind of work, over all of its runs.

    ``written`` are the partitions that this work wrote. ``unchanged`` are the partitions that this work left unchanged,
    for a recorded reason. ``in_doubt`` are the partitions that an attempt with an unknown outcome may have written. If
    a partition in ``in_doubt`` holds the value to write, the conclusion is that this work wrote the value.
    """

    written: frozenset[TopicPartition]
    unchanged: frozenset[TopicPartition]
    in_doubt: frozenset[TopicPartition]


class Stage(StrEnum):
    """The stage of a group in a migration."""

    NOT_PLANNED = "not planned"
    """The group as a whole could not be planned, so nothing of it is migrated."""
    PLANNED = "planned"
    APPLIED_IN_PART = "applied in part"
    """Apply has written some offsets, or may have written some, and has to be run again."""
    APPLIED = "applied"
    FINALIZED = "finalized"
    ROLLED_BACK = "rolled back"
    ROLLED_BACK_IN_PART = "rolled back in part"
    """A rollback has begun, and some offsets that apply wrote are not restored yet."""


class GroupNote(NamedTuple):
    """A record of the journal about one group: its time, and its text. For a blocked group, the text is the reason; for
    a phase, it is the evidence."""

    at: int
    text: str
    phase: CommitMode | None = None


@dataclass(slots=True)
class MigrationState:
    """The content of a journal, by kind of work. Without a journal the state is empty.

    ``renewed_by`` is the path of the plan that replaces this one; empty if there is none.
    ``finalized`` has the times at which single groups were finalized; ``finalized_at`` is the time at which the whole
    plan was finalized. ``blocked`` has the last reason for which a group was not finalized, and ``phases`` the last
    phase that a bounce or a check recorded for a group.
    """

    path: Path
    apply: GroupProgress = field(default_factory=GroupProgress)
    undo: GroupProgress = field(default_factory=GroupProgress)
    delete: GroupProgress = field(default_factory=GroupProgress)
    finalized_at: int | None = None
    refreshed_at: int | None = None
    not_renewed: frozenset[str] = frozenset()
    """The groups, by their names in the target, that the last renewal of all groups did not renew."""
    renewed_by: str = ""
    last_at: int | None = None
    finalized: dict[str, int] = field(default_factory=dict)
    blocked: dict[str, GroupNote] = field(default_factory=dict)
    phases: dict[str, GroupNote] = field(default_factory=dict)
    later_phases: dict[str, GroupNote] = field(default_factory=dict)
    """The last phase that was recorded after the group was finalized."""
    apply_runs: list[GroupProgress] = field(default_factory=list)
    undone_runs: dict[str, set[str]] = field(default_factory=dict)
    """The runs of apply that rollbacks of single runs undid, by group. A rollback of all runs removes the group."""
    _undo_run: str = ""

    @property
    def is_rolled_back(self) -> bool:
        """Whether a rollback of the whole plan restored, or may have restored, an offset."""
        return self.undo.whole_plan

    def reject_ended(self, plan: Path, *, finalized: bool = True) -> None:
        """Raises `JournalError` if the whole plan was rolled back, or, with ``finalized``, if it was finalized."""
        if self.is_rolled_back or (finalized and self.finalized_at is not None):
            ended = "rolled back" if self.is_rolled_back else "finalized"
            raise JournalError(f"plan {plan}", f"it was {ended}", "make a new plan")

    def is_group_rolled_back(self, group: str) -> bool:
        """Whether a rollback restored, or may have restored, an offset of the group, or of the whole plan. Also true
        if a rollback completed because the target held the before-images already: no later rollback restores the
        group. False for a group that was finalized by itself, which a rollback leaves out."""
        if group in self.finalized:
            return False
        return self.undo.whole_plan or group in self.undo.written or group in self.undo.done

    def is_rolled_back_in_part(self, group: str) -> bool:
        """Whether a rollback has not restored every offset that apply wrote, or may have written."""
        if group not in self.undo.done:
            return group in self.apply.written
        undone = self.undone_runs.get(group)
        return undone is not None and any(
            group in run.written and run.operation not in undone for run in self.apply_runs
        )

    def run(self, operation: str | None) -> GroupProgress | None:
        """Returns the run of apply with this id in the operation log; None without an id. Raises `UsageError` if there
        is no such run."""
        if operation is None:
            return None
        for run in self.apply_runs:
            if operation and run.operation == operation:
                return run
        why = "no run of `migrate apply` in the plan's journal has this id, so it wrote nothing"
        raise UsageError(Advice("{run} {}", operation), why, Advice("{} shows the ids", Invocation("edits list")))

    def group_finalized_at(self, group: str) -> int | None:
        """Returns the time at which the group was finalized, by itself or with the whole plan; None if it was not."""
        if group in self.finalized:
            return self.finalized[group]
        return None if self.is_group_rolled_back(group) else self.finalized_at

    def phase_after_end(self, group: str, end: CommitMode) -> GroupNote | None:
        """Returns the phase that was recorded after the group was finalized; None if there is none, or if it is
        ``end``, in which the migration ends."""
        note = self.later_phases.get(group)
        return None if note is None or note.phase is end or self.group_finalized_at(group) is None else note

    def copied_at(self, plan: GroupPlan) -> int | None:
        """Returns the time at which the offsets of the group were last written to the target or renewed there; None if
        they were not written, or if the renewal of this group failed."""
        copied = self.apply.at.get(plan.name) if plan.name in self.apply.written else None
        renewed = None if plan.target_group in self.not_renewed else self.refreshed_at
        return max((at for at in (copied, renewed) if at is not None), default=None)

    def is_applied(self, plan: GroupPlan) -> bool:
        """Whether apply has nothing left to write for the group."""
        return plan.name in self.apply.done or not plan.writes()

    def stage_of(self, plan: GroupPlan) -> Stage:
        """Returns the stage of a group."""
        group = plan.name
        if plan.error:
            return Stage.NOT_PLANNED
        if self.is_group_rolled_back(group):
            return Stage.ROLLED_BACK_IN_PART if self.is_rolled_back_in_part(group) else Stage.ROLLED_BACK
        if self.group_finalized_at(group) is not None:
            return Stage.FINALIZED
        if self.apply.opened and self.is_applied(plan):
            return Stage.APPLIED
        return Stage.APPLIED_IN_PART if group in self.apply.written else Stage.PLANNED

    @classmethod
    def read(cls, path: Path, plan_sha256: str) -> MigrationState:
        """Reads a journal. Raises `JournalError` if the journal is damaged or belongs to another plan."""
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
                state._add_to_run(name, step, position, record)
            elif record["kind"] == "finalized":
                state.finalized_at = record["at"]
                state.later_phases.clear()
            elif record["kind"] == "refreshed":
                state.refreshed_at, state.not_renewed = record["at"], frozenset(record.get("not_renewed", ()))
            elif record["kind"] == "renewed":
                state.renewed_by = record["by"]
            elif name == "group" and step in ("finalized", "blocked", "phase"):
                state._add_group_record(step, record)
            else:
                raise JournalError(f"journal {path}", f"unknown kind of record {record['kind']!r} at byte {position}")
        for work in (*kinds.values(), *state.apply_runs):
            work.close()
        return state

    def _add_to_run(self, name: str, step: str, position: int, record: JournalRecord) -> None:
        """Adds a record to the run of apply, or to the rollback, that wrote it."""
        if name == "apply":
            note = self.blocked.get(record.get("group", ""))
            if step == "outcome" and not record.get("failed") and note and note.text.startswith("finalize: "):
                del self.blocked[record["group"]]  # apply was not complete then, and is complete now
            if step == "open":
                self.apply_runs.append(GroupProgress(record.get("operation", "")))
            if self.apply_runs:
                self.apply_runs[-1].add_record(step, position, record)
        elif name == "undo" and step == "open":
            self._undo_run = record.get("run", "")
        elif name == "undo" and step == "outcome":
            if self._undo_run:
                self.undone_runs.setdefault(record["group"], set()).add(self._undo_run)
            else:
                self.undone_runs.pop(record["group"], None)

    def _add_group_record(self, kind: str, record: JournalRecord) -> None:
        group, at = record["group"], record["at"]
        if kind == "blocked":
            self.blocked[group] = GroupNote(at, f"{record['step']}: {record['why']}")
            return
        self.blocked.pop(group, None)
        if kind == "phase":
            self.phases[group] = GroupNote(at, record["why"], CommitMode(record["phase"]))
            if group in self.finalized or self.finalized_at is not None:
                self.later_phases[group] = self.phases[group]
        else:
            self.finalized[group] = at
            self.later_phases.pop(group, None)

    def intended(self, work: GroupProgress, group: str) -> list[PlanStep]:
        """Returns the steps of a group's first intent. The before-images of later intents may be wrong, because a later
        attempt may have read values that the first attempt wrote."""
        position = work.intents.get(group)
        topics = {} if position is None else record_at(self.path, position)["topics"]
        return [decode_step(topic, step) for topic, steps in topics.items() for step in steps]

    def outcomes(self, work: GroupProgress, group: str) -> Iterator[JournalRecord]:
        """Yields the journal's records of the outcomes of a group, the oldest first."""
        for position in work.outcomes.get(group, ()):
            yield record_at(self.path, position)

    def partitions(self, work: GroupProgress, group: str) -> PartitionSet:
        """Returns the outcome of each partition of a group so far."""
        written: set[TopicPartition] = set()
        unchanged: set[TopicPartition] = set()
        in_doubt: set[TopicPartition] = set()
        for record in self.outcomes(work, group):
            written |= decode_partitions(record.get("written", {}))
            unchanged |= decode_partitions(record.get("unchanged", {}))
            in_doubt |= {
                TopicPartition(f[0], BrokerPartition.from_json(f[1]))
                for f in record.get("failed", ())
                if may_have_written(f[2])
            }
        if group in work.unknown:
            in_doubt |= {step.tp for step in self.intended(work, group)}
        return PartitionSet(frozenset(written), frozenset(unchanged - written), frozenset(in_doubt - written))


def expiry_texts(
    plan: str, dates: Iterable[int | None], now_ms: int, arguments: Mapping[str, Argument], *, watched: bool
) -> Iterator[str]:
    """Yields the sentences about copied offsets that expire at these times, with the call that renews them;
    ``arguments`` are its connection arguments. Offsets that have expired are left out if the servers were asked
    (``watched``), because then the obstacles name them."""
    refresh = Invocation("migrate apply", (plan,), {"refresh": True, **arguments})
    known = sorted(at for at in dates if at is not None)
    coming, over = [at for at in known if at > now_ms], [at for at in known if at <= now_ms]
    if coming:
        begin = f"the copied offsets of {count_of(len(coming), 'group')} expire from {moment(coming[0])} UTC on"
        yield Advice("{}, unless a consumer commits them again; to renew them: {}", begin, refresh)
    if over and not watched:
        begin = f"the copied offsets of {count_of(len(over), 'group')} expired by {moment(over[-1])} UTC"
        yield Advice("{} if no consumer has committed them again: migrate status {window} asks the servers", begin)
