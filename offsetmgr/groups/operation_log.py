"""The operation log: every edit of offsets and every run of a migration, with its author, its reason and its undo.

The log is the file ``operations.jsonl`` in the state directory (``XDG_STATE_HOME``), one JSON object a line. An
operation has a line for its start, which is durable before the operation changes anything, and a line for its end. An
operation without an end was killed, or still runs.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from offsetmgr.config.user_directories import require_kept, state_directory
from offsetmgr.core import redact
from offsetmgr.core.advice import Advice, Invocation, for_command_line
from offsetmgr.core.atomic_file import append_line, reason, start_time
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import (
    FileFailure,
    MalformedData,
    OffsetMgrError,
    OperationNotFound,
    UnknownVersion,
    UsageError,
)
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.plurals import count_of

VERSION: Final = 2
"""The version of new records. In version 1, the undo of an operation was a command line."""
_KNOWN_VERSIONS: Final = (1, VERSION)
_SWITCH: Final = "migrate switch"
SWITCH_NOTE: Final = "recorded the group's storage mode; this version does not use it"
"""The note of a `RecordedOperation` that is a switch."""
MAX_GROUPS: Final = 1_000
"""The number of group names that a record contains at most."""
_undoes: ContextVar[str] = ContextVar("undoes", default="")


@dataclass(frozen=True, slots=True)
class OperationStart:
    """An operation that is about to begin. ``name`` is the command without its arguments, for example ``offsets
    reset``; ``reason`` is the reason that the user gave. ``files`` are the before-images or the plan. ``undo`` are the
    calls that undo the operation, without their execution. A text is a command line of an earlier release that has
    another form."""

    name: str
    stores: tuple[str, ...]
    groups: tuple[str, ...]
    group_count: int
    changes: int
    files: tuple[str, ...] = ()
    undo: tuple[Invocation | str, ...] = ()
    reason: str = ""

    def may_include(self, names: Collection[str]) -> bool:
        """Returns whether ``groups`` has one of these names, or does not have all groups of the operation. See
        `MAX_GROUPS`."""
        has_all = self.group_count == len(self.groups) or self.group_count < len(self.groups) < MAX_GROUPS
        return not has_all or not set(self.groups).isdisjoint(names)


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """One operation in the log. Times are milliseconds since 1970 UTC.

    ``outcome`` is ``done``, ``failed`` (at least one change failed or was left out, or an error ended the operation),
    ``interrupted``, or ``unknown`` if the log has no end of the operation. ``written`` and ``failed`` count offsets;
    they are None if the outcome is unknown. ``undone_by`` is the id of the operation that undid this one, if every
    command of the undo succeeded and was not undone itself. ``pid`` and ``process_start`` identify the process
    (`start_time`).
    """

    id: str
    at_ms: int
    user: str
    host: str
    command: str
    start: OperationStart
    undoes: str = ""
    ended_ms: int | None = None
    outcome: str = "unknown"
    written: int | None = None
    failed: int | None = None
    undone_by: str = ""
    pid: int | None = None
    process_start: str = ""

    @property
    def is_running(self) -> bool:
        """Whether the process of the operation still runs on this machine. False if the record is of an older
        offsetmgr, which did not record the process."""
        if self.ended_ms is not None or self.pid is None or self.host != socket.gethostname():
            return False
        return bool(self.process_start) and start_time(self.pid) == self.process_start

    @property
    def is_switch(self) -> bool:
        """Whether an earlier offsetmgr recorded a live switch, or the declaration of a storage mode."""
        return self.start.name.startswith(_SWITCH)

    def document(self) -> dict[str, str | int | None]:
        """Returns the operation as a JSON object; a field without a value is None."""
        start, rest = self.start, self.start.group_count - len(self.start.groups)
        return {
            "id": self.id,
            "operation": start.name,
            "outcome": self.outcome,
            "at_ms": self.at_ms,
            "ended_ms": self.ended_ms,
            "user": self.user,
            "host": self.host,
            "reason": start.reason or None,
            "command": self.command,
            "stores": ", ".join(start.stores),
            "groups": ", ".join(start.groups) + (f", and {rest:,} more" if rest > 0 else ""),
            "changes": start.changes,
            "written": self.written,
            "failed": self.failed,
            "files": ", ".join(start.files) or None,
            "undo": "; ".join(map(for_command_line, start.undo)) or None,
            "undoes": self.undoes or None,
            "undone_by": self.undone_by or None,
        }

    def undo_calls(self, *, allow_rewind: bool) -> tuple[Invocation, ...]:
        """Returns the calls that undo the operation. With ``allow_rewind``, they also restore offsets that have changed
        since. Raises `UsageError` if there is no undo, or if the operation is undone already."""
        what = f"undo of {self.id}"
        if self.is_switch:
            hint = Advice("a rolling bounce moves a group between ZooKeeper and Kafka: {}", Invocation("runbook write"))
            if self.start.files and self.start.changes:
                files = Invocation("offsets import", self.start.files)
                hint = Advice("{}; the undo of the offsets that it copied: {} {store} STORE", hint, files)
            raise UsageError(what, f"{self.start.name} {SWITCH_NOTE}", hint)
        if not self.start.undo:
            is_rollback, shown = self.start.name == "migrate rollback", Invocation("edits show", (self.id,))
            hint = Advice("make a new plan, and apply it") if is_rollback else Advice("{}", shown)
            raise UsageError(what, f"{self.start.name} has no undo", hint)
        if self.undone_by:
            hint = Advice("{}", Invocation("edits show", (self.undone_by,)))
            raise UsageError(what, f"{self.undone_by} undid it already", hint)
        return tuple(_checked_call(call, allow_rewind=allow_rewind) for call in self.start.undo)


@dataclass(slots=True)
class OperationProgress:
    """The counts of an operation that is running. ``interrupted`` is True if the user stopped the operation, and
    ``incomplete`` if it left out something that the user named, such as a group that was not ready."""

    id: str
    written: int = 0
    failed: int = 0
    interrupted: bool = False
    incomplete: bool = False


class OperationLog:
    """The operation log in the state directory. Any number of processes may use it."""

    def __init__(self) -> None:
        self.path = state_directory() / "operations.jsonl"
        self._clock = SystemClock()
        self.newer: dict[str, UnknownVersion] = {}
        """The operations that `operations` left out, because their records are of an unknown version: each id with the
        error."""
        self.damaged: list[MalformedData] = []
        """The errors of the lines that `operations` left out, because they are damaged."""

    def new_id(self) -> str:
        """Returns an id for an operation that begins now."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"

    @contextmanager
    def recorded(self, start: OperationStart, id_: str | None = None) -> Iterator[OperationProgress]:
        """Records the start of an operation, and its end with the counts in the yielded `OperationProgress`. ``id_`` is
        a result of `new_id`, for an operation whose id is part of ``start`` or of another file.

        Raises `FileFailure` before the operation begins if the start cannot be recorded, or if the log or a file of
        ``start`` would be lost with the container.
        """
        for file in (str(self.path), *start.files):
            require_kept(Path(file))
        now = self._clock.now_ms()
        progress = OperationProgress(id_ or self.new_id())
        # The user who runs this process, with the user who called sudo. A user without a name is a number.
        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            name = str(os.getuid())
        caller = os.environ.get("SUDO_USER", "")
        self._append(
            {
                "kind": "start",
                "version": VERSION,
                "id": progress.id,
                "at_ms": now,
                "user": f"{name} (sudo by {caller})" if caller and caller != name else name,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process_start": start_time(os.getpid()),
                "command": own_command_line(),
                "undoes": _undoes.get(),
                **asdict(start),
                "undo": [_as_json(call) for call in start.undo],
            }
        )
        outcome = "interrupted"
        try:
            yield progress
            failed = progress.failed or progress.incomplete
            outcome = "interrupted" if progress.interrupted else "failed" if failed else "done"
        except OffsetMgrError:
            outcome = "failed"
            raise
        finally:
            with suppress(FileFailure):  # the operation is over, and the log shows an unknown outcome
                self._append(
                    {
                        "kind": "end",
                        "id": progress.id,
                        "at_ms": self._clock.now_ms(),
                        "outcome": outcome,
                        "written": progress.written,
                        "failed": progress.failed,
                    }
                )

    def operations(self) -> list[RecordedOperation]:
        """Returns all operations whose records are of a known version and undamaged, the oldest first; see `newer` and
        `damaged`. Raises `FileFailure`."""
        found: dict[str, RecordedOperation] = {}
        self.damaged = []
        for number, line in self._lines():
            try:
                self._read(FieldReader.parse(line, f"{self.path}, line {number}"), found)
            except MalformedData as error:
                self.damaged.append(error)
        undone: dict[str, list[RecordedOperation]] = {}
        for one in reversed(found.values()):  # an undo begins after the operation that it undoes
            undoes = undone.get(one.id, [])
            stores = {store for undo in undoes for store in undo.start.stores}  # one half may be undone twice
            if undoes and len(undoes) >= len(one.start.undo) and len(stores) >= len(set(one.start.stores)):
                found[one.id] = replace(one, undone_by=undoes[0].id)
            elif one.outcome == "done":
                undone.setdefault(one.undoes, []).append(one)
        return list(found.values())

    def _read(self, record: FieldReader, found: dict[str, RecordedOperation]) -> None:
        """Adds a record to the operations in ``found``. Raises `MalformedData`."""
        id_ = record.text("id")
        if record.text("kind") == "start":
            try:
                record.version(_KNOWN_VERSIONS)
            except UnknownVersion as error:
                self.newer[id_] = error
                return
            found[id_] = _started(record)
        elif id_ in found:
            found[id_] = replace(
                found[id_],
                ended_ms=record.integer("at_ms"),
                outcome=record.text("outcome"),
                written=record.integer("written"),
                failed=record.integer("failed"),
            )

    def find(self, id_: str) -> RecordedOperation:
        """Returns one operation. Raises `OperationNotFound` if the log does not have it, `UnknownVersion` if
        `newer` has it, and the errors of `operations`."""
        for one in self.operations():
            if one.id == id_:
                return one
        if error := self.newer.get(id_):
            raise error
        raise OperationNotFound(
            f"operation {id_}",
            f"{self.path} does not have it",
            Advice("{} shows the ids of this log", Invocation("edits list")),
        )

    def left_out(self) -> Iterator[str]:
        """Yields warnings about `newer` records and `damaged` lines."""
        if self.damaged:
            yield f"{count_of(len(self.damaged), 'damaged line')} of the log left out: {self.damaged[0]}"
        if self.newer:
            first = next(iter(self.newer.values()))
            left = f"{count_of(len(self.newer), 'operation')} of a newer offsetmgr"
            yield f"{left} left out, because this version cannot read the records: {first}"

    def of_file(self, path: Path) -> str:
        """Returns the id of the newest operation with this file, such as its before-images; empty if there is none.
        Raises `FileFailure`."""
        file = str(path.absolute())
        return next((one.id for one in reversed(self.operations()) if file in one.start.files), "")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FileFailure(f"operation log {self.path}", reason(error)) from error
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):  # a killed writer leaves an incomplete line
                yield number, line

    def _append(self, record: Mapping[str, Any]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps(record, ensure_ascii=False).encode())
        except OSError as error:
            hint = "set XDG_STATE_HOME to a directory that can be written"
            raise FileFailure(f"operation log {self.path}", reason(error), hint) from error


@contextmanager
def undoing(id_: str) -> Iterator[None]:
    """Marks the operations within the context as the undo of another one."""
    token = _undoes.set(id_)
    try:
        yield
    finally:
        _undoes.reset(token)


def first_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """Returns the first `MAX_GROUPS` names, which a record of the operation log has."""
    return tuple(name for _, name in zip(range(MAX_GROUPS), groups, strict=False))


def _checked_call(call: Invocation | str, *, allow_rewind: bool) -> Invocation:
    """Returns a call of an undo, which restores offsets that have changed if ``allow_rewind``."""
    if isinstance(call, str):
        raise UsageError("the undo", "an earlier offsetmgr recorded it in another form", f"run it yourself: {call}")
    if not allow_rewind:
        return call
    if call.verb != "offsets import":
        hint = Advice("run it yourself: {}", call)
        raise UsageError(Advice("{allow_rewind}"), f"the undo is a {call.verb}", hint)
    return call._replace(named={**call.named, "allow_rewind": True})


def _as_json(call: Invocation | str) -> object:
    if isinstance(call, str):
        return call
    return {"verb": call.verb, "arguments": list(call.positional), "options": dict(call.named)}


def _undo_calls(record: FieldReader) -> Iterator[Invocation | str]:
    """Yields the undo in a record. Raises `MalformedData`."""
    found = record.get("undo")
    if not isinstance(found, list):
        raise record.invalid("undo", "a list of calls")
    for one in found:
        match one:
            case str():
                yield _of_command_line(one)
            case {"verb": str(verb), "arguments": list(arguments), "options": dict(options)}:
                values = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
                yield Invocation(verb, tuple(map(str, arguments)), values)
            case _:
                raise record.invalid("undo", "a list of calls")


def _of_command_line(text: str) -> Invocation | str:
    """Returns the call that a command line of an earlier release is; the text itself if it has another form."""
    try:
        words = shlex.split(text)
    except ValueError:  # an unbalanced quotation mark
        return text
    at = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    named: dict[str, Any] = {}
    name = ""
    for word in words[at:]:
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            named.setdefault(name, ())
        else:
            named[name] += (word,)
    call = Invocation(" ".join(words[1:3]), tuple(words[3:at]), {name: value or True for name, value in named.items()})
    return call if call.command_line() == text else text


def _started(record: FieldReader) -> RecordedOperation:
    start = OperationStart(
        name=record.text("name"),
        stores=tuple(record.text_list("stores")),
        groups=tuple(record.text_list("groups")),
        group_count=record.integer("group_count"),
        changes=record.integer("changes"),
        files=tuple(record.text_list("files")),
        undo=tuple(_undo_calls(record)),
        reason=record.text("reason"),
    )
    return RecordedOperation(
        record.text("id"),
        record.integer("at_ms"),
        record.text("user"),
        record.text("host"),
        record.text("command"),
        start,
        record.text("undoes"),
        pid=record.optional_integer("pid"),
        process_start=record.optional_text("process_start") or "",
    )


def own_command_line() -> str:
    """Returns the command line of this process, without credentials in URIs."""
    program = Path(sys.argv[0]).name
    words: Sequence[str] = ["offsetmgr" if program == "__main__.py" else program, *sys.argv[1:]]
    return shlex.join(redact(word) for word in words)
