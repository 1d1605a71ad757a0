"""Share groups and groups of the Streams protocol: kinds of groups on brokers from Kafka 4.0 on that offsetmgr does not
edit.

DescribeGroups reports such a group as dead, and ListGroups returns a share group as a group without offsets, so without
this module offsetmgr would report that the group does not exist.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import GroupDescription
from offsetmgr.core.running_store import OtherGroupKind
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.requests import upper_state

_LISTS_TYPES: Final = 5
"""The version of ListGroups that reports the types of groups (KIP-848)."""
_KINDS: Final = {
    "share": ("is a share group, whose records are acknowledged one by one", "kafka-share-groups.sh"),
    "streams": ("is a group of Kafka Streams' protocol, whose application keeps state", "kafka-streams-groups.sh"),
}


async def describe(
    client: Client, groups: Sequence[str], deadline: float
) -> dict[str, GroupDescription | OffsetMgrError]:
    """Describes groups like `Client.describe`. The result of a group of another kind is `OtherGroupKind`."""
    found = await client.describe(groups, deadline)
    dead = [name for name, one in found.items() if isinstance(one, GroupDescription) and one.state == "DEAD"]
    return {**found, **await other_kinds(client, dead, deadline)}


async def other_kinds(client: Client, groups: Iterable[str], deadline: float) -> dict[str, OffsetMgrError]:
    """Returns `OtherGroupKind` for each share group and each group of the Streams protocol in ``groups``, and the error
    of each group whose coordinator could not list its groups."""

    async def ask(address: Address, names: list[str]) -> dict[str, OffsetMgrError | None]:
        found: dict[str, OffsetMgrError | None] = dict.fromkeys(names)
        connection = await client.node(address).connection(deadline)
        if not connection.supports(ApiKey.LIST_GROUPS, _LISTS_TYPES):
            return found
        request = Request(ApiKey.LIST_GROUPS, _LISTS_TYPES, {"states_filter": (), "types_filter": tuple(_KINDS)})
        answer = await connection.call(request, remaining(deadline))
        if answer["error_code"]:
            return dict.fromkeys(names, kafka_error(answer["error_code"], "kinds of groups"))
        for one in answer["groups"]:
            if (name := one["group_id"]) in found and (kind := _KINDS.get(one["group_type"].lower())):
                why, tool = kind
                command = f"{tool} --bootstrap-server {address} --describe --group {shlex.quote(name)}"
                why = f"{why}; use Kafka's own command: {command}"
                found[name] = error = OtherGroupKind(f"group {name!r}", why)
                error.state = upper_state(one["group_state"])
        return found

    names = list(groups)
    outcomes = await client.per_group(names, ask, deadline) if names else {}
    return {group: outcome for group, outcome in outcomes.items() if outcome is not None}
