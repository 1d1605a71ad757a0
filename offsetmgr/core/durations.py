"""Durations: ISO 8601, ``1h30m``, and numbers of milliseconds."""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.core.errors import UsageError

_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<d>[-+]?\d{1,18})D)?"
    r"(?:T(?=[-+\d])(?:(?P<h>[-+]?\d{1,18})H)?(?:(?P<m>[-+]?\d{1,18})M)?(?:(?P<s>[-+]?\d{1,18})(?:[.,](?P<f>\d{0,9}))?S)?)?",
    re.IGNORECASE,
)
_SHORT_DURATION: Final = re.compile(
    r"(?P<d>\d{1,18}d)?(?P<t>(?:\d{1,18}h)?(?:\d{1,18}m)?(?:\d{1,18}(?:[.]\d{1,9})?s)?)"
)


def parse_duration(text: str, option: str = "--by-duration") -> int:
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
