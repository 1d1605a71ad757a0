"""A client with a fixed coordinator, for all groups."""

from __future__ import annotations

from collections.abc import Sequence

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.requests import MANAGER_API_VERSIONS


class PinnedCoordinatorClient(Client):
    """Sends the requests for all groups to the server at ``address`` and never looks up a coordinator.

    If the server at ``address`` is not the coordinator of a group, calls for this group fail with `NotCoordinator`
    after the usual retries.
    """

    def __init__(self, address: Address, security: Security) -> None:
        super().__init__(f"[{address.host}]:{address.port}", security, MANAGER_API_VERSIONS)
        self._address = address

    async def find_coordinators(
        self,
        groups: Sequence[str],
        deadline: float,
        *,
        of_transactions: bool = False,  # noqa: ARG002 - one server coordinates everything
    ) -> dict[str, Address | OffsetMgrError]:
        await self.any_connection(deadline)
        return dict.fromkeys(groups, self._address)
