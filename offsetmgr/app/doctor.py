"""The use case of ``offsetmgr doctor``: checks every endpoint that the settings name, the phases of groups, and this
machine. It writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from offsetmgr.app.connections import Connections, nothing_named
from offsetmgr.config.connection import ResolvedConnection
from offsetmgr.config.user_directories import check_state_directory
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.batches import in_threads
from offsetmgr.core.check_result import CheckResult, CheckStatus, failed_check
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.migration.location import GroupLocation

_Result = TypeVar("_Result")


def doctor(connections: Connections, groups: Sequence[str] = ()) -> list[CheckResult]:
    """Runs all checks at the same time, and returns their results. ``groups`` are the groups whose permissions and
    phases are checked. If there are none: the permissions on some existing groups, and the phases of the groups of
    unfinished migrations. Raises `UsageError` if the settings name no server."""
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
    checks: list[Callable[[], Iterable[CheckResult]]] = []
    for connect in zookeepers:
        checks += [partial(check_server, host) for host in connect.partition("/")[0].split(",")]
        checks.append(partial(check_access, connect))
    checks += [partial(check_cluster, at, manager) for at, manager in clusters]
    checks += [partial(_check_phases, connections, groups), check_state_directory]
    return [row for rows in _run_all(checks) for row in rows]


_MOST_GROUPS: Final = 500
_MOST_NAMED: Final = 10


def _check_phases(connections: Connections, groups: Sequence[str]) -> list[CheckResult]:
    """Locates the groups, if they may live in several stores: without ``groups``, those of the unfinished migrations
    that this account has recorded, of which at most `_MOST_NAMED` are named. At most `_MOST_GROUPS` are located. The
    thread of this check opens and closes its own connections."""
    try:
        with Connections(connections.resolved, connections.ui) as own:
            if len(stores := own.configured_stores()) < 2:
                return []
            _run_all([own.opened(uri).log_origin for uri in stores.values()])  # one timeout, not one for each store
            locator = own.group_locator()
            known = locator.groups()[0] if groups else ()
            where = ", ".join(stores.values())
            names = GroupSelection(groups).within(known, where, unlisted=True) if groups else locator.unfinished()
            rows = [_phase_result(one, connections) for one in locator.locate(names[:_MOST_GROUPS])]
    except OffsetMgrError as error:
        return [CheckResult("phases", "groups", CheckStatus.UNKNOWN, f"not read: {error}", error.hint)]
    is_cut, lost = len(rows) < len(names), locator.unread_plans
    if groups and not is_cut and not lost:
        return rows
    unsafe = [one for one in rows if one.status is not CheckStatus.OK]
    count = f"{f'{len(rows)} of ' if is_cut else ''}{count_of(len(names), 'group')}"
    count += "" if groups else " in unfinished migrations of this account"
    count += f", {count_of(len(unsafe), 'warning')}" if unsafe else ""
    count += f" (not used as evidence: {list_of(map(str, lost), 1)})" if lost else ""
    detail = Advice("{}; {} locates all groups", count, connections.invocation("groups where", all_groups=True))
    status = CheckStatus.UNKNOWN if is_cut or lost else CheckStatus.OK
    return [*(rows if groups else unsafe[:_MOST_NAMED]), CheckResult("phases", "groups", status, detail)]


def _phase_result(one: GroupLocation, connections: Connections) -> CheckResult:
    """Returns the phase of a group, with a fix if it is unknown or dual, or if a migration of the group has begun."""
    step = one.next
    detail = Advice("{}: {}{}{}", one.evidence.known_phase, one.why, "; " if step.note else "", step.note)
    if not any(store.may_have_group for store in one.sample.stores):
        return CheckResult("phase", f"group {one.name}", CheckStatus.UNKNOWN, one.why)
    if step.call is None:
        status, fix = (CheckStatus.UNKNOWN, step.why) if one.phase == "unknown" else (CheckStatus.OK, "")
    elif one.sample.plan is None and one.phase not in ("unknown", "dual"):
        status, fix = CheckStatus.OK, ""
    else:
        status, fix = CheckStatus.WARNING, step.command_line(Invocation("", (), connections.given).options())
    return CheckResult("phase", f"group {one.name}", status, detail, fix)


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


def _run_all(checks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Runs the checks at the same time. Returns their results, or raises the error of the first check that failed, when
    all have ended."""
    from concurrent.futures import wait

    found = in_threads(checks)
    wait(found)
    return [one.result() for one in found]
