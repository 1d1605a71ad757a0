"""The names that a shell completes: groups and topics of the selected cluster, groups of a migration plan, contexts of
the configuration file, and ids of recorded operations.

The servers have `LIMIT_S` seconds to answer. Names are cached for `CACHE_S` seconds. If a server does not answer, the
names of the last answer are completed too, and no server is contacted again until `CACHE_S` seconds have passed.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.config.contexts import Contexts
from offsetmgr.config.user_directories import user_directory
from offsetmgr.core.atomic_file import write_atomically
from offsetmgr.core.errors import OffsetMgrError

LIMIT_S: Final = 1.5
CACHE_S: Final = 30.0
_REQUEST_MS: Final = 1_000
T = TypeVar("T")
_Names: TypeAlias = tuple[set[str], bool]
"""Names, and whether all servers responded."""


def names_for(parameter: Any, given: Mapping[str, Any]) -> Iterable[str] | None:
    """Returns the names that the option or argument ``parameter`` accepts, or None if it accepts no names of groups,
    topics, contexts or operations.

    ``given`` maps the parameters that are already on the command line to their values.
    """
    options, metavar = set(parameter.opts), parameter.metavar or ""
    if "--context" in options or metavar == "CONTEXT":
        return printable(Contexts.read().layers)
    if {"--group", "--exclude-group"} & options or "[GROUP]" in metavar or metavar == "GROUP":
        plan = given.get("plan_path") or given.get("plan")
        return _groups_of_plan(Path(plan)) if isinstance(plan, str) else _cached("groups", given, _groups)
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


def _groups_of_plan(path: Path) -> list[str]:
    """Returns the groups of a plan file, from which the command selects. Returns none if the file cannot be read."""
    from offsetmgr.migration.plan_file import PlanFile

    found = _within_limit([lambda: [plan.group for plan in PlanFile(path).groups()]])[0]
    return printable(found or ())


def _groups(connect: Callable[[], ConnectFlags]) -> _Names:
    """Reads the groups of all configured stores at the same time, so that a dead store does not delay the others.
    Leaves out the groups of a store that is known to belong to another cluster than the selected store."""
    from offsetmgr.core.log_origin import LogOrigin, compare_origins

    selected, *others = _store_uris(connect())

    def read(uri: str) -> tuple[list[str], LogOrigin | None]:
        store = connect().store(uri)
        names, origin = list(store.groups()), None
        if others:
            with suppress(OffsetMgrError):
                origin = store.log_origin()
        return names, origin

    found = _within_limit([partial(read, uri) for uri in (selected, *others)])
    names: set[str] = set()
    own = found[0][1] if found[0] is not None else None
    for number, one in enumerate(found):
        if one is None:
            continue
        if number and own is not None and one[1] is not None and not compare_origins(own, one[1]).keeps_epochs:
            continue
        names.update(one[0])
    return names, None not in found


def _store_uris(connect: ConnectFlags) -> list[str]:
    """Returns the URI of the selected store, followed by those of the other configured stores to which its groups may
    commit."""
    selected, configured = connect.uri, connect.configured_stores().values()
    has_others = selected in configured and "layout=" not in selected  # groups of Storm and of Kafka 0.7 have one store
    return [selected, *(uri for uri in configured if has_others and uri != selected)]


def _topics(connect: Callable[[], ConnectFlags]) -> _Names:
    def read() -> list[str]:
        cluster = connect().cluster_or_none()
        if cluster is not None:
            return list(cluster.topics())
        from offsetmgr.zookeeper.groups.topics import topic_names

        return list(topic_names(connect().zookeeper("completion")))

    found = _within_limit([read])[0]
    return set(found or ()), found is not None


def _cached(kind: str, given: Mapping[str, Any], read: Callable[[Callable[[], ConnectFlags]], _Names]) -> list[str]:
    """Returns the names from the cache if it is new enough, else from the cluster."""
    settings = SettingsLayer(
        bootstrap_server=given.get("bootstrap_server"),
        zookeeper=given.get("zookeeper"),
        store=given.get("store"),
        command_config=given.get("command_config"),
        timeout_ms=min(given.get("timeout") or _REQUEST_MS, _REQUEST_MS),
    )
    connect = partial(ConnectFlags, settings, given.get("context"))
    resolved = connect().resolved
    selected = [kind, resolved.store, resolved.bootstrap_server, resolved.zookeeper, given.get("context")]
    selected += [settings.command_config, os.environ.get("OFFSETMGR_COMMAND_CONFIG")]
    key = hashlib.sha256(repr(selected).encode()).hexdigest()[:32]
    directory = user_directory(os.environ, "OFFSETMGR_CACHE", "XDG_CACHE_HOME", ".cache", "offsetmgr") / "completion"
    file = directory / f"{key}.txt"
    known, age_s = _load(file)
    if age_s < CACHE_S:
        return known
    found: _Names = set(), False
    with suppress(OffsetMgrError):  # no store is selected
        found = read(connect)
    names, complete = found
    shown = printable(names if complete else names.union(known))
    _save(file, shown)
    return shown


def _within_limit(reads: Sequence[Callable[[], T]]) -> list[T | None]:
    """Calls the functions at the same time. Returns the result of each, or None if it fails or takes longer than
    `LIMIT_S`."""
    results: list[T | None] = [None] * len(reads)

    def run(number: int) -> None:
        with suppress(Exception):  # any failure means that no names are known
            results[number] = reads[number]()

    # If a server does not answer, the process ends while its thread still waits.
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(reads))]
    end = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    return list(results)


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
