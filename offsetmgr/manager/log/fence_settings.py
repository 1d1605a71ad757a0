"""The brokers' settings on which the fence of the offsets topic depends, and the check of these settings.

A manager that takes over a partition gets a higher producer epoch and appends a claim. From then on the leader of the
partition rejects every batch of an earlier epoch. The leader forgets this when it drops the state of the producer, and
the transaction coordinator forgets the epoch when it drops the transactional id. Therefore managers append new claims
at intervals that are shorter than both times. Brokers must also close the idle connection of a frozen manager before
they forget its epoch, because a manager appends only through a connection on which it has checked that it is not
fenced.

Pure; `offsetmgr.manager.log.kafka.broker_checks` asks the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.releases import Versions, is_before

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
