"""Durations (ISO 8601, ``1h30m``, numbers of milliseconds) and times."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import UsageError

_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<d>[-+]?\d{1,18})D)?"
    r"(?:T(?=[-+\d])(?:(?P<h>[-+]?\d{1,18})H)?(?:(?P<m>[-+]?\d{1,18})M)?(?:(?P<s>[-+]?\d{1,18})(?:[.,](?P<f>\d{0,9}))?S)?)?",
    re.IGNORECASE,
)
_SHORT_DURATION: Final = re.compile(
    r"(?P<d>\d{1,18}d)?(?P<t>(?:\d{1,18}h)?(?:\d{1,18}m)?(?:\d{1,18}(?:[.]\d{1,9})?s)?)"
)
_DATE_TIME: Final = re.compile(r"(?P<date>\d{4}-\d{2}-\d{2})(?: +|T)(?P<hour>\d{1,2})(?=:)")
_DAY_TIME: Final = re.compile(
    r"(?P<day>today|yesterday)(?: +(?P<time>\d{1,2}:\d{2}(?::\d{2})?) *(?P<zone>Z|[+-]\d{2}:?\d{2})?)?", re.IGNORECASE
)
_MILLISECOND: Final = timedelta(milliseconds=1)


def parse_duration(text: str, option: str = Advice("{by_duration}")) -> int:
    """Converts an ISO-8601 duration of days, hours, minutes and seconds to milliseconds, like
    ``java.time.Duration.parse``. Also accepts the form ``1d2h30m15s``."""
    short = _SHORT_DURATION.fullmatch(text.strip())
    iso = f"P{short['d'] or ''}{'T' if short['t'] else ''}{short['t']}" if short is not None else text.strip()
    match = _DURATION.fullmatch(iso)
    if match is None or not any(match[part] for part in "dhms"):
        raise UsageError(option, f"{text!r} is not of the form PnDTnHnMnS or 1d2h30m", "as in 2h30m, PT2H30M, P1D, 90s")
    seconds = int(match["s"] or 0)
    total = int(match["d"] or 0) * 86_400 + int(match["h"] or 0) * 3_600 + int(match["m"] or 0) * 60 + seconds
    fraction = int((match["f"] or "0").ljust(3, "0")[:3])
    milliseconds = total * 1000 + (-fraction if (match["s"] or "").startswith("-") else fraction)
    return -milliseconds if match["sign"] == "-" else milliseconds


def parse_milliseconds(text: str, option: str) -> int:
    """Converts a number of milliseconds, or a duration such as ``2s``, to milliseconds. Raises `UsageError` if it is
    not positive."""
    if text.isascii() and text.isdecimal():
        milliseconds = int(text)
    else:
        try:
            milliseconds = parse_duration(text, option)
        except UsageError:
            why = f"{text!r} is not a number of milliseconds or a duration"
            raise UsageError(option, why, "as in 2000, 2s, 1m30s") from None
    if milliseconds < 1:
        raise UsageError(option, f"{text} is not allowed", "the least value is 1 ms")
    return milliseconds


def parse_seconds(text: str, option: str, least: float = 0) -> float:
    """Converts a number of seconds, or a duration such as ``5m``, to seconds. Raises `UsageError` if it is less than
    ``least``."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parse_duration(text, option) / 1000
        except UsageError:
            why = f"{text!r} is not a number of seconds or a duration"
            raise UsageError(option, why, "as in 30, 0.5, 90s, 5m, 1h30m") from None
    if not least <= seconds < math.inf:
        raise UsageError(option, f"{text} is not allowed", f"the least value is {least:g} s")
    return seconds


def utc_text(at_ms: int) -> str:
    """Returns a time in milliseconds since 1970 as ``YYYY-MM-DDTHH:mm:SS.sssZ``. Raises `ValueError`, `OverflowError`
    or `OSError` if Python's calendar cannot represent it."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def parse_datetime(text: str, option: str = Advice("{to_datetime}")) -> int:
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
