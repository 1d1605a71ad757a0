"""A client with a fixed coordinator, for all groups."""

from __future__ import annotations

from collections.abc import Sequence

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.requests import MANAGER_API_VERSIONS


class PinnedCoordinatorClient(Client):
    """Sends the requests of every group to the coordinator at ``address`` and never looks up another one.

    If that server is not the coordinator of a group, the error is `NotCoordinator` after the usual retries.
    """

    def __init__(self, address: Address, security: Security) -> None:
        super().__init__(f"[{address.host}]:{address.port}", security, MANAGER_API_VERSIONS)
        self._address = address

    async def find_coordinators(self, groups: Sequence[str], deadline: float) -> dict[str, Address | OffsetMgrError]:
        await self.any_connection(deadline)
        return dict.fromkeys(groups, self._address)
