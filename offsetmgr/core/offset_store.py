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

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import OffsetMgrError, PartialFailure
from offsetmgr.core.group_tree import UnrecognisedData
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.core.model import ABSENT, BrokerPartition, Committed, Offset, OffsetAndMetadata, TopicPartition, Weakness


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

    group: str
    offsets: Mapping[TopicPartition, Committed]
    errors: Mapping[TopicPartition, OffsetMgrError] = field(default_factory=dict)
    error: OffsetMgrError | None = None
    unrecognised: tuple[UnrecognisedData, ...] = ()
    hidden: OffsetMgrError | None = None


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


class OffsetStore(Closeable):
    """A store of committed offsets; `open_store` returns one. The first call connects. One thread at a time may use it.
    A subclass implements the abstract methods, and the others if it can do better.

    Example::

        from offsetmgr import open_store

        with open_store("zookeeper://h1:2181") as store:
            print(sum(len(group.offsets) for group in store.scan(store.groups())))
    """

    parallel_calls: ClassVar[int] = 1
    """The maximum number of concurrent calls, each in its own thread. 1 means that calls must not overlap."""
    has_topic_creation_times: bool = False
    """Whether the store knows creation times of topics (see `topic_creation_times`)."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI of the store, without credentials."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The fields and partitions that the store can save, and the guarantees of its edits."""

    @abstractmethod
    def identity(self) -> StoreIdentity:
        """Returns the identity of the store. Raises `Unreachable`, `TimedOut`."""

    def log_origin(self) -> LogOrigin:
        """Returns the Kafka cluster whose logs the offsets belong to. Raises `Unreachable`, `TimedOut`,
        `CorruptData`."""
        return UNNAMED

    def weaknesses(self) -> tuple[Weakness, ...]:
        """Returns the guarantees of edits that this store cannot give in full, because a broker is older than 3.0 or
        its release is unknown. Raises `Unreachable`, `TimedOut`."""
        return ()

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:  # noqa: ARG002
        """Returns the topic ids of ``topics`` (all topics if None). Topics whose id the store does not know are
        missing. Raises the errors of `log_origin`."""
        return {}

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:  # noqa: ARG002
        """Returns the creation times of ``topics`` in milliseconds since 1970. Topics whose time the store does not
        know are missing. Raises the errors of `log_origin`."""
        return {}

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
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        allow_rewind: bool = False,
        guard: Guard = Guard.LOCK,
    ) -> GroupEditResult:
        """Commits offsets of one group. Raises `PartialFailure` with the successes and the failures if any partition
        failed."""
        changes = {tp: Change(after, allow_rewind=allow_rewind) for tp, after in offsets.items()}
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


@runtime_checkable
class PartitionScanStore(Protocol):
    """A store whose `OffsetStore.scan` may omit partitions whose offset it cannot read. To detect omitted partitions,
    callers pass the expected partitions to `scan_partitions`.

    In Kafka a scan omits a partition whose only commit belongs to an open transaction.
    """

    def scan_partitions(self, partitions: Mapping[str, Sequence[TopicPartition]]) -> Iterator[GroupOffsets]:
        """Works like `OffsetStore.scan` for the given partitions of each group. `GroupOffsets.errors` contains an error
        for each partition that could not be read."""
        ...


def has_identity(store: OffsetStore, identity: str) -> bool:
    """Returns whether ``identity`` identifies the store, either now or before an upgrade of its brokers."""
    found = store.identity()
    return identity in (found.id, *found.former) or (found.kind == "kafka" and store.log_origin().is_named(identity))
