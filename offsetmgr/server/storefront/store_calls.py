"""Calls of a store in its threads: many groups at a time, with a result for each in every case."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TypeAlias

from offsetmgr.core.errors import OffsetMgrError, PartialFailure, ServerError, Unreachable
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import ChangeOutcome, EditStatus, GroupEdit, GroupOffsets, OffsetStore

_log = logging.getLogger(__name__)

Outcomes: TypeAlias = Mapping[TopicPartition, ChangeOutcome]


def edited(store: OffsetStore, edits: Sequence[GroupEdit]) -> dict[str, Outcomes]:
    """Carries out edits of different groups; returns outcomes for each of them, also after an error."""
    found: dict[str, Outcomes] = {}
    error: OffsetMgrError = ServerError(store.uri, "the store did not answer for the group")
    try:
        for result in store.edit(edits):
            found[result.group] = result.outcomes
    except OffsetMgrError as failure:
        error = failure
    except CancelledError:
        error = closing(store)
    except Exception as defect:
        _log.exception("an edit failed in an unforeseen way", extra={"store": store.uri})
        error = ServerError(store.uri, f"{type(defect).__name__} during an edit")
    return {edit.group: found.get(edit.group) or all_failed(edit.changes, error) for edit in edits}


def read(store: OffsetStore, wanted: Mapping[str, list[TopicPartition] | None]) -> dict[str, GroupOffsets]:
    """Reads many groups; returns a result for each of them, also after an error."""
    found: dict[str, GroupOffsets] = {}
    error: OffsetMgrError = ServerError(store.uri, "the store did not answer for the group")
    try:
        if len(wanted) > 1 or None in wanted.values():
            for answer in store.scan(wanted):
                found[answer.group] = answer
        # An error that prevents reading a whole group need not affect the requested partitions.
        for group, partitions in wanted.items():
            if partitions is not None and _incomplete(found.get(group), partitions):
                found[group] = _fetched(store, group, partitions)
    except OffsetMgrError as failure:
        error = failure
    except CancelledError:
        error = closing(store)
    except Exception as defect:
        _log.exception("a read failed in an unforeseen way", extra={"store": store.uri})
        error = ServerError(store.uri, f"{type(defect).__name__} during a read")
    return {group: found.get(group) or GroupOffsets(group, {}, error=error) for group in wanted}


def all_failed(partitions: Iterable[TopicPartition], error: OffsetMgrError) -> Outcomes:
    return dict.fromkeys(partitions, ChangeOutcome(EditStatus.FAILED, None, error))


def _incomplete(found: GroupOffsets | None, partitions: Iterable[TopicPartition]) -> bool:
    if found is None:
        return True
    if found.error is not None:
        return not found.error.retriable
    return any(tp in found.errors for tp in partitions)


def _fetched(store: OffsetStore, group: str, partitions: list[TopicPartition]) -> GroupOffsets:
    try:
        found, errors = store.fetch(group, partitions), {}
    except PartialFailure as partial:
        found, errors = partial.successes, partial.failures
    except OffsetMgrError as error:
        return GroupOffsets(group, {}, error=error)
    return GroupOffsets(group, {tp: held for tp, held in found.items() if isinstance(held, Committed)}, errors)


def closing(store: OffsetStore) -> OffsetMgrError:
    """The error for calls that the end of the listener has interrupted."""
    return Unreachable(store.uri, "the listener is being closed")
