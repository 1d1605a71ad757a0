"""The names that a shell completes, for the options and arguments of commands.

The servers have `LIMIT_S` seconds to answer. Names are cached for `CACHE_S` seconds. If a server does not answer, the
names of the last answer are completed too, and no server is contacted again until `CACHE_S` seconds have passed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from offsetmgr.app import completion
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.config.contexts import Contexts
from offsetmgr.config.user_directories import downloads_directory
from offsetmgr.core.atomic_file import write_atomically
from offsetmgr.core.errors import OffsetMgrError

LIMIT_S: Final = 1.5
CACHE_S: Final = 30.0
_REQUEST_MS: Final = 1_000


def names_for(parameter: Any, given: Mapping[str, Any]) -> Iterable[str] | None:
    """Returns the names that the option or argument ``parameter`` accepts, or None if it accepts no names of groups,
    topics, contexts or operations.

    ``given`` maps the parameters that are already on the command line to their values.
    """
    options, metavar = set(parameter.opts), parameter.metavar or ""
    if "--context" in options or metavar == "CONTEXT":
        return printable(Contexts.read().layers)
    if {"--group", "--exclude-group"} & options or "[GROUP]" in metavar or metavar == "GROUP":
        if isinstance(plan := given.get("plan_path") or given.get("plan"), str):
            return printable(completion.groups_of_plan(Path(plan), LIMIT_S))
        return _cached("groups", given, completion.groups)
    if "--topic" in options:
        return _cached("topics", given, completion.topics)
    return completion.operations() if metavar == "ID" else None


def printable(names: Iterable[str]) -> list[str]:
    """Returns the names that a completion script can read, sorted. A script reads a name from each line, up to a
    tab."""
    return sorted(name for name in names if name and name.isprintable())


def _cached(
    kind: str,
    given: Mapping[str, Any],
    read: Callable[[Callable[[], ConnectFlags], float], completion.Names],
) -> list[str]:
    """Returns the names from the cache if it is new enough, else from the cluster."""
    named = {name: given.get(name) for name in ("bootstrap_server", "zookeeper", "store", "command_config")}
    settings = SettingsLayer(**named, timeout_ms=min(given.get("timeout") or _REQUEST_MS, _REQUEST_MS))
    connect = partial(ConnectFlags, settings, given.get("context"))
    resolved = connect().resolved
    selected = [kind, resolved.store, resolved.bootstrap_server, resolved.zookeeper, given.get("context")]
    selected += [settings.command_config, os.environ.get("OFFSETMGR_COMMAND_CONFIG")]
    key = hashlib.sha256(repr(selected).encode()).hexdigest()[:32]
    file = downloads_directory() / "completion" / f"{key}.txt"
    known, age_s = _load(file)
    if age_s < CACHE_S:
        return known
    names = completion.Names()
    with suppress(OffsetMgrError):  # no store is selected
        names = read(connect, LIMIT_S)
    shown = printable(names.found if names.complete else {*names.found, *known})
    _save(file, shown)
    return shown


def _load(file: Path) -> tuple[list[str], float]:
    """Returns the cached names and their age in seconds."""
    try:
        age_s = time.time() - file.stat().st_mtime
        names = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return [], float("inf")
    return (names, age_s) if age_s >= 0 else ([], float("inf"))


def _save(file: Path, names: list[str]) -> None:
    """Writes the cache. Does nothing if the cache cannot be written."""
    content = "".join(f"{name}\n" for name in names).encode()
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, lambda stream: stream.write(content), overwrite=True)
