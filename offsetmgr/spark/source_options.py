"""Parses the options that offsetmgr's data sources share: addresses, timeouts, credentials, lists of groups.

Spark sends options to the executors and shows them in query plans. Therefore credentials are never options: they are in
a ``.properties`` file. The option ``commandConfig`` is the path of this file, which must exist on every machine (data
rule "secrets stay secret"). Spark passes the names of options in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from offsetmgr.config.connection import ConnectionConfig, with_properties
from offsetmgr.core.errors import UsageError
from offsetmgr.core.selection import is_pattern

BOOTSTRAP: Final = "kafka.bootstrap.servers"
"""The option of Spark's own Kafka source."""
_SHARED: Final = ("commandConfig", "timeout", "tasks")


def invalid(source: str, why: str, hint: str = "") -> UsageError:
    """Returns the error of a table whose options or columns are not valid."""
    return UsageError(f"format({source!r})", why, hint)


def checked(source: str, options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Returns the options by their names in lower case. Raises `UsageError` for an unknown option, which is probably
    misspelt. ``path`` is always a known option, because it is the argument of ``load(...)`` and ``save(...)``."""
    all_options = [*known, *_SHARED]
    lowercase = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(lowercase.keys() - {name.lower() for name in all_options} - {"path"}):
        raise invalid(source, f"there is no option {unknown[0]!r}", f"the options are {', '.join(all_options)}")
    return lowercase


def required(source: str, options: Mapping[str, str], name: str, example: str) -> str:
    """Returns the value of an option. Raises `UsageError` if the option is missing or empty."""
    value = options.get(name.lower())
    if not value:
        raise invalid(source, f"option {name!r} is missing", f'for example .option("{name}", "{example}")')
    return value


def number(source: str, options: Mapping[str, str], name: str, default: int) -> int:
    """Returns the value of an option that is a number above 0. Raises `UsageError` for any other value."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise invalid(source, f"option {name!r} is {text!r}, which is not a number above 0")
    return int(text)


def connection(source: str, options: Mapping[str, str]) -> ConnectionConfig:
    """Returns the connection settings, from the ``.properties`` file on the machine on which the function runs. Raises
    `ConfigError`, `UsageError`."""
    config = ConnectionConfig()
    if path := options.get("commandconfig"):
        config = with_properties(config, path)
    return replace(config, timeout_ms=number(source, options, "timeout", config.timeout_ms))


def groups(source: str, options: Mapping[str, str]) -> list[str]:
    """Returns the names in the option ``group``, which are separated by commas; an empty list means all groups. Raises
    `UsageError` for a pattern."""
    names = group_patterns(source, options)
    if glob := next(filter(is_pattern, names), None):
        raise invalid(source, f"group {glob!r} is a pattern", "give the names of groups, or filter the table")
    return names


def group_patterns(source: str, options: Mapping[str, str]) -> list[str]:
    """Returns the names and globs in the option ``group``; an empty list without the option. Raises `UsageError` if the
    option is empty, because that must not mean all groups."""
    names = listed(options.get("group"))
    if not names and "group" in options:
        raise invalid(source, "option 'group' is empty", "leave it out to read all groups")
    return names


def listed(text: str | None) -> list[str]:
    """Splits a list that is separated by commas. Returns an empty list for None and for an empty text."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def dotted(settings: Mapping[str, object]) -> dict[str, Any]:
    """Returns the settings of a function's arguments: with a dot for each two underscores of their names."""
    return {name.replace("__", "."): value for name, value in settings.items()}
