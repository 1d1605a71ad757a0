"""`Managers`: the status of the running manager processes and the contents of their shards, for synchronous callers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import NotCoordinator, OffsetMgrError, UsageError
from offsetmgr.kafka.client.background_loop import ClientThread
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.manager_admin import inspect, managers
from offsetmgr.kafka.client.manager_api import MAX_DUMP_ROWS
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address


class ManagerReport(NamedTuple):
    """The status of one manager. If the manager did not report its status, ``status`` is None and ``error`` is set."""

    node_id: int
    address: Address
    status: Mapping[str, Any] | None
    error: OffsetMgrError | None = None


class Managers(Closeable):
    """The manager processes of a cluster. The first manager that responds provides the list of managers. The
    constructor performs no I/O."""

    def __init__(self, bootstrap: str, connection: ConnectionConfig | None = None) -> None:
        connection = connection or ConnectionConfig()
        # The functions `managers` and `inspect` check that a server is a manager, so the client need not check API
        # versions.
        self._thread = ClientThread(Client(bootstrap, Security.of(connection.kafka)), connection.timeout_ms / 1000)

    def reports(self) -> list[ManagerReport]:
        """Returns the status of every manager. The requests run in parallel. Raises the errors of
        `offsetmgr.kafka.client.manager_admin.managers`."""
        found = self._thread.run(lambda deadline: managers(self._thread.client, deadline))

        async def report(node_id: int, address: Address, deadline: float) -> ManagerReport:
            try:
                status = await inspect(self._thread.client, address, {"what": "status"}, deadline)
                return ManagerReport(node_id, address, status)
            except OffsetMgrError as error:
                return ManagerReport(node_id, address, None, error)

        return self._thread.run(lambda deadline: asyncio.gather(*(report(*one, deadline) for one in found)))

    def owned_shard(self, partition: int) -> Mapping[str, Any] | None:
        """Returns the status of a shard from the manager that owns the shard; None if no manager owns the shard."""
        for report in self.reports():
            for shard in (report.status or {}).get("shards", ()):
                if shard["partition"] == partition and shard["role"] == "owner":
                    return dict(shard)
        return None

    def dump(self, partition: int) -> Iterator[Mapping[str, Any]]:
        """Requests the committed offsets of a shard from the owner of the shard. Yields the offsets, sorted by group,
        topic and partition.

        Raises `NotCoordinator` if no manager owns the shard, and `UsageError` if the shard does not exist.
        """
        reports = self.reports()
        owner = next((r.address for r in reports if _owns(r.status, partition)), None)
        if not any(r.status is None or r.status["shards"] for r in reports):
            raise NotCoordinator(
                f"shard {partition}",
                "no manager at this address has shards",
                "read the store behind the listener instead",
            )
        known = {shard["partition"] for r in reports if r.status is not None for shard in r.status["shards"]}
        if known and partition not in known:
            raise UsageError(f"shard {partition}", "no shard has this number", f"shards are 0 to {max(known)}")
        if owner is None:
            raise NotCoordinator(f"shard {partition}", "no manager owns it at this moment", "see `manager status`")
        after: list[Any] | None = None
        while True:
            request = {"what": "dump", "partition": partition, "after": after, "most": MAX_DUMP_ROWS}
            rows = self._thread.run(partial(inspect, self._thread.client, owner, request))["rows"]
            yield from rows
            if len(rows) < MAX_DUMP_ROWS:
                return
            after = [rows[-1]["group"], rows[-1]["topic"], rows[-1]["partition"]]

    def close(self) -> None:
        self._thread.close()


def _owns(status: Mapping[str, Any] | None, partition: int) -> bool:
    return status is not None and any(
        shard["partition"] == partition and shard["role"] == "owner" for shard in status["shards"]
    )
