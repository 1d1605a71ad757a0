"""Stores with a lock on a group: `HeldLock` and `LockableStore`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import ChangeOutcome


class HeldLock(Protocol):
    """The lock of a group for longer than one edit: no other client can commit to the group. Brokers of 0.8.2 have no
    group lock; there other clients may commit, and the store reads and compares just before each write.

    A consumer that joins the group takes the lock away: ``lost`` then returns the reason, `commit` raises `LockLost`,
    and the consumer is not disturbed.
    """

    @property
    def group(self) -> str: ...

    @property
    def lost(self) -> OffsetMgrError | None:
        """Returns why the lock was lost; None while it is held. `Superseded` means that a process of the same name has
        it."""
        ...

    @property
    def replaced(self) -> bool:
        """Returns whether an earlier process of the same name, dead or alive, was a member of the group when this one
        took the lock."""
        ...

    def fetch(self) -> Mapping[TopicPartition, Committed]:
        """Returns all committed offsets of the group."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, ChangeOutcome]:
        """Commits with the lock, and returns one outcome for each partition. It never lowers an offset. Raises
        `LockLost`."""
        ...

    def release(self) -> None:
        """Releases the lock at once, so that consumers need not wait for a timeout."""
        ...


@runtime_checkable
class LockableStore(Protocol):
    """A store without compare-and-set, whose groups a mirror has to lock."""

    def lock(self, group: str, *, holder: str) -> HeldLock:
        """Takes the lock of an idle group and returns it.

        ``holder`` names the role of the process: a later process of the same name takes over at once, and the earlier
        one is fenced (KIP-345). Raises `GroupActive` with the names of the members.
        """
        ...

    def lock_many(self, groups: Iterable[str], *, holder: str) -> Iterator[tuple[str, HeldLock | OffsetMgrError]]:
        """Takes the locks of many groups in parallel. Returns each group with its lock, or with the error that `lock`
        would raise."""
        ...

    def commit_locked(
        self, commits: Iterable[tuple[HeldLock, Mapping[TopicPartition, OffsetAndMetadata]]]
    ) -> Iterator[tuple[str, Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError]]:
        """Commits to many locked groups in parallel. Returns each group with the result of `HeldLock.commit` or its
        error, in any order."""
        ...

    def refresh_locked(self, held: Iterable[HeldLock]) -> Iterator[tuple[str, OffsetMgrError | None]]:
        """Commits all offsets of locked groups once more, unchanged, so that they do not expire. Returns each group
        with None, or with the error of a partition; the other partitions are refreshed."""
        ...

    def release_locks(self, held: Iterable[HeldLock]) -> None:
        """Releases many locks in parallel."""
        ...
