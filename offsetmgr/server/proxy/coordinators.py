"""`Coordinators`: finds the real broker that coordinates a group, and asks it about the group's members."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import ErrorCode, NotCoordinator, OffsetMgrError, value_of
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.protocol.errors import checked
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import LockMembership, heartbeat
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.server.proxy.brokers import Brokers

_MAX_KNOWN_COORDINATORS: Final = 50_000
_CONFIRM_TIMEOUT_S: Final = 1.0
_LIST_TIMEOUT_S: Final = 4.0


class Coordinators:
    """A client of the real coordinators. It uses the manager's own connections. Deadlines are times of the event loop's
    clock."""

    def __init__(self, client: Client, brokers: Brokers) -> None:
        self._client = client
        self._brokers = brokers
        self._known: dict[str, Address] = {}

    async def find(self, group: str, deadline: float) -> Address:
        """Returns the group's coordinator, from the cache if possible. Raises `OffsetMgrError`."""
        return value_of((await self._find([group], deadline))[group])

    async def _find(self, groups: Sequence[str], deadline: float) -> dict[str, Address | OffsetMgrError]:
        """Works as `find`, for many groups with one request."""
        found: dict[str, Address | OffsetMgrError] = {
            group: self._known[group] for group in groups if group in self._known
        }
        if missing := [group for group in groups if group not in found]:
            if len(self._known) + len(missing) > _MAX_KNOWN_COORDINATORS:
                self._known.clear()
            for group, address in (await self._client.find_coordinators(missing, deadline)).items():
                found[group] = address
                if isinstance(address, Address):
                    self._known[group] = address
        return found

    def forget(self, group: str) -> None:
        """Removes the group's coordinator from the cache, because it was wrong or unreachable."""
        self._known.pop(group, None)

    async def heartbeat(self, member: LockMembership, deadline: float) -> int:
        """Sends a member's Heartbeat; returns the coordinator's error code. Raises `OffsetMgrError`."""
        return await self._heartbeat(await self.find(member.group, deadline), member, deadline)

    async def prove_member(self, member: LockMembership, deadline: float) -> int:
        """Works as `heartbeat`, and also proves that the responding broker has loaded the group and is still the
        coordinator of the group.

        `member_fence` explains why the response to a Heartbeat alone is no proof. Raises `OffsetMgrError`.
        """
        group = member.group
        where = await self.find(group, deadline)
        (described,) = await self._describe(where, [group], deadline)
        checked(described, f"group {group}")
        code = await self._heartbeat(where, member, deadline)
        if not await self._confirmed_by_another_broker([group], where, deadline):
            raise NotCoordinator(f"group {group}", f"{where} is no longer its coordinator, according to another broker")
        return code

    async def prove_idle(self, groups: Sequence[str], deadline: float) -> dict[str, bool]:
        """Returns for each group whether it has no members. Omits a group if its coordinator could not be confirmed;
        see `_confirmed_by_another_broker`. Raises `OffsetMgrError` if no broker could be reached."""
        found = await self._client.describe(groups, deadline)
        described = {group: d for group, d in found.items() if not isinstance(d, OffsetMgrError)}
        by_coordinator = by_key((description.coordinator, group) for group, description in described.items())
        certain: set[str] = set()
        for where, names in by_coordinator.items():
            certain |= await self._confirmed_by_another_broker(names, Address.parse(where), deadline)
        return {group: d.idle for group, d in described.items() if group in certain}

    async def held_offsets(self, groups: Sequence[str], deadline: float) -> dict[str, int | OffsetMgrError]:
        """Returns, for each group, the number of partitions for which the real coordinator holds an offset, or the
        error of the request. Raises `OffsetMgrError` if no broker could be reached."""
        found = await self._client.fetch(dict.fromkeys(groups), deadline)
        return {
            group: answer if isinstance(answer, OffsetMgrError) else len(answer.offsets) + len(answer.errors)
            for group, answer in found.items()
        }

    async def describe(self, groups: Sequence[str]) -> dict[str, Message]:
        """Returns the groups as in a DescribeGroups response (version 4), with one request to each coordinator. Omits a
        group if its coordinator could not be found or did not describe it."""
        deadline = asyncio.get_running_loop().time() + _LIST_TIMEOUT_S

        async def ask(where: Address, names: list[str]) -> list[Message]:
            try:
                return await self._describe(where, names, deadline)
            except OffsetMgrError:
                return []

        try:
            found = await self._find(groups, deadline)
        except OffsetMgrError:
            return {}
        known = by_key((where, group) for group, where in found.items() if isinstance(where, Address))
        answers = await asyncio.gather(*(ask(where, names) for where, names in known.items()))
        described = {d["group_id"]: d for answer in answers for d in answer if not d["error_code"]}
        for group in found.keys() - described.keys():
            self.forget(group)
        return described

    async def groups(self, timeout_s: float = _LIST_TIMEOUT_S) -> dict[str, Message]:
        """Returns the groups of all brokers, by name, as in a ListGroups response (version 4). Raises `OffsetMgrError`
        if a live broker could not be reached."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        _, brokers = await self._client.cluster(deadline)
        answers = await asyncio.gather(*(self._list(broker, deadline) for broker in brokers))
        return {group["group_id"]: group for groups in answers for group in groups}

    async def _list(self, broker: Address, deadline: float) -> list[Message]:
        request = Request(ApiKey.LIST_GROUPS, 4, {"states_filter": []})
        answer = await self._call(broker, request, deadline, use_codec_thread=True)
        groups: list[Message] = checked(answer, f"groups of broker {broker}")["groups"]
        return groups

    async def delete_group(self, group: str, deadline: float) -> int:
        """Deletes a group; returns the coordinator's error code. Raises `OffsetMgrError`."""
        request = Request(ApiKey.DELETE_GROUPS, 1, {"groups_names": [group]})
        answer = await self._call(await self.find(group, deadline), request, deadline)
        return int(answer["results"][0]["error_code"])

    async def delete_offsets(self, group: str, topics: list[Message], deadline: float) -> Message:
        """Sends an OffsetDelete with these topics; returns the coordinator's response. Raises `OffsetMgrError`."""
        request = Request(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
        return await self._call(await self.find(group, deadline), request, deadline)

    # --- single requests -----------------------------------------------------------------------------

    async def _call(
        self, where: Address, request: Request, deadline: float, *, use_codec_thread: bool = False
    ) -> Message:
        connection = await self._client.node(where).connection(deadline)
        return await connection.call(request, remaining(deadline), use_codec_thread=use_codec_thread)

    async def _heartbeat(self, where: Address, member: LockMembership, deadline: float) -> int:
        return int((await self._call(where, heartbeat(member), deadline))["error_code"])

    async def _describe(self, where: Address, groups: list[str], deadline: float) -> list[Message]:
        message = {"groups": groups, "include_authorized_operations": False}
        request = Request(ApiKey.DESCRIBE_GROUPS, 4, message)
        answer = await self._call(where, request, deadline, use_codec_thread=True)
        found: list[Message] = answer["groups"]
        return found

    async def _confirmed_by_another_broker(self, groups: Sequence[str], where: Address, deadline: float) -> set[str]:
        """Returns the groups for which another broker names ``where`` as the coordinator. The broker ``where`` itself
        is not asked: if its process was frozen, this broker may not know that another broker has become the
        coordinator. If no other broker responds, returns all groups."""
        others = [address for address in self._brokers.addresses() if address != where]
        random.shuffle(others)
        request = Request(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": groups})
        for other in others:
            end = min(deadline, asyncio.get_running_loop().time() + _CONFIRM_TIMEOUT_S)
            try:
                answer = await self._call(other, request, end)
            except OffsetMgrError:
                continue
            return {
                found["key"]
                for found in answer["coordinators"]
                if found["error_code"] == ErrorCode.NONE and Address(found["host"], found["port"]) == where
            }
        return set(groups)
