"""The use case of ``offsetmgr doctor``: checks every endpoint that the settings name, and this machine. It writes
nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from offsetmgr.app.connections import nothing_named
from offsetmgr.config.connection import ResolvedConnection
from offsetmgr.config.user_directories import check_state_directory
from offsetmgr.core.check_result import CheckResult, failed_check
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections


def doctor(connections: Connections, groups: Sequence[str] = ()) -> list[CheckResult]:
    """Runs all checks at the same time, and returns their results. ``groups`` are the groups whose permissions are
    checked; existing groups if empty. Raises `UsageError` if the settings name no server."""
    resolved = connections.resolved
    config, clock = resolved.connection, SystemClock()

    def check_server(host: str) -> list[CheckResult]:
        from offsetmgr.zookeeper.client.server_checks import check_server

        return check_server(host.strip(), config, clock)

    def check_access(connect: str) -> list[CheckResult]:
        from offsetmgr.zookeeper.check.access import check_access
        from offsetmgr.zookeeper.client.session import ZookeeperSession

        with ZookeeperSession(connect, config) as session:
            return check_access(session, config, groups)

    def check_cluster(bootstrap: str, manager: bool) -> list[CheckResult]:
        from offsetmgr.kafka.cluster import check_cluster

        try:
            return check_cluster(bootstrap, config, groups, clock, manager=manager)
        except OffsetMgrError as error:
            return [failed_check("broker", bootstrap, error)]

    zookeepers, clusters = _endpoints(resolved)
    if not zookeepers and not clusters:
        raise nothing_named("no server given")
    checks: list[Callable[[], list[CheckResult]]] = []
    for connect in zookeepers:
        checks += [partial(check_server, host) for host in connect.partition("/")[0].split(",")]
        checks.append(partial(check_access, connect))
    checks += [partial(check_cluster, at, manager) for at, manager in clusters]
    return _run_all([*checks, check_state_directory])


def _endpoints(resolved: ResolvedConnection) -> tuple[list[str], list[tuple[str, bool]]]:
    """Returns the connect strings of ZooKeeper, and the bootstrap addresses of clusters; the second value of each is
    whether they are offset managers. Brokers are first."""
    from offsetmgr.stores.uri import bootstrap_of, parse_uri, part_uris, zookeeper_of

    selected, config = resolved.store, resolved.connection
    uris = () if selected is None else part_uris(selected, config)
    zookeepers = [resolved.zookeeper, *(zookeeper_of(uri, config) for uri in uris)]
    clusters = [(resolved.bootstrap_server, False)]
    clusters += [(bootstrap_of(uri, config), parse_uri(uri).kind == "manager") for uri in uris]
    found = [(at, manager) for at, manager in dict.fromkeys(clusters) if at]
    return [at for at in dict.fromkeys(zookeepers) if at], sorted(found, key=lambda one: one[1])


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
