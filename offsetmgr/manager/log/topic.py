"""The settings of a new offsets topic, and the check of an existing one.

Pure; `offsetmgr.manager.log.kafka.topic_admin` talks to the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation
from offsetmgr.kafka.protocol.releases import ApiKey, Versions, is_before

SEGMENT_BYTES: Final = 100 * 1024 * 1024
"""The segment size of the broker's own offsets topic. Small segments are compacted earlier, so the topic loads
faster."""

MAX_BATCH_BYTES: Final = 1_000_000
"""The maximum size of a writer's batch in bytes, if the topic allows batches of this size."""
MAX_RECORD_BYTES: Final = 64 * 1024
"""The maximum size of the record of a commit in bytes, with the longest group id and topic name, and metadata of 4,096
bytes."""
_BATCH_OVERHEAD: Final = 128
"""The maximum difference, in bytes, between the size that the client estimates for a batch and the size of its
records."""
_DEFAULT_REPLICAS: Final = 3
DELETE_RETENTION_MS: Final = 24 * 60 * 60 * 1000
_MIN_DELETE_RETENTION_MS: Final = 2 * 60 * 60 * 1000
"""Twice the time for which a standby may lag before it reads the whole log again
(``ManagerSettings.max_standby_age_s``)."""
CLEANUP_POLICY: Final = "compact"
TIMESTAMP_TYPE: Final = "LogAppendTime"
"""The leader of a partition drops the state of a producer when the largest timestamp of the producer's last batch is
older than ``producer.id.expiration.ms``. Without the state the leader does not reject batches of earlier managers. So
the leader's clock has to set the timestamp, not the clock of a manager."""
TRANSACTIONS_TOPIC: Final = "__transaction_state"
BROKER_TOPICS: Final = frozenset({"__consumer_offsets", TRANSACTIONS_TOPIC, "__share_group_state"})
"""Internal topics of the brokers. Records of offsetmgr in one of these topics would harm the cluster."""


class UnsuitableTopic(OffsetMgrError):
    """The topic exists, but cannot store offsets safely."""


class PartitionCountChanged(UnsuitableTopic):
    """The topic does not have the number of partitions that the manager expects, so the manager would look up groups in
    the wrong partitions."""


class TopicRecreated(UnsuitableTopic):
    """The topic was deleted and recreated. The offsets of the deleted topic are lost, and the offsets in memory belong
    to the deleted topic."""

    def __init__(self, what: str, topic_id: str, was: str) -> None:
        super().__init__(
            what,
            f"it was deleted and recreated (id {topic_id}, was {was}), and all earlier commits are lost",
            "if you have a snapshot of the offsets, restore it with `offsets import`",
        )
        self.topic_id = topic_id
        """The id of the current topic."""


class TooFewBrokers(OffsetMgrError):
    """The number of live brokers is below the number of replicas of the new topic."""


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic as the brokers describe it. ``topic_id`` is empty if the brokers do not support topic ids (before 2.8,
    KIP-516). ``leaderless`` contains the partitions without a leader."""

    topic_id: str
    partitions: int
    replication_factor: int
    leaderless: frozenset[int]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OffsetsTopicState:
    """A topic that passed the check. ``warnings`` describe settings that may do harm."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    max_message_bytes: int
    """The maximum size of a writer's batch in bytes (see `offsetmgr.manager.log.kafka.KafkaLog`)."""
    warnings: tuple[str, ...] = field(default=())


def replicas_for(topic: str, brokers: int, broker_default: int | None, requested: int | None = None) -> int:
    """Returns the replication factor of a new topic: ``requested`` if given, else ``broker_default``
    (``offsets.topic.replication.factor`` of the brokers; None if unknown), else 3. ``brokers`` is the number of live
    brokers.

    Raises `TooFewBrokers` if the number of live brokers is below the replication factor. The replication factor is not
    lowered, because the topic would keep the lower factor after the other brokers have started. Kafka does not create
    ``__consumer_offsets`` in this case either.
    """
    replicas = requested
    if replicas is None:
        replicas = broker_default if broker_default is not None and broker_default > 0 else _DEFAULT_REPLICAS
    if brokers < replicas:
        raise TooFewBrokers(
            f"creation of topic {topic}",
            f"it needs {replicas} replicas, but only {brokers} {'broker is' if brokers == 1 else 'brokers are'} up",
            Advice("start the other brokers, or use {replication_factor} {} if there are no others", max(brokers, 1)),
        )
    return replicas


def settings_for(replicas: int, min_insync_replicas: int | None = None) -> dict[str, str]:
    """Returns the settings of a new topic with this number of replicas.

    With three or more replicas, two replicas have to confirm an append: no acknowledged commit is lost if one replica
    is lost, and commits succeed while one replica is down. The brokers set the time of every record, see
    `TIMESTAMP_TYPE`.
    """
    in_sync = min_insync_replicas if min_insync_replicas is not None else (2 if replicas >= _DEFAULT_REPLICAS else 1)
    return {
        "cleanup.policy": CLEANUP_POLICY,
        "message.timestamp.type": TIMESTAMP_TYPE,
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        "segment.bytes": str(SEGMENT_BYTES),
        "compression.type": "producer",
        "min.insync.replicas": str(in_sync),
        "unclean.leader.election.enable": "false",
    }


def examine(name: str, found: ExistingTopic, partitions: int, topic_id: str | None = None) -> OffsetsTopicState:
    """Checks the settings of a topic. ``partitions`` is the expected number of partitions, ``topic_id`` the expected
    topic id, or None if any topic id is accepted.

    Raises `UnsuitableTopic`, `TopicRecreated`, `PartitionCountChanged`.
    """
    what = f"topic {name}"
    if topic_id is not None and found.topic_id != topic_id:
        raise TopicRecreated(what, found.topic_id, topic_id)
    policies = {policy.strip() for policy in found.settings.get("cleanup.policy", "delete").split(",")}
    if policies != {CLEANUP_POLICY}:
        raise UnsuitableTopic(
            what,
            f"its cleanup.policy is {','.join(sorted(policies))}: retention would delete committed offsets",
            "choose another topic; or, if this topic contains only committed offsets, set it with kafka-configs "
            f"--alter --entity-type topics --entity-name {name} --add-config cleanup.policy={CLEANUP_POLICY}",
        )
    timestamps = found.settings.get("message.timestamp.type", "CreateTime")
    if timestamps != TIMESTAMP_TYPE:
        raise UnsuitableTopic(
            what,
            f"its message.timestamp.type is {timestamps}: if a manager's clock is slow, brokers forget too early which "
            "managers they have to reject",
            "set it with kafka-configs --alter --entity-type topics "
            f"--entity-name {name} --add-config message.timestamp.type={TIMESTAMP_TYPE}",
        )
    if found.partitions != partitions:
        raise PartitionCountChanged(
            what,
            f"it has {found.partitions} partitions, but this manager expects {partitions}",
            "start every manager with the topic's number of partitions; do not change it while it has offsets",
        )
    in_sync = int(found.settings.get("min.insync.replicas", "1"))
    if in_sync > found.replication_factor:
        raise UnsuitableTopic(
            what,
            f"min.insync.replicas is {in_sync} with {found.replication_factor} replicas: no commit can ever succeed",
            "lower min.insync.replicas, or add replicas",
        )
    max_message_bytes = int(found.settings.get("max.message.bytes", MAX_BATCH_BYTES + _BATCH_OVERHEAD))
    return OffsetsTopicState(
        name=name,
        topic_id=found.topic_id,
        partitions=found.partitions,
        replication_factor=found.replication_factor,
        min_insync_replicas=in_sync,
        max_message_bytes=max(min(MAX_BATCH_BYTES, max_message_bytes - _BATCH_OVERHEAD), 1_000),
        warnings=tuple(_warnings(found, in_sync, max_message_bytes)),
    )


def _warnings(found: ExistingTopic, in_sync: int, max_message_bytes: int) -> list[str]:
    warnings = []
    if max_message_bytes < MAX_RECORD_BYTES:
        warnings.append(
            f"max.message.bytes is {max_message_bytes}: commits with long names or much metadata may need "
            f"{MAX_RECORD_BYTES} and will be rejected"
        )
    if int(found.settings.get("delete.retention.ms", DELETE_RETENTION_MS)) < _MIN_DELETE_RETENTION_MS:
        warnings.append(
            f"delete.retention.ms is below {_MIN_DELETE_RETENTION_MS}: standbys that were stopped may miss deletions, "
            "and deleted offsets would reappear"
        )
    if found.settings.get("unclean.leader.election.enable") == "true":
        warnings.append(
            "unclean.leader.election.enable is true: acknowledged commits can be lost, and also the claims that make "
            "brokers reject earlier managers"
        )
    if found.replication_factor == 1:
        warnings.append("it has one replica: if its broker is lost, acknowledged commits are lost")
    elif in_sync == 1:
        warnings.append("min.insync.replicas is 1: a commit is acknowledged when a single broker has it")
    return warnings


def durability_warnings(transactions: ExistingTopic, state: OffsetsTopicState) -> tuple[str, ...]:
    """Returns warnings if the brokers' transaction topic is less durable than the offsets topic. The transaction topic
    contains the producer epochs of the managers. If an epoch is lost, brokers assign the epoch to a second manager, and
    no broker can distinguish the two managers by it."""
    in_sync = int(transactions.settings.get("min.insync.replicas", "1"))
    found = []
    if transactions.replication_factor < state.replication_factor:
        found.append(
            f"{transactions.replication_factor} replicas, but the offsets topic has {state.replication_factor}"
        )
    if in_sync < state.min_insync_replicas:
        found.append(f"min.insync.replicas {in_sync}, but the offsets topic has {state.min_insync_replicas}")
    return tuple(
        f"{TRANSACTIONS_TOPIC} has {difference}: if it loses records, two managers can get the same producer epoch"
        for difference in found
    )


# The brokers' settings on which the fence of the offsets topic depends, and the check of these settings. A manager
# that takes over a partition gets a higher producer epoch and appends a claim. From then on the leader of the
# partition rejects every batch of an earlier epoch. The leader forgets this when it drops the state of the producer,
# and the transaction coordinator forgets the epoch when it drops the transactional id. Therefore managers append new
# claims at intervals that are shorter than both times. Brokers must also close the idle connection of a frozen
# manager before they forget its epoch, because a manager appends only through a connection on which it has checked
# that it is not fenced. Pure; `offsetmgr.manager.log.kafka.broker_checks` asks the brokers.

PRODUCER_EXPIRATION: Final = "producer.id.expiration.ms"
"""The time after which the leader of a partition drops the state of a producer. Brokers before 3.4 do not have this
setting and use `TRANSACTIONAL_EXPIRATION` instead (KIP-854)."""
TRANSACTIONAL_EXPIRATION: Final = "transactional.id.expiration.ms"
"""The time after which the transaction coordinator drops an unused transactional id with its producer id and epoch."""
MAX_IDLE: Final = "connections.max.idle.ms"
"""The time after which brokers close an idle connection. A negative value means never. One value applies to
all listeners of a broker: brokers ignore the setting if its name has the prefix of a listener."""
FENCE_SETTINGS: Final = (PRODUCER_EXPIRATION, TRANSACTIONAL_EXPIRATION, MAX_IDLE)

MAX_REFRESH_INTERVAL_S: Final = 3_600.0
_REFRESHES: Final = 4
"""The number of refreshes within the shortest expiration. A refresh may fail while a leader or a coordinator moves, so
several attempts must be possible."""
_IDLE_SHARE: Final = 0.5
"""The longest time after which brokers close idle connections, as a share of the shortest expiration. The rest is a
reserve, because a network thread of a broker closes only one idle connection in each round, which may take 0.3 s."""

REQUIRED_APIS: Final = (
    (ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, "2.8"),
    (ApiKey.INIT_PRODUCER_ID, "InitProducerId", 3, "2.5"),
)
"""The key, name and version of each request that the fence needs, and the release of Kafka that introduced the
version."""
_ALWAYS_REPORTED_SINCE: Final = "3.5"
"""The first release that has `PRODUCER_EXPIRATION` and that a client can recognize."""


class UnsuitableBroker(OffsetMgrError):
    """A broker has settings with which it could accept batches of earlier managers, or does not report its
    settings."""


class BrokerSettings(NamedTuple):
    """The settings in `FENCE_SETTINGS` that one broker reported."""

    broker: str
    """The id and the address of the broker, for messages."""
    versions: Versions
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FenceSettings:
    """The times that all brokers keep, in seconds."""

    refresh_interval_s: float
    """The interval at which the owner of a partition appends a new claim."""
    expiration_s: float
    """The shortest time after which a broker may forget a producer id or its epoch."""
    max_idle_s: float
    """The time after which every broker has closed an idle connection."""
    brokers: tuple[str, ...]
    """The brokers that reported these settings."""


def check_apis(broker: str, versions: Versions) -> None:
    """Raises `UnsupportedOperation` if the broker does not support a request that the fence needs."""
    for api_key, name, needed, since in REQUIRED_APIS:
        low, high = versions.get(api_key, (0, -1))
        if not low <= needed <= high:
            version = f" version {needed}" if needed else ""
            raise UnsupportedOperation(
                f"broker {broker}",
                f"it does not support {name}{version} (Kafka {since} and later)",
                "the offset manager needs brokers of Kafka 2.8 or later: upgrade the brokers",
            )


def fence_settings(
    brokers: Sequence[BrokerSettings], min_expiration_s: float = ManagerSettings.min_expiration_s
) -> FenceSettings:
    """Returns the times that all brokers keep. ``min_expiration_s`` is the shortest allowed expiration in seconds.

    Raises `UnsuitableBroker` if a broker keeps a time that is too short or too long, or does not report it.
    """
    shortest = min(
        (setting for broker in brokers for setting in _expirations(broker)), key=lambda setting: setting.value_ms
    )
    if shortest.value_ms < min_expiration_s * 1000:
        raise UnsuitableBroker(
            f"broker {shortest.broker}",
            f"its {shortest.name} is {shortest.value_ms}, but managers need at least {min_expiration_s * 1000:.0f}: "
            "after this time without a claim the brokers forget which managers they have to reject",
            _how_to_raise(shortest.name),
        )
    max_idle_ms = shortest.value_ms * _IDLE_SHARE
    idle = [_ReportedTime.read(broker, MAX_IDLE) for broker in brokers]
    for setting in idle:
        if not 0 <= setting.value_ms <= max_idle_ms:
            never = " (never)" if setting.value_ms < 0 else ""
            raise UnsuitableBroker(
                f"broker {setting.broker}",
                f"its {MAX_IDLE} is {setting.value_ms}{never}, but managers need at most {max_idle_ms:.0f}, half of "
                f"{shortest.name}={shortest.value_ms} of broker {shortest.broker}: the brokers must close the "
                "connections of a frozen manager before they forget that they have to reject it",
                f"lower {MAX_IDLE} in the broker's server.properties and restart it, or raise {shortest.name}",
            )
    return FenceSettings(
        refresh_interval_s=min(MAX_REFRESH_INTERVAL_S, shortest.value_ms / 1000 / _REFRESHES),
        expiration_s=shortest.value_ms / 1000,
        max_idle_s=max(setting.value_ms for setting in idle) / 1000,
        brokers=tuple(broker.broker for broker in brokers),
    )


class _ReportedTime(NamedTuple):
    """A setting of a broker that is a time in milliseconds."""

    broker: str
    name: str
    value_ms: int

    @classmethod
    def read(cls, broker: BrokerSettings, name: str) -> _ReportedTime:
        text = broker.values.get(name, "")
        try:
            return cls(broker.broker, name, int(text))
        except ValueError:
            raise UnsuitableBroker(
                f"broker {broker.broker}",
                f"it reports {name}={text!r}, which is not a number"
                if text
                else f"it does not report {name}, so the manager cannot check how long the broker rejects earlier "
                "managers",
            ) from None


def _expirations(broker: BrokerSettings) -> list[_ReportedTime]:
    """Returns the settings that decide when the broker forgets a producer id or its epoch."""
    names = [TRANSACTIONAL_EXPIRATION]
    if PRODUCER_EXPIRATION in broker.values or not is_before(_ALWAYS_REPORTED_SINCE, broker.versions):
        names.append(PRODUCER_EXPIRATION)
    return [_ReportedTime.read(broker, name) for name in names]


def _how_to_raise(name: str) -> str:
    if name == PRODUCER_EXPIRATION:
        return f"raise it: kafka-configs --alter --entity-type brokers --entity-default --add-config {name}=86400000"
    return f"raise {name} in the server.properties of every broker and restart the brokers"
