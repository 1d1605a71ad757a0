"""Reads and edits one store of a dual store. The functions return a store's errors as results of the groups instead of
raising them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from offsetmgr.core.errors import OffsetMgrError, PartialFailure
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import (
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
)

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
            found[answer.group] = answer
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
