"""The options that our data sources share: addresses, timeouts, credentials, lists of groups.

Options travel to the executors and appear in query plans, so credentials are never options: they are in the
``.properties`` file that ``commandConfig`` names, which must exist on every machine (data rule "secrets stay secret").
Spark passes option names in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from offsetmgr.config.connection import ConnectionConfig, with_properties
from offsetmgr.core.errors import UsageError
from offsetmgr.groups.selection import is_pattern

BOOTSTRAP: Final = "kafka.bootstrap.servers"
"""The option of Spark's own Kafka source."""
_SHARED: Final = ("commandConfig", "timeout", "tasks")


def checked(source: str, options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """The options by their names in lower case. Raises `UsageError` for an unknown one, since a misspelt option would
    be ignored silently. (``path`` is the argument of ``load(...)`` and ``save(...)``.)"""
    there = [*known, *_SHARED]
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(given.keys() - {name.lower() for name in there} - {"path"}):
        raise UsageError(f"format({source!r})", f"there is no option {unknown[0]!r}", f"known are {', '.join(there)}")
    return given


def required(source: str, options: Mapping[str, str], name: str, example: str) -> str:
    """Raises `UsageError` if it is missing."""
    value = options.get(name.lower())
    if not value:
        raise UsageError(f"format({source!r})", f"option {name!r} is missing", f'as in .option("{name}", "{example}")')
    return value


def number(source: str, options: Mapping[str, str], name: str, default: int) -> int:
    """A number above 0. Raises `UsageError`."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"format({source!r})", f"option {name!r} is {text!r}, which is no number above 0")
    return int(text)


def connection(source: str, options: Mapping[str, str]) -> ConnectionConfig:
    """Read on the machine that needs it. Raises `ConfigError`, `UsageError`."""
    config = ConnectionConfig()
    if path := options.get("commandconfig"):
        config = with_properties(config, path)
    return replace(config, timeout_ms=number(source, options, "timeout", config.timeout_ms))


def groups(source: str, options: Mapping[str, str]) -> list[str]:
    """Option ``group``: names of groups separated by commas; empty means all. Raises `UsageError` for a pattern."""
    names = listed(options.get("group"))
    if glob := next(filter(is_pattern, names), None):
        raise UsageError(f"format({source!r})", f"group {glob!r} is a pattern", "name groups, or filter the table")
    return names


def listed(text: str | None) -> list[str]:
    """A list separated by commas; empty means everything."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
