"""`ManagerStore`: committed offsets in offsetmgr's own offset managers, over Kafka's protocol.

Managers announce their protocol extensions. If the address belongs to a broker, the store works without conditional
commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.offset_store import Capabilities, StoreIdentity
from offsetmgr.stores.kafka_protocol_store import ProtocolStore

if TYPE_CHECKING:
    from offsetmgr.kafka.client.client import Client
    from offsetmgr.stores.manager_edits import ManagerEdits


class ManagerStore(ProtocolStore):
    """The groups that the offset manager at an address serves: the groups in the managers' offsets topic, or the groups
    of another store."""

    kind = "manager"

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        super().__init__(bootstrap, config)
        self._features: dict[str, int] | None = None
        self._identity: StoreIdentity | None = None

    def _client(self, config: ConnectionConfig) -> Client:
        from offsetmgr.kafka.client.client import Client
        from offsetmgr.kafka.client.security import Security
        from offsetmgr.kafka.protocol.requests import MANAGER_API_VERSIONS

        return Client(self._bootstrap, Security.of(config.kafka), MANAGER_API_VERSIONS)

    def _edits(self, client: Client, timeout_s: float) -> ManagerEdits:
        from offsetmgr.stores.manager_edits import ManagerEdits

        return ManagerEdits(client, timeout_s)

    @property
    def capabilities(self) -> Capabilities:
        """Returns the capabilities that the server announces. Only the first call requests them. Raises `Unreachable`,
        `TimedOut`.

        Each edit checks the capabilities of its group's coordinator again, because the coordinator may run an older
        release than the server that announced these capabilities.
        """
        from offsetmgr.kafka.protocol.conditional_commit import CONDITIONAL_FEATURE, DROPS_LEADER_EPOCH, DROPS_METADATA

        offered = self._offered()
        return Capabilities(
            metadata=DROPS_METADATA not in offered,
            leader_epoch=DROPS_LEADER_EPOCH not in offered,
            commit_timestamp=False,
            conditional="version" if CONDITIONAL_FEATURE in offered else "none",
        )

    def identity(self) -> StoreIdentity:
        """Returns an id that consists of the cluster id and the managers' offsets topic. If the manager serves another
        store, the kind of that store replaces the topic in the id."""
        from offsetmgr.kafka.protocol.conditional_commit import LOG_FEATURE

        if self._identity is None:
            thread = self.store_thread()
            cluster_id, _ = thread.run(thread.client.cluster)
            offered = self._offered()
            topic = next((n.removeprefix(LOG_FEATURE) for n in offered if n.startswith(LOG_FEATURE)), "")
            kind = self.served_store() or ""
            how = "cluster id and offsets topic" if topic else "cluster id and kind of store" if kind else "cluster id"
            store_id = "/".join(part for part in (cluster_id, topic or kind) if part)
            self._identity = StoreIdentity("manager", store_id, f"{how}, as the server reports")
        return self._identity

    def served_store(self) -> str | None:
        """Returns the kind of the store whose groups the manager serves; None if the manager has its own offsets topic.
        Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.kafka.protocol.conditional_commit import STORE_FEATURE

        return next((n.removeprefix(STORE_FEATURE) for n in self._offered() if n.startswith(STORE_FEATURE)), None)

    def groups(self) -> Iterator[str]:
        from offsetmgr.kafka.client.group_lists import list_manager_groups

        thread = self.store_thread()
        yield from thread.run(lambda deadline: list_manager_groups(thread.client, deadline))

    def _offered(self) -> dict[str, int]:
        if self._features is None:
            from offsetmgr.kafka.client.api_versions import features
            from offsetmgr.kafka.client.connection import remaining

            thread = self.store_thread()

            async def ask(deadline: float) -> dict[str, int]:
                connection = await thread.client.any_connection(deadline)
                return dict(await features(connection, remaining(deadline)))

            self._features = thread.run(ask)
        return self._features
