"""The values that everything else speaks in: frozen, standard library only, no behaviour that needs a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias


class TopicPartition(NamedTuple):
    """A topic and the number of one of its partitions; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


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
        return OffsetAndMetadata(self.offset, self.metadata, self.leader_epoch, self.commit_timestamp)


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

    @property
    def idle(self) -> bool:
        """True where nobody is a member, so that an edit can take the group lock."""
        return self.state in ("EMPTY", "DEAD")
