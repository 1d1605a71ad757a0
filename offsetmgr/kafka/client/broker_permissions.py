"""Checks which operations the brokers authorize for the principal (KIP-430, Kafka 2.3 and later)."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.check_result import CheckResult, CheckStatus, failed_check
from offsetmgr.core.errors import ErrorCode, NotAuthorized, OffsetMgrError, TopicNotAuthorized
from offsetmgr.core.plurals import list_of
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Request
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.requests import METADATA_OPTIONS, OFFSETS_TOPIC, FetchedGroup
from offsetmgr.kafka.protocol.schema_codec import Message

MAX_GROUPS: Final = 20
"""The number of groups whose permissions are checked if the caller names no groups."""
_METADATA_VERSION: Final = 8
_DESCRIBE_GROUPS_VERSION: Final = 4
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
    exists = False
    for topic in answer["topics"]:
        exists = not topic["error_code"]
        if exists or topic["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            bits = topic["topic_authorized_operations"] if exists else 0
            rows.append(_row(OFFSETS_TOPIC, f"--topic {OFFSETS_TOPIC}", bootstrap, bits, _OFFSETS_TOPIC_NEEDS))
    if not groups:
        listed = await connection.call(requests.list_groups(), remaining(deadline))
        groups = [group["group_id"] for group in listed["groups"]][:MAX_GROUPS]
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
    answer: Message = {"topics": ()}
    with suppress(OffsetMgrError):
        connection = await client.any_connection(deadline)
        if (names := list(topics)) and connection.supports(ApiKey.METADATA, _METADATA_VERSION):
            answer = await _metadata(connection, names, deadline)
    for topic in answer["topics"]:
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
    deadline = asyncio.get_running_loop().time() + _NOTE_S
    try:
        answer = await _metadata(await client.any_connection(deadline), [_NO_TOPIC], deadline) if client.reached else {}
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
    rows, complete = [], []
    for topic in (await _metadata(connection, names, deadline))["topics"]:
        name, code = topic["name"], topic["error_code"]
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue  # the topic was deleted
        if code and code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            error = kafka_error(code, f"topic {name}")
            rows.append(failed_check(f"permissions on topic {name}", bootstrap, error))
            continue
        bits = 0 if code else topic["topic_authorized_operations"]
        row = _row(f"topic {name}", f"--topic {shlex.quote(name)}", bootstrap, bits, _TOPIC_NEEDS)
        if row.status is CheckStatus.OK:
            complete.append(name)
        else:
            rows.append(row)
    if complete:
        detail = f"{list_of(complete, 3)}: {', '.join(_TOPIC_NEEDS)}; brokers do not list topics without Describe"
        rows.append(CheckResult(check, bootstrap, CheckStatus.OK, detail))
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
    message = {"groups": groups, "include_authorized_operations": True}
    request = Request(ApiKey.DESCRIBE_GROUPS, _DESCRIBE_GROUPS_VERSION, message)
    answer = await connection.call(request, remaining(deadline))
    rows, complete = [], []
    for group in answer["groups"]:
        name, code = group["group_id"], group["error_code"]
        found = kafka_error(code, f"group {name}") if code else group["authorized_operations"]
        row = _group_row(name, bootstrap, found)
        if row.status is CheckStatus.OK:
            complete.append(name)
        else:
            rows.append(row)
    if complete:
        detail = f"{list_of(complete, 3)}: {', '.join(_GROUP_NEEDS)}"
        rows.append(CheckResult("permissions on groups", bootstrap, CheckStatus.OK, detail))
    return rows


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
