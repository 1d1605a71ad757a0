"""`OffsetStore`: the base class of every store of committed offsets.

``fetch`` reads one group; ``scan`` reads many groups lazily, with many requests in flight. *Every* write is an
``edit``: a set of changes to one group, in which each change is conditional on the previous value of its partition.
``commit`` and ``delete`` are shorthands for one edit; migrations, resets, imports, mirrors and undo commands pass
streams of edits to ``edit``.

Ordering contract: a caller that must be able to undo a write reads the before-image, makes it durable, and passes it to
``edit`` as ``expected``. ``edit`` writes only if the value in the store still equals the before-image, so the
before-image on disk is correct.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
from itertools import chain, repeat
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import (
    Conflict,
    CorruptData,
    OffsetMgrError,
    PartialFailure,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.core.model import (
    ABSENT,
    BrokerPartition,
    Committed,
    GroupDescription,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    Weakness,
)


def checked_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the offsets as values to commit. Raises `UsageError` if ``offsets`` is no mapping, a key is not a
    partition, or an offset is no int. A negative offset is no error here."""
    values: dict[TopicPartition, OffsetAndMetadata] = {}
    if not isinstance(offsets, Mapping):
        raise UsageError(f"offsets {offsets!r}", "are not a mapping", 'as in {TopicPartition("orders", 0): 5}')
    for tp, found in offsets.items():
        if not isinstance(tp, TopicPartition):
            raise UsageError(f"partition {tp!r}", "is not a TopicPartition", 'as in TopicPartition("orders", 0)')
        values[tp] = found if isinstance(found, OffsetAndMetadata) else OffsetAndMetadata(found)
        if not isinstance(values[tp].offset, int):
            raise UsageError(str(tp), f"{found!r} is not an offset", "an offset is an int or an OffsetAndMetadata")
    return values


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The identity of a store. A plan contains this identity, so that offsetmgr can reject the plan for any other store
    (data rule "migration is a state machine on disk").

    ``kind`` is ``kafka``, ``zookeeper``, ``file``... ``id`` is the cluster id if there is one. For a store without a
    cluster id, ``id`` is another value, such as the connect string and the creation time of ``/brokers``, or the id of
    a snapshot. ``how`` describes the value in ``id``. ``former`` contains the ids that the store had before its brokers
    were upgraded to a release with cluster ids.
    """

    kind: str
    id: str
    how: str
    former: tuple[str, ...] = ()


CommitErrors = dict[TopicPartition, OffsetMgrError | None]
"""The error of each partition of a commit; None if the commit of the partition succeeded."""


class PartitionKinds(Enum):
    """The kinds of partitions that a store can hold."""

    NUMBERED = "numbered"
    """Partitions of Kafka 0.8 and later."""
    OF_BROKERS = "of-brokers"
    """Partitions of Kafka 0.7 (`BrokerPartition`), whose offsets are byte positions."""
    ALL = "all"

    def includes(self, tp: TopicPartition) -> bool:
        old = isinstance(tp.partition, BrokerPartition)
        return self is PartitionKinds.ALL or old is (self is PartitionKinds.OF_BROKERS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The fields that a store can save, and the guarantees that it gives. Before a command writes to a store, the
    command reports the fields and guarantees that the store lacks."""

    metadata: bool
    leader_epoch: bool
    commit_timestamp: bool
    conditional: str
    """The method of conditional writes: ``version`` (compare-and-set for each partition), ``group-lock``, ``file``, or
    ``none``."""
    partitions: PartitionKinds = PartitionKinds.NUMBERED
    acknowledges: bool = False
    """Whether the version of an offset is the number of records behind it that are acknowledged."""

    def position(self, found: Offset) -> int | None:
        """Returns the sum of the offset and the number of acknowledged records behind it; None for `ABSENT`. Raises
        `Conflict` if this number is not known."""
        if not isinstance(found, Committed):
            return None
        if self.acknowledges and found.version is None:
            why = "the number of acknowledged records is unknown, because the log grew during every read"
            raise Conflict("share group", why, "try again, or pause the producers")
        return found.offset + (found.version or 0 if self.acknowledges else 0)


class Guard(Enum):
    """The protection of an edit of a Kafka group against concurrent writers (data rule "conditional writes").

    Stores with their own compare-and-set (ZooKeeper, files) ignore the guard.
    """

    LOCK = "lock"
    """The edit joins the idle group as its only member, compares the current offsets with the expected ones, commits
    with the generation of its membership, and leaves the group. If the group has other members, the edit fails with
    `GroupActive`. The edit also joins a group that does not exist yet, because otherwise clients without membership
    could commit to this group during the edit."""
    COMPARE = "compare"
    """The edit reads the offsets, compares them and commits as a simple consumer, without a lock. Therefore the edit is
    not atomic. Use this guard for groups of old consumers, because the coordinator would reject the commits of these
    consumers while a group lock is held."""
    OVERWRITE = "overwrite"
    """The edit commits without reading the previous value, so the last commit wins, as it does in Kafka when several
    consumers commit.

    The data rule "conditional writes" applies to commands that decide on the basis of a value that they have read. A
    listener that forwards the commits of consumers makes no decision, so there is no expected value to compare with the
    current one. A read before each commit would halve the rate of commits. This guard is only for changes that allow a
    rewind and expect no value; if an edit contains any other change, the store uses `LOCK` for the whole edit. With
    this guard the before-images are unknown. The store rejects an edit of a group with members, unless the
    ``committer`` of the edit is one of the members.
    """


class Change(NamedTuple):
    """The change of one partition in an edit.

    ``after`` is the new value; None deletes the commit. ``expected`` is the condition for the write. If ``expected`` is
    None, the store accepts any previous value. The store still reads the previous value in this case, so that it can
    reject a rewind. ``Absent`` requires that nothing is committed. ``Committed`` requires exactly this offset and, if
    ``expected`` and the stored value have versions, the same version. With ``keeps_metadata``, a commit of the same
    offset is left as it is, with its metadata.

    >>> Change(None, expected=Committed(41)).allow_rewind
    False
    """

    after: OffsetAndMetadata | None
    expected: Offset | None = None
    allow_rewind: bool = False
    keeps_metadata: bool = False


class Committer(NamedTuple):
    """The group member on whose behalf a listener forwards a commit. If a group has members, the coordinator accepts
    commits only from members of the group."""

    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupEdit:
    """Changes to the offsets of one group.

    Only Kafka stores use ``committer``, and only with `Guard.OVERWRITE`. With ``whole``, a change that is rejected
    before the first write stops all others. ``raw`` has the partitions whose znode has no offset, before or after the
    change: the data that a change replaces, and that a deletion writes.

    >>> GroupEdit("shop", {TopicPartition("orders", 0): Change(OffsetAndMetadata(42))}).guard.value
    'lock'
    """

    group: str
    changes: Mapping[TopicPartition, Change]
    guard: Guard = Guard.LOCK
    committer: Committer | None = None
    whole: bool = False
    raw: Mapping[TopicPartition, tuple[bytes | None, bytes | None]] = field(default_factory=dict, hash=False)


class EditStatus(Enum):
    """The result of the change of one partition."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The store already held the new value, so it wrote nothing."""
    FAILED = "failed"


class ChangeOutcome(NamedTuple):
    """The result of the change of one partition, with its before-image and, if it failed, its error.

    ``before`` is the previous value, which the store read just before the write; None if the store did not read it or
    the read failed.
    """

    status: EditStatus
    before: Offset | None = None
    error: OffsetMgrError | None = None


@dataclass(frozen=True, slots=True)
class GroupEditResult:
    """The result of one `GroupEdit`, with one outcome for each partition.

    ``atomic`` is False if other clients could have written between the comparison and the write. In this case ``how``
    describes the check that the store made instead of an atomic comparison. Only dual stores set ``secondary``.
    ``secondary`` contains the error of each partition whose change succeeded in the primary store and failed in the
    secondary store. The dual store keeps the changes of these partitions as pending. ``error`` is set if the group
    itself could not be deleted.
    """

    group: str
    outcomes: Mapping[TopicPartition, ChangeOutcome]
    atomic: bool = True
    how: str = ""
    secondary: Mapping[TopicPartition, OffsetMgrError] = field(default_factory=dict)
    error: OffsetMgrError | None = None

    @property
    def failures(self) -> dict[TopicPartition, OffsetMgrError]:
        """The error of each partition whose change failed."""
        return {tp: o.error for tp, o in self.outcomes.items() if o.error is not None}


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """All committed offsets of one group, and the partitions whose value could not be read.

    If the whole group could not be read, ``error`` is set and both mappings are empty. ``hidden`` is set if
    ``unrecognised`` data may be offsets.
    """

    name: str
    offsets: Mapping[TopicPartition, Committed]
    errors: Mapping[TopicPartition, OffsetMgrError] = field(default_factory=dict)
    error: OffsetMgrError | None = None
    unrecognised: tuple[UnrecognisedData, ...] = ()
    hidden: OffsetMgrError | None = None

    def first_change(self, earlier: GroupOffsets) -> TopicPartition | None:
        """Returns a partition whose commit has changed since an earlier read; None if no commit has changed."""
        return next((tp for tp, found in self.offsets.items() if earlier.offsets.get(tp) != found), None)


class PlainOffsets(Mapping[TopicPartition, Committed]):
    """Commits without metadata, as columns that are sorted by partition. A leader epoch of -1 is unknown.

    Most groups have only such commits. The values are built when one of them is read, because a bulk read that needs
    the columns alone takes a third of the time.
    """

    def __init__(self, partitions: Sequence[TopicPartition], numbers: Sequence[int], epochs: Sequence[int]) -> None:
        self.columns = self.partitions, self.numbers, self._epochs = partitions, numbers, epochs

    @classmethod
    def joined(cls, parts: Sequence[PlainOffsets]) -> PlainOffsets:
        """Returns the offsets of several topics, one or more."""
        columns = zip(*(part.columns for part in sorted(parts, key=lambda part: part.partitions[0])), strict=True)
        return parts[0] if len(parts) == 1 else cls(*(tuple(chain.from_iterable(column)) for column in columns))

    @cached_property
    def _values(self) -> dict[TopicPartition, Committed]:
        epochs = (epoch if epoch >= 0 else None for epoch in self._epochs)
        fields = zip(self.numbers, repeat(""), epochs, repeat(None), repeat(None), strict=False)
        commits = map(tuple.__new__, repeat(Committed), fields)  # skips the argument handling of named tuples
        return dict(zip(self.partitions, commits, strict=True))

    def __getitem__(self, partition: TopicPartition) -> Committed:
        return self._values[partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def __repr__(self) -> str:
        return repr(self._values)

    def items(self) -> ItemsView[TopicPartition, Committed]:
        return self._values.items()


def fetched(
    what: str,
    offsets: Mapping[TopicPartition, Offset],
    errors: Mapping[TopicPartition, OffsetMgrError],
    partitions: Iterable[TopicPartition] | None,
) -> Mapping[TopicPartition, Offset]:
    """Returns the result of `OffsetStore.fetch` for ``partitions``, or for all partitions of the group if they are
    None. Raises `PartialFailure` if there are errors."""
    if partitions is not None:
        offsets = {tp: offsets.get(tp, ABSENT) for tp in partitions if tp not in errors}
    if errors:
        raise PartialFailure(what, successes=offsets, failures=errors)
    return offsets


class OffsetSource(ABC):
    """A store or a file whose offsets belong to the logs of a Kafka cluster. A subclass overrides the methods if it
    knows more."""

    has_topic_creation_times: bool = False
    """Whether the source knows creation times of topics (see `topic_creation_times`)."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI of the source, without credentials."""

    def log_origin(self) -> LogOrigin:
        """Returns the Kafka cluster whose logs the offsets belong to. Raises `Unreachable`, `TimedOut`,
        `CorruptData`."""
        return UNNAMED

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:  # noqa: ARG002
        """Returns the topic ids of ``topics`` (all topics if None). Topics whose id the source does not know are
        missing. Raises the errors of `log_origin`."""
        return {}

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:  # noqa: ARG002
        """Returns the creation times of ``topics`` in milliseconds since 1970. Topics whose time the source does not
        know are missing. Raises the errors of `log_origin`."""
        return {}


class OffsetStore(OffsetSource, Closeable):
    """A store of committed offsets; `open_store` returns one. The first call connects. One thread at a time may use it.
    A subclass implements the abstract methods, and the others if it can do better.

    Example::

        from offsetmgr import open_store

        with open_store("zookeeper://h1:2181") as store:
            print(sum(len(group.offsets) for group in store.scan(store.groups())))
    """

    parallel_calls: ClassVar[int] = 1
    """The maximum number of concurrent calls, each in its own thread. 1 means that calls must not overlap."""
    on_read: Callable[[int, int], object] | None = None
    """A progress callback for reads of many records, such as of the offsets topic: the number of records that the store
    has read, and that of all records to read. Set it before the first call of the store."""

    left_out: Collection[str] = ()
    """The groups that the last complete `groups` left out, because they commit no offsets, such as share groups."""

    describe_groups: Callable[[Iterable[str]], Mapping[str, GroupDescription | OffsetMgrError]] | None = None
    """The function that describes groups of this store, if their coordinators describe them in another way than other
    groups."""

    @property
    def parts(self) -> tuple[OffsetStore, ...]:
        """The two stores of a pair; otherwise the store itself."""
        return (self,)

    def filter_note(self) -> str:
        """Returns a sentence about the groups and offsets that a server leaves out for this login; empty if it leaves
        out nothing, does not answer, or was not asked for anything before."""
        return ""

    def address_doubt(self) -> str:
        """Returns a question about the address of a store without groups, such as whether the chroot is right; empty
        if there is no reason to ask."""
        return ""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The fields and partitions that the store can save, and the guarantees of its edits."""

    @abstractmethod
    def identity(self) -> StoreIdentity:
        """Returns the identity of the store. Raises `Unreachable`, `TimedOut`."""

    def weaknesses(self) -> tuple[Weakness, ...]:
        """Returns the guarantees of edits that this store cannot give in full, because a broker is older than 3.0 or
        its release is unknown. Raises `Unreachable`, `TimedOut`."""
        return ()

    def adopt(self, log_origin: Callable[[], LogOrigin], topic_ids: Callable[[], Mapping[str, str]]) -> None:
        """Makes the first write record the cluster and the topic ids that these functions return, if the store belongs
        to no cluster until then, as a snapshot file that does not exist yet."""

    def check_group(self, group: str) -> None:
        """Raises `UsageError` if the store cannot store a group of this name."""

    @abstractmethod
    def groups(self) -> Iterator[str]:
        """Returns the ids of all groups that may have offsets, in any order. If the store cannot list all groups, the
        method raises an error and does not return an incomplete result."""

    @abstractmethod
    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        """Returns the committed offsets of a group.

        The result has `Committed` or `Absent` for each of ``partitions``, or all committed offsets if ``partitions`` is
        None. For an unknown group, all values are `Absent` if ``partitions`` is given; otherwise the mapping is empty.

        Raises `PartialFailure` if some partitions could not be read, or another `OffsetMgrError` if no partition could
        be read.
        """

    @abstractmethod
    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        """Yields all offsets of many groups, in any order, with many requests in flight.

        Each group has one result. If a group or partition cannot be read, its error is part of the group's result, and
        the scan continues. The store consumes ``groups`` lazily, so memory depends on the number of groups in flight
        and not on the total number of groups.
        """

    def scan_partitions(self, partitions: Mapping[str, Sequence[TopicPartition]]) -> Iterator[GroupOffsets]:  # noqa: ARG002
        """Works like `scan` for the given partitions of each group, which a scan did not return. `GroupOffsets.errors`
        contains an error for each partition that could not be read.

        In Kafka a scan omits a partition whose only commit belongs to an open transaction. The scan of other stores
        omits no partition, so they yield nothing.
        """
        return iter(())

    @abstractmethod
    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Executes edits, with many groups in flight, and yields one result for each edit, in any order.

        The error of a failed change is part of the result. The method raises an error only if the whole store is
        unreachable. A change that would lower a committed offset fails with `RewindRefused` unless it has
        ``allow_rewind``. A change whose ``expected`` does not match fails with `Conflict`. If the change of one
        partition fails, the store still makes the other changes of the group, unless the whole group is rejected
        (`GroupActive`).
        """

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        allow_rewind: bool = False,
        guard: Guard = Guard.LOCK,
    ) -> GroupEditResult:
        """Commits offsets of one group. Raises `UsageError` for a value that is no int and no `OffsetAndMetadata`, and
        `PartialFailure` with the successes and the failures if any partition failed."""
        changes = {tp: Change(after, allow_rewind=allow_rewind) for tp, after in checked_offsets(offsets).items()}
        return self._edit_one("commit", GroupEdit(group, changes, guard))

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> GroupEditResult:
        """Deletes the commits of ``partitions`` (of the whole group if None) and returns their before-images. Raises
        the errors of `commit`."""
        if partitions is None:
            partitions = [tp for tp, current in self.fetch(group).items() if isinstance(current, Committed)]
        return self._edit_one("delete", GroupEdit(group, {tp: Change(None) for tp in partitions}))

    @abstractmethod
    def close(self) -> None:
        """Closes the connections. The store cannot be used afterwards."""

    def _edit_one(self, verb: str, edit: GroupEdit) -> GroupEditResult:
        (result,) = self.edit([edit])
        if failures := result.failures:
            done = {tp: o for tp, o in result.outcomes.items() if o.error is None}
            raise PartialFailure(f"{verb} of group {edit.group}", successes=done, failures=failures)
        return result


def has_identity(store: OffsetStore, identity: str) -> bool:
    """Returns whether ``identity`` identifies the store, either now or before an upgrade of its brokers."""
    found = store.identity()
    return identity in (found.id, *found.former) or (found.kind == "kafka" and store.log_origin().is_named(identity))


# Groups as trees of znodes: data that offsetmgr does not understand, and stores that save and restore whole trees.


class UnrecognisedData(NamedTuple):
    """Data of a group that offsetmgr does not understand: the znode's path, and a description of the data.
    ``may_hold_offsets`` is True if the znode is at a place where clients store offsets."""

    path: str
    what: str
    may_hold_offsets: bool = False

    def __str__(self) -> str:
        return f"ZooKeeper node {self.path} {self.what}"


def hidden_offsets(group: str, unrecognised: Sequence[UnrecognisedData], *, known: bool) -> CorruptData | None:
    """Returns the error of a group that may have offsets that offsetmgr does not understand: there is such data at a
    place of offsets, or the group has other data, and no ``known`` offset."""
    if left := [one for one in unrecognised if one.may_hold_offsets or not known]:
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        why = f"its offsets may be incomplete: {left[0]}{more}"
        return CorruptData(f"group {group!r}", why, "find out which client writes it")
    return None


class SavedNode(NamedTuple):
    """One znode of a group, as a file of before-images keeps it. ``path`` is relative to the group's znode, whose own
    path is empty. ``acl`` has the permissions, the scheme and the id of each entry. ``data`` is None if the data could
    not be read and the user accepts its loss. ``version`` is the data version, which no file keeps."""

    path: str
    data: bytes | None
    acl: tuple[tuple[int, str, str], ...] = ()
    version: int = -1


@runtime_checkable
class GroupTreeStore(Protocol):
    """A store whose groups are trees of znodes, which can hold more than offsets."""

    def unrecognised(self, groups: Iterable[str]) -> Iterator[UnrecognisedData]:
        """Yields the data of the groups that offsetmgr does not understand. Reads no offsets."""

    def saved_tree(self, group: str, unsaved: Container[str] = ()) -> tuple[SavedNode, ...]:
        """Returns all znodes of a group, parents first. ``unsaved`` are the paths of znodes that may be lost.

        Raises `GroupNotFound`, `GroupActive` if a znode is ephemeral, and `NotAuthorized` if a znode cannot be read."""

    def delete_group(self, group: str, saved: Sequence[SavedNode] | None = None) -> object:
        """Deletes all znodes of a group. Raises `Conflict` if one is not as in ``saved``, and without ``saved`` if one
        has data that is not an offset."""

    def restore_tree(self, group: str, nodes: Sequence[SavedNode]) -> int:
        """Creates the znodes that do not exist, with their data and ACLs, and returns their number. Raises `Conflict`
        before the first creation if another znode exists with other data than before."""


# `LockableStore`, the interface of stores that can lock a group, and `HeldLock`, the lock. While a mirror to a Kafka
# target runs, it holds the locks of the mirrored groups, so that no other client commits to these groups.


class HeldLock(Protocol):
    """A group lock that a process holds for longer than one edit. While the lock is held, no other client can commit to
    the group.

    If a consumer joins the group, the lock is released and the consumer continues. From then on ``lost`` returns the
    reason, and the outcome of a commit is `LockLost`. Brokers of Kafka 0.8.2 support neither group membership nor the
    group lock. On these brokers other clients may commit at any moment, so the store reads and compares the offsets
    just before each write.
    """

    @property
    def group(self) -> str: ...

    @property
    def lost(self) -> OffsetMgrError | None:
        """Returns the error that describes why the lock was lost; None while the lock is held. `Superseded` means that
        a later process with the same ``holder`` name has taken over."""

    @property
    def replaced(self) -> bool:
        """Returns whether an earlier process with the same ``holder`` name, dead or alive, was still a member of the
        group when this process acquired the lock."""


LockedCommit: TypeAlias = tuple[HeldLock, Mapping[TopicPartition, OffsetAndMetadata]]
"""A locked group, and the offsets to commit."""
ChangeOutcomes: TypeAlias = Mapping[TopicPartition, ChangeOutcome]


@runtime_checkable
class LockableStore(Protocol):
    """A store without compare-and-set, whose groups a mirror has to lock."""

    def lock_many(self, groups: Iterable[str], *, holder: str) -> Iterator[tuple[str, HeldLock | OffsetMgrError]]:
        """Acquires the locks of idle groups in parallel. Yields each group with its lock, or with an error.

        ``holder`` names the role of the process. A later process with the same name takes over the lock at once, and
        the coordinator fences the earlier process (KIP-345). The error of a group with other members is `GroupActive`
        with their names.
        """

    def commit_locked(self, commits: Iterable[LockedCommit]) -> Iterator[tuple[str, ChangeOutcomes | OffsetMgrError]]:
        """Commits to many locked groups in parallel, and never lowers an offset. Yields each group, in any order, with
        the outcome of each partition, or with an error: `LockLost` if its lock was lost."""

    def refresh_locked(
        self, held: Iterable[HeldLock], leave_out: Mapping[str, Collection[TopicPartition]] = MappingProxyType({})
    ) -> Iterator[tuple[str, OffsetMgrError | None]]:
        """Commits all offsets of locked groups once more, unchanged, so that they do not expire. ``leave_out`` has the
        partitions of groups whose offsets are not committed.

        Yields one pair for each group. The second element is None if all offsets of the group were committed again. If
        the commit failed for some partitions, it is the error of one of these partitions. A failed partition does not
        stop the refresh of other partitions.
        """

    def release_locks(self, held: Iterable[HeldLock]) -> None:
        """Releases many locks in parallel. After the release, consumers can join the groups without waiting for the
        session timeout."""


# The edits of groups while their consumers run.

CLASSIC_HEARTBEAT_S: Final = 3.0
"""The default of ``heartbeat.interval.ms`` of consumers in seconds. Brokers do not know the setting of a consumer."""


WAIT_S: Final = 30.0
"""The maximum time in seconds for which an edit waits until the members of a group are back."""


class OtherGroupKind(UnsupportedOperation):
    """The group is a share group or a group of the Streams protocol, whose committed offsets offsetmgr does not edit.
    ``state`` is the state of the group, as in `GroupDescription`, and ``type`` is "share" or "streams". The error of an
    edit of a group that commits no offsets has the protocol type of the group, such as "connect". ``server`` is the
    address of the coordinator."""

    state = "UNKNOWN"
    type = ""
    group = ""
    server = ""


class RunningGroup(NamedTuple):
    """A group before an edit: the number of its members, whether it uses the consumer protocol (KIP-848), and the
    interval in seconds in which its members send heartbeats."""

    members: int
    consumer_protocol: bool = False
    heartbeat_s: float = CLASSIC_HEARTBEAT_S


class RunningEdit(NamedTuple):
    """How to edit groups whose consumers run. The consumers leave their group for some seconds, and continue at the new
    offsets.

    ``on_step`` receives a line of text about each step. ``wait_s`` is the time in seconds for which an edit waits until
    the consumers are back. If ``conditional`` is True, the edit of a group fails if its members have committed since
    the plan was made.

    Example::

        from offsetmgr import OffsetAdmin, RunningEdit, ToEarliest

        with OffsetAdmin("kafka://h1:9092", running=RunningEdit(on_step=print)) as admin:
            report = admin.plan_reset("shop", ToEarliest(), topics="orders").execute()
            for group, seen in report.evidence.items():
                print(group, seen)
            for path in report.before_images:
                admin.plan_undo(path, allow_rewind=True).execute()
    """

    on_step: Callable[[str], None] = lambda _text: None
    wait_s: float = WAIT_S
    conditional: bool = False


class RunningEditListener(Protocol):
    """Callbacks of `KafkaStore.edit_running`. They run in a thread of the store."""

    def on_before(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Receives the before-images of a group: the offsets at the moment at which its members can no longer commit.
        The store writes nothing before the function has returned. If it raises `OffsetMgrError`, the edit of the group
        fails with this error."""

    def on_step(self, text: str) -> None:
        """Receives a line that describes the progress."""


# `AheadPolicy`: the word of a user for offsets whose copy would be a rewind.


class AheadPolicy(StrEnum):
    """The action for a partition whose target is ahead of the source: keep the target's offset, refuse the partition,
    or rewind the target to the source's offset.

    >>> AheadPolicy.REFUSE.value
    'refuse'
    """

    KEEP = "keep"
    REFUSE = "refuse"
    REWIND = "rewind"


# Reads and edits of a store that return its errors as results of the groups instead of raising them.

GROUPS_IN_FLIGHT: Final = 200
"""The number of groups in one batch. All groups of a batch are processed in one store, then in the other."""


def edit_batches(edits: Iterable[GroupEdit]) -> Iterator[list[GroupEdit]]:
    """Divides edits into batches that contain each group at most once, so that a second edit of a group is executed
    after the first edit and reads its result."""
    batch: dict[str, GroupEdit] = {}
    for edit in edits:
        if edit.group in batch or len(batch) >= GROUPS_IN_FLIGHT:
            yield list(batch.values())
            batch = {}
        batch[edit.group] = edit
    if batch:
        yield list(batch.values())


def read_batch(store: OffsetStore, batch: list[GroupEdit]) -> dict[str, GroupOffsets]:
    """Returns a store's offsets of the groups in a batch. If the batch has only one edit, reads only the partitions
    that the edit changes."""
    if len(batch) == 1:
        return {batch[0].group: fetch_group(store, batch[0].group, list(batch[0].changes))}
    return scan_store(store, [edit.group for edit in batch])


def fetch_group(store: OffsetStore, group: str, partitions: list[TopicPartition] | None) -> GroupOffsets:
    """Returns a store's offsets of one group, for all its partitions if ``partitions`` is None. Errors are part of the
    result."""
    try:
        found, failures = store.fetch(group, partitions), {}
    except PartialFailure as partial:
        found, failures = partial.successes, partial.failures
    except OffsetMgrError as error:
        return GroupOffsets(group, {}, error=error)
    return GroupOffsets(group, {tp: c for tp, c in found.items() if isinstance(c, Committed)}, failures)


def scan_store(store: OffsetStore, groups: list[str]) -> dict[str, GroupOffsets]:
    """Returns one result for each group. If the whole store fails, its error is the result of the remaining groups."""
    found: dict[str, GroupOffsets] = {}
    try:
        for answer in store.scan(groups) if groups else ():
            found[answer.name] = answer
    except OffsetMgrError as error:
        return {group: found.get(group) or GroupOffsets(group, {}, error=error) for group in groups}
    return found


def edit_store(store: OffsetStore, edits: list[GroupEdit]) -> dict[str, GroupEditResult]:
    """Returns one result for each group. If the whole store fails, its error is the result of the remaining groups."""
    done: dict[str, GroupEditResult] = {}
    try:
        for result in store.edit(edits) if edits else ():
            done[result.group] = result
    except OffsetMgrError as error:
        failed = ChangeOutcome(EditStatus.FAILED, None, error)
        for edit in edits:
            done.setdefault(edit.group, GroupEditResult(edit.group, dict.fromkeys(edit.changes, failed), atomic=False))
    return done
