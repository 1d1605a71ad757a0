"""Converts the options of ``offsets reset`` to a scenario, and parses the times, durations and files that the options
name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.cli.render import note
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.clock_difference import duration
from offsetmgr.core.commit_metadata import dropped_text, form_of
from offsetmgr.core.durations import parse_duration
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.selection import GroupSelection
from offsetmgr.groups.reset import (
    Scenario,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsets,
    ToTime,
)

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import GroupOffsets
    from offsetmgr.groups.export import SnapshotFile
    from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

_DATE_TIME: Final = re.compile(r"(?P<date>\d{4}-\d{2}-\d{2})(?: +|T)(?P<hour>\d{1,2})(?=:)")
_DAY_TIME: Final = re.compile(
    r"(?P<day>today|yesterday)(?: +(?P<time>\d{1,2}:\d{2}(?::\d{2})?) *(?P<zone>Z|[+-]\d{2}:?\d{2})?)?", re.IGNORECASE
)
_MILLISECOND: Final = timedelta(milliseconds=1)


class ScenarioOptions(NamedTuple):
    """The values of the options of ``offsets reset`` that select a scenario."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    by_duration: str | None = None
    to_datetime: str | None = None
    from_file: str | None = None
    accept_unterminated: bool = False
    skip: int | None = None


def scenario_of(
    options: ScenarioOptions, selection: GroupSelection, crossing: Callable[[SnapshotFile], CrossClusterCheck]
) -> Scenario | None:
    """Returns the scenario that the options select; None for --skip, whose scenario depends on the log. ``crossing``
    compares the cluster of a snapshot file with the cluster of the target.

    Raises `UsageError` unless the options select exactly one valid scenario. Raises `OtherCluster` if the snapshot file
    belongs to another cluster than the target.
    """
    chosen: list[Scenario] = []
    if options.to_earliest:
        chosen.append(ToEarliest())
    if options.to_latest:
        chosen.append(ToLatest())
    if options.to_current:
        chosen.append(ToCurrent())
    if options.to_offset is not None:
        chosen.append(ToOffset(options.to_offset))
    if options.shift_by is not None:
        chosen.append(ShiftBy(options.shift_by))
    if options.by_duration is not None:
        at = SystemClock().now_ms() - parse_duration(options.by_duration)
        chosen.append(_to_time(at, "--by-duration", f"{options.by_duration} ago"))
    if options.to_datetime is not None:
        at = parse_datetime(options.to_datetime)
        chosen.append(_to_time(at, "--to-datetime", options.to_datetime))
        _warn_of_future(at, options.to_datetime)
    if options.from_file is not None:
        chosen.append(_from_file(options.from_file, selection, crossing, unterminated=options.accept_unterminated))
    if options.skip is not None and not chosen:
        return None
    if options.skip is not None or len(chosen) != 1:
        raise UsageError(
            "offsets reset",
            "several scenarios are given" if chosen else "no scenario is given",
            "exactly one of --to-earliest --to-latest --to-current --to-offset --shift-by --by-duration "
            "--to-datetime --from-file --skip",
        )
    return chosen[0]


def _to_time(at_ms: int, option: str, text: str) -> ToTime:
    """Returns the scenario for a time. Raises `UsageError` for a time that no record can have: the timestamps of
    records are milliseconds since 1970, from 0 to 2^63-1. Negative numbers have other meanings."""
    if not 0 <= at_ms < 2**63:
        why = f"{text} is {'before 1970' if at_ms < 0 else 'beyond all times'}, and no record has such a time"
        raise UsageError(option, why, "--to-earliest goes to the log's start, --to-latest to its end")
    return ToTime(at_ms)


def _warn_of_future(at_ms: int, text: str) -> None:
    """Prints a warning if the time is in the future, because a time of another zone was probably given."""
    if (ahead := at_ms - SystemClock().now_ms()) > 0:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        shown = f"--to-datetime {text!r} is {at:%Y-%m-%d %H:%M:%S} UTC"
        note(f"warning: {shown}, {duration(ahead)} in the future: no record has this time, so the log's end is used")
        note("hint: a time without a zone is in UTC; with a zone as in 2026-11-21T09:00:00+09:00")


def parse_datetime(text: str, option: str = "--to-datetime") -> int:
    """Converts a time ``YYYY-MM-DDTHH:mm:SS.sss`` to milliseconds since 1970. A time without a zone is in UTC.

    Also accepts a space instead of the T, and ``today`` and ``yesterday``, alone (midnight) or with a time, as in
    ``yesterday 14:00`` and ``yesterday 14:00+02:00``: the day is that of the zone.
    """
    stripped = text.strip()
    if (of_day := _DAY_TIME.fullmatch(stripped)) is not None:
        stripped = _dated(of_day, SystemClock().now_ms())
    if (spoken := _DATE_TIME.match(stripped)) is not None:
        stripped = f"{spoken['date']}T{spoken['hour']:0>2}{stripped[spoken.end() :]}"
    try:
        if "T" not in stripped.upper():
            raise ValueError
        at = datetime.fromisoformat(stripped)
    except ValueError:
        raise UsageError(
            option,
            f"{text!r} is not a time of the form YYYY-MM-DDTHH:mm:SS.sss",
            "as in '2026-11-21 09:00' or 'yesterday 14:00' (UTC), or with a zone as in 'yesterday 14:00+02:00'",
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


def _dated(of_day: re.Match[str], now_ms: int) -> str:
    """Returns the time of ``today`` or ``yesterday`` with its date."""
    zone = (of_day["zone"] or "Z").upper()
    try:
        now = datetime.fromtimestamp(now_ms / 1000, datetime.fromisoformat(f"2000-01-01T00:00{zone}").tzinfo)
    except ValueError:  # +25:00
        return of_day.string
    day = now.date() - timedelta(days=of_day["day"].lower() == "yesterday")
    return f"{day.isoformat()}T{of_day['time'] or '00:00'}{zone}"


def _from_file(
    file: str,
    selection: GroupSelection,
    crossing: Callable[[SnapshotFile], CrossClusterCheck],
    *,
    unterminated: bool,
) -> ToOffsets:
    from offsetmgr.groups.export import name_of, open_file, seekable

    name = None if Path(file).suffix.lower() in (".avro", ".csv", ".zk", ".json") else "csv"
    with (
        seekable(file) as path,
        closing(
            open_file(path, name, selection.single, accept_unterminated=unterminated, shown=name_of(file), note=note)
        ) as snapshot,
    ):
        crossed = crossing(snapshot)
        offsets_by_group: dict[str, dict[TopicPartition, int]] = {}
        rejected: dict[TopicPartition, OffsetMgrError] = {}
        unread: dict[str, GroupOffsets] = {}
        dropped: Counter[str] = Counter()
        for entry in snapshot.read():
            if entry.errors or entry.error:
                unread[entry.group] = entry
            crossed.load_topics({tp.topic for tp in entry.offsets})
            offsets_by_group[entry.group] = {tp: committed.offset for tp, committed in entry.offsets.items()}
            for tp, committed in entry.offsets.items():
                if (error := crossed.recreation_error(tp, committed)) is not None:
                    rejected[tp] = error
            if selection.matches(entry.group):
                dropped.update(form_of(one.metadata) for one in entry.offsets.values() if one.metadata)
        if dropped:
            note(f"warning: a reset does not write {dropped_text(dropped)} that are in {file}; offsets import does")
        return ToOffsets(offsets_by_group, rejected, unread)
