"""``offsetmgr zk elect|reassign|delete-topic``: requests to the controller through ZooKeeper."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.app.ui import Interrupted
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, exit_with
from offsetmgr.cli.options import TopicsOption, file_to_write, flag, opt
from offsetmgr.cli.render import PARTITION, Column, OutputFormat, note, write_rows
from offsetmgr.cli.terminal import RunFlags, confirm
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import FileFailure, OffsetMgrError, UnknownTopicOrPartition, UsageError
from offsetmgr.core.os_errors import os_error_as
from offsetmgr.core.plurals import count_of, printable
from offsetmgr.groups.operation_log import OperationLog, OperationStart

if TYPE_CHECKING:
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.zookeeper.admin.reassignment import ReassignmentStep
    from offsetmgr.zookeeper.admin.state import RequestProgress
    from offsetmgr.zookeeper.client.session import ZookeeperSession


WAIT_S: Final = 300.0
_LOG_EVERY_S: Final = 10.0

Wait = Annotated[
    float,
    opt(
        "--wait",
        "SECONDS",
        "How long to wait for the controller. Then the command lists unfinished items and ends; the controller "
        "continues.",
        min=0,
    ),
]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the plan. ``key`` is the name of the row in `RequestProgress.open`. ``cells`` contains the values of
    all columns except outcome and note. ``needed`` is False if the topic or partition of the row already has the
    requested state."""

    key: str
    cells: tuple[Any, ...]
    needed: bool
    rejected: OffsetMgrError | None = None
    note: str = ""


class ControllerRequest:
    """One request: its rows, and the steps that submit the request and follow its progress."""

    def __init__(
        self, name: str, zookeeper: str, columns: Sequence[Column], rows: Iterable[Row], *, all_or_nothing: bool
    ) -> None:
        self.name = name
        self.zookeeper = zookeeper
        """The ZooKeeper through which the controller receives the request, for the operation log."""
        self.columns = columns
        self.rows = list(rows)
        self.all_or_nothing = all_or_nothing
        """Whether the whole request is rejected if one of its rows is rejected."""

    @property
    def rejected(self) -> list[Row]:
        return [row for row in self.rows if row.rejected is not None]

    @property
    def todo(self) -> list[Row]:
        """The rows to submit. The list is empty if a row was rejected and ``all_or_nothing`` is true."""
        if self.all_or_nothing and self.rejected:
            return []
        return [row for row in self.rows if row.needed and row.rejected is None]

    def show(self, output: OutputFormat, outcomes: Callable[[Row], tuple[str, str]] | None = None) -> None:
        """Prints the rows on stdout."""
        if outcomes is None:
            columns = [*self.columns, Column("note", optional=True)]
            write_rows(columns, ((*row.cells, _plan_note(row)) for row in self.rows), output)
            return
        columns = [*self.columns, Column("outcome"), Column("note", optional=True)]
        found = ((row, outcomes(row)) for row in self.rows)
        write_rows(columns, ((*row.cells, outcome, text or None) for row, (outcome, text) in found), output)

    def print_rejections(self) -> None:
        """Prints one line for each rejected row on stderr."""
        for row in self.rejected:
            note(f"error: {row.rejected}")
        for hint in dict.fromkeys(row.rejected.hint for row in self.rejected if row.rejected and row.rejected.hint):
            note(f"hint: {for_command_line(hint)}")

    def run(
        self,
        *,
        action: str,
        flags: RunFlags,
        wait_s: float,
        submit: Callable[[list[Row]], None],
        poll: Callable[[list[Row]], RequestProgress],
        undo: str | None = None,
        cancel: str | None = None,
    ) -> int:
        """Runs all steps of the request and returns the exit code.

        ``action`` describes the request, as in "elect 3 leaders". ``undo`` is the command line that undoes the request,
        without ``--execute``, and ``cancel`` is the command line that cancels its unfinished rows. Both command lines
        are printed for the user. The operation log records a submitted request.
        """
        execute, yes, reason, output = flags
        todo = self.todo
        self.print_rejections()
        if not execute or not todo:
            self.show(output, self._untouched if execute and output is not OutputFormat.TABLE else None)
            if self.all_or_nothing and self.rejected:
                note("nothing was changed: one refused part refuses the whole request")
            elif not todo:
                note("nothing to change")
            else:
                note(f"dry run: would {action}; nothing was changed")
                note("hint: add --execute to do it")
            return FAILED if self.rejected else 0
        if output is OutputFormat.TABLE:
            self.show(output)
        confirm(f"{self.name}: {action}?", yes=yes)
        with OperationLog().recorded(self._operation(todo, undo, reason or "")) as recorded:
            submit(todo)
            recorded.written = len(todo)
        note("submitted to the controller")
        if undo:
            note(f"undo: {undo} --execute")
        seen = self._watch(todo, wait_s, poll)
        code = self._report(todo, seen, wait_s, output)
        if code and cancel and (seen is None or not seen.ended):
            note(f"hint: if it does not finish, cancel it: {cancel}")
        return code or (FAILED if self.rejected else 0)

    def _operation(self, todo: list[Row], undo: str | None, reason: str) -> OperationStart:
        stores = (f"zookeeper://{self.zookeeper}",)
        return OperationStart(self.name, stores, (), 0, len(todo), undo=(undo,) if undo else (), reason=reason)

    @staticmethod
    def _untouched(row: Row) -> tuple[str, str]:
        """Returns the outcome and the note of a row that was not submitted."""
        if row.rejected is not None:
            return "refused", row.rejected.why or row.rejected.what
        return ("not done", "another part is refused") if row.needed else ("unchanged", row.note)

    def _watch(
        self, todo: list[Row], wait_s: float, poll: Callable[[list[Row]], RequestProgress]
    ) -> RequestProgress | None:
        from offsetmgr.zookeeper.admin.submit import poll_progress

        line = _ProgressLine(self.name)
        seen: RequestProgress | None = None
        try:
            for found in poll_progress(lambda: poll(todo), SystemClock(), wait_s=wait_s):
                if isinstance(found, OffsetMgrError):
                    line.show(f"{found}; trying again")
                else:
                    seen = found
                    line.show(f"{found.done} of {found.total} done")
        except KeyboardInterrupt as error:
            raise Interrupted("the request was submitted, and the controller continues with it") from error
        finally:
            line.clear()
        return seen

    def _report(self, todo: list[Row], seen: RequestProgress | None, wait_s: float, output: OutputFormat) -> int:
        failed = seen is not None and seen.ended
        submitted = {row.key for row in todo}

        def outcome(row: Row) -> tuple[str, str]:
            if row.key not in submitted:
                return self._untouched(row)
            if seen is None:
                return "unknown", "the state of the request could not be read"
            if row.key not in seen.open:
                return "done", ""
            return ("failed" if failed else "open"), seen.open[row.key]

        if output is not OutputFormat.TABLE:
            self.show(output, outcome)
        outcomes = [(row, *outcome(row)) for row in todo]
        for row, state, why in outcomes:
            if state != "done":
                note(f"{state}: {row.key}: {why}")
        left = sum(state != "done" for _, state, _ in outcomes)
        if left and not failed:
            note(f"error: {self.name}: {left} of {len(todo)} still open after {wait_s:g} s; the controller continues")
        else:
            note(f"done: {len(todo) - left}" + (f", failed: {left}" if left else ""))
        return FAILED if left else 0


def _plan_note(row: Row) -> str | None:
    if row.rejected is not None:
        return f"refused: {row.rejected.why or row.rejected.what}"
    return row.note or None


class _ProgressLine:
    """Shows progress on stderr. On a terminal, each text overwrites the previous text. If stderr is not a terminal, a
    new line is printed whenever the text has changed, and at least every `_LOG_EVERY_S` seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""
        self._next = 0.0
        self._terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K" + printable(f"{self._name}: {text}"))
            sys.stderr.flush()
        elif text != self._last or time.monotonic() >= self._next:
            note(f"{self._name}: {text}")
            self._next = time.monotonic() + _LOG_EVERY_S
        self._last = text

    def clear(self) -> None:
        if self._terminal and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


app = typer.Typer()

ELECTION: Final = (*PARTITION, Column("leader", right=True), Column("preferred", right=True))
REASSIGNMENT: Final = (*PARTITION, Column("before"), Column("after"), Column("adding"), Column("removing"))
DELETION: Final = (Column("topic"), Column("partitions", right=True), Column("replicas", right=True))


@app.command("elect")
@connected
def elect(
    connect: ConnectFlags,
    topic: TopicsOption = None,
    all_topics: Annotated[bool, flag("--all-topics", "All topics of the cluster.")] = False,
    wait: Wait = WAIT_S,
    *,
    flags: RunFlags,
) -> None:
    """Make the preferred replica of each partition its leader again (preferred replica election).

    A partition whose preferred replica is dead or not in sync is rejected; the others get their election.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.election import encode_election, plan_election, progress_of
    from offsetmgr.zookeeper.admin.submit import submit
    from offsetmgr.zookeeper.client.transactions import Create
    from offsetmgr.zookeeper.nodes import paths

    if bool(topic) == all_topics:
        why = "both --topic and --all-topics are given" if all_topics else "none is named"
        raise UsageError("--topic", why, "as in --topic NAME (repeatable, globs, :0,1), or --all-topics")
    session = connect.zookeeper("zk elect")
    chosen, unreadable = _chosen(session, topic or [])
    state = read_state(session, {tp.topic for tp in chosen})
    steps = plan_election(state, chosen)
    request = ControllerRequest(
        "zk elect",
        session.connect,
        ELECTION,
        (
            *(Row(name, (name, None, None, None), False, error) for name, error in unreadable.items()),
            *(
                Row(str(s.partition), (*s.partition, s.leader, s.preferred), s.needed, s.rejected, _led(s.needed))
                for s in steps
            ),
        ),
        all_or_nothing=False,
    )
    electable = {str(s.partition): (s.partition, s.preferred) for s in steps if s.preferred is not None}

    def submit_rows(rows: list[Row]) -> None:
        data = encode_election(electable[row.key][0] for row in rows)
        submit(session, "preferred replica election", [Create(paths.PREFERRED_REPLICA_ELECTION, data)], state, ())

    def poll(rows: list[Row]) -> RequestProgress:
        requested = dict(electable[row.key] for row in rows)
        return progress_of(read_state(session, {tp.topic for tp in requested}), requested)

    action = f"elect {count_of(len(request.todo), 'leader')}"
    exit_with(request.run(action=action, flags=flags, wait_s=wait, submit=submit_rows, poll=poll))


def _led(wanted: bool) -> str:
    return "" if wanted else "is the leader already"


def _chosen(session: ZookeeperSession, texts: list[str]) -> tuple[list[TopicPartition], dict[str, OffsetMgrError]]:
    """Returns the partitions that --topic selects, and the topics whose partitions cannot be read. Without --topic, all
    partitions are selected.

    Raises `UnknownTopicOrPartition` if no partition is selected.
    """
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.zookeeper.admin.admin_reader import read_state, topic_names

    selection = TopicSelection.parse(texts)
    names = topic_names(session)
    selected = [name for name in names if selection.matches_topic(name)]
    state = read_state(session, selected)
    partition_counts: dict[str, int] = {}
    partitions: list[TopicPartition] = []
    unreadable: dict[str, OffsetMgrError] = {}
    for name in selected:
        try:
            numbers = state.topic(name).partitions
        except UnknownTopicOrPartition:  # the topic was deleted after the names were read
            continue
        except OffsetMgrError as error:
            unreadable[name] = error
            continue
        partition_counts[name] = len(numbers)
        partitions += [TopicPartition(name, number) for number in numbers]
    readable = [text for text in texts if TopicSelection.parse([text]).patterns[0].name not in unreadable]
    found = TopicSelection.parse(readable).expand(partition_counts, partitions) if readable or not texts else []
    if not found and not unreadable:
        raise UnknownTopicOrPartition(" ".join(texts) or "--all-topics", f"no topic of {session.connect} matches")
    return found, unreadable


@app.command("reassign")
@connected
def reassign(
    connect: ConnectFlags,
    reassignment_json_file: Annotated[
        Path,
        opt(
            "--reassignment-json-file",
            "FILE",
            "The brokers for each partition, in the format of kafka-reassign-partitions.",
        ),
    ],
    allow_replication_change: Annotated[
        bool, flag("--allow-replication-change", "Allow the number of replicas to change.")
    ] = False,
    before_image: Annotated[
        Path | None,
        opt(
            "--before-image",
            "FILE",
            "File for the present replicas, which undoes the request (default: a new file in the state directory).",
            callback=file_to_write,
        ),
    ] = None,
    wait: Wait = WAIT_S,
    *,
    flags: RunFlags,
) -> None:
    """Move partitions to other brokers (partition reassignment).

    The command first checks that brokers are alive, partitions exist, no broker occurs twice, the number of replicas
    stays the same, and no reassignment is under way. One failed check rejects the whole request.
    """
    from offsetmgr.groups.before_images import default_image_path
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.reassignment import (
        cancel_command,
        decode_reassignment,
        encode_reassignment,
        plan_reassignment,
        progress_of,
    )
    from offsetmgr.zookeeper.admin.submit import submit
    from offsetmgr.zookeeper.client.transactions import Create
    from offsetmgr.zookeeper.nodes import paths

    what = f"file {reassignment_json_file}"
    with os_error_as(FileFailure, what):
        assignment = decode_reassignment(what, reassignment_json_file.read_bytes())
    session = connect.zookeeper("zk reassign")
    state = read_state(session, {tp.topic for tp in assignment})
    steps = {
        str(s.partition): s
        for s in plan_reassignment(state, assignment, allow_replication_change=allow_replication_change)
    }
    request = ControllerRequest(
        "zk reassign", session.connect, REASSIGNMENT, _reassignment_rows(steps), all_or_nothing=True
    )
    image = before_image or default_image_path("zk reassign").with_suffix(".json")
    other_counts = any(len(s.before) != len(s.after) for s in steps.values())
    undo = (
        f"offsetmgr zk reassign --reassignment-json-file {quote(str(image))} --zookeeper {quote(session.connect)}"
        f"{connect.followup_options}{' --allow-replication-change' if other_counts else ''}"
    )

    def submit_rows(rows: list[Row]) -> None:
        moved = [steps[row.key] for row in rows]
        data = encode_reassignment({s.partition: s.after for s in moved})
        _write_before_image(image, encode_reassignment({s.partition: s.before for s in moved}))
        topics, brokers = {s.partition.topic for s in moved}, {broker for s in moved for broker in s.after}
        submit(session, "reassignment", [Create(paths.REASSIGN_PARTITIONS, data)], state, topics, brokers)

    def poll(rows: list[Row]) -> RequestProgress:
        requested = {steps[row.key].partition: steps[row.key].after for row in rows}
        return progress_of(read_state(session, {tp.topic for tp in requested}), requested)

    action = f"change the replicas of {count_of(len(request.todo), 'partition')}"
    exit_with(
        request.run(
            action=action,
            flags=flags,
            wait_s=wait,
            submit=submit_rows,
            poll=poll,
            undo=undo,
            cancel=cancel_command(str(image), connect.bootstrap()),
        )
    )


def _reassignment_rows(steps: Mapping[str, ReassignmentStep]) -> Iterator[Row]:
    """Yields one row for each step of a reassignment."""
    from offsetmgr.zookeeper.admin.state import numbers

    for key, step in steps.items():
        replicas = (numbers(ids) or None for ids in (step.before, step.after, step.adding, step.removing))
        moves = bool(step.adding or step.removing)
        text = "" if moves else "another preferred leader" if step.changes else "has these replicas already"
        yield Row(key, (*step.partition, *replicas), step.changes, step.rejected, text)


def _write_before_image(path: Path, data: bytes) -> None:
    """Writes the before-image to disk. Raises `FileFailure`."""
    from offsetmgr.core.atomic_file import replace_file

    with os_error_as(FileFailure, f"directory {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda out: out.write(data), overwrite=False)
    note(f"before-image: {path}")


@app.command("delete-topic")
@connected
def delete_topic(
    connect: ConnectFlags,
    topic: Annotated[list[str], opt("--topic", "NAME", "A topic, by its whole name; repeatable.")],
    wait: Wait = WAIT_S,
    *,
    flags: RunFlags,
) -> None:
    """Delete topics with all their messages. This cannot be undone.

    With --bootstrap-server the command first asks the controller whether it deletes topics at all
    (delete.topic.enable). One rejected topic rejects the whole request.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.deletion import plan_deletion, progress_of
    from offsetmgr.zookeeper.admin.submit import submit
    from offsetmgr.zookeeper.client.transactions import Create
    from offsetmgr.zookeeper.nodes import paths

    session = connect.zookeeper("zk delete-topic")
    state = read_state(session, topic)
    steps = plan_deletion(state, topic, enabled=_deletion_enabled(connect, state.controller))
    request = ControllerRequest(
        "zk delete-topic",
        session.connect,
        DELETION,
        (
            Row(
                s.topic,
                (s.topic, s.partitions, s.replicas),
                True,
                s.rejected,
                f"will wait for {s.waits_for}" if s.waits_for else "",
            )
            for s in steps
        ),
        all_or_nothing=True,
    )

    def submit_rows(rows: list[Row]) -> None:
        nodes = [Create(f"{paths.DELETE_TOPICS}/{row.key}") for row in rows]
        submit(session, "deletion of topics", nodes, state, [row.key for row in rows])

    def poll(rows: list[Row]) -> RequestProgress:
        requested = {row.key: state.topic(row.key).czxid for row in rows}
        return progress_of(read_state(session, requested), requested)

    action = f"delete {count_of(len(request.todo), 'topic')} for good"
    exit_with(request.run(action=action, flags=flags, wait_s=wait, submit=submit_rows, poll=poll))


def _deletion_enabled(connect: ConnectFlags, controller: int | None) -> bool | None:
    """Returns the controller's ``delete.topic.enable``, or None if the value is unknown. Prints a note if no brokers
    are known or the request fails."""
    cluster = connect.cluster_or_none()
    if cluster is None:
        note("not checked: delete.topic.enable of the controller (no --bootstrap-server)")
        return None
    try:
        value = None if controller is None else cluster.broker_setting(controller, "delete.topic.enable")
    except OffsetMgrError as error:
        note(f"not checked: delete.topic.enable of the controller ({error})")
        return None
    if value is None and controller is not None:
        note("not checked: delete.topic.enable of the controller (the broker does not report it to this login)")
    return None if value is None else value == "true"
