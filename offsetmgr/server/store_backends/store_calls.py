"""Bulk calls of a store, which run in the store's threads. Each call returns a result for every group, even after an
error."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TypeAlias

from offsetmgr.core.errors import OffsetMgrError, ServerError, Unreachable
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import ChangeOutcome, EditStatus, GroupEdit, GroupOffsets, OffsetStore, fetch_group

_log = logging.getLogger(__name__)

ChangeOutcomes: TypeAlias = Mapping[TopicPartition, ChangeOutcome]


def edit_groups(store: OffsetStore, edits: Sequence[GroupEdit]) -> dict[str, ChangeOutcomes]:
    """Executes edits of different groups; returns the outcomes of each edit, even after an error."""
    found: dict[str, ChangeOutcomes] = {}
    error: OffsetMgrError = ServerError(store.uri, "the store did not answer for the group")
    try:
        for result in store.edit(edits):
            found[result.group] = result.outcomes
    except OffsetMgrError as failure:
        error = failure
    except CancelledError:
        error = closing_error(store)
    except Exception as defect:
        _log.exception(
            "an edit raised an unexpected exception (a defect); its clients get an error", extra={"store": store.uri}
        )
        error = ServerError(store.uri, f"{type(defect).__name__} during an edit")
    return {edit.group: found.get(edit.group) or all_failed(edit.changes, error) for edit in edits}


def read_groups(store: OffsetStore, requested: Mapping[str, list[TopicPartition] | None]) -> dict[str, GroupOffsets]:
    """Reads many groups; returns a result for each group, even after an error."""
    found: dict[str, GroupOffsets] = {}
    error: OffsetMgrError = ServerError(store.uri, "the store did not answer for the group")
    try:
        if len(requested) > 1 or None in requested.values():
            for result in store.scan(requested):
                hidden = result.hidden
                found[result.group] = result if hidden is None else GroupOffsets(result.group, {}, error=hidden)
        # If the whole group cannot be read, the requested partitions may still be readable.
        for group, partitions in requested.items():
            if partitions is not None and _incomplete(found.get(group), partitions):
                found[group] = fetch_group(store, group, partitions)
    except OffsetMgrError as failure:
        error = failure
    except CancelledError:
        error = closing_error(store)
    except Exception as defect:
        _log.exception(
            "a read raised an unexpected exception (a defect); its clients get an error", extra={"store": store.uri}
        )
        error = ServerError(store.uri, f"{type(defect).__name__} during a read")
    return {group: found.get(group) or GroupOffsets(group, {}, error=error) for group in requested}


def all_failed(partitions: Iterable[TopicPartition], error: OffsetMgrError) -> ChangeOutcomes:
    return dict.fromkeys(partitions, ChangeOutcome(EditStatus.FAILED, None, error))


def _incomplete(found: GroupOffsets | None, partitions: Iterable[TopicPartition]) -> bool:
    if found is None:
        return True
    if found.error is not None:
        return not found.error.retriable
    return any(tp in found.errors for tp in partitions)


def closing_error(store: OffsetStore) -> OffsetMgrError:
    """The error for calls that the listener's shutdown has interrupted."""
    return Unreachable(store.uri, "the listener is being closed")
