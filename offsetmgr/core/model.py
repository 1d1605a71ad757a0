"""The value types of offsetmgr: offsets, partitions and groups.

The types are immutable. The module also contains the constants of the group lock, the names of two broker capabilities,
and the mark of deleted offsets. It uses only the standard library and performs no I/O."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.plurals import count_of

_BROKER_PARTITION: Final = re.compile("(0|[1-9][0-9]{0,4})-(0|[1-9][0-9]{0,4})")
_TOPIC_NAME: Final = re.compile("[a-zA-Z0-9._-]{1,249}")


class BrokerPartition(int):
    """A partition of Kafka 0.7, which belongs to one broker: ``<broker>-<partition>``. Its offsets are byte positions.

    The class encodes the broker id and the partition number in one negative 32-bit integer, so that a `BrokerPartition`
    can be the partition number of a `TopicPartition`. Code that does not support Kafka 0.7 rejects a `BrokerPartition`,
    because the partition numbers of later releases are never negative. Values sort by broker, then partition. ADR 6
    gives the reasons.

    >>> BrokerPartition.parse("1-0")
    BrokerPartition(1, 0)
    >>> str(TopicPartition("orders", BrokerPartition(1, 0)))
    'orders-1-0'
    """

    LARGEST_BROKER = 65_534
    LARGEST_PARTITION = 32_767

    def __new__(cls, broker: int, partition: int) -> Self:
        """Raises `ValueError` if ``broker`` is above 65534 or ``partition`` above 32767."""
        if not (0 <= broker <= cls.LARGEST_BROKER and 0 <= partition <= cls.LARGEST_PARTITION):
            raise ValueError(f"{broker}-{partition}: brokers go up to 65534, partitions up to 32767")
        return super().__new__(cls, (broker << 15 | partition) - 2**31)

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (self.broker, self.partition)

    @property
    def broker(self) -> int:
        """The id of the broker that has the partition."""
        return (self + 2**31) >> 15

    @property
    def partition(self) -> int:
        """The partition's number on its broker."""
        return (self + 2**31) & 0x7FFF

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parses a text such as ``1-0``, the form in znodes and on command lines. Returns None for any other text."""
        found = _BROKER_PARTITION.fullmatch(text)
        if found is None or int(found[1]) > cls.LARGEST_BROKER or int(found[2]) > cls.LARGEST_PARTITION:
            return None
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of(cls, number: int) -> int:
        """Returns the `BrokerPartition` that ``number`` encodes. If ``number`` is a partition number of Kafka 0.8 or
        later, returns ``number``."""
        code = number + 2**31
        return cls(code >> 15, code & 0x7FFF) if 0 <= code < (cls.LARGEST_BROKER + 1) << 15 else number

    @staticmethod
    def to_json(number: int) -> int | str:
        """Returns the JSON value of a partition: its number, or a text such as ``1-0`` for Kafka 0.7."""
        return str(number) if isinstance(number, BrokerPartition) else number

    @classmethod
    def from_json(cls, value: int | str) -> int:
        """Returns the partition for a value that `to_json` wrote. Raises `ValueError` if a text does not have the form
        ``1-0``."""
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

    >>> str(TopicPartition("orders", 0))
    'orders-0'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_valid_topic_name(name: str) -> bool:
    """Returns whether Kafka accepts ``name`` as a topic name (``Topic.validate``).

    Some stores accept commits for topics whose names Kafka does not accept. offsetmgr sends no request about such a
    topic to a broker.
    """
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


NO_OFFSET: Final = -1
"""In a conditional commit, an expected offset of -1 means that no offset is committed. A new offset of -1 deletes the
committed offset."""


class OffsetAndMetadata(NamedTuple):
    """An offset to commit: the *next* offset that the group will consume, with its leader epoch and metadata.

    ``leader_epoch`` is None if unknown (-1 in Kafka). ``commit_timestamp`` is in milliseconds since 1970. Snapshots
    save ``commit_timestamp``. Stores that set the time of a commit themselves ignore ``commit_timestamp``.

    >>> OffsetAndMetadata(42, "by hand")._replace(offset=43).offset
    43
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    commit_timestamp: int | None = None


class Committed(NamedTuple):
    """A committed offset in a store.

    ``version`` is the store's version of this value, such as the data version of the znode; None if the store has no
    versions. To make a write conditional, a caller passes this object as `Change.expected`.

    >>> Committed(42, version=7).value()
    OffsetAndMetadata(offset=42, metadata='', leader_epoch=None, commit_timestamp=None)
    """

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    commit_timestamp: int | None = None
    version: int | None = None

    def value(self) -> OffsetAndMetadata:
        """Returns the same offset without the version, for a commit."""
        return tuple.__new__(OffsetAndMetadata, self[:4])


@dataclass(frozen=True, slots=True)
class Absent:
    """The result for a partition that has no committed offset.

    It is distinct from the offsets 0 and -1, and from an offset that could not be read or is still loading.

    >>> found = Absent()
    >>> found == ABSENT, bool(found)
    (True, False)
    """

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent()

Offset: TypeAlias = Committed | Absent
"""The result of a successful fetch for one partition."""


MAX_OFFSET: Final = 2**63 - 1
"""The largest offset that Kafka's protocol can contain."""


def is_valid_offset(offset: int) -> bool:
    """Returns whether an offset can be committed. A negative offset would be read back as "no offset is committed".

    >>> is_valid_offset(0), is_valid_offset(-1)
    (True, False)
    """
    return 0 <= offset <= MAX_OFFSET


NEGATIVE_OFFSET: Final = "a negative number is not a committed offset, and does not mean that none is committed"
"""The reason for which a stored number such as -1 or -2 is unreadable. Brokers accept such numbers in commits."""


class LogRange(NamedTuple):
    """The offsets of a partition's log: ``start`` (inclusive) to ``end`` (the offset of the next record)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An active member of a consumer group, from the coordinator or from the member's registration in ZooKeeper.

    ``partitions`` are the partitions that the coordinator has assigned to the member (Kafka) or that the member owns
    (ZooKeeper). ``topics`` are the topics to which the member subscribes; None if they are unknown. ``persistent`` is
    True if the registration in ZooKeeper is a persistent node, which does not show whether the member runs. ``tasks``
    are the tasks of a member of a streams group, such as "active 0_1" for partition 1 of the subtopology 0.
    """

    member_id: str
    client_id: str = ""
    host: str = ""
    instance_id: str | None = None
    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] | None = None
    persistent: bool = False
    tasks: tuple[str, ...] = ()

    def __str__(self) -> str:
        at = f" at {self.host}" if self.host else ""
        return f"{self.client_id or 'member'}{at} ({self.member_id})"


PERSISTENT_MEMBERS: Final = "{} in ZooKeeper, which does not show whether its consumer runs"
"""The reason why a group with only persistent registrations is refused; the placeholder is their number."""
PERSISTENT_MEMBERS_HINT: Final = Advice(
    "stop the consumers; kafka-spark-consumer registers such nodes while it runs. If none runs, add"
    " {ignore_persistent_members=True}"
)


LOCK_PROTOCOL: Final = "offsetmgr"
"""The name of the assignment protocol that offsetmgr uses when it joins a group to lock the group. The default client
id of offsetmgr has the same value."""

LOCK_SESSION_S: Final = 10
"""The session timeout of the group lock: the coordinator removes the lock of a killed process after this time."""

_LOCK_MARGIN_S: Final = 2

EDIT_CLIENT_ID: Final = "offsetmgr-edit"
"""The client id with which an edit of a running group joins the group."""

EDIT_SESSION_S: Final = 45
"""The default session timeout of brokers for the consumer protocol (KIP-848). The coordinator removes a killed edit of
a running group after this time, or after `LOCK_SESSION_S` in a group of the classic protocol."""


DELETES_OFFSETS: Final = "deletes single offsets"
"""The name of a capability of brokers from 2.4 on: they can delete single offsets. Brokers before 2.4 remove an offset
only at their next check for expired offsets."""


_DELETED: Final = "deleted by offsetmgr; the broker removes it at its next check for expired offsets: offset "


def deletion_mark(offset: int) -> str:
    """Returns the metadata that marks an offset as deleted on brokers that cannot delete single offsets.

    To delete an offset on such a broker, offsetmgr commits the offset again with this metadata and an expired
    retention. offsetmgr treats an offset with this metadata as absent. The metadata contains the offset. Therefore, if
    a client copies the metadata to a commit of another offset, offsetmgr does not treat that offset as deleted.
    """
    return f"{_DELETED}{offset}"


def is_deleted(offset: int, metadata: str | None) -> bool:
    """Returns whether the metadata of a committed offset marks it as deleted."""
    return bool(metadata) and metadata == deletion_mark(offset)


KEEPS_ACTIVE_OFFSETS: Final = "keeps the offsets of groups with members"
"""The name of a capability of brokers from 2.1 on: the offsets of a group do not expire while the group has members. On
brokers before 2.1 each offset expires separately, even while the group has members."""


class Weakness(NamedTuple):
    """A guarantee about edits that a store cannot give in full, because a broker is older than Kafka 3.0 or its release
    is unknown. ``subject`` names the missing capability or the broker. ``text`` describes the consequence."""

    subject: str
    text: str


INTERNAL_TOPICS: Final = ("repartition topic", "changelog topic")
"""The kinds of the internal topics of a streams group."""


class GroupKind(NamedTuple):
    """The kind of a group, as the brokers list it.

    ``type`` is "classic", "consumer" (KIP-848), "share" or "streams" (KIP-1071); None if the broker does not report it.
    ``protocol`` is the protocol type of the group, such as "consumer" or "connect", and empty for a group to which only
    simple consumers commit; None if it is unknown. ``commits`` is whether the group may have committed offsets.
    """

    type: str | None = None
    protocol: str | None = None
    commits: bool = True


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator describes it.

    ``state`` is Kafka's name in upper case: EMPTY, DEAD, STABLE, PREPARING_REBALANCE, COMPLETING_REBALANCE, ... DEAD
    means that the coordinator does not know the group. A group that is DEAD has neither members nor offsets.
    """

    group: str
    state: str
    protocol_type: str = ""
    partition_assignor: str = ""
    coordinator: str = ""
    members: tuple[GroupMember, ...] = ()
    membership: bool = True
    """False if the coordinator does not support group membership (Kafka 0.8.2). Consumers of a Kafka 0.8.2 cluster
    register only in ZooKeeper."""
    internal_topics: tuple[tuple[str, str], ...] = ()
    """The internal topics in the topology of a streams group: each name with its element of `INTERNAL_TOPICS`."""

    @property
    def idle(self) -> bool:
        """Returns whether the group has no members. An edit can acquire the group lock only if the group has no
        members."""
        return self.state in ("EMPTY", "DEAD")

    def may_consume(self, topic: str) -> bool:
        """Returns whether a member has partitions of the topic, or may subscribe to it."""
        owned = any(tp.topic == topic for member in self.members for tp in member.partitions)
        return owned or any(member.topics is None or topic in member.topics for member in self.members)

    @property
    def lock_ends_s(self) -> float:
        """Returns the number of seconds after which the group lock of a killed process has certainly expired. Returns 0
        if no process of offsetmgr holds the group lock.

        In a stable group, the assignment protocol shows whether the members are processes of offsetmgr. During a
        rebalance the coordinator does not report the assignment protocol, so the method checks the client ids of the
        members instead. The value is larger during a rebalance, because the coordinator then keeps a dead member for
        the rebalance timeout, followed by the session timeout. Both timeouts have the same value for a group lock.
        """
        if self.edited_by is not None:
            return EDIT_SESSION_S + _LOCK_MARGIN_S
        if not self.members or any(member.partitions for member in self.members):
            return 0
        if self.state == "STABLE":
            return LOCK_SESSION_S + _LOCK_MARGIN_S if self.partition_assignor == LOCK_PROTOCOL else 0
        named = all(member.client_id == LOCK_PROTOCOL for member in self.members)
        return 2 * LOCK_SESSION_S + _LOCK_MARGIN_S if named and self.state.endswith("_REBALANCE") else 0

    @property
    def edited_by(self) -> GroupMember | None:
        """Returns the member that is an edit of the running group (``--running``); None if there is none."""
        return next((member for member in self.members if member.client_id == EDIT_CLIENT_ID), None)


# Recognises the clients that store their state in the metadata of commits. Such a state belongs to the committed
# number. parallel-consumer stores which records above the offset it has processed (``OffsetSimpleSerialisation``),
# and Kafka Streams stores the stream time (``TopicPartitionMetadata``). If another number is committed, the metadata
# must not be kept: parallel-consumer would skip records. Pure.

_PARALLEL_CONSUMER: Final = frozenset(b"L\xeelanJosep")
"""The first bytes of parallel-consumer's encodings (``OffsetEncoding``)."""
_STREAMS_TIMESTAMP, _STREAMS_STATE = 1, 2
_STREAMS_MIN_BYTES: Final = 9
"""The version byte and the time."""
_MAX_TIME_MS: Final = 1 << 43
_MIN_BYTES: Final = 4
_OWN_TEXT: Final = "a client's own text"
_DROPS: Final = "drops "


def form_of(metadata: str) -> str:
    """Returns the form of the metadata, as a text for messages.

    >>> form_of("AQAAAZpCZ8AA"), form_of("checked by hand")
    ("Kafka Streams' timestamp", "a client's own text")
    """
    try:
        data = b64decode(metadata, validate=True)
    except (binascii.Error, ValueError):
        return _OWN_TEXT
    if len(data) >= _STREAMS_MIN_BYTES and data[0] in (_STREAMS_TIMESTAMP, _STREAMS_STATE):
        exact = data[0] == _STREAMS_STATE or len(data) == _STREAMS_MIN_BYTES
        if exact and -1 <= int.from_bytes(data[1:_STREAMS_MIN_BYTES], signed=True) < _MAX_TIME_MS:
            return "Kafka Streams' timestamp"
    if len(data) >= _MIN_BYTES and data[0] in _PARALLEL_CONSUMER:
        return "parallel-consumer's encoding"
    return _OWN_TEXT


def state_in(metadata: str) -> str | None:
    """Returns the form of metadata with which a client stores its state; None for other metadata and for none."""
    form = form_of(metadata) if metadata else _OWN_TEXT
    return None if form is _OWN_TEXT else form


def with_drop(note: str, metadata: str) -> str:
    """Returns the note of a change that drops ``metadata``."""
    if not metadata:
        return note
    return f"{note}; {_DROPS}{form_of(metadata)}" if note else f"{_DROPS}{form_of(metadata)}"


def dropped_form(note: str) -> str:
    """Returns the form of the metadata that a change drops according to its note; "" if it drops none."""
    return note.rpartition(_DROPS)[2] if _DROPS in note else ""


def dropped_text(forms: Counter[str]) -> str:
    """Returns the number of offsets whose metadata is dropped, with the forms, as a text for messages.

    >>> dropped_text(Counter({"parallel-consumer's encoding": 2}))
    "the metadata of 2 offsets (parallel-consumer's encoding)"
    """
    named = ", ".join(f"{number:,} {form}" if len(forms) > 1 else form for form, number in forms.most_common())
    return f"the metadata of {count_of(sum(forms.values()), 'offset')} ({named})"
