"""`NodeConfig`: what a member of the managers is told, once and for all."""

from __future__ import annotations

from dataclasses import dataclass, field

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.manager.log.topic import DEFAULT_PARTITIONS, DEFAULT_TOPIC
from offsetmgr.manager.ownership import REBALANCE, SESSION
from offsetmgr.manager.runtime.config import ManagerConfig


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Times in seconds. ``replication_factor`` and ``min_insync_replicas`` are for a topic that has to be made, see
    `offsetmgr.manager.log.kafka.topic_admin.ensure_topic`. ``manager.members`` given means that it relays."""

    bootstrap: str
    connection: ConnectionConfig
    topic: str = DEFAULT_TOPIC
    partitions: int = DEFAULT_PARTITIONS
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    record_format: str = "avro"
    manager: ManagerConfig = field(default_factory=ManagerConfig)
    session: float = SESSION
    """Of the managers' group: so long after a manager died others have its shard groups."""
    timeout: float = 30.0
    """For each question to the brokers about the topic."""
    watch_interval: float = 5.0
    """From one look at whether the topic is still what it was to the next: so long, and one look, offsets of a topic
    that was recreated may still be served."""

    @property
    def rebalance(self) -> float:
        """The rebalance timeout of the managers' group."""
        return max(REBALANCE, 2 * self.session)
