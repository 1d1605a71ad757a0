"""``offsetmgr log verify`` and ``log recover``: what of Kafka's logs is sound, and cutting them there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.errors import FAILED, told
from offsetmgr.cli.options import Execute, Format, Yes
from offsetmgr.cli.render import Column, OutputFormat, confirm, count_of, note, progress, write_rows
from offsetmgr.errors import Conflict, FileFailure, OffsetMgrError, UsageError

if TYPE_CHECKING:
    from offsetmgr.segments.repair import Cut, Seen
    from offsetmgr.segments.segment import Segment

app = typer.Typer()

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH...", help="Log files, folders of partitions, brokers' log directories."),
]

_MIB: Final = 1024 * 1024
_SEGMENT: Final = (
    Column("path", detail=True),
    Column("partition"),
    Column("base_offset", right=True),
    Column("size", right=True),
    Column("entries", right=True),
    Column("next_offset", right=True),
    Column("state"),
    Column("sound", right=True),
)
_VERIFY: Final = (
    *_SEGMENT,
    Column("broker"),
    Column("doubts", right=True, detail=True),
    Column("why", optional=True),
)
_RECOVER: Final = (*_SEGMENT, Column("cut", right=True), Column("action"), Column("copy", optional=True))


@app.command("verify")
def verify(
    paths: Paths,
    only_damaged: Annotated[bool, typer.Option("--only-damaged", help="Leave out segments that are sound.")] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Find out whether every entry of every segment is whole and has the right checksum, and its offset can be right.

    SOUND is the bytes before the first damage, NEXT-OFFSET the log's end there, BROKER what Kafka's own recovery would
    do with the segment. Nothing is written. Exit code 0: all is sound; 1: something is not.
    """
    errors: list[OffsetMgrError] = []
    segments = list(_segments(paths, errors))
    _tell_of_brokers(paths)
    bad = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal bad
        for seen in _looked_at(segments, errors):
            found = seen.found
            if _state(seen) != "sound":
                bad += 1
            elif only_damaged:
                continue
            why = "; ".join(
                ([f"position {found.sound}: {found.why}"] if found.damage else [])
                + [f"position {doubt.position}: {doubt.why}" for doubt in found.doubts[:1]]
            )
            yield (*_columns(seen), found.outcome.value, found.doubt_count, why or None)

    write_rows(_VERIFY, rows(), output)
    note(f"{count_of(len(segments), 'segment')}, {bad} not sound" + (f", {len(errors)} not read" if errors else ""))
    if told(errors) or bad:
        raise typer.Exit(FAILED)


@app.command("recover")
def recover(
    paths: Paths,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Write repaired copies into this folder.", show_default=False),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Cut the logs themselves, each after a copy of what is cut.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="DIR",
            help="With --in-place: where the copies of what is cut go (beside each log).",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Cut also before the first entry whose offset or version is in doubt.")
    ] = False,
    execute: Execute = False,
    yes: Yes = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Cut logs behind their last sound entry, as a broker does after a crash: in a copy, or in place.

    Of a partition's folder the newest segment is looked at, of a log directory that of every partition; a file is taken
    by itself. Logs of a running broker are never written to: it is said how that is known.
    """
    if in_place == (to is not None):
        both = "both --to and --in-place are given" if in_place else "neither --to nor --in-place is given"
        raise UsageError("log recover", both, "--to DIR writes repaired copies, --in-place cuts the logs themselves")
    if keep is not None and not in_place:
        raise UsageError("--keep", "is for --in-place alone")
    if keep is not None and not keep.is_dir():
        raise FileFailure(f"--keep {keep}", "is no folder")
    errors: list[OffsetMgrError] = []
    recovery = _Recovery(to, keep, strict, errors)
    cuts = [recovery.plan(source, seen) for source, seen in recovery.examined(paths)]
    possible = [one for one in cuts if one.cut is not None]
    if execute and possible:
        needed = [one for one in possible if to is not None or (one.cut is not None and one.cut.size)]
        size = sum(one.cut.size for one in needed if one.cut is not None)
        if in_place and needed:
            confirm(f"log recover: cut {size:,} bytes from {count_of(len(needed), 'log')} in place?", yes=yes)
        for one in progress(needed, "logs", len(needed)):
            recovery.carry_out(one)
    write_rows(_RECOVER, (one.row() for one in cuts), output)
    if not execute:
        note("dry run: nothing was written; add --execute to do it")
    if told(errors):
        raise typer.Exit(FAILED)


class _Planned:
    """A log, where it will be cut, and what has become of that."""

    def __init__(self, source: Path, seen: Seen, cut: Cut | None, action: str, copy: Path | None) -> None:
        self.source = source
        self.seen = seen
        self.cut = cut
        self.action = action
        self.copy = copy

    def row(self) -> tuple[Any, ...]:
        columns = list(_columns(self.seen))
        if self.cut is not None:
            columns[5] = self.cut.next_offset
        size = None if self.cut is None else self.cut.size
        return (*columns, size, self.action, None if self.copy is None else str(self.copy))


class _Recovery:
    """What one ``log recover`` does with each log."""

    def __init__(self, to: Path | None, keep: Path | None, strict: bool, errors: list[OffsetMgrError]) -> None:
        self._to = to
        self._keep = keep
        self._strict = strict
        self._errors = errors

    def examined(self, paths: Iterable[Path]) -> list[tuple[Path, Seen]]:
        """Each log file and each partition's folder, with the segment that is to be cut."""
        sources: dict[Path, Path] = {}
        segments = []
        older = 0
        for path in paths:
            for source, those in _sources(path, self._errors):
                segments.append(those[-1])
                sources[those[-1].log] = source
                older += len(those) - 1
        seen = [(sources[one.segment.log], one) for one in _looked_at(segments, self._errors)]
        if older:
            note(f"{count_of(older, 'older segment')} not looked at; log verify does")
        return seen

    def plan(self, source: Path, seen: Seen) -> _Planned:
        """Where to cut it. What cannot be done is among the errors."""
        from offsetmgr.segments.repair import cut_of, kept_copy
        from offsetmgr.segments.standing import Use, standing

        try:
            cut = cut_of(seen, strict=self._strict)
            if self._to is not None:
                target = self._to / source.name
                if target.exists():
                    raise FileFailure(str(target), "exists already", "name another folder with --to")
                return _Planned(source, seen, cut, "would be copied", target)
            if not cut.size:
                return _Planned(source, seen, cut, "nothing to cut", None)
            found = standing(source)
            if found.use is not Use.IDLE:
                raise Conflict(f"folder {source}", str(found), "write a repaired copy elsewhere with --to")
            return _Planned(source, seen, cut, "would be cut", kept_copy(cut, self._keep))
        except OffsetMgrError as error:
            self._errors.append(error)
            return _Planned(source, seen, None, "refused", None)

    def carry_out(self, one: _Planned) -> None:
        """Does it; what fails is among the errors."""
        from offsetmgr.segments.repair import copy_folder, copy_log, cut_in_place
        from offsetmgr.segments.standing import alone, alone_beside

        assert one.cut is not None
        try:
            with ExitStack() as stack:
                if self._to is None:
                    found = stack.enter_context(alone(one.source))
                    note(f"{one.source}: {found}")
                    cut_in_place(one.cut, self._keep)
                    one.action = "cut"
                    return
                assert one.copy is not None
                stack.enter_context(alone_beside(one.copy))
                _make(self._to)
                (copy_folder if one.source.is_dir() else copy_log)(one.cut, one.copy)
                one.action = "copied"
        except OffsetMgrError as error:
            self._errors.append(error)
            one.action, one.copy = "failed", None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFailure(f"folder {folder}", error.strerror or str(error)) from error


def _segments(paths: Iterable[Path], errors: list[OffsetMgrError]) -> Iterator[Segment]:
    for path in paths:
        for _, segments in _sources(path, errors):
            yield from segments


def _sources(path: Path, errors: list[OffsetMgrError]) -> Iterator[tuple[Path, tuple[Segment, ...]]]:
    """The log files and partitions' folders that a path means, each with its segments; what cannot be read is among the
    errors. Raises `UsageError` for a path that holds no log."""
    from offsetmgr.segments.partition import partitions_in, segments_in
    from offsetmgr.segments.segment import Segment

    if not path.exists():
        raise UsageError(f"path {path}", "does not exist")
    if not path.is_dir():
        yield path, (Segment.of(path),)
        return
    if own := segments_in(path):
        yield path, own
        return
    folders = list(partitions_in(path))
    if not folders:
        raise UsageError(f"folder {path}", "holds no log: neither segments nor folders of partitions")
    for folder in folders:
        try:
            if segments := segments_in(folder):
                yield folder, segments
        except OffsetMgrError as error:
            errors.append(error)


def _looked_at(segments: list[Segment], errors: list[OffsetMgrError]) -> Iterator[Seen]:
    """Each examined, with progress in MiB; those that cannot be read are among the errors."""
    from offsetmgr.segments.repair import looking

    def steps() -> Iterator[Seen | None]:
        for segment in segments:
            try:
                yield from looking(segment)
            except OffsetMgrError as error:
                errors.append(error)

    total = sum(_size(segment) for segment in segments) // _MIB + len(segments)
    return (seen for seen in progress(steps(), "MiB", total) if seen is not None)


def _size(segment: Segment) -> int:
    try:
        return segment.size
    except FileFailure:
        return 0  # it will be told when it is looked at


def _tell_of_brokers(paths: Iterable[Path]) -> None:
    from offsetmgr.segments.standing import Use, standing

    found = {str(one): None for one in map(standing, paths) if one.use is Use.RUNNING}
    for text in found:
        note(f"{text}: what it is writing may look like a missing tail")


def _state(seen: Seen) -> str:
    found = seen.found
    if found.damage is not None:
        return found.damage.value
    return "in doubt" if found.doubt_count else "sound"


def _columns(seen: Seen) -> tuple[Any, ...]:
    found, log = seen.found, seen.segment.log
    return (
        str(log),
        log.absolute().parent.name,
        found.base_offset,
        found.size,
        found.entries,
        found.next_offset,
        _state(seen),
        found.sound,
    )
