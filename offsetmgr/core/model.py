"""The values that everything else speaks in: frozen, standard library only, no behaviour that needs a server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeAlias

_BROKER_PARTITION: Final = re.compile("(0|[1-9][0-9]{0,4})-(0|[1-9][0-9]{0,4})")
_TOPIC_NAME: Final = re.compile("[a-zA-Z0-9._-]{1,249}")


class BrokerPartition(int):
    """A partition of Kafka 0.7, which belongs to one broker: ``<broker>-<partition>``. Its offsets are byte positions.

    Stands where a partition's number stands, as a negative one that fits 32 bits: it equals no partition of later
    versions, and whatever knows nothing of 0.7 refuses it. Sorts by broker, then partition. Why: ADR 6.
    """

    LARGEST_BROKER = 65_534
    LARGEST_PARTITION = 32_767

    def __new__(cls, broker: int, partition: int) -> Self:
        """Raises `ValueError` for numbers beyond 65534 (broker) and 32767 (partition)."""
        if not (0 <= broker <= cls.LARGEST_BROKER and 0 <= partition <= cls.LARGEST_PARTITION):
            raise ValueError(f"{broker}-{partition}: brokers go up to 65534, partitions up to 32767")
        return super().__new__(cls, (broker << 15 | partition) - 2**31)

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (self.broker, self.partition)

    @property
    def broker(self) -> int:
        return (self + 2**31) >> 15

    @property
    def partition(self) -> int:
        """The partition's number on its broker."""
        return (self + 2**31) & 0x7FFF

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """``1-0`` as written in nodes and on command lines; None where the text is no such thing."""
        found = _BROKER_PARTITION.fullmatch(text)
        if found is None or int(found[1]) > cls.LARGEST_BROKER or int(found[2]) > cls.LARGEST_PARTITION:
            return None
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of(cls, number: int) -> int:
        """A partition's number as it was stored: the `BrokerPartition` that it stands for, or the number itself."""
        code = number + 2**31
        return cls(code >> 15, code & 0x7FFF) if 0 <= code < (cls.LARGEST_BROKER + 1) << 15 else number

    @staticmethod
    def to_json(number: int) -> int | str:
        """A partition as our JSON files have it: a number, or in Kafka 0.7 its text."""
        return str(number) if isinstance(number, BrokerPartition) else number

    @classmethod
    def from_json(cls, value: int | str) -> int:
        """The partition that `to_json` wrote. Raises `ValueError` for a text that is none."""
        if isinstance(value, int):
            return value
        found = cls.parse(value)
        if found is None:
            raise ValueError(f"{value!r} is not BROKER-PARTITION")
        return found

    def __str__(self) -> str:
        return f"{self.broker}-{self.partition}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return f"BrokerPartition({self.broker}, {self.partition})"


class TopicPartition(NamedTuple):
    """A topic and the number of one of its partitions; sorts by topic, then number.

    In Kafka 0.7 the partition is a `BrokerPartition`.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_valid_topic_name(name: str) -> bool:
    """Whether Kafka would make a topic of this name (``Topic.validate``). An offset may be committed for any name where
    the store does not look: no broker need be asked about the log of such a one."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


class OffsetAndMetadata(NamedTuple):
    """What a caller commits: the *next* offset that the group will consume, and what goes with it.

    ``leader_epoch`` is None where unknown (Kafka's -1). ``commit_timestamp`` is milliseconds since 1970;
    stores that stamp commits themselves ignore it, snapshots carry it.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    commit_timestamp: int | None = None


class Committed(NamedTuple):
    """A committed offset as a store holds it.

    ``version`` is the store's own token of this very value (the znode's data version), handed back to it
    as ``expected`` to make a write conditional; None where the store has none.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    commit_timestamp: int | None = None
    version: int | None = None

    def value(self) -> OffsetAndMetadata:
        """The same commit as something that can be committed."""
        return tuple.__new__(OffsetAndMetadata, self[:4])


@dataclass(frozen=True, slots=True)
class Absent:
    """No commit exists for this partition. It is not 0, not -1, not "unreadable", not "still loading"."""

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent()

Offset: TypeAlias = Committed | Absent
"""What a successful fetch says of one partition."""


class LogRange(NamedTuple):
    """The offsets that a partition's log holds: ``start`` (inclusive) to ``end`` (the next offset to be written)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One live member of a consumer group, as its coordinator (or ZooKeeper registry) describes it.

    ``partitions`` are the ones assigned to it (in ZooKeeper: owned by it).
    """

    member_id: str
    client_id: str = ""
    host: str = ""
    instance_id: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        at = f" at {self.host}" if self.host else ""
        return f"{self.client_id or 'member'}{at} ({self.member_id})"


LOCK_PROTOCOL: Final = "offsetmgr"
"""The assignment protocol, and the usual client id, under which offsetmgr joins a group to lock it."""

LOCK_SESSION_S: Final = 10
"""How long the coordinator keeps such a lock of a process that was killed."""

_LOCK_MARGIN_S: Final = 2


DELETES_OFFSETS: Final = "deletes single offsets"
"""The capability of brokers (from 2.4 on) without which a deletion takes effect only later."""


_DELETED: Final = "deleted by offsetmgr; the broker removes it at its next check for expired offsets: offset "


def deletion_mark(offset: int) -> str:
    """The metadata of a deleted offset on brokers that cannot delete it: it is committed with a life that is over.

    offsetmgr reads such an offset as absent, so that nothing counts on it and any later write replaces it. The mark
    names the offset, so that a tool that copies the metadata to another offset does not hide that one."""
    return f"{_DELETED}{offset}"


def is_deleted(offset: int, metadata: str | None) -> bool:
    """Whether a committed offset has the mark of a deletion."""
    return bool(metadata) and metadata == deletion_mark(offset)


KEEPS_IN_USE: Final = "keeps the offsets of groups in use"
"""The capability of brokers (from 2.1 on) without which each offset expires by itself."""


class Weakness(NamedTuple):
    """A guarantee of edits that brokers before 3.0 keep less than fully: the capability that they lack, and what that
    means, as a sentence."""

    capability: str
    text: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator sees it.

    ``state`` is Kafka's name in upper case: EMPTY, DEAD, STABLE, PREPARING_REBALANCE, COMPLETING_REBALANCE, ...
    DEAD means that the coordinator knows no such group (it neither has members nor offsets).
    """

    group: str
    state: str
    protocol_type: str = ""
    partition_assignor: str = ""
    coordinator: str = ""
    members: tuple[GroupMember, ...] = ()
    membership: bool = True
    """False where the coordinator's release has no group members (0.8.2): its consumers register in ZooKeeper alone."""

    @property
    def idle(self) -> bool:
        """True where nobody is a member, so that an edit can take the group lock."""
        return self.state in ("EMPTY", "DEAD")

    @property
    def lock_ends_s(self) -> float:
        """If the only members are locks of offsetmgr: within how many seconds the coordinator ends them where their
        process was killed. Else 0.

        The coordinator names the protocol of a stable group alone. Before that it keeps a dead member for the rebalance
        timeout, which is as long as the session, and then for the session.
        """
        if not self.members or any(member.partitions for member in self.members):
            return 0
        if self.state == "STABLE":
            return LOCK_SESSION_S + _LOCK_MARGIN_S if self.partition_assignor == LOCK_PROTOCOL else 0
        named = all(member.client_id == LOCK_PROTOCOL for member in self.members)
        return 2 * LOCK_SESSION_S + _LOCK_MARGIN_S if named and self.state.endswith("_REBALANCE") else 0
