"""Members of share groups and of Connect's groups, by single requests to the coordinator."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.errors import checked
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.requests import join_as

SHARE_GROUP_HEARTBEAT = 76


@contextmanager
def coordinator(bootstrap: str, group: str) -> Iterator[Any]:
    """Yields a function that sends a request to the coordinator of the group."""
    thread = ClientThread(Client(bootstrap, Security.of(ConnectionConfig().kafka)), 60)

    def send(request: Request) -> Mapping[str, Any]:
        async def ask(address: Address) -> Mapping[str, Any]:
            return checked(
                await thread.client.call(address, request, asyncio.get_running_loop().time() + 10),
                group,
                (0, ErrorCode.MEMBER_ID_REQUIRED),
            )

        return thread.run(lambda deadline: thread.client.for_group(group, ask, deadline))

    try:
        yield send
    finally:
        thread.close()


@contextmanager
def share_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """A member of a share group that subscribes to the topic and fetches nothing. Leaves the group at the end."""
    member = {"group_id": group, "member_id": str(uuid.uuid4()), "subscribed_topic_names": [topic], "rack_id": None}
    with coordinator(bootstrap, group) as send:
        send(Request(SHARE_GROUP_HEARTBEAT, 1, {**member, "member_epoch": 0}))
        try:
            yield
        finally:
            send(Request(SHARE_GROUP_HEARTBEAT, 1, {**member, "member_epoch": -1}))


@contextmanager
def connect_member(bootstrap: str, group: str, _topic: str) -> Iterator[None]:
    """A worker in a group of Connect's workers. The coordinator removes it after a minute."""
    with coordinator(bootstrap, group) as send:
        first = send(join_as(group, "", "connect", {"sessioned": b""}, 60_000, 60_000))
        send(join_as(group, first["member_id"], "connect", {"sessioned": b""}, 60_000, 60_000))
        yield
