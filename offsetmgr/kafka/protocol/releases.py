"""Releases of Kafka: which versions of each API a broker of a release speaks, and what it can do.

From 0.10.0 on a broker answers ApiVersions itself. Brokers 0.8.2 and 0.9 do not know that request, so their versions
stand here. A release is named from the versions of the APIs: brokers do not tell their release.

A *capability* is something that an operation needs. Operations ask for capabilities, never for releases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core import model
from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.core.model import Weakness
from offsetmgr.kafka.protocol.api_key import ApiKey

Versions: TypeAlias = Mapping[int, tuple[int, int]]
"""Lowest and highest version of each API that a broker speaks, by API key."""


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

_SIGNS: Final[tuple[tuple[str, int, int], ...]] = (
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
"""The version of an API that a release was the first to speak, the latest release first. Releases that cannot be told
from the one before them by this are left out."""
_FIRST: Final = "0.8.2"


def release(versions: Versions) -> str:
    """The oldest release that speaks these versions, such as ``2.8``, as far as they tell releases apart."""
    for name, api_key, version in _SIGNS:
        if versions.get(api_key, (0, -1))[1] >= version:
            return name
    return _FIRST


def before(name: str, versions: Versions) -> bool:
    """Whether a broker that speaks these versions is older than the release of this name, one of those told apart."""
    api_key, version = next((api_key, version) for known, api_key, version in _SIGNS if known == name)
    return versions.get(api_key, (0, -1))[1] < version


def fallback(text: str) -> Versions | None:
    """The versions of the release that the setting ``broker.version.fallback`` names; None for one that answers
    ApiVersions."""
    if text.startswith("0.8"):
        return KAFKA_0_8_2
    return KAFKA_0_9 if text.startswith("0.9") else None


class Capability(NamedTuple):
    """Something that a broker can do from a release on."""

    name: str
    """What the broker does: a verb and its object."""
    since: str
    """The release that brought it."""
    api_key: int
    version: int
    """The broker has it if it speaks this version of this API, or a later one."""
    without: str = ""
    """What holds on brokers without it, as a clause; empty where offsetmgr refuses what needs it."""
    weakens: bool = False
    """Whether a guarantee of edits is weaker on brokers without it."""

    def on(self, versions: Versions) -> bool:
        """Whether a broker that speaks these versions has the capability."""
        return versions.get(self.api_key, (0, -1))[1] >= self.version

    def refusal(self, where: str, versions: Versions) -> UnsupportedOperation:
        """The error for an operation that needs the capability, on the broker ``where``, which lacks it."""
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
LOGS_IN: Final = Capability("takes SASL logins", "0.10.0", ApiKey.API_VERSIONS, 0)
"""Told by ApiVersions, which came with SaslHandshake: offset managers that want no login do not list the latter. A
broker 0.9 with SASL takes Kerberos tickets only, which offsetmgr does not send."""
LISTS_GROUPS: Final = Capability(
    "lists groups", "0.10.1", ApiKey.METADATA, 2, "offsetmgr finds groups without members in __consumer_offsets"
)
FINDS_BY_TIME: Final = Capability("finds offsets by time", "0.10.1", ApiKey.LIST_OFFSETS, 1)
TELLS_CLUSTER_ID: Final = Capability(
    "tells the cluster's id", "0.10.1", ApiKey.METADATA, 2, "offsetmgr tells clusters apart by their brokers' addresses"
)
TELLS_SETTINGS: Final = Capability(
    "tells its settings",
    "0.11",
    ApiKey.DESCRIBE_CONFIGS,
    0,
    "lifetimes of offsets are the defaults of the release, unless server.properties has others",
    weakens=True,
)
FENCES_WRITERS: Final = Capability("fences writers", "0.11", ApiKey.INIT_PRODUCER_ID, 0)
DELETES_GROUPS: Final = Capability(
    "deletes groups", "1.1", ApiKey.DELETE_GROUPS, 0, "offsetmgr deletes the group's offsets instead"
)
KEEPS_IN_USE: Final = Capability(
    model.KEEPS_IN_USE,
    "2.1",
    ApiKey.OFFSET_COMMIT,
    5,
    "each offset expires by itself, even while its group has members; a write starts its life again with the broker's "
    "retention, also where a client had asked for a longer one",
    weakens=True,
)
KEEPS_EPOCHS: Final = Capability(
    "keeps leader epochs", "2.1", ApiKey.OFFSET_COMMIT, 6, "offsets are written without epochs"
)
KEEPS_PLACES: Final = Capability(
    "keeps a member's place by name",
    "2.3",
    ApiKey.JOIN_GROUP,
    5,
    "a group that a killed mirror held stays locked for 10 seconds",
    weakens=True,
)
DELETES_OFFSETS: Final = Capability(
    model.DELETES_OFFSETS,
    "2.4",
    ApiKey.OFFSET_DELETE,
    0,
    "a deleted offset stays until the broker's next check for expired offsets, 10 minutes at most by default; a "
    "consumer that starts before that starts from it",
    weakens=True,
)
SEES_TRANSACTIONS: Final = Capability(
    "tells of open transactions",
    "2.5",
    ApiKey.OFFSET_FETCH,
    7,
    "offsets in a transaction that has not ended are not seen",
)
TELLS_TOPIC_IDS: Final = Capability(
    "tells topic ids",
    "2.8",
    ApiKey.METADATA,
    10,
    "offsetmgr recognises recreated topics by their time of creation in ZooKeeper, where the command names it",
)

CAPABILITIES: Final = (
    READS_OFFSETS,
    COMMITS_OFFSETS,
    READS_ALL_OFFSETS,
    DESCRIBES_MEMBERS,
    HOLDS_LOCK,
    LOGS_IN,
    LISTS_GROUPS,
    FINDS_BY_TIME,
    TELLS_CLUSTER_ID,
    TELLS_SETTINGS,
    FENCES_WRITERS,
    DELETES_GROUPS,
    KEEPS_IN_USE,
    KEEPS_EPOCHS,
    KEEPS_PLACES,
    DELETES_OFFSETS,
    SEES_TRANSACTIONS,
    TELLS_TOPIC_IDS,
)
"""All of them, by the release that brought them."""


def weaknesses(spoken: Collection[Versions]) -> tuple[Weakness, ...]:
    """The guarantees of edits that are weaker in a cluster of such brokers than on Kafka 3.0."""
    found = []
    for capability in CAPABILITIES:
        lacking = [versions for versions in spoken if not capability.on(versions)]
        if capability is KEEPS_PLACES:  # only a lock can outlive the process that took it
            lacking = [versions for versions in lacking if HOLDS_LOCK.on(versions)]
        if not lacking:
            continue
        # Before 0.11 there are no transactions that could be open.
        if capability.weakens or (capability is SEES_TRANSACTIONS and any(map(FENCES_WRITERS.on, lacking))):
            oldest = min((release(versions) for versions in lacking), key=_number)
            lacks = f'Kafka {oldest} lacks "{capability.name}" (from {capability.since} on)'
            found.append(Weakness(capability.name, f"{lacks}: {capability.without}"))
    return tuple(found)


def _number(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))
