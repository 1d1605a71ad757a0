"""`LockableStore`, the interface of stores that can lock a group, and `HeldLock`, the lock.

While a mirror to a Kafka target runs, it holds the locks of the mirrored groups, so that no other client commits to
these groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import ChangeOutcome


class HeldLock(Protocol):
    """A group lock that a process holds for longer than one edit. While the lock is held, no other client can commit to
    the group.

    If a consumer joins the group, the lock is released and the consumer continues. From then on ``lost`` returns the
    reason, and `commit` raises `LockLost`. Brokers of Kafka 0.8.2 support neither group membership nor the group lock.
    On these brokers other clients may commit at any moment, so the store reads and compares the offsets just before
    each write.
    """

    @property
    def group(self) -> str: ...

    @property
    def lost(self) -> OffsetMgrError | None:
        """Returns the error that describes why the lock was lost; None while the lock is held. `Superseded` means that
        a later process with the same ``holder`` name has taken over."""
        ...

    @property
    def replaced(self) -> bool:
        """Returns whether an earlier process with the same ``holder`` name, dead or alive, was still a member of the
        group when this process acquired the lock."""
        ...

    def fetch(self) -> Mapping[TopicPartition, Committed]:
        """Returns all committed offsets of the group."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, ChangeOutcome]:
        """Commits under the lock and returns one outcome for each partition. The method never lowers an offset. Raises
        `LockLost`."""
        ...

    def release(self) -> None:
        """Releases the lock. After the release, consumers can join the group without waiting for the session
        timeout."""
        ...


@runtime_checkable
class LockableStore(Protocol):
    """A store without compare-and-set, whose groups a mirror has to lock."""

    def lock(self, group: str, *, holder: str) -> HeldLock:
        """Acquires the lock of an idle group.

        ``holder`` names the role of the process. A later process with the same name takes over the lock at once, and
        the coordinator fences the earlier process (KIP-345). If the group has other members, the method raises
        `GroupActive` with their names.
        """
        ...

    def lock_many(self, groups: Iterable[str], *, holder: str) -> Iterator[tuple[str, HeldLock | OffsetMgrError]]:
        """Acquires the locks of many groups in parallel. Yields each group with the lock that `lock` would return, or
        with the error that it would raise."""
        ...

    def commit_locked(
        self, commits: Iterable[tuple[HeldLock, Mapping[TopicPartition, OffsetAndMetadata]]]
    ) -> Iterator[tuple[str, Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError]]:
        """Commits to many locked groups in parallel. Yields each group, in any order, with the value that
        `HeldLock.commit` would return or with the error that it would raise."""
        ...

    def refresh_locked(
        self, held: Iterable[HeldLock], leave_out: Mapping[str, Collection[TopicPartition]] = MappingProxyType({})
    ) -> Iterator[tuple[str, OffsetMgrError | None]]:
        """Commits all offsets of locked groups once more, unchanged, so that they do not expire. ``leave_out`` has the
        partitions of groups whose offsets are not committed.

        Yields one pair for each group. The second element is None if all offsets of the group were committed again. If
        the commit failed for some partitions, it is the error of one of these partitions. A failed partition does not
        stop the refresh of other partitions.
        """
        ...

    def release_locks(self, held: Iterable[HeldLock]) -> None:
        """Releases many locks in parallel."""
        ...
