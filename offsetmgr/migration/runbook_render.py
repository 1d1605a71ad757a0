"""Runbooks and phase reports as text for operators and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offsetmgr.core.document import markdown_table
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.migration.observation import Observation, at, clock_time, reading_text
from offsetmgr.migration.phase_inference import PhaseReport
from offsetmgr.migration.runbook import Runbook, Stage


def runbook_markdown(book: Runbook) -> str:
    """Returns the runbook in Markdown: the state, the next action, the stages, and the way back."""
    start = book.found.phase.value if book.found.phase else "unknown"
    lines = [
        f"# Runbook: group `{book.group}`, {start} -> {book.to.value}",
        "",
        f"Written {at(book.baseline.at_ms)} from the group's state at that moment.",
        f"ZooKeeper: `{book.stores['zookeeper']}`. Kafka: `{book.stores['kafka']}`.",
        "",
        f"**Phase now: {start}** ({book.found.confidence.value}: {book.found.why}).",
        "",
    ]
    if book.warnings:
        lines += ["## Warnings", "", *(f"- {w}" for w in book.warnings), ""]
    if not book.stages:
        lines += [f"No step is needed: the group is in phase {book.to.value}.", ""]
    for number, stage in enumerate(book.stages, 1):
        lines += _stage_lines(number, len(book.stages), stage, book.baseline)
    lines += ["## Baseline: members", "", *_members_table(book.baseline), ""]
    lines += ["## Baseline: offsets", "", *_offsets_table(book.baseline), ""]
    return "\n".join(lines)


def runbooks_markdown(books: Sequence[Runbook]) -> str:
    """Returns the runbooks of several groups in one Markdown text, after a table of the groups. The runbook of a single
    group has no table."""
    if len(books) == 1:
        return runbook_markdown(books[0])
    rows = [
        (
            f"`{book.group}`",
            book.found.phase.value if book.found.phase else "unknown",
            book.to.value,
            str(len(book.baseline.members)),
            str(len(book.stages)),
            str(len(book.warnings)),
        )
        for book in books
    ]
    head = ("group", "phase now", "target", "members", "bounces", "warnings")
    lines = [f"# Runbook: {len(books)} groups", "", *markdown_table(head, rows), ""]
    lines += ["Each group has its own runbook below. A group whose gate stays closed does not hold up the others.", ""]
    return "\n".join(lines) + "\n" + "\n".join(runbook_markdown(book) for book in books)


def _stage_lines(number: int, of: int, stage: Stage, observation: Observation) -> list[str]:
    lines = [
        f"## Stage {number} of {of}: {stage.change}",
        "",
        f"Why this is safe: {stage.why_safe}",
        "",
    ]
    step = 1
    for text in stage.before:
        lines.append(f"{step}. {text}")
        step += 1
    lines += [
        f"{step}. In the `consumer.properties` of every member:",
        "",
        "   ```properties",
        *(f"   {line}" for line in stage.settings.as_lines()),
        "   ```",
        "",
        *(f"   - {note}" for note in stage.settings.notes),
        "",
        f"{step + 1}. Restart the members one at a time, each cleanly (SIGTERM, never SIGKILL), and wait after each"
        " until a new id is registered and every partition has an owner:",
        "",
    ]
    if number == 1:
        lines += [f"   - [ ] {_member_text(observation, m)}" for m in sorted(observation.members)]
    else:
        lines.append("   - [ ] every member that the renewed baseline names")
    lines.append("")
    step += 2
    if stage.copies:
        named = ", ".join(str(tp) for tp in stage.copies)
        lines += [
            f"{step}. There is no traffic on {named}, and ZooKeeper is behind Kafka there. When every member"
            " is dual, copy Kafka's offset to ZooKeeper, forward only and conditional on the version that was read."
            " `runbook bounce` does it before its gate.",
            "",
        ]
        step += 1
    lines += [
        f"{step}. The gate. Continue only when this command returns 0:",
        "",
        "   ```sh",
        f"   {stage.gate}",
        "   ```",
        "",
        "Steps and gate as one command (without `--execute` it only shows the restarts; with `--execute` it runs them,"
        " one member at a time, and checks the gate after each):",
        "",
        "```sh",
        stage.bounce,
        "```",
        "",
        "**Way back from here:**",
        "",
        *(f"- {text}" for text in stage.way_back),
        "",
    ]
    return lines


def _member_text(observation: Observation, member: str) -> str:
    found = observation.members[member]
    owned = ", ".join(str(tp) for tp in observation.owned_by(member)) or "no partition"
    return f"`{member}` on {found.host or 'unknown host'}: {owned}"


def _members_table(observation: Observation) -> list[str]:
    rows = [
        (m.id, m.host or "unknown (configured id)", at(m.registered_at_ms), str(len(observation.owned_by(m.id))))
        for _, m in sorted(observation.members.items())
    ]
    return markdown_table(("member", "host", "registered", "partitions"), rows)


def _offsets_table(observation: Observation) -> list[str]:
    def row(tp: TopicPartition) -> tuple[str, ...]:
        owned, log, lag = observation.owners.get(tp), observation.logs.get(tp), observation.lag(tp)
        return (
            str(tp),
            owned.member if owned else "none",
            reading_text(observation.zookeeper.get(tp)),
            reading_text(observation.kafka.get(tp)),
            str(log.end) if isinstance(log, LogRange) else "unknown",
            "unknown" if lag is None else str(lag),
        )

    every = sorted({*observation.partitions, *observation.unconsumed})
    return markdown_table(("partition", "owner", "ZooKeeper", "Kafka", "log end", "lag"), map(row, every))


def report_text(report: PhaseReport) -> str:
    """Returns a phase report for a terminal: the answer, the problems, then every result with its remedy."""
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
    return "\n".join(lines)


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
