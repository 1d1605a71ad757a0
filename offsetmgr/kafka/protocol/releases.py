"""Kafka releases: how to recognize them by API versions, and which capabilities they have.

A broker does not report its release, so offsetmgr derives the release from the broker's API versions. Brokers of Kafka
0.10.0 and later report their API versions in response to an ApiVersions request. Brokers of Kafka 0.8.2 and 0.9 do not
support this request, so this module contains the API versions of these two releases.

A *capability* is a function of a broker that an operation needs. Operations check capabilities and never releases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core import model
from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.core.model import Weakness

# The API keys of the Kafka protocol that offsetmgr uses. Source: org.apache.kafka.common.protocol.ApiKeys.


class ApiKey(IntEnum):
    """An API key of the Kafka protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_DESCRIBE = 77
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91


def api_name(api_key: int) -> str:
    """Returns Kafka's name of an API, such as ``OffsetCommit``, or a text with the key if offsetmgr does not use it."""
    try:
        return ApiKey(api_key).name.title().replace("_", "")
    except ValueError:
        return f"API {api_key}"


Versions: TypeAlias = Mapping[int, tuple[int, int]]
"""The lowest and the highest supported version of each API, by API key."""


KAFKA_0_8_2: Final[Versions] = {
    ApiKey.PRODUCE: (0, 0),
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
}
KAFKA_0_9: Final[Versions] = {
    **KAFKA_0_8_2,
    ApiKey.PRODUCE: (0, 1),
    ApiKey.FETCH: (0, 1),
    ApiKey.OFFSET_COMMIT: (0, 2),
    ApiKey.JOIN_GROUP: (0, 0),
    ApiKey.HEARTBEAT: (0, 0),
    ApiKey.LEAVE_GROUP: (0, 0),
    ApiKey.SYNC_GROUP: (0, 0),
    ApiKey.DESCRIBE_GROUPS: (0, 0),
    ApiKey.LIST_GROUPS: (0, 0),
}

_INTRODUCED_BY: Final[tuple[tuple[str, int, int], ...]] = (
    ("4.4", ApiKey.DELETE_GROUPS, 3),
    ("4.3", ApiKey.DESCRIBE_LOG_DIRS, 5),
    ("4.2", ApiKey.LIST_OFFSETS, 11),
    ("4.1", ApiKey.FETCH, 18),
    ("4.0", ApiKey.METADATA, 13),
    ("3.9", ApiKey.FETCH, 17),
    ("3.8", ApiKey.FIND_COORDINATOR, 5),
    ("3.7", ApiKey.OFFSET_COMMIT, 9),
    ("3.5", ApiKey.FETCH, 15),
    ("3.2", ApiKey.JOIN_GROUP, 9),
    ("3.1", ApiKey.FETCH, 13),
    ("3.0", ApiKey.FIND_COORDINATOR, 4),
    ("2.8", ApiKey.METADATA, 11),
    ("2.7", ApiKey.FETCH, 12),
    ("2.6", ApiKey.LIST_GROUPS, 4),
    ("2.5", ApiKey.OFFSET_FETCH, 7),
    ("2.4", ApiKey.OFFSET_DELETE, 0),
    ("2.3", ApiKey.FETCH, 11),
    ("2.2", ApiKey.JOIN_GROUP, 4),
    ("2.1", ApiKey.FETCH, 10),
    ("2.0", ApiKey.FETCH, 8),
    ("1.1", ApiKey.DELETE_GROUPS, 0),
    ("1.0", ApiKey.METADATA, 5),
    ("0.11", ApiKey.INIT_PRODUCER_ID, 0),
    ("0.10.2", ApiKey.OFFSET_FETCH, 2),
    ("0.10.1", ApiKey.METADATA, 2),
    ("0.10.0", ApiKey.API_VERSIONS, 0),
    ("0.9", ApiKey.JOIN_GROUP, 0),
)
"""For each release, latest release first, one API version that the release introduced. Releases that cannot be
distinguished from their predecessor are omitted."""
_OLDEST: Final = "0.8.2"


def release(versions: Versions) -> str:
    """Returns the oldest release with these API versions, such as ``2.8``."""
    for name, api_key, version in _INTRODUCED_BY:
        if versions.get(api_key, (0, -1))[1] >= version:
            return name
    return _OLDEST


def is_before(name: str, versions: Versions) -> bool:
    """Returns whether a broker with these API versions is older than the release ``name``, which must be in
    `_INTRODUCED_BY`."""
    api_key, version = next((api_key, version) for known, api_key, version in _INTRODUCED_BY if known == name)
    return versions.get(api_key, (0, -1))[1] < version


def fallback_versions(text: str) -> Versions | None:
    """Returns the API versions of the release in the setting ``broker.version.fallback``. Returns None for Kafka 0.10
    and later, because these brokers report their API versions."""
    if text.startswith("0.8"):
        return KAFKA_0_8_2
    return KAFKA_0_9 if text.startswith("0.9") else None


def has_transactions(versions: Versions) -> bool:
    """Returns whether clients can use transactions (Kafka 0.11 and later)."""
    return ApiKey.INIT_PRODUCER_ID in versions


class Capability(NamedTuple):
    """A function that brokers have from a release on."""

    name: str
    """A verb with its object, such as "describes members"."""
    since: str
    """The release that introduced it."""
    api_key: int
    version: int
    """A broker that supports this version of the API, or a later version, has the capability."""
    without: str = ""
    """The consequence on brokers without the capability, as a clause. The clause is empty if offsetmgr refuses the
    operation on brokers without the capability."""
    weakens: bool = False
    """Whether a guarantee of edits is weaker on brokers without the capability."""

    def supported_by(self, versions: Versions) -> bool:
        """Returns whether a broker with these versions has the capability."""
        return versions.get(self.api_key, (0, -1))[1] >= self.version

    def unsupported_error(self, where: str, versions: Versions) -> UnsupportedOperation:
        """Returns the error of an operation that needs the capability, for a broker that lacks it. ``where`` is the
        address of the broker."""
        return UnsupportedOperation(
            f"broker {where}",
            f'Kafka {release(versions)} lacks the capability "{self.name}", which came with Kafka {self.since}',
        )


READS_OFFSETS: Final = Capability("reads committed offsets", "0.8.2", ApiKey.OFFSET_FETCH, 1)
COMMITS_OFFSETS: Final = Capability("commits offsets", "0.8.2", ApiKey.OFFSET_COMMIT, 1)
READS_ALL_OFFSETS: Final = Capability(
    "reads all offsets of a group", "0.9", ApiKey.JOIN_GROUP, 0, "offsetmgr finds the partitions in __consumer_offsets"
)
DESCRIBES_MEMBERS: Final = Capability(
    "describes members", "0.9", ApiKey.DESCRIBE_GROUPS, 0, "groups have no members in Kafka, only in ZooKeeper"
)
HOLDS_LOCK: Final = Capability(
    "holds the group lock",
    "0.9",
    ApiKey.JOIN_GROUP,
    0,
    "writes are not atomic: offsetmgr reads and compares just before each write, and reads again after it",
    weakens=True,
)
ACCEPTS_LOGINS: Final = Capability("accepts SASL logins", "0.10.0", ApiKey.API_VERSIONS, 0)
"""The capability depends on ApiVersions, because offset managers without a login do not list SaslHandshake. The same
release of Kafka introduced both APIs. A broker of 0.9 with SASL accepts only Kerberos tickets, which offsetmgr does not
send."""
LISTS_GROUPS: Final = Capability(
    "lists groups", "0.10.1", ApiKey.METADATA, 2, "offsetmgr finds groups without members in __consumer_offsets"
)
FINDS_BY_TIME: Final = Capability("finds offsets by time", "0.10.1", ApiKey.LIST_OFFSETS, 1)
REPORTS_CLUSTER_ID: Final = Capability(
    "reports the cluster id",
    "0.10.1",
    ApiKey.METADATA,
    2,
    "offsetmgr distinguishes clusters by the addresses of their brokers",
)
REPORTS_CONFIGURATION: Final = Capability(
    "reports its configuration",
    "0.11",
    ApiKey.DESCRIBE_CONFIGS,
    0,
    "offsetmgr assumes the default retention of offsets of the release, which server.properties may override",
    weakens=True,
)
DELETES_GROUPS: Final = Capability(
    "deletes groups", "1.1", ApiKey.DELETE_GROUPS, 0, "offsetmgr deletes the group's offsets instead"
)
KEEPS_ACTIVE_OFFSETS: Final = Capability(
    model.KEEPS_ACTIVE_OFFSETS,
    "2.1",
    ApiKey.OFFSET_COMMIT,
    5,
    "each offset expires by itself, even while its group has members; a write restarts its retention with the broker's "
    "setting, even if a client had requested a longer one",
    weakens=True,
)
KEEPS_EPOCHS: Final = Capability(
    "keeps leader epochs", "2.1", ApiKey.OFFSET_COMMIT, 6, "offsets are written without epochs"
)
STATIC_MEMBERSHIP: Final = Capability(
    "supports static membership",
    "2.3",
    ApiKey.JOIN_GROUP,
    5,
    "the group lock of a killed mirror remains for 10 seconds",
    weakens=True,
)
DELETES_OFFSETS: Final = Capability(
    model.DELETES_OFFSETS,
    "2.4",
    ApiKey.OFFSET_DELETE,
    0,
    "a deleted offset stays until the broker's next check for expired offsets, 10 minutes at most by default; a "
    "consumer that starts earlier still reads it",
    weakens=True,
)
EVICTS_MEMBERS: Final = Capability("removes members of a group", "2.4", ApiKey.LEAVE_GROUP, 3)
REPORTS_TRANSACTIONS: Final = Capability(
    "reports open transactions",
    "2.5",
    ApiKey.OFFSET_FETCH,
    7,
    "offsets in an open transaction are not visible",
)
FENCES_WRITERS: Final = Capability("fences writers", "2.8", ApiKey.DESCRIBE_PRODUCERS, 0)
"""`offsetmgr.manager.log.topic` lists every request that the offset manager needs to fence its writers."""
REPORTS_TOPIC_IDS: Final = Capability(
    "reports topic ids",
    "2.8",
    ApiKey.METADATA,
    10,
    "offsetmgr recognises recreated topics by their creation time in ZooKeeper, if the command names ZooKeeper",
)
DESCRIBES_SHARE_GROUPS: Final = Capability(
    "describes share groups", "4.1", ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, "no share groups"
)
RESETS_SHARE_GROUPS: Final = Capability("resets share groups", "4.2", ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1)
"""Brokers of 4.1 answer AlterShareGroupOffsets without an effect. Version 1 of DescribeShareGroupOffsets, which reports
the lag, came with the release that implements it."""

_ALL: Final = tuple(one for one in tuple(vars().values()) if isinstance(one, Capability))
CAPABILITIES: Final = tuple(one for one in _ALL if one is not EVICTS_MEMBERS)
"""All capabilities that are reported, in the order of the releases that introduced them."""


def weaknesses(broker_versions: Collection[Versions]) -> tuple[Weakness, ...]:
    """Returns the guarantees of edits that are weaker than with brokers of Kafka 3.0, for a cluster whose brokers have
    these API versions."""
    found = []
    for capability in CAPABILITIES:
        lacking = [versions for versions in broker_versions if not capability.supported_by(versions)]
        if capability is STATIC_MEMBERSHIP:  # without group membership there is no lock that could outlive its process
            lacking = [versions for versions in lacking if HOLDS_LOCK.supported_by(versions)]
        if not lacking:
            continue
        if capability.weakens or (capability is REPORTS_TRANSACTIONS and any(map(has_transactions, lacking))):
            oldest = min((release(versions) for versions in lacking), key=_number)
            lacks = f'Kafka {oldest} lacks "{capability.name}" (from {capability.since} on)'
            found.append(Weakness(capability.name, f"{lacks}: {capability.without}"))
    return tuple(found)


def _number(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))
