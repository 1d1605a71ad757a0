"""The names that a shell completes: groups and topics of the selected cluster, contexts of the configuration file, and
ids of recorded operations.

A cluster has `LIMIT_S` seconds to answer. Names are cached for `CACHE_S` seconds. If the cluster does not answer, the
names of the last answer are completed, and the cluster is not contacted again until `CACHE_S` seconds have passed.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.config.contexts import Contexts
from offsetmgr.config.user_directories import user_directory
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
    if "--group" in options or "[GROUP]" in metavar or metavar == "GROUP":
        return _cached("groups", given, _groups)
    if "--topic" in options:
        return _cached("topics", given, _topics)
    if metavar == "ID":
        from offsetmgr.groups.operation_log import OperationLog

        return [one.id for one in OperationLog().operations()]
    return None


def printable(names: Iterable[str]) -> list[str]:
    """Returns the names that a completion script can read, sorted. A script reads a name from each line, up to a
    tab."""
    return sorted(name for name in names if name and name.isprintable())


def _groups(connect: ConnectFlags) -> Iterable[str]:
    store = connect.store()
    names = set(store.groups())
    with suppress(OffsetMgrError):
        for other in connect.other_stores(store, lambda _: None):
            names.update(other.groups())
    return names


def _topics(connect: ConnectFlags) -> Iterable[str]:
    cluster = connect.cluster_or_none()
    if cluster is not None:
        return cluster.topics()
    from offsetmgr.zookeeper.groups.topics import topic_names

    return topic_names(connect.zookeeper("completion"))


def _cached(kind: str, given: Mapping[str, Any], read: Callable[[ConnectFlags], Iterable[str]]) -> list[str]:
    """Returns the names from the cache if it is new enough, else from the cluster."""
    settings = SettingsLayer(
        bootstrap_server=given.get("bootstrap_server"),
        zookeeper=given.get("zookeeper"),
        store=given.get("store"),
        command_config=given.get("command_config"),
        timeout_ms=min(given.get("timeout") or _REQUEST_MS, _REQUEST_MS),
    )
    connect = ConnectFlags(settings, given.get("context"))
    resolved = connect.resolved
    selected = [kind, resolved.store, resolved.bootstrap_server, resolved.zookeeper, given.get("context")]
    selected += [settings.command_config, os.environ.get("OFFSETMGR_COMMAND_CONFIG")]
    key = hashlib.sha256(repr(selected).encode()).hexdigest()[:32]
    directory = user_directory(os.environ, "OFFSETMGR_CACHE", "XDG_CACHE_HOME", ".cache", "offsetmgr") / "completion"
    file = directory / f"{key}.txt"
    known, age_s = _load(file)
    if age_s < CACHE_S:
        return known
    found = _within_limit(lambda: list(read(connect)))
    names = known if found is None else printable(found)
    _save(file, names)
    return names


def _within_limit(read: Callable[[], list[str]]) -> list[str] | None:
    """Returns the result of ``read``, or None if it fails or takes longer than `LIMIT_S`."""
    results: list[list[str]] = []

    def run() -> None:
        with suppress(Exception):  # any failure means that no names are known
            results.append(read())

    # If a server does not answer, the process ends while the thread still waits.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return results[0] if results else None


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
