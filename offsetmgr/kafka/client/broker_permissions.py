"""Checks which operations the brokers authorize for the principal (KIP-430, Kafka 2.3 and later)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.core.check_result import CheckResult, CheckStatus, failed_check
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Request
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.requests import METADATA_OPTIONS, OFFSETS_TOPIC

MAX_GROUPS: Final = 20
"""The number of groups whose permissions are checked if the caller names no groups."""
_METADATA_VERSION: Final = 8
_DESCRIBE_GROUPS_VERSION: Final = 4
_OPERATIONS: Final = {3: "Read", 4: "Write", 5: "Create", 6: "Delete", 8: "Describe", 10: "DescribeConfigs"}
"""The operations that brokers report, by their bit. Source: org.apache.kafka.common.acl.AclOperation."""
_NOT_REPORTED: Final = -(2**31)

_CLUSTER_NEEDS: Final = {
    "Describe": "list all groups, read the clock of the controller",
    "DescribeConfigs": "read the retention of offsets",
}
_TOPIC_NEEDS: Final = {"Describe": "read log ranges"}
_GROUP_NEEDS: Final = {
    "Describe": "read offsets",
    "Read": "write offsets and take the group lock",
    "Delete": "delete groups and offsets",
}


async def check_permissions(
    client: Client, connection: BrokerConnection, bootstrap: str, groups: Sequence[str], deadline: float
) -> list[CheckResult]:
    """Returns the permissions on the cluster, on ``__consumer_offsets`` and on ``groups``, or on some existing groups
    if ``groups`` is empty. Raises `OffsetMgrError` if the broker does not respond."""
    if not connection.supports(ApiKey.METADATA, _METADATA_VERSION):
        why = "brokers before Kafka 2.3 do not report permissions"
        fix = "list the ACLs of the principal with kafka-acls"
        return [CheckResult("permissions", bootstrap, CheckStatus.UNKNOWN, why, fix)]
    message = {
        **METADATA_OPTIONS,
        "topics": [{"name": OFFSETS_TOPIC}],
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    answer = await connection.call(Request(ApiKey.METADATA, _METADATA_VERSION, message), remaining(deadline))
    cluster = answer.get("cluster_authorized_operations", _NOT_REPORTED)
    rows = [_row("permissions on the cluster", bootstrap, cluster, _CLUSTER_NEEDS, CheckStatus.WARNING)]
    exists = False
    for topic in answer["topics"]:
        exists = not topic["error_code"]
        if exists:
            check = f"permissions on {OFFSETS_TOPIC}"
            rows.append(_row(check, bootstrap, topic["topic_authorized_operations"], _TOPIC_NEEDS, CheckStatus.WARNING))
    if not groups:
        listed = await connection.call(requests.list_groups(), remaining(deadline))
        known = [group["group_id"] for group in listed["groups"]][:MAX_GROUPS]
        return rows + await _described(connection, bootstrap, known, deadline)
    if not exists:  # a lookup of coordinators would create the topic
        why = f"the topic {OFFSETS_TOPIC} does not exist yet, or the principal may not describe it"
        return [*rows, CheckResult("permissions on groups", bootstrap, CheckStatus.UNKNOWN, why)]
    for group, at in (await client.find_coordinators(groups, deadline)).items():
        if isinstance(at, OffsetMgrError):
            rows.append(failed_check(f"permissions on group {group}", bootstrap, at))
            continue
        rows += await _described(await client.node(at).connection(deadline), bootstrap, [group], deadline)
    return rows


async def _described(
    connection: BrokerConnection, bootstrap: str, groups: Sequence[str], deadline: float
) -> list[CheckResult]:
    """Returns a row for each group with missing permissions, and one row for all other groups."""
    if not groups:
        why = "the broker lists no group"
        return [CheckResult("permissions on groups", bootstrap, CheckStatus.UNKNOWN, why, "name one with --group")]
    message = {"groups": groups, "include_authorized_operations": True}
    request = Request(ApiKey.DESCRIBE_GROUPS, _DESCRIBE_GROUPS_VERSION, message)
    answer = await connection.call(request, remaining(deadline))
    rows, complete = [], []
    for group in answer["groups"]:
        name = group["group_id"]
        check = f"permissions on group {name}"
        if group["error_code"]:
            rows.append(failed_check(check, bootstrap, kafka_error(group["error_code"], f"group {name}")))
            continue
        row = _row(check, bootstrap, group["authorized_operations"], _GROUP_NEEDS, CheckStatus.WARNING)
        if row.status is CheckStatus.OK:
            complete.append(name)
        else:
            rows.append(row)
    if complete:
        shown = ", ".join(complete[:3]) + (f" and {len(complete) - 3} more" if len(complete) > 3 else "")
        rows.append(
            CheckResult("permissions on groups", bootstrap, CheckStatus.OK, f"{shown}: {', '.join(_GROUP_NEEDS)}")
        )
    return rows


def _row(check: str, bootstrap: str, bits: int, needs: Mapping[str, str], if_missing: CheckStatus) -> CheckResult:
    """Returns the result for one resource. ``needs`` maps the operations that offsetmgr needs to their purpose."""
    if bits == _NOT_REPORTED:
        return CheckResult(check, bootstrap, CheckStatus.UNKNOWN, "the broker does not report them")
    allowed = {name for bit, name in _OPERATIONS.items() if bits >> bit & 1}
    missing = {name: purpose for name, purpose in needs.items() if name not in allowed}
    if not missing:
        return CheckResult(check, bootstrap, CheckStatus.OK, ", ".join(name for name in needs))
    detail = "; ".join(f"{name} is missing (needed to {purpose})" for name, purpose in missing.items())
    where = check.removeprefix("permissions on ")
    operations = " ".join(f"--operation {name}" for name in missing)
    options = {"the cluster": "--cluster", OFFSETS_TOPIC: f"--topic {OFFSETS_TOPIC}"}
    option = options.get(where, f"--{where}")
    fix = f"kafka-acls --add --allow-principal User:NAME {operations} {option}"
    return CheckResult(check, bootstrap, if_missing, detail, fix)
