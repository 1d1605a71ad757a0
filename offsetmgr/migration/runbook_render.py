"""Runbooks as documents, and phase reports as text for operators and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from offsetmgr.core.document import (
    Blanks,
    Code,
    DocumentColumn,
    DocumentPart,
    Items,
    Paragraph,
    SectionTitle,
    Table,
)
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.migration.observation import Observation, at, clock_time, reading_text
from offsetmgr.migration.phase_inference import PhaseReport
from offsetmgr.migration.runbook import Runbook
from offsetmgr.migration.runbook_commands import RunbookStep

_GROUPS: Final = (
    DocumentColumn("group", "name"),
    DocumentColumn("phase now", "words"),
    DocumentColumn("target", "words"),
    DocumentColumn("members", "number"),
    DocumentColumn("bounces", "number"),
    DocumentColumn("warnings", "number"),
)
_MEMBERS: Final = (
    DocumentColumn("member", "name"),
    DocumentColumn("host", "words"),
    DocumentColumn("registered", "time"),
    DocumentColumn("partitions", "number"),
)
_OFFSETS: Final = (
    DocumentColumn("partition", "name"),
    DocumentColumn("owner", "name"),
    DocumentColumn("ZooKeeper", "words"),
    DocumentColumn("Kafka", "words"),
    DocumentColumn("log end", "number"),
    DocumentColumn("lag", "number"),
)
_STOP: Final = (DocumentColumn("if the command stops with", "words"), DocumentColumn("do", "words"))


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
        Paragraph(f"Phase now: {book.found.phase} ({book.found.confidence.value}: {book.found.why})."),
    ]
    if book.warnings:
        parts += [SectionTitle("Warnings", level), Items([str(warning) for warning in book.warnings])]
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


def report_lines(report: PhaseReport) -> list[str]:
    """Returns the lines of a phase report: the answer, the problems, then every result with its remedy."""
    seconds = (report.ended_ms - report.began_ms) / 1000
    lines = [
        f"phase {report.phase.value} of group {report.group}: {'PASSED' if report.passed else 'NOT PASSED'}"
        f" (watched for {seconds:.1f} s, {clock_time(report.began_ms)} to {clock_time(report.ended_ms)} UTC on"
        f" {at(report.ended_ms)[:10]})",
        *(f"problem: {p}" for p in report.problems),
        *(f"note: {n}" for n in report.notes),
    ]
    for m in sorted(report.members, key=lambda m: (m.ok, m.member)):
        lines.append(f"{'ok' if m.ok else 'NO':<3} {m.member} ({m.confidence.value}): {m.why}")
        if m.remedy:
            lines.append(f"      remedy: {m.remedy}")
    for p in sorted(report.partitions, key=lambda p: (p.ok, p.partition)):
        lines.append(f"{'ok' if p.ok else 'NO':<3} {p.partition} ({p.confidence.value}): {p.why}")
        if p.remedy:
            lines.append(f"      remedy: {p.remedy}")
    return lines


def report_json(report: PhaseReport) -> dict[str, Any]:
    """Returns a phase report as plain JSON values. Unknown and absent offsets are null."""
    return {
        "group": report.group,
        "phase": report.phase.value,
        "passed": report.passed,
        "began_ms": report.began_ms,
        "ended_ms": report.ended_ms,
        "not_bounced": list(report.not_bounced),
        "problems": list(report.problems),
        "notes": list(report.notes),
        "members": [
            {
                "member": m.member,
                "host": m.host,
                "ok": m.ok,
                "known": m.confidence.value,
                "why": m.why,
                "remedy": m.remedy,
                "partitions": [str(tp) for tp in m.partitions],
            }
            for m in report.members
        ],
        "partitions": [
            {
                "topic": p.partition.topic,
                "partition": p.partition.partition,
                "member": p.member,
                "ok": p.ok,
                "known": p.confidence.value,
                "why": p.why,
                "remedy": p.remedy,
                "zookeeper": p.zookeeper,
                "kafka": p.kafka,
                "log_end_offset": p.log_end,
            }
            for p in report.partitions
        ],
    }
