"""``offsetmgr log verify``: checks the integrity of Kafka's logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.errors import fail_if, report_and_exit_code
from offsetmgr.cli.log_segments import SEGMENT, Paths, columns, mib_in, note_scope, sources, state
from offsetmgr.cli.options import FormatOption, flag
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.segments.segment import Segment
    from offsetmgr.segments.truncation import ExaminedSegment

app = typer.Typer()

_VERIFY: Final = (
    *SEGMENT,
    Column("broker"),
    Column("suspicious_entries", right=True, detail=True),
    Column("why", optional=True),
)


@app.command("verify")
def verify(
    paths: Paths,
    only_damaged: Annotated[bool, flag("--only-damaged", "Leave out segments that are sound.")] = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check that every entry of every segment is complete, and has the right checksum and a plausible offset.

    SOUND is the number of bytes before the first damage. NEXT-OFFSET is the log end offset at that position. BROKER is
    what Kafka's own recovery would do with the segment, and unknown if the broker would not start. The command writes
    nothing. The exit code is 0 if everything is valid, else 1.
    """
    from offsetmgr.segments.recovery import RecoveryOutcome

    errors: list[OffsetMgrError] = []
    segments = list(_segments(paths, errors))
    offline = {Path(error.what).parent for error in errors}
    _note_running_brokers(paths)
    bad = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal bad
        for seen in _examined(segments, errors):
            found = seen.result
            if state(seen) != "sound":
                bad += 1
            elif only_damaged:
                continue
            why = "; ".join(
                ([f"position {found.valid_bytes}: {found.why}"] if found.damage else [])
                + [f"position {doubt.position}: {doubt.why}" for doubt in found.suspicions[:1]]
            )
            outcome = RecoveryOutcome.UNKNOWN if seen.segment.log.parent in offline else found.outcome
            yield (*columns(seen), outcome.value, found.suspicion_count, why or None)

    write_rows(_VERIFY, rows(), output)
    note(
        f"{count_of(len(segments), 'segment')}, {bad} not sound"
        + (f", {count_of(len(errors), 'error')}" if errors else "")
    )
    note_scope(paths)
    fail_if(report_and_exit_code(errors) or bad)


def _segments(paths: Iterable[Path], errors: list[OffsetMgrError]) -> Iterator[Segment]:
    for path in paths:
        for _, segments in sources(path, errors):
            yield from segments


def _examined(segments: list[Segment], errors: list[OffsetMgrError]) -> Iterator[ExaminedSegment]:
    """Examines each segment, with progress in MiB. If a segment cannot be read, the error is added to ``errors``."""
    from offsetmgr.segments.truncation import examine_in_steps

    def steps() -> Iterator[ExaminedSegment | None]:
        for segment in segments:
            try:
                yield from examine_in_steps(segment)
            except OffsetMgrError as error:
                errors.append(error)

    return (seen for seen in progress(steps(), "MiB", mib_in(segments)) if seen is not None)


def _note_running_brokers(paths: Iterable[Path]) -> None:
    from offsetmgr.segments.broker_lock import Use, detect_broker

    found = {str(one): None for one in map(detect_broker, paths) if one.use is Use.RUNNING}
    for text in found:
        note(f"{text}: an incomplete write may look like a missing tail")
