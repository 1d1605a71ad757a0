"""`FaultyStore`: wraps an `OffsetStore` and raises the errors that a test requests, so that users can test their error
handling.

A test arms faults and disarms them again. Faults are never random; a test that needs randomness must choose the faults
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from offsetmgr.core.errors import OffsetMgrError, PartialFailure, Unreachable
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import Offset, TopicPartition, Weakness
from offsetmgr.core.offset_store import (
    Capabilities,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    StoreIdentity,
)

Call = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    ``call`` is ``write`` (edit) or ``read`` (all other calls to the wrapped store); ``error`` is the error that the
    store reports. If ``group`` or ``partition`` is given, the fault affects only this group or partition. If neither is
    given, the whole call fails. The fault ends after ``times`` calls of this kind; calls for other groups or partitions
    count as well. If ``times`` is `None`, the fault lasts until `FaultyStore.heal` is called. If ``after`` is set, the
    store executes the write, and only the response is lost.

    >>> from offsetmgr import TopicPartition, errors
    >>> fault = Fault("write", errors.TimedOut("commit", "no answer"), group="shop")
    >>> fault.hits("shop"), fault.hits("billing")
    (True, False)
    """

    call: Call
    error: OffsetMgrError
    group: str | None = None
    partition: TopicPartition | None = None
    times: int | None = None
    after: bool = False

    @property
    def whole(self) -> bool:
        """Whether the whole call fails."""
        return self.group is None and self.partition is None

    def hits(self, group: str, tp: TopicPartition | None = None) -> bool:
        """Returns whether the fault affects the partition ``tp`` of a group. Without ``tp``, returns whether the fault
        affects the whole group."""
        if self.group not in (None, group):
            return False
        return self.partition is None if tp is None else self.partition in (None, tp)


class FaultyStore(OffsetStore):
    """Wraps ``store``, and passes every call on to ``store`` unless an armed `Fault` applies to the call.

    >>> from offsetmgr import errors
    >>> from offsetmgr.testing import MemoryStore
    >>> store = FaultyStore(MemoryStore()).fail("read", errors.TimedOut("fetch", "no answer"), times=1)
    >>> try:
    ...     store.fetch("shop")
    ... except errors.TimedOut as error:
    ...     print(error)
    fetch: no answer
    >>> dict(store.fetch("shop"))
    {}
    """

    def __init__(self, store: OffsetStore) -> None:
        self.store = store
        self.has_topic_creation_times = store.has_topic_creation_times
        self.faults: list[Fault] = []
        self.writes = 0
        """The number of group edits that were passed on to the store."""

    def fail(
        self,
        call: Call,
        error: OffsetMgrError | None = None,
        *,
        group: str | None = None,
        partition: TopicPartition | None = None,
        times: int | None = None,
        after: bool = False,
    ) -> Self:
        """Arms a fault (see `Fault`). The default error is `Unreachable`."""
        error = error or Unreachable(self.store.uri, "fails as the test requested")
        self.faults.append(Fault(call, error, group, partition, times, after))
        return self

    def heal(self) -> None:
        """Disarms all faults."""
        self.faults.clear()

    @property
    def uri(self) -> str:
        return self.store.uri

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    def identity(self) -> StoreIdentity:
        return self._readable().identity()

    def log_origin(self) -> LogOrigin:
        return self._readable().log_origin()

    def weaknesses(self) -> tuple[Weakness, ...]:
        return self._readable().weaknesses()

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        return self._readable().topic_ids(topics)

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:
        return self._readable().topic_creation_times(topics)

    def groups(self) -> Iterator[str]:
        yield from self._readable().groups()

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        faults = self._armed("read")
        for fault in faults:
            if fault.hits(group):
                raise fault.error
        found = self.store.fetch(group, partitions)
        failures = {tp: fault.error for tp in found for fault in faults if fault.hits(group, tp)}
        if failures:
            rest = {tp: value for tp, value in found.items() if tp not in failures}
            raise PartialFailure(f"fetch of group {group}", successes=rest, failures=failures)
        return found

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        faults = self._armed("read")
        _raise_whole(faults)
        for found in self.store.scan(groups):
            yield _with_faults(found, faults)

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        faults = self._armed("write")
        _raise_whole([fault for fault in faults if not fault.after])
        for edit in edits:
            early = [fault for fault in faults if not fault.after]
            failed = {tp: fault.error for tp in edit.changes for fault in early if fault.hits(edit.group, tp)}
            rest = {tp: change for tp, change in edit.changes.items() if tp not in failed}
            done: Mapping[TopicPartition, ChangeOutcome] = {}
            if rest:
                self.writes += 1
                (result,) = self.store.edit([replace(edit, changes=rest)])
                done = result.outcomes
            late = [fault for fault in faults if fault.after]
            _raise_whole(late)
            failed |= {tp: fault.error for tp in done for fault in late if fault.hits(edit.group, tp)}
            outcomes = {
                tp: ChangeOutcome(EditStatus.FAILED, None, failed[tp]) if tp in failed else done[tp]
                for tp in edit.changes
            }
            yield GroupEditResult(edit.group, outcomes)

    def close(self) -> None:
        self.store.close()

    def _readable(self) -> OffsetStore:
        """Returns the store, unless a fault of all reads is armed."""
        _raise_whole(self._armed("read"))
        return self.store

    def _armed(self, call: Call) -> list[Fault]:
        """Returns the armed faults for this kind of call, and reduces the remaining number of calls of each returned
        fault."""
        armed = [fault for fault in self.faults if fault.call == call]
        self.faults = [
            left
            for fault in self.faults
            if (left := replace(fault, times=fault.times - 1) if fault in armed and fault.times else fault).times != 0
        ]
        return armed


def _raise_whole(faults: list[Fault]) -> None:
    for fault in faults:
        if fault.whole:
            raise fault.error


def _with_faults(found: GroupOffsets, faults: list[Fault]) -> GroupOffsets:
    for fault in faults:
        if fault.hits(found.name):
            return GroupOffsets(found.name, {}, error=fault.error)
    errors = dict(found.errors)
    for fault in faults:
        if fault.partition is not None and fault.hits(found.name, fault.partition):
            errors[fault.partition] = fault.error
    return GroupOffsets(found.name, {tp: c for tp, c in found.offsets.items() if tp not in errors}, errors)
