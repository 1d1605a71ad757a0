"""The offset manager: runs it, and reads the state and the offsets of running managers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.config.manager_settings import ManagerSettings
    from offsetmgr.kafka.client.managers import DumpedOffset, ManagersStatus


class ShardDump(NamedTuple):
    """The offsets of shards. ``unreadable`` maps shards to the number of records that their owner cannot decode; it is
    complete after the last of the ``offsets``."""

    offsets: Iterator[DumpedOffset]
    unreadable: Mapping[int, int]


def serve(connections: Connections, settings: ManagerSettings, *, log_format: str | None = None) -> None:
    """Runs a manager with the brokers of ``connections`` until SIGINT or SIGTERM. The manager then hands its shards
    over to other managers. Call it in the main thread.

    ``log_format`` is ``text`` or ``json``: the manager then logs its events to stderr; None leaves the program's
    logging as it is. Raises `UsageError` for settings that contradict each other, and `OffsetMgrError` if the manager
    cannot start.
    """
    from offsetmgr.server.logs import start_logging
    from offsetmgr.server.manager_process import run_manager

    bootstrap = connections.resolved.bootstrap_server
    settings.check()
    if bootstrap is None:
        raise UsageError("manager serve", "no brokers are known", Advice("add {bootstrap_server} HOST:PORT"))
    if log_format is not None:
        start_logging(sys.stderr, log_format)
    run_manager(replace(settings, bootstrap=bootstrap, connection=connections.resolved.connection))


def status(connections: Connections) -> ManagersStatus:
    """Returns the state of all managers of the selected manager's topic. The selected server (the store
    ``manager://...`` or the bootstrap server) is any of them. Raises `UsageError` if none is selected, and
    `OffsetMgrError` if it does not answer."""
    from offsetmgr.kafka.client.managers import Managers, managers_status

    with Managers(_address(connections), connections.resolved.connection) as running:
        return managers_status(running.reports())


def dump(connections: Connections, shard: Sequence[int]) -> ShardDump:
    """Returns the offsets that the owners of the shards hold in memory, by group, topic and partition. The offsets are
    requested as they are read. Raises `UsageError` if no manager is selected or a shard does not exist, and
    `NotCoordinator` if no manager owns a shard."""
    unreadable: dict[int, int] = {}
    return ShardDump(_dumped(connections, shard, unreadable), unreadable)


def _dumped(connections: Connections, shards: Sequence[int], unreadable: dict[int, int]) -> Iterator[DumpedOffset]:
    from offsetmgr.kafka.client.managers import DumpedOffset, Managers, unreadable_records

    with Managers(_address(connections), connections.resolved.connection) as running:
        for number in shards:
            for row in running.dump(number):
                yield DumpedOffset(*(row[name] for name in DumpedOffset._fields))
        # The records are counted after the dump, because the dump decodes every value.
        for number in shards:
            if (owned := running.owned_shard(number)) and (count := unreadable_records(owned)):
                unreadable[number] = count


def _address(connections: Connections) -> str:
    store = connections.resolved.store
    if store is not None and store.startswith("manager://"):
        return store.removeprefix("manager://").split("?")[0]
    if connections.resolved.bootstrap_server is None:
        hint = Advice("add {bootstrap_server} HOST:PORT of a manager")
        raise UsageError("manager", "no address is given", hint)
    return connections.resolved.bootstrap_server
