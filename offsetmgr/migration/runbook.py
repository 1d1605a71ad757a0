"""A runbook: the steps that lead one group to another phase by rolling bounces, written from the group's observed
state.

A runbook is a value: its steps (`runbook_steps`), its warnings, and the *baseline*, which is the observation of the
group when the runbook was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.advice import Advice, for_command_line
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, Confidence, Phase, PhaseEvidence, route
from offsetmgr.core.document import (
    Blanks,
    Code,
    Columns,
    DocumentPart,
    Items,
    Paragraph,
    SectionTitle,
    Table,
    to_html,
    to_markdown,
)
from offsetmgr.core.errors import FileFailure, GateRefused, GroupNotFound, MalformedData, UsageError, os_error_as
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.migration import bounce_checkpoint, observation
from offsetmgr.migration.apply import behind, read_writers
from offsetmgr.migration.evidence import (
    EvidenceThresholds,
    PhaseReport,
    assess_phase,
    infer_phase,
    jumps,
    phase_of_group,
    remedy_of,
    seen_phase,
    used_and_other_store,
)
from offsetmgr.migration.observation import (
    GroupHistory,
    GroupView,
    Observation,
    ObservationWindow,
    at,
    reading_text,
    watch_group,
)
from offsetmgr.migration.runbook_steps import (
    Risk,
    Runbook,
    RunbookArguments,
    RunbookStep,
    RunbookSteps,
    abort_criteria,
)

# Reads the baseline of a rolling bounce: from the JSON of a runbook, or from the state file of a bounce.

FORMAT: Final = "offsetmgr-runbook"
VERSION: Final = 3
_ONE_GROUP: Final = 1
"""The version of files that hold the runbook of one group. Versions 1 and 2 have ``stages`` in place of ``steps``."""
VERSIONS: Final = (_ONE_GROUP, 2, VERSION)


class NoBaseline(MalformedData):
    """The file has no valid baseline of this group. It may have those of other groups."""


class BaselineFile:
    """The baselines in a runbook's JSON, or in the state file of a bounce. The file is read once, for all groups.

    Raises `MalformedData` if the file is invalid, and `UnknownVersion`.
    """

    def __init__(self, path: Path) -> None:
        self._what = f"baseline {path}"
        with os_error_as(MalformedData, self._what):
            data = path.read_bytes()
        found = FieldReader.parse(data, self._what, hint="give the JSON that `offsetmgr runbook write` made")
        self._bounces: Mapping[str, bounce_checkpoint.BounceState] = {}
        self._books: Mapping[str, Mapping[str, Any]] = {}
        if found.get("format") == bounce_checkpoint.STATE_FILE.name:
            self._bounces = bounce_checkpoint.STATE_FILE.decoded(found, bounce_checkpoint.decode_all)
        else:
            version = found.require_format(FORMAT, VERSIONS, "a runbook")
            books = [found] if version == _ONE_GROUP else found.objects("runbooks")
            self._books = {_group_of(one.values): one.values for one in reversed(books)}  # the first one of a group

    def of(self, group: str) -> Observation:
        """Returns the baseline of the group. Raises `NoBaseline` if the file has none of the group or an invalid
        one."""
        if group in self._bounces:
            return self._bounces[group].baseline
        if group not in self._books:
            others = list_of(sorted(filter(None, (*self._bounces, *self._books))), 3)
            raise NoBaseline(self._what, f"it belongs to group {others}, not to {group}")
        try:
            found = observation.from_json(self._books[group].get("baseline"), where=self._what)
            return found if found.stores else replace(found, stores=observation.stores_from_json(self._books[group]))
        except MalformedData as error:
            raise NoBaseline(error.what, error.why, error.hint) from error


def _group_of(book: Mapping[str, Any]) -> str:
    baseline = book.get("baseline")
    group = baseline.get("group") if isinstance(baseline, dict) else None
    return group if isinstance(group, str) else ""


_SUFFIXES: Final = (".json", ".html", ".md")
SHOWN: Final = 6
"""Maximum number of partitions in a warning at a terminal."""


def write_runbook(
    view: GroupView,
    group: str,
    to: CommitMode,
    *,
    start: CommitMode | None,
    window: ObservationWindow,
    arguments: RunbookArguments,
) -> Runbook:
    """Watches the group until its phase is known, and returns the runbook. If ``start`` is given, the phase of the
    group is not inferred: it is ``start``.

    Raises `GateRefused` if the phase cannot be inferred, or if no member is alive.
    """

    def known(history: GroupHistory) -> bool:
        return start is not None or not history.latest.members or infer_phase(history).confidence is Confidence.SEEN

    began = view.clock.monotonic()
    history = watch_group(view, group, window, enough=known)
    observation = history.latest
    if not observation.members:
        raise GateRefused(
            f"runbook of group {group}",
            "no live member is registered in ZooKeeper, so there is no member to bounce",
            "check the name and the chroot; to move an idle group, use `offsetmgr migrate`",
        )
    found = (
        infer_phase(history)
        if start is None
        else PhaseEvidence(Phase.of(start), Confidence.UNKNOWN, Advice("given by {start:from}"))
    )
    if (present := found.phase.mode) is None:
        raise GateRefused(
            f"runbook of group {group}",
            f"its phase is unknown: {found.why}",
            remedy_of(found) or _hint_for_unknown_phase(history),
        )
    changes = route(present, to)
    book = Runbook(
        group,
        to,
        found,
        changes,
        replace(observation, stores=view.store_ids()),
        {one: sorted(behind(history, read_writers(view, history))) for one in changes if one in _CHANGES_WITH_COPIES},
        view.clock.monotonic() - began if found.confidence is Confidence.SEEN else None,
    )
    steps = RunbookSteps(book, arguments)
    warnings = tuple(_warnings(history, observation, steps))
    return replace(book, steps=tuple(steps.all()), abort=abort_criteria(book), warnings=warnings)


_CHANGES_WITH_COPIES = (
    CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL),
    CommitModeChange(CommitMode.DUAL, CommitMode.ZOOKEEPER),
)


def _hint_for_unknown_phase(history: GroupHistory) -> str:
    idle = all(
        not one.kafka.changes and not one.zookeeper.changes and one.lag == 0 for one in history.partitions.values()
    )
    if history.partitions and idle:
        send = "no partition had traffic: send a message to a partition of each member"
        return Advice("{}, or give the phase with {start:from}", send)
    return Advice("use a {window} of at least three times auto.commit.interval.ms, or give the phase with {start:from}")


def check_phase(
    view: GroupView,
    group: str,
    phase: CommitMode,
    window: ObservationWindow,
    rules: EvidenceThresholds,
    baseline: Observation | None = None,
) -> PhaseReport:
    """Watches the group until the check is final, the window is over, or no member is alive. Returns the result of the
    check.

    Raises `GroupNotFound` if neither the registry nor a store knows the group, and any error of the servers during the
    first observation.
    """

    def report_of(history: GroupHistory) -> PhaseReport:
        return assess_phase(history, phase, baseline=baseline, rules=rules)

    history = watch_group(view, group, window, enough=lambda w: report_of(w).final or not w.latest.members)
    observation = history.latest
    if not (observation.members or observation.zookeeper or observation.kafka):
        raise GroupNotFound(
            f"group {group}",
            "it has neither a live member in ZooKeeper nor an offset in either store",
            Advice("check its name, and the chroot of {zookeeper}"),
        )
    report = report_of(history)
    shown = report.passed or seen_phase(history) is not None
    return replace(report, seen=phase_of_group(history, report) if shown else None)


# --- the warnings ------------------------------------------------------------------------------------


def _warnings(history: GroupHistory, observation: Observation, steps: RunbookSteps) -> Iterator[Risk]:
    changes, retention_ms = steps.subject.changes, steps.arguments.retention_ms
    for node in observation.unreadable:
        yield Risk("ZooKeeper node {} cannot be read: every gate stays closed", (node,))
    quiet_ms = EvidenceThresholds().quiet_ms
    idle = tuple(tp for tp, t in history.partitions.items() if t.lag == 0 and t.unchanged_ms >= quiet_ms)
    if idle:
        text = (
            "{} had no traffic for {} s or longer ({}): their gates say unknown. Send a message to each, or use"
            " {accept_idle}, which lets them pass if the offsets show that nothing can be lost"
        )
        yield Risk(text, (count_of(len(idle), "partition"), quiet_ms // 1000, idle))
    for member in observation.members.values():
        if member.host is None:
            text = (
                "{} has a configured consumer.id: its id stays the same after a restart, so the gate uses its"
                " registration and its commits; give its host with {host}"
            )
            yield Risk(text, (member.id,))
        if not observation.owned_by(member.id):
            text = "{} owns no partition, so its commits cannot be seen ({accept_spare} lets it pass)"
            yield Risk(text, (member.id,))
    unowned = tuple(tp for tp in observation.partitions if tp not in observation.owners)
    if unowned:
        count = count_of(len(unowned), "partition")
        yield Risk("no member owns {} ({}): let the group rebalance first", (count, unowned))
    if observation.unconsumed:
        text = (
            "no live member subscribes to {} with offsets ({}): a bounce does not move them; `offsetmgr migrate` does"
        )
        count = count_of(len(observation.unconsumed), "partition")
        yield Risk(text, (count, observation.unconsumed))
    copied = tuple(sorted({*idle, *unowned, *observation.unconsumed}))
    if copied and retention_ms is not None and steps.moves_to_kafka:
        renewal = steps.refresh if changes[-1].to is CommitMode.DUAL else "see Clean up"
        text = (
            "no consumer commits the offsets of {} ({}): if you copy them now, Kafka deletes them about {}, unless you"
            " renew them when no old consumer is registered: {}"
        )
        expiry = at(observation.at_ms + retention_ms)
        yield Risk(text, (count_of(len(copied), "partition"), copied, expiry, renewal))
    if changes and (ahead := jumps(changes[0], history)):
        _, other = used_and_other_store(changes[0])
        text = (
            "{} is ahead on {}: a dual member reads the larger offset and would skip messages there; the bounce refuses"
            " to begin before that is resolved"
        )
        yield Risk(text, (other, tuple(ahead)))


# --- JSON ----------------------------------------------------------------------------------------


def _to_json(book: Runbook) -> dict[str, Any]:
    return {
        "group": book.group,
        "to": book.to.value,
        "from": {
            "phase": book.found.phase.value,
            "known": book.found.confidence.value,
            "why": for_command_line(book.found.why),
        },
        "taken_at": at(book.baseline.at_ms),
        "changes": [{"from": change.start.value, "to": change.to.value} for change in book.changes],
        "steps": [asdict(step) for step in book.steps],
        "abort": list(book.abort),
        "warnings": [one.advice().command_line() for one in book.warnings],
        "baseline": observation.to_json(book.baseline),
    }


def to_json(books: Sequence[Runbook]) -> dict[str, Any]:
    """Returns the runbooks as plain JSON values, with the baselines for `BaselineFile`."""
    return {"format": FORMAT, "version": VERSION, "runbooks": list(map(_to_json, books))}


# Runbooks as documents. Pure.

_GROUPS: Final[Columns] = {
    "group": "name",
    "phase now": "words",
    "target": "words",
    "members": "number",
    "bounces": "number",
    "warnings": "number",
}
_MEMBERS: Final[Columns] = {"member": "name", "host": "words", "registered": "time", "partitions": "number"}
_OFFSETS: Final[Columns] = {
    "partition": "name",
    "owner": "name",
    "ZooKeeper": "words",
    "Kafka": "words",
    "log end": "number",
    "lag": "number",
}
_STOP: Final[Columns] = {"if the command stops with": "words", "do": "words"}


def runbook_title(books: Sequence[Runbook]) -> str:
    if len(books) > 1:
        return f"Runbook: {len(books)} groups"
    return f"Runbook: group {books[0].group}, {books[0].found.phase} -> {books[0].to.value}"


def runbook_parts(books: Sequence[Runbook]) -> list[DocumentPart]:
    """Returns the parts of a document with the runbooks. Several runbooks follow a table of their groups."""
    parts: list[DocumentPart] = []
    if len(books) > 1:
        rows = [
            (b.group, b.found.phase.value, b.to.value, len(b.baseline.members), len(b.changes), len(b.warnings))
            for b in books
        ]
        parts = [
            Table(_GROUPS, rows),
            Paragraph("Each group has its own runbook. A group whose gate stays closed does not hold up the others."),
        ]
    for book in books:
        if len(books) > 1:
            parts.append(SectionTitle(f"Group {book.group}: {book.found.phase} -> {book.to.value}"))
        parts += _book_parts(book, 3 if len(books) > 1 else 2)
    return parts


def _book_parts(book: Runbook, level: int) -> list[DocumentPart]:
    """Returns the parts of one runbook, whose sections have titles of this level."""
    parts: list[DocumentPart] = [
        Paragraph(
            f"Written {at(book.baseline.at_ms)} from the group's state at that moment. ZooKeeper:"
            f" {book.baseline.stores['zookeeper']}. Kafka: {book.baseline.stores['kafka']}."
        ),
        Paragraph(
            f"Phase now: {book.found.phase} ({book.found.confidence.value}: {for_command_line(book.found.why)})."
        ),
    ]
    if book.warnings:
        parts += [
            SectionTitle("Warnings", level),
            Items([one.advice().command_line() for one in book.warnings]),
        ]
    if book.steps:
        parts += [
            Paragraph(
                "Run all commands in one directory, because they find each other's files there. In the samples of"
                " output, ... stands for text that varies."
            ),
            Blanks(("Responsible", "Date and time", "Approved by")),
            SectionTitle("Go back if", level),
            Items(book.abort),
        ]
    else:
        parts.append(Paragraph(f"No step is needed: the group is in phase {book.to.value}."))
    section = ""
    for number, step in enumerate(book.steps, 1):
        if step.section != section:
            section = step.section
            parts.append(SectionTitle(section, level))
        parts += _step_parts(number, step, level + 1)
    members = [
        (m.id, m.host or "unknown (configured id)", at(m.registered_at_ms), len(book.baseline.owned_by(m.id)))
        for _, m in sorted(book.baseline.members.items())
    ]
    return [
        *parts,
        SectionTitle("Baseline: members", level),
        Table(_MEMBERS, members),
        SectionTitle("Baseline: offsets", level),
        Table(_OFFSETS, _offset_rows(book.baseline)),
    ]


def _step_parts(number: int, step: RunbookStep, level: int) -> list[DocumentPart]:
    parts: list[DocumentPart] = [SectionTitle(f"{number}. {step.title}", level), *map(Paragraph, step.text)]
    if step.settings:
        parts.append(Code("\n".join(step.settings), "properties"))
    if step.ticks:
        parts.append(Items(step.ticks, boxes=True))
    parts += [Code(command) for command in step.commands]
    if step.prints:
        parts += [Paragraph("On success it prints:"), Code(step.prints, "text")]
    if step.takes:
        parts.append(Paragraph(f"Time: {step.takes}."))
    if step.notes:
        parts.append(Items(step.notes))
    if step.closed:
        parts.append(Table(_STOP, step.closed))
    if step.way_back:
        parts += [Paragraph(f"Way back. {step.way_back}"), *map(Code, step.back)]
    return [*parts, Blanks(("Who", "Started", "Ended", "Signed off"))]


def _offset_rows(observation: Observation) -> list[Sequence[Any]]:
    def row(tp: TopicPartition) -> Sequence[Any]:
        owned, log = observation.owners.get(tp), observation.logs.get(tp)
        return (
            str(tp),
            owned.member if owned else "none",
            reading_text(observation.zookeeper.get(tp)),
            reading_text(observation.kafka.get(tp)),
            log.end if isinstance(log, LogRange) else None,
            observation.lag(tp),
        )

    return list(map(row, sorted({*observation.partitions, *observation.unconsumed})))


def new_files(files: list[Path]) -> list[Path]:
    """Returns the files, with a baseline if they have none. Raises `UsageError` or `FileFailure` if one of them cannot
    be created."""
    if files and not any(file.suffix == ".json" for file in files):
        files = [files[0].with_suffix(".json"), *files]
    for file in files:
        if file.suffix not in _SUFFIXES:
            raise UsageError(f"-o {file}", "the name ends neither in .json nor in .html nor in .md")
        if file.exists():
            why = "exists already, and a baseline must not be overwritten"
            raise UsageError(f"-o {file}", why, "name another file")
        if not file.parent.is_dir():
            raise FileFailure(f"-o {file}", f"{file.parent} is no directory")
    return files


def file_content(file: Path, books: Sequence[Runbook]) -> str:
    """Returns the runbooks in the format of a file's name: JSON, HTML or Markdown."""
    if file.suffix == ".json":
        return json.dumps(to_json(books), indent=2) + "\n"
    return (to_html if file.suffix == ".html" else to_markdown)(runbook_title(books), runbook_parts(books))
