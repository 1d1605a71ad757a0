"""Options of the command line whose values are durations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import typer

from offsetmgr.core.durations import parse_duration
from offsetmgr.core.errors import UsageError


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


def seconds_option(option: str, help: str, *, least: float = 0, metavar: str = "SECONDS", **others: Any) -> Any:
    """An option whose value is a number of seconds, or a duration such as ``5m``."""
    parse: Callable[[Any], float] = lambda value: parse_seconds(str(value), option, least)  # noqa: E731
    return typer.Option(option, metavar=metavar, parser=parse, help=help, **others)
