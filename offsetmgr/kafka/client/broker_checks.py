"""Checks the brokers of a cluster for ``offsetmgr doctor``: reachability, login, release, controller, permissions and
clocks. Every check only reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.check_result import CheckResult, CheckStatus, clock_check, failed_check
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import AuthenticationFailed, OffsetMgrError
from offsetmgr.core.plurals import count_of
from offsetmgr.kafka.client.broker_clock import controller_clock, leader_clocks
from offsetmgr.kafka.client.broker_permissions import check_permissions
from offsetmgr.kafka.client.broker_settings import offsets_retention_ms
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.kafka.protocol.releases import REPORTS_CONFIGURATION, release

_OK: Final = CheckStatus.OK


class _Probe(NamedTuple):
    """The connection to one broker, or the error."""

    names: tuple[str, ...]
    """How the settings or the cluster name the broker: ``bootstrap``, ``broker 1``."""
    result: BrokerConnection | OffsetMgrError


async def check_brokers(
    client: Client, bootstrap: str, login: str, groups: Sequence[str], clock: Clock, deadline: float
) -> list[CheckResult]:
    """Checks each bootstrap address and each broker that the cluster lists. ``login`` describes the login for messages;
    ``groups`` are the groups whose permissions are checked (existing groups if empty)."""
    probes = await _probe(client, {at: ["bootstrap"] for at in client.addresses}, deadline)
    connection = next((one.result for one in probes.values() if isinstance(one.result, BrokerConnection)), None)
    results: list[CheckResult] = []
    if connection is None:
        return [*_broker_rows(probes), *_login_rows(probes, bootstrap, login)]
    answer = await connection.call(requests.metadata(), remaining(deadline))
    advertised = {at: number for number, at in requests.broker_addresses(answer).items()}
    more: dict[Address, list[str]] = {}
    for at, number in advertised.items():
        if at in probes:
            probes[at] = probes[at]._replace(names=(*probes[at].names, f"broker {number}"))
        else:
            more[at] = [f"broker {number}"]
    probes |= await _probe(client, more, deadline)
    results += _broker_rows(probes)
    results += _login_rows(probes, bootstrap, login)
    brokers = {at: one.result for at, one in probes.items() if at in advertised or len(probes) == 1}
    results.append(_release_row(bootstrap, brokers))
    results.append(await _controller_row(bootstrap, connection, deadline))
    try:
        results += await check_permissions(client, connection, bootstrap, groups, deadline)
    except OffsetMgrError as error:
        results.append(failed_check("permissions", bootstrap, error))
    results.append(await _retention_row(client, connection, bootstrap, deadline))
    results += await _clock_rows(client, connection, advertised, clock, deadline)
    return results


async def check_managers(client: Client, bootstrap: str, login: str, deadline: float) -> list[CheckResult]:
    """Checks the addresses of offset managers."""
    probes = await _probe(client, {at: ["offset manager"] for at in client.addresses}, deadline)
    rows = [_manager_row(row, probes[Address.parse(row.endpoint)].result) for row in _broker_rows(probes)]
    return [*rows, *_login_rows(probes, bootstrap, login)]


def _manager_row(row: CheckResult, result: BrokerConnection | OffsetMgrError) -> CheckResult:
    check = "offset manager"
    if not isinstance(result, BrokerConnection):
        return row._replace(check=check)
    needed = requests.MANAGER_API_VERSIONS.items()
    if lacking := [name for key, (name, version) in needed if not result.supports(key, version)]:
        why = f"does not support {', '.join(lacking)}, so it is not an offset manager"
        return CheckResult(check, row.endpoint, CheckStatus.FAILED, why, "name the address of an offset manager")
    return CheckResult(check, row.endpoint, _OK, "serves the requests of an offset manager")


async def _probe(client: Client, addresses: Mapping[Address, Sequence[str]], deadline: float) -> dict[Address, _Probe]:
    async def probe(at: Address, names: Sequence[str]) -> _Probe:
        try:
            return _Probe(tuple(names), await client.node(at).connection(deadline))
        except OffsetMgrError as error:
            return _Probe(tuple(names), error)

    found = await asyncio.gather(*(probe(at, names) for at, names in addresses.items()))
    return dict(zip(addresses, found, strict=True))


def _broker_rows(probes: Mapping[Address, _Probe]) -> list[CheckResult]:
    rows = []
    for at, (names, result) in probes.items():
        who = " and ".join(names)
        if isinstance(result, BrokerConnection):
            rows.append(CheckResult("broker", str(at), _OK, f"{who}; Kafka {release(result.versions)} or later"))
            continue
        row = failed_check("broker", str(at), result)
        fix = row.fix
        if names != ("bootstrap",) and not isinstance(result, AuthenticationFailed):
            fix = "start it, open the network to it, or correct advertised.listeners of this broker"
        rows.append(row._replace(detail=f"{who}; {row.detail}", fix=fix))
    return rows


def _login_rows(probes: Mapping[Address, _Probe], bootstrap: str, login: str) -> list[CheckResult]:
    """One row for the login: refused by some broker, or accepted by the brokers that respond."""
    refused = [p.result for p in probes.values() if isinstance(p.result, AuthenticationFailed)]
    accepted = sum(isinstance(p.result, BrokerConnection) for p in probes.values())
    if refused:
        row = failed_check("login", bootstrap, refused[0])
        return [row._replace(fix=row.fix or Advice("check the credentials in the {command_config} file"))]
    if not accepted:
        return [CheckResult("login", bootstrap, CheckStatus.UNKNOWN, f"{login}; no broker responds")]
    return [CheckResult("login", bootstrap, _OK, f"{login}; accepted by {count_of(accepted, 'server')}")]


def _release_row(bootstrap: str, brokers: Mapping[Address, BrokerConnection | OffsetMgrError]) -> CheckResult:
    releases = {at: release(b.versions) for at, b in brokers.items() if isinstance(b, BrokerConnection)}
    silent = len(brokers) - len(releases)
    names = sorted(set(releases.values()))
    if len(names) > 1:
        shown = "; ".join(f"{at} {name} or later" for at, name in releases.items())
        fix = "finish the upgrade: offsetmgr uses only what every broker supports (offsetmgr cluster describe)"
        return CheckResult("release", bootstrap, CheckStatus.WARNING, f"the brokers differ: {shown}", fix)
    if silent or not names:
        why = f"{count_of(silent, 'broker')} did not respond"
        return CheckResult("release", bootstrap, CheckStatus.UNKNOWN, why, "see the rows of the brokers")
    return CheckResult("release", bootstrap, _OK, f"{count_of(len(releases), 'broker')} with Kafka {names[0]} or later")


async def _controller_row(bootstrap: str, connection: BrokerConnection, deadline: float) -> CheckResult:
    quorum = ApiKey.DESCRIBE_QUORUM in connection.versions
    kind = "KRaft" if quorum else "ZooKeeper"
    message = {"topics": [], **requests.METADATA_OPTIONS}
    answer = await connection.call(Request(ApiKey.METADATA, 8, message), remaining(deadline))
    number = answer.get("controller_id")
    if number is None:
        return CheckResult(
            "controller", bootstrap, CheckStatus.UNKNOWN, f"{kind}; brokers before 0.10 do not report it"
        )
    if number < 0:
        fix = (
            "check that a majority of the controllers runs" if quorum else "check the brokers' connection to ZooKeeper"
        )
        return CheckResult("controller", bootstrap, CheckStatus.FAILED, f"{kind}; no broker is the controller", fix)
    # With KRaft, brokers report a random broker, to which clients send requests for the controller.
    detail = kind if quorum else f"{kind}; broker {number} is the controller"
    return CheckResult("controller", bootstrap, _OK, detail)


async def _retention_row(client: Client, connection: BrokerConnection, bootstrap: str, deadline: float) -> CheckResult:
    try:
        retention = await offsets_retention_ms(client, deadline)
    except OffsetMgrError as error:
        return failed_check("retention of offsets", bootstrap, error)
    if retention is None:
        fix = "allow DescribeConfigs on the cluster, or read offsets.retention.minutes in server.properties"
        why = "the broker does not report it, so plans cannot show when copied offsets expire"
        return CheckResult("retention of offsets", bootstrap, CheckStatus.UNKNOWN, why, fix)
    minutes = f"{retention // 60_000} minutes"
    if not REPORTS_CONFIGURATION.supported_by(connection.versions):
        fix = "read offsets.retention.minutes in server.properties"
        detail = f"{minutes}, the default of this release, which does not report its settings"
        return CheckResult("retention of offsets", bootstrap, CheckStatus.UNKNOWN, detail, fix)
    return CheckResult("retention of offsets", bootstrap, _OK, minutes)


async def _clock_rows(
    client: Client, connection: BrokerConnection, advertised: Mapping[Address, int], clock: Clock, deadline: float
) -> list[CheckResult]:
    rows = []
    try:
        if (controller := await controller_clock(connection, clock, deadline)) is not None:
            rows.append(clock_check(f"controller {controller[0]}", controller[1]))
        leaders = await leader_clocks(client, connection, clock, deadline)
    except OffsetMgrError as error:
        return [*rows, failed_check("clock", str(connection.address), error)]
    for at, number in advertised.items():
        if at in leaders:
            rows.append(clock_check(str(at), leaders[at]))
        elif controller is None or number != controller[0]:
            why = (
                "the broker reports no time: Kafka before 3.0 does not, nor without commits or permission to read them"
            )
            fix = "compare the clocks by another way, for example ntpq or chronyc on both machines"
            rows.append(CheckResult("clock", str(at), CheckStatus.UNKNOWN, why, fix))
    return rows
