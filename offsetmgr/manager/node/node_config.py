"""`NodeConfig`: the settings of a manager process."""

from __future__ import annotations

from dataclasses import dataclass, field

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.manager.log.fence_settings import MIN_EXPIRATION_S
from offsetmgr.manager.log.topic import DEFAULT_PARTITIONS, DEFAULT_TOPIC
from offsetmgr.manager.ownership import REBALANCE_TIMEOUT_S, SESSION_TIMEOUT_S
from offsetmgr.manager.runtime.config import ManagerConfig


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of one manager process; times are in seconds. ``replication_factor`` and ``min_insync_replicas`` apply
    only if the node creates the topic (see `offsetmgr.manager.log.kafka.topic_admin.ensure_topic`). ``manager.members``
    is set if the process is a relay."""

    bootstrap: str
    connection: ConnectionConfig
    topic: str = DEFAULT_TOPIC
    partitions: int = DEFAULT_PARTITIONS
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    record_format: str = "avro"
    manager: ManagerConfig = field(default_factory=ManagerConfig)
    session_timeout_s: float = SESSION_TIMEOUT_S
    """The session timeout of the managers' group. If a manager dies, other managers own its shard groups after this
    time."""
    timeout_s: float = 30.0
    """The timeout of each request to the brokers about the topic."""
    topic_check_interval_s: float = 5.0
    """The interval between two checks of the topic. If the topic is recreated, the manager may serve the old offsets
    for this interval and the duration of one check."""

    min_expiration_s: float = MIN_EXPIRATION_S
    """The shortest time after which brokers may drop a producer id or a transactional id. Brokers with a shorter time
    are rejected. Only tests set a shorter time."""

    @property
    def rebalance_timeout_s(self) -> float:
        """The rebalance timeout of the managers' group."""
        return max(REBALANCE_TIMEOUT_S, 2 * self.session_timeout_s)
