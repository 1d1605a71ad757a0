"""Bulk calls of a store, which run in the store's threads. Each call returns a result for every group, even after an
error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import cast

from offsetmgr.core.errors import ErrorCode, GroupNotFound, OffsetMgrError, PartialFailure, ServerError, Unreachable
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import (
    ChangeOutcome,
    ChangeOutcomes,
    EditStatus,
    GroupEdit,
    GroupOffsets,
    OffsetStore,
    fetch_group,
)

_log = logging.getLogger(__name__)


def edit_groups(store: OffsetStore, edits: Sequence[GroupEdit]) -> dict[str, ChangeOutcomes]:
    """Executes edits of different groups; returns the outcomes of each edit, even after an error."""
    found: dict[str, ChangeOutcomes] = {}

    def edit() -> None:
        for result in store.edit(edits):
            found[result.group] = result.outcomes

    error = _error_of(store, "an edit", edit)
    return {edit.group: found.get(edit.group) or all_failed(edit.changes, error) for edit in edits}


def read_groups(store: OffsetStore, requested: Mapping[str, list[TopicPartition] | None]) -> dict[str, GroupOffsets]:
    """Reads many groups; returns a result for each group, even after an error."""
    found: dict[str, GroupOffsets] = {}

    def read() -> None:
        if len(requested) > 1 or None in requested.values():
            for result in store.scan(requested):
                hidden = result.hidden
                found[result.name] = result if hidden is None else GroupOffsets(result.name, {}, error=hidden)
        # If the whole group cannot be read, the requested partitions may still be readable.
        for group, partitions in requested.items():
            if partitions is not None and _incomplete(found.get(group), partitions):
                found[group] = fetch_group(store, group, partitions)

    error = _error_of(store, "a read", read)
    return {group: found.get(group) or GroupOffsets(group, {}, error=error) for group in requested}


def delete_group(store: OffsetStore, group: str) -> int:
    """Deletes a group with the store's own operation. If the store has no such operation, deletes all offsets of the
    group. Returns NONE or GROUP_ID_NOT_FOUND. Raises `OffsetMgrError`."""
    delete = cast("Callable[[str], object] | None", getattr(store, "delete_group", None))
    try:
        if delete is not None:
            delete(group)
            return ErrorCode.NONE
        return ErrorCode.NONE if store.delete(group).outcomes else ErrorCode.GROUP_ID_NOT_FOUND
    except GroupNotFound:
        return ErrorCode.GROUP_ID_NOT_FOUND
    except PartialFailure as partial_failure:
        raise next(iter(partial_failure.failures.values())) from None


def _error_of(store: OffsetStore, what: str, call: Callable[[], None]) -> OffsetMgrError:
    """Makes a call. Returns the error for the groups without a result."""
    try:
        call()
    except OffsetMgrError as failure:
        return failure
    except CancelledError:
        return closing_error(store)
    except Exception as defect:
        _log.exception(
            f"{what} raised an unexpected exception (a defect); its clients get an error", extra={"store": store.uri}
        )
        return ServerError(store.uri, f"{type(defect).__name__} during {what}")
    return ServerError(store.uri, "the store did not answer for the group")


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
