"""JoinGroup, LeaveGroup, ListGroups and FindCoordinator for older brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from offsetmgr.kafka.protocol.older_broker import OlderBroker, nearest_version
from offsetmgr.kafka.protocol.schema_codec import Message


async def join_group(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends version 3 or lower to brokers before 2.3, because version 4 makes a new member join twice (KIP-394)."""
    version = broker.version(api_key, requested)
    return await broker.send(api_key, version if version >= 5 else min(version, 3), message)


async def leave_group(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends the single member in the layout of versions before 3, which contain only one member."""
    (member,) = message["members"]
    version = broker.version(api_key, requested)
    return await broker.send(api_key, version, {"group_id": message["group_id"], "member_id": member["member_id"]}) | {
        "members": []
    }


async def list_groups(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Adds empty group states to the response, because responses before version 4 contain no group states."""
    answer = await nearest_version(broker, api_key, requested, message)
    return {**answer, "groups": [{"group_state": "", **group} for group in answer["groups"]]}


async def find_coordinators(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends one request for each group, because a request before version 4 names only one group."""
    version = broker.version(api_key, requested)

    async def find(key: str) -> Message:
        answer = await broker.send(api_key, version, {"key": key, "key_type": message["key_type"]})
        return {"error_message": None, **answer, "key": key}

    return {"coordinators": await asyncio.gather(*map(find, message["coordinator_keys"]))}
