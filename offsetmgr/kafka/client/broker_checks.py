"""Checks the brokers of a cluster for ``offsetmgr doctor``: reachability, login, release, controller, permissions and
clocks. Every check only reads."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import by_key
from offsetmgr.core.check_result import CheckResult, CheckStatus, clock_check, failed_check
from offsetmgr.core.clock import Clock, ClockDifference, best_difference
from offsetmgr.core.errors import AuthenticationFailed, ErrorCode, NotAuthorized, OffsetMgrError, TopicNotAuthorized
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.fetch import MAX_TIMESTAMP_VERSION, newest_timestamp
from offsetmgr.kafka.client.topics import offsets_retention_ms
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import REPORTS_CONFIGURATION, ApiKey, release
from offsetmgr.kafka.protocol.requests import METADATA_OPTIONS, OFFSETS_TOPIC, FetchedGroup
from offsetmgr.kafka.protocol.schema_codec import Message

# Checks which operations the brokers authorize for the principal (KIP-430, Kafka 2.3 and later).

MAX_GROUPS: Final = 20
"""The number of groups whose permissions are checked if the caller names no groups."""
_METADATA_VERSION: Final = 8
_READ: Final = 3
_OPERATIONS: Final = {_READ: "Read", 4: "Write", 5: "Create", 6: "Delete", 8: "Describe", 10: "DescribeConfigs"}
"""The operations that brokers report, by their bit. Source: org.apache.kafka.common.acl.AclOperation."""
_NOT_REPORTED: Final = -(2**31)
_DESCRIBE: Final = 8
"""The bit of the operation Describe."""
_DESCRIBE_ACLS_VERSION: Final = 1
_NOTE_S: Final = 2.0
_NO_TOPIC: Final = "?"
"""A name that no topic can have. Only a principal that may describe all topics may describe it."""
_TOPIC: Final = 2
_ANY: Final = 1
"""The type of a topic, and any operation or permission. Source: org.apache.kafka.common.acl."""

_CLUSTER_NEEDS: Final = {
    "Describe": "list all groups, read the clock of the controller",
    "DescribeConfigs": "read the retention of offsets",
}
_OFFSETS_TOPIC_NEEDS: Final = {
    "Describe": "find the leaders of the offsets topic",
    "Read": "prove before the deletion of a group that all its offsets were read",
}
_WITHOUT_READ: Final = Advice("without Read on it, groups delete and groups rename need {accept_unseen=True}")
_TOPIC_NEEDS: Final = {"Describe": "read its offsets and log ranges", "Read": "write its offsets and read its records"}
_GROUP_NEEDS: Final = {
    "Describe": "read offsets",
    "Read": "take the group lock and write offsets, together with Read on each topic",
    "Delete": "delete groups and offsets",
}


async def check_permissions(
    client: Client, connection: BrokerConnection, bootstrap: str, groups: Sequence[str], deadline: float
) -> list[CheckResult]:
    """Returns the permissions on the cluster, on ``__consumer_offsets``, on ``groups`` (on some existing groups if
    ``groups`` is empty), and on the topics of their commits. Raises `OffsetMgrError` if the broker does not respond."""
    if not connection.supports(ApiKey.METADATA, _METADATA_VERSION):
        why = "brokers before Kafka 2.3 do not report permissions"
        fix = "list the ACLs of the principal with kafka-acls"
        return [CheckResult("permissions", bootstrap, CheckStatus.UNKNOWN, why, fix)]
    answer = await _metadata(connection, [OFFSETS_TOPIC], deadline)
    cluster = answer.get("cluster_authorized_operations", _NOT_REPORTED)
    rows = [_row("the cluster", "--cluster", bootstrap, cluster, _CLUSTER_NEEDS)]
    listed = (await connection.call(requests.list_groups(), remaining(deadline)))["groups"]
    exists = bool(listed)  # managed services may hide the offsets topic
    for topic in answer["topics"]:
        code = topic["error_code"]
        exists = exists or not code
        if not code or code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            bits = 0 if code else topic["topic_authorized_operations"]
            row = _row(OFFSETS_TOPIC, f"--topic {OFFSETS_TOPIC}", bootstrap, bits, _OFFSETS_TOPIC_NEEDS)
            rows.append(row._replace(fix=Advice("{}  # {}", row.fix, _WITHOUT_READ)) if row.fix else row)
        elif listed:
            why = "the brokers hide the topic, so no deletion of a group can prove that all its offsets were read"
            check = f"permissions on {OFFSETS_TOPIC}"
            rows.append(CheckResult(check, bootstrap, CheckStatus.UNKNOWN, why, _WITHOUT_READ))
    if not groups:
        groups = [group["group_id"] for group in listed][:MAX_GROUPS]
        rows += await _described(connection, bootstrap, groups, deadline)
    elif not exists:  # a lookup of coordinators would create the topic
        why = f"the topic {OFFSETS_TOPIC} does not exist yet, or the principal may not describe it"
        rows.append(CheckResult("permissions on groups", bootstrap, CheckStatus.UNKNOWN, why))
        groups = ()
    else:
        for group, at in (await client.find_coordinators(groups, deadline)).items():
            if isinstance(at, OffsetMgrError):
                rows.append(_group_row(group, bootstrap, at))
                continue
            rows += await _described(await client.node(at).connection(deadline), bootstrap, [group], deadline)
    try:
        return rows + await _topic_rows(client, connection, bootstrap, groups, deadline)
    except OffsetMgrError as error:
        return [*rows, failed_check("permissions on topics", bootstrap, error)]


async def denied_topics(client: Client, topics: Iterable[str], deadline: float) -> dict[str, OffsetMgrError]:
    """Returns an error for each topic whose offsets the principal may not write, as far as the brokers report this
    (from Kafka 2.3 on)."""
    found: dict[str, OffsetMgrError] = {}
    names, described = list(topics), list[Message]()

    async def ask(connection: BrokerConnection, until: float) -> list[Message]:
        reports = connection.supports(ApiKey.METADATA, _METADATA_VERSION)
        return (await _metadata(connection, names, until))["topics"] if reports else []

    with suppress(OffsetMgrError):
        described = await client.ask_any(ask, deadline) if names else described
    for topic in described:
        code, bits = topic["error_code"], topic["topic_authorized_operations"]
        may_read = bits == _NOT_REPORTED or bits >> _READ & 1
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED or not (code or may_read):
            why = "the principal may not read it, and brokers accept its offsets only from principals that may"
            found[topic["name"]] = TopicNotAuthorized(f"topic {topic['name']}", why, "grant Read on the topic")
    return found


async def has_authorizer(connection: BrokerConnection, deadline: float) -> bool:
    """Returns whether the broker has an authorizer, or may have one. An authorizer leaves out groups, topics and
    offsets that the principal may not describe. Raises `OffsetMgrError` if the broker does not respond."""
    if not connection.supports(ApiKey.DESCRIBE_ACLS, _DESCRIBE_ACLS_VERSION):
        return True
    acl = {"resource_name_filter": _NO_TOPIC, "principal_filter": None, "host_filter": None}
    message = {**acl, "resource_type_filter": _TOPIC, "operation": _ANY, "permission_type": _ANY}
    request = Request(ApiKey.DESCRIBE_ACLS, _DESCRIBE_ACLS_VERSION, message)
    code: int = (await connection.call(request, remaining(deadline)))["error_code"]
    return code != ErrorCode.SECURITY_DISABLED


async def filter_note(client: Client) -> str:
    """Returns a sentence about the groups and offsets that the brokers leave out for this principal; empty if they
    leave out nothing, do not answer in time, or have not been reached before."""
    if not client.reached:
        return ""
    deadline = asyncio.get_running_loop().time() + _NOTE_S
    try:
        answer = await client.ask_any(lambda connection, until: _metadata(connection, [_NO_TOPIC], until), deadline)
    except OffsetMgrError:
        return ""
    cluster = answer.get("cluster_authorized_operations", _NOT_REPORTED)
    left_out = ["groups"] if cluster != _NOT_REPORTED and not cluster >> _DESCRIBE & 1 else []
    if any(topic["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED for topic in answer.get("topics", ())):
        left_out.append("offsets of topics")
    what = " and ".join(left_out)
    return what and f"the brokers leave out {what} that this login may not describe, so some may be missing here"


async def _metadata(connection: BrokerConnection, topics: Iterable[str], deadline: float) -> Message:
    """Returns the metadata of the topics with the permissions of the principal."""
    message = {
        **METADATA_OPTIONS,
        "topics": [{"name": name} for name in topics],
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    return await connection.call(Request(ApiKey.METADATA, _METADATA_VERSION, message), remaining(deadline))


async def _topic_rows(
    client: Client, connection: BrokerConnection, bootstrap: str, groups: Sequence[str], deadline: float
) -> list[CheckResult]:
    """Returns a row for each topic of the groups' commits with missing permissions, and one row for all other topics.

    Brokers leave out the commits for topics that the principal may not describe.
    """
    check = "permissions on topics"
    found = await client.fetch(dict.fromkeys(groups), deadline) if groups else {}
    fetched = [group for group in found.values() if isinstance(group, FetchedGroup)]
    names = sorted({partition.topic for group in fetched for partition in (*group.offsets, *group.errors)})
    found_rows: dict[str, CheckResult] = {}
    for topic in (await _metadata(connection, names, deadline))["topics"]:
        name, code = topic["name"], topic["error_code"]
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue  # the topic was deleted
        if code and code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            error = kafka_error(code, f"topic {name}")
            found_rows[name] = failed_check(f"permissions on topic {name}", bootstrap, error)
            continue
        bits = 0 if code else topic["topic_authorized_operations"]
        option = f"--topic {shlex.quote(name)}"
        found_rows[name] = _row(f"topic {name}", option, bootstrap, bits, _TOPIC_NEEDS)
    detail = f"{', '.join(_TOPIC_NEEDS)}; brokers do not list topics without Describe"
    rows = _shortened(found_rows, check, bootstrap, detail)
    if not rows:
        why = "topics: not checked, because the brokers list no commit of these groups for a topic with Describe"
        fix = Advice("name a group that has commits with {group}, and allow Describe on its topics")
        rows.append(CheckResult(check, bootstrap, CheckStatus.UNKNOWN, why, fix))
    return rows


async def _described(
    connection: BrokerConnection, bootstrap: str, groups: Sequence[str], deadline: float
) -> list[CheckResult]:
    """Returns a row for each group with missing permissions, and one row for all other groups."""
    if not groups:
        why, fix = "the broker lists no group", Advice("name one with {group}")
        return [CheckResult("permissions on groups", bootstrap, CheckStatus.UNKNOWN, why, fix)]
    answer = await connection.call(requests.describe_groups(groups, permissions=True), remaining(deadline))
    rows = {}
    for group in answer["groups"]:
        name, code = group["group_id"], group["error_code"]
        found = kafka_error(code, f"group {name}") if code else group["authorized_operations"]
        rows[name] = _group_row(name, bootstrap, found)
    return _shortened(rows, "permissions on groups", bootstrap, ", ".join(_GROUP_NEEDS))


def _shortened(rows: Mapping[str, CheckResult], check: str, bootstrap: str, detail: str) -> list[CheckResult]:
    """Returns the rows with missing permissions, and one row for all other names."""
    complete = [name for name, row in rows.items() if row.status is CheckStatus.OK]
    lacking = [row for row in rows.values() if row.status is not CheckStatus.OK]
    summary = CheckResult(check, bootstrap, CheckStatus.OK, f"{list_of(complete, 3)}: {detail}")
    return [*lacking, summary] if complete else lacking


def _group_row(group: str, bootstrap: str, found: int | OffsetMgrError) -> CheckResult:
    """Returns the result for one group. ``found`` has its permissions, or the error of a request."""
    if isinstance(found, NotAuthorized):
        found = 0
    if isinstance(found, OffsetMgrError):
        return failed_check(f"permissions on group {group}", bootstrap, found)
    return _row(f"group {group}", f"--group {shlex.quote(group)}", bootstrap, found, _GROUP_NEEDS)


def _row(resource: str, option: str, bootstrap: str, bits: int, needs: Mapping[str, str]) -> CheckResult:
    """Returns the result for one resource. ``option`` names the resource for ``kafka-acls``; ``needs`` maps the
    operations that offsetmgr needs to their purpose."""
    check = f"permissions on {resource}"
    if bits == _NOT_REPORTED:
        return CheckResult(check, bootstrap, CheckStatus.UNKNOWN, "the broker does not report them")
    allowed = {name for bit, name in _OPERATIONS.items() if bits >> bit & 1}
    missing = {name: purpose for name, purpose in needs.items() if name not in allowed}
    if not missing:
        return CheckResult(check, bootstrap, CheckStatus.OK, ", ".join(name for name in needs))
    detail = "; ".join(f"{name} is missing (needed to {purpose})" for name, purpose in missing.items())
    operations = " ".join(f"--operation {name}" for name in missing)
    servers = shlex.quote(bootstrap)
    fix = f"kafka-acls --bootstrap-server {servers} --add --allow-principal User:NAME {operations} {option}"
    return CheckResult(check, bootstrap, CheckStatus.WARNING, detail, fix)


# Measures the clocks of brokers without a write: from DescribeQuorum (Kafka 3.3 and later, without ZooKeeper) and
# from the timestamps in ``__consumer_offsets``.

QUORUM_SOURCE: Final = "DescribeQuorum"
NEWEST_RECORD_SOURCE: Final = "newest timestamp in __consumer_offsets"
NEW_RECORD_SOURCE: Final = "a commit during the check"
_WAIT_S: Final = 1.0
"""The time for which the check waits for a commit, whose timestamp is exact."""
_POLLS: Final = Backoff.fixed(0.05)


async def controller_clock(
    connection: BrokerConnection, clock: Clock, deadline: float
) -> tuple[int, ClockDifference] | None:
    """Returns the id of the controller and the difference of its clock. Returns None if the cluster uses ZooKeeper, the
    brokers are older than 3.3, or the client may not describe the cluster."""
    if not connection.supports(ApiKey.DESCRIBE_QUORUM, 1):
        return None
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    sent = clock.now_ms()
    answer = await connection.call(Request(ApiKey.DESCRIBE_QUORUM, 1, {"topics": [topic]}), remaining(deadline))
    received = clock.now_ms()
    if answer["error_code"] or not answer["topics"]:
        return None
    quorum = answer["topics"][0]["partitions"][0]
    # The leader reports its own present time as the time at which it was last caught up.
    now = next(
        (v["last_caught_up_timestamp"] for v in quorum["current_voters"] if v["replica_id"] == quorum["leader_id"]), -1
    )
    if quorum["error_code"] or now <= 0:
        return None
    return quorum["leader_id"], ClockDifference.measured(now, sent, received, QUORUM_SOURCE)


async def leader_clocks(
    client: Client, connection: BrokerConnection, clock: Clock, deadline: float, *, precise: bool = True
) -> dict[Address, ClockDifference]:
    """Returns the difference of the clock of each broker that leads partitions of ``__consumer_offsets``.

    The brokers (3.0 and later) report the newest timestamp, which a broker has written with its own clock. If a client
    commits within `_WAIT_S` seconds, the difference is measured; otherwise it is a lower bound. Without ``precise``,
    the function does not wait if this bound agrees with this machine's clock. Leaves out brokers that report no
    timestamp.
    """
    answer = await connection.call(requests.metadata([OFFSETS_TOPIC]), remaining(deadline))
    brokers = requests.broker_addresses(answer)
    leaders = by_key((brokers[p["leader_id"]], tp) for tp, p in requests.parts_of(answer) if p["leader_id"] in brokers)
    found = await asyncio.gather(
        *(_leader_clock(client, at, numbers, clock, deadline, precise=precise) for at, numbers in leaders.items())
    )
    return {at: one for at, one in zip(leaders, found, strict=True) if one is not None}


async def _leader_clock(
    client: Client, at: Address, partitions: list[TopicPartition], clock: Clock, deadline: float, *, precise: bool
) -> ClockDifference | None:
    """Reads the newest timestamp of a broker's partitions until it changes, at most for `_WAIT_S` seconds."""
    polls = Retries(min(deadline, asyncio.get_running_loop().time() + _WAIT_S), _POLLS)
    largest: int | None = None
    since_ms = 0  # when the broker was asked for the first time after it had written `largest`
    try:
        connection = await client.node(at).connection(deadline)
        if not connection.supports(ApiKey.LIST_OFFSETS, MAX_TIMESTAMP_VERSION):
            return None
        while True:
            sent_ms = clock.now_ms()
            # Brokers leave out a partition whose newest record is not replicated yet.
            newest = await newest_timestamp(connection, partitions, remaining(deadline))
            now_ms = clock.now_ms()
            if newest is not None and largest is not None and newest > largest:
                return ClockDifference.measured(newest, since_ms, now_ms, NEW_RECORD_SOURCE)
            if newest is not None and largest is None:
                largest, since_ms = newest, sent_ms
            bound = None if largest is None else ClockDifference.at_least(largest, now_ms, NEWEST_RECORD_SOURCE)
            if (bound is not None and bound.agrees and not precise) or not await polls.pause():
                return bound
    except OffsetMgrError:
        return None


async def cluster_clock(client: Client, clock: Clock, deadline: float) -> ClockDifference | None:
    """Returns the best known difference between the clocks of the brokers and of this machine. Returns None if no
    broker reports a time. Raises the errors of `Client.ask_any`."""

    async def ask(connection: BrokerConnection, until: float) -> ClockDifference | None:
        if (found := await controller_clock(connection, clock, until)) is not None:
            return found[1]
        return best_difference((await leader_clocks(client, connection, clock, until, precise=False)).values())

    return await client.ask_any(ask, deadline)


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
    kind = "KRaft" if quorum else "no KRaft quorum is reported"
    answer = await connection.call(requests.metadata(), remaining(deadline))
    number = answer.get("controller_id")
    if number is None:
        return CheckResult(
            "controller", bootstrap, CheckStatus.UNKNOWN, f"{kind}; brokers before 0.10 do not report it"
        )
    if number < 0:
        fix = (
            "check that a majority of the controllers runs"
            if quorum
            else "check the controllers, or the brokers' connection to ZooKeeper"
        )
        return CheckResult("controller", bootstrap, CheckStatus.FAILED, f"{kind}; no broker is the controller", fix)
    # With KRaft, brokers report a random broker, to which clients send requests for the controller.
    detail = kind if quorum else f"broker {number} is the controller; {kind}"
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
