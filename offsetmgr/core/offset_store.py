"""`OffsetStore`: the one interface behind which every place of committed offsets stands.

The vocabulary is small on purpose.  Reading is ``fetch`` (one group) and ``scan`` (many, lazily, with many
requests in flight).  *Every* write is an ``edit``: a set of changes to one group, each conditional on what the
partition held before.  ``commit`` and ``delete`` are edits of one group; migrations, resets, imports, mirrors
and their undoing are streams of edits handed to ``edit``.

Ordering contract: a caller who wants to be able to undo a write reads the before-image first, makes it durable,
then hands it to ``edit`` as ``expected``.  ``edit`` writes only where the store still holds exactly that value,
so the before-image on disk is the true one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from offsetmgr.core.errors import OffsetMgrError, PartialFailure
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.core.model import Absent, BrokerPartition, Committed, Offset, OffsetAndMetadata, TopicPartition, Weakness


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """What a store *is*, so that a plan made for one is refused on another (data rule "migration is a state machine on
    disk").

    ``kind`` is ``kafka``, ``zookeeper``, ``scenario_file``...; ``id`` the cluster id where there is one, else what the
    thing can be told by (connect string and creation time of ``/brokers``; a snapshot's own id); ``how`` says in words
    which of these it is. ``former`` are ids that the same store had before its brokers were upgraded to a release that
    writes a cluster id.
    """

    kind: str
    id: str
    how: str
    former: tuple[str, ...] = ()


class Partitions(Enum):
    """Which partitions a store can hold offsets of."""

    NUMBERED = "numbered"
    """Those of Kafka 0.8 and later."""
    OF_BROKERS = "of-brokers"
    """Those of Kafka 0.7 (`BrokerPartition`), whose offsets are byte positions."""
    ALL = "all"

    def holds(self, tp: TopicPartition) -> bool:
        old = isinstance(tp.partition, BrokerPartition)
        return self is Partitions.ALL or old is (self is Partitions.OF_BROKERS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can carry and promise; what it cannot is said before writing, never dropped in silence."""

    metadata: bool
    leader_epoch: bool
    commit_timestamp: bool
    conditional: str
    """How writes are made conditional: ``version`` (compare-and-set per partition), ``group-lock``, ``scenario_file``,
    or ``none``."""
    partitions: Partitions = Partitions.NUMBERED


class Guard(Enum):
    """How an edit of a Kafka group is protected from others that write at the same moment (data rule "conditional
    writes").

    Stores with compare-and-set of their own (ZooKeeper, files) ignore it.
    """

    LOCK = "lock"
    """Join the idle group as its only member, compare, commit with the generation, leave. A group with other
    members is refused (`GroupActive`). A group that has never existed is locked too: clients without membership may
    commit to it at the same moment."""
    COMPARE = "compare"
    """Read, compare, commit as a simple consumer: not atomic. For groups into which old consumers commit, whose
    commits a lock would break."""
    OVERWRITE = "overwrite"
    """One simple commit, nothing read before it: the last one wins, as it does among consumers in Kafka.

    Rule 9 asks for conditional writes where a *tool* decides upon what it has read. Whoever merely passes on what
    consumers commit (the listener before a store) decides nothing, so there is nothing to compare, and a read before
    each commit would halve its rate. Only for changes that allow a rewind and expect nothing; others in the same edit
    make the whole edit as with `LOCK`. Before-images are not known. A group with members is refused, unless one of them
    is the edit's ``committer``."""


class Change(NamedTuple):
    """One partition's part of an edit.

    ``after`` None deletes the commit.  ``expected`` None means: whatever is there (the store reads it itself, and
    the rewind rule still holds); ``Absent`` means create only; ``Committed`` means only while the partition holds
    this offset (and, where it has one, this version).
    """

    after: OffsetAndMetadata | None
    expected: Offset | None = None
    allow_rewind: bool = False


class Committer(NamedTuple):
    """The member of a group whose commit is passed on: Kafka's coordinator takes only its members' commits."""

    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupEdit:
    """Changes to one group's offsets.

    ``committer`` only with `Guard.OVERWRITE`, and only Kafka's groups have members: other stores ignore both.

    ``as_of`` is the `GroupOffsets.as_of` of the scan that found every ``expected`` of the changes, else None: what has
    provably not been replaced since need not be read again to be compared.
    """

    group: str
    changes: Mapping[TopicPartition, Change]
    guard: Guard = Guard.LOCK
    committer: Committer | None = None
    as_of: int | None = None


class EditStatus(Enum):
    """What became of one partition's change."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The store already held exactly the wanted value; nothing was written."""
    FAILED = "failed"


class ChangeOutcome(NamedTuple):
    """What became of one partition's change: the before-image, and the error where it failed.

    ``before`` is what the store held when the write was decided; None where that could not be read.
    """

    status: EditStatus
    before: Offset | None = None
    error: OffsetMgrError | None = None


@dataclass(frozen=True, slots=True)
class GroupEditResult:
    """The outcome of one `GroupEdit`, one entry a partition.

    ``atomic`` is False where others could have written between our comparison and our write; ``how`` says what was
    checked instead.  ``secondary`` is for dual stores: the partitions whose change the primary took (their outcome
    says so) but the secondary did not, and why; the change is not lost, the dual store keeps it as pending.
    """

    group: str
    outcomes: Mapping[TopicPartition, ChangeOutcome]
    atomic: bool = True
    how: str = ""
    secondary: Mapping[TopicPartition, OffsetMgrError] = field(default_factory=dict)

    @property
    def failures(self) -> dict[TopicPartition, OffsetMgrError]:
        return {tp: o.error for tp, o in self.outcomes.items() if o.error is not None}


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Everything that one group has committed: offsets, and the partitions whose value could not be read.

    ``error`` is set where the whole group could not be read; then both mappings are empty and mean nothing.
    ``as_of`` is a moment in the store's own count of changes (ZooKeeper: a zxid) at or after which all of it was read;
    None where the store has no such count.
    """

    group: str
    offsets: Mapping[TopicPartition, Committed]
    errors: Mapping[TopicPartition, OffsetMgrError] = field(default_factory=dict)
    error: OffsetMgrError | None = None
    as_of: int | None = None


@runtime_checkable
class OffsetStore(Protocol):
    """A place that holds committed offsets. Construction does no I/O; the first call connects."""

    @property
    def uri(self) -> str:
        """The store's URI, without credentials."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def identity(self) -> StoreIdentity:
        """What this store is. Raises `Unreachable`, `TimedOut`."""
        ...

    def log_origin(self) -> LogOrigin:
        """The Kafka cluster whose logs the offsets point into. Raises `Unreachable`, `TimedOut`, `CorruptData`."""
        ...

    def weaknesses(self) -> tuple[Weakness, ...]:
        """The guarantees of edits that this store keeps less than fully: brokers before 3.0. Raises
        `Unreachable`, `TimedOut`."""
        ...

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        """Ids of those of ``topics`` (None: all) for which the store knows one. Raises as `log_origin`."""
        ...

    def topics_created(self, topics: Iterable[str]) -> Mapping[str, int]:
        """When those of ``topics`` were created of which the store knows it, in milliseconds since 1970. Raises as
        `log_origin`."""
        ...

    def groups(self) -> Iterator[str]:
        """Ids of all groups that may hold offsets, in no promised order. Never empty because of an error."""
        ...

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        """Committed offsets of a group: for each of ``partitions`` `Committed` or `Absent`; for None all that are
        committed.  An unknown group has no commits: an empty mapping (or all `Absent`).

        Raises `PartialFailure` where some partitions could not be read, other `OffsetMgrError` where none could.
        """
        ...

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        """All offsets of many groups, lazily, many requests in flight; order is not promised.

        One result for each group asked; a failure is that group's (or partition's) outcome and ends nothing else.
        ``groups`` is consumed lazily, so memory grows with the groups in flight, not with their number.
        """
        ...

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Carries out edits, many groups in flight; one result for each, in no promised order.

        Failures are outcomes, never exceptions, unless the store as a whole cannot be reached. The rewind rule is
        applied here: a change that would lower a committed offset fails with `RewindRefused` unless it says
        ``allow_rewind``; one whose ``expected`` does not hold fails with `Conflict`.  One partition's failure does
        not stop the others of the same group, except where the group as a whole is refused (`GroupActive`).
        """
        ...

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        allow_rewind: bool = False,
        guard: Guard = Guard.LOCK,
    ) -> GroupEditResult:
        """Commits offsets of one group. Raises `PartialFailure` if any partition failed, with both halves."""
        ...

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> GroupEditResult:
        """Deletes commits (None: all of the group's), giving back their before-images. Raises as `commit`."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


@runtime_checkable
class GroupListingStore(Protocol):
    """A store that cannot hold every group that Kafka can: its names are narrower."""

    def check_group(self, group: str) -> None:
        """Raises `UsageError` where no group of this name can exist in the store."""
        ...


@runtime_checkable
class NamedScanStore(Protocol):
    """A store in which a partition can be unreadable although a scan of its group leaves it out: in Kafka, one whose
    only commit belongs to an open transaction."""

    def scan_named(self, asked: Mapping[str, Sequence[TopicPartition]]) -> Iterator[GroupOffsets]:
        """As `OffsetStore.scan`, of the partitions that are named for each group."""
        ...


class HeldLock(Protocol):
    """A group that we hold for longer than one edit: while it is held nobody else commits to it. Brokers 0.8.2 have no
    group lock: there others may commit, and the store reads and compares just before each write.

    Whoever starts to consume with the group takes it away: then ``lost`` says so, `commit` raises `LockLost`, and the
    consumer runs on undisturbed.
    """

    @property
    def group(self) -> str: ...

    @property
    def lost(self) -> OffsetMgrError | None:
        """Why the group is ours no longer; None while it is. `Superseded` where a holder of the same name has it."""
        ...

    @property
    def replaced(self) -> bool:
        """Whether an earlier holder of the same name, dead or alive, was in the group when it was taken."""
        ...

    def fetch(self) -> Mapping[TopicPartition, Committed]:
        """All committed offsets of the group."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, ChangeOutcome]:
        """Commits as the holder, one outcome a partition; refuses to lower an offset. Raises `LockLost`."""
        ...

    def release(self) -> None:
        """Gives the group up at once, so that consumers need not wait for a timeout."""
        ...


@runtime_checkable
class LockableStore(Protocol):
    """A store whose groups must be held by whoever follows them for long: one without compare-and-set."""

    def lock(self, group: str, *, holder: str) -> HeldLock:
        """Takes an idle group. ``holder`` names the process's role: a later process of the same name takes over at
        once, and the earlier one, dead or frozen, is fenced (KIP-345). Raises `GroupActive` with the members named.
        """
        ...

    def hold_many(self, groups: Iterable[str], *, holder: str) -> Iterator[tuple[str, HeldLock | OffsetMgrError]]:
        """Takes many groups, many at a time: each group with its hold, or with the error that `hold` would raise."""
        ...

    def commit_held(
        self, commits: Iterable[tuple[HeldLock, Mapping[TopicPartition, OffsetAndMetadata]]]
    ) -> Iterator[tuple[str, Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError]]:
        """Commits into many held groups of this store, many at a time: each group with what `HeldLock.commit` would
        give or raise, in no promised order."""
        ...

    def refresh_held(self, held: Iterable[HeldLock]) -> Iterator[tuple[str, OffsetMgrError | None]]:
        """Commits all that held groups have committed once more, unchanged, so that it does not expire: each group
        with None, or with what hindered it (the other partitions are refreshed)."""
        ...

    def release_held(self, held: Iterable[HeldLock]) -> None:
        """Gives up many groups, many at a time."""
        ...


class StoreBase:
    """The parts of `OffsetStore` that follow from ``fetch`` and ``edit``; concrete stores inherit them."""

    parallel_calls: ClassVar[int] = 1
    """How many calls may be under way at the same time, each in a thread of its own; 1: never two."""

    dates_topics: ClassVar[bool] = False
    """Whether `topics_created` can know anything."""

    def log_origin(self) -> LogOrigin:
        return UNNAMED

    def weaknesses(self) -> tuple[Weakness, ...]:
        return ()

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def topics_created(self, topics: Iterable[str]) -> Mapping[str, int]:  # noqa: ARG002
        return {}

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        raise NotImplementedError

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        allow_rewind: bool = False,
        guard: Guard = Guard.LOCK,
    ) -> GroupEditResult:
        changes = {tp: Change(after, allow_rewind=allow_rewind) for tp, after in offsets.items()}
        return self._edit_one("commit", GroupEdit(group, changes, guard))

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> GroupEditResult:
        if partitions is None:
            partitions = [tp for tp, found in self.fetch(group).items() if isinstance(found, Committed)]
        return self._edit_one("delete", GroupEdit(group, {tp: Change(None) for tp in partitions}))

    def _edit_one(self, verb: str, edit: GroupEdit) -> GroupEditResult:
        (result,) = self.edit([edit])
        if failures := result.failures:
            done = {tp: o for tp, o in result.outcomes.items() if o.error is None}
            raise PartialFailure(f"{verb} of group {edit.group}", successes=done, failures=failures)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def same_value(found: Offset | None, wanted: OffsetAndMetadata | None, capabilities: Capabilities) -> bool:
    """Whether writing ``wanted`` over ``found`` would change nothing that the store can carry."""
    if wanted is None:
        return isinstance(found, Absent)
    if not isinstance(found, Committed) or found.offset != wanted.offset:
        return False
    if capabilities.metadata and found.metadata != wanted.metadata:
        return False
    return not (
        capabilities.leader_epoch and wanted.leader_epoch is not None and found.leader_epoch != wanted.leader_epoch
    )
