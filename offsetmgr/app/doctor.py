"""`Doctor`: checks every endpoint that the settings name, and this machine. It writes nothing."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection, state_directory
from offsetmgr.core.check_result import CheckResult, CheckStatus, failed_check
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.stores.pair_uri import inner_uris
from offsetmgr.stores.uri import bootstrap_of, parse_uri, zookeeper_of

_MIB: Final = 1024 * 1024
_LOW_DISK_BYTES: Final = 1024 * _MIB
"""Below this free space, the check warns."""
_FULL_DISK_BYTES: Final = 50 * _MIB
"""Below this free space, the check fails."""
_MANAGER: Final = "manager"


class Doctor:
    """The checks of one cluster. ``groups`` are the groups whose permissions are checked; existing groups if empty."""

    def __init__(self, resolved: ResolvedConnection, groups: Sequence[str] = ()) -> None:
        self._config: ConnectionConfig = resolved.connection
        self._resolved = resolved
        self._groups = groups
        self._clock = SystemClock()

    def run(self) -> list[CheckResult]:
        """Runs all checks at the same time, and returns their results. Raises `UsageError` if the settings name no
        server."""
        zookeepers, clusters, managers = self._endpoints()
        if not zookeepers and not clusters and not managers:
            raise UsageError(
                "no server given",
                "none of --store, --zookeeper, --bootstrap-server, a context or OFFSETMGR_* names one",
                "as in --bootstrap-server HOST:9092, or --zookeeper HOST:2181",
            )
        checks: list[Callable[[], list[CheckResult]]] = []
        for connect in zookeepers:
            hosts, _, _ = connect.partition("/")
            checks += [self._server(host) for host in hosts.split(",")]
            checks.append(self._access(connect))
        checks += [self._cluster(bootstrap, "kafka") for bootstrap in clusters]
        checks += [self._cluster(bootstrap, _MANAGER) for bootstrap in managers]
        checks.append(check_this_machine)
        return _run_all(checks)

    def _endpoints(self) -> tuple[list[str], list[str], list[str]]:
        """Returns the connect strings of ZooKeeper, and the bootstrap addresses of brokers and of offset managers."""
        uris: list[str] = []
        if (selected := self._resolved.store) is not None:
            pair = parse_uri(selected).kind == "dual"
            uris += inner_uris(selected, self._config) if pair else [selected]
        zookeepers = [self._resolved.zookeeper] if self._resolved.zookeeper else []
        clusters = [self._resolved.bootstrap_server] if self._resolved.bootstrap_server else []
        managers: list[str] = []
        for uri in uris:
            if (connect := zookeeper_of(uri, self._config)) is not None:
                zookeepers.append(connect)
            if (bootstrap := bootstrap_of(uri, self._config)) is not None:
                (managers if parse_uri(uri).kind == _MANAGER else clusters).append(bootstrap)
        return list(dict.fromkeys(zookeepers)), list(dict.fromkeys(clusters)), list(dict.fromkeys(managers))

    def _server(self, host: str) -> Callable[[], list[CheckResult]]:
        from offsetmgr.zookeeper.client.server_checks import check_server

        return lambda: check_server(host.strip(), self._config, self._clock)

    def _access(self, connect: str) -> Callable[[], list[CheckResult]]:
        from offsetmgr.zookeeper.check.access import check_access
        from offsetmgr.zookeeper.client.session import ZookeeperSession

        def check() -> list[CheckResult]:
            with ZookeeperSession(connect, self._config) as session:
                return check_access(session, self._config, self._groups)

        return check

    def _cluster(self, bootstrap: str, kind: str) -> Callable[[], list[CheckResult]]:
        def check() -> list[CheckResult]:
            from offsetmgr.kafka.cluster.cluster_checks import check_cluster

            try:
                return check_cluster(bootstrap, self._config, self._groups, self._clock, manager=kind == _MANAGER)
            except OffsetMgrError as error:
                return [failed_check("broker", bootstrap, error)]

        return check


def _run_all(checks: Sequence[Callable[[], list[CheckResult]]]) -> list[CheckResult]:
    """Runs each check in a thread of its own. The threads are daemons, so that Ctrl-C does not wait for a server that
    does not respond."""
    found: dict[int, list[CheckResult]] = {}
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            found[number] = checks[number]()
        except BaseException as error:  # the main thread raises it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(checks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [row for number in range(len(checks)) for row in found[number]]


def check_this_machine() -> list[CheckResult]:
    """Checks the state directory, which gets the before-images and the operation log, and the disk space there."""
    directory = state_directory()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return list(_local_rows(directory, existing))


def _local_rows(directory: Path, existing: Path) -> Iterator[CheckResult]:
    fix = "change its owner or permissions, or set XDG_STATE_HOME to a writable directory"
    if not existing.is_dir():
        why = f"{existing} is not a directory"
        yield CheckResult("state directory", str(directory), CheckStatus.FAILED, why, fix)
    elif not os.access(existing, os.W_OK | os.X_OK):
        why = f"{existing} is not writable, so no edit could save its before-image"
        yield CheckResult("state directory", str(directory), CheckStatus.FAILED, why, fix)
    else:
        detail = "writable" if existing == directory else f"the first edit creates it in {existing}"
        yield CheckResult("state directory", str(directory), CheckStatus.OK, detail)
    free = shutil.disk_usage(existing).free
    shown = f"{free // _MIB:,} MiB free"
    if free >= _LOW_DISK_BYTES:
        yield CheckResult("disk space", str(directory), CheckStatus.OK, shown)
        return
    status = CheckStatus.FAILED if free < _FULL_DISK_BYTES else CheckStatus.WARNING
    why = f"{shown}; before-images, journals and exports of many groups need more"
    yield CheckResult("disk space", str(directory), status, why, "free space, or set XDG_STATE_HOME to another disk")
