"""Executes a planned edit in any store, with its before-images in a file or, for a dual store, in two files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from offsetmgr.core.advice import Argument, Invocation
from offsetmgr.core.errors import Overwritten
from offsetmgr.core.offset_store import EditStatus, GroupEditResult, OffsetStore
from offsetmgr.groups.before_images import BeforeImageFile, image_file
from offsetmgr.groups.dual_execute import StorePair, execute_dual
from offsetmgr.groups.edit_plan import EditPlan
from offsetmgr.groups.execute import execute
from offsetmgr.groups.operation_log import OperationLog, OperationStart, first_groups


class EditOrigin(NamedTuple):
    """The part of an edit's record in the operation log that the caller knows: the command (``offsets reset``), the
    user's reason, and the arguments for the connection that the call of the undo needs."""

    operation: str
    reason: str = ""
    undo_options: Mapping[str, Argument] = {}


_cause: ContextVar[EditOrigin | None] = ContextVar("cause", default=None)


@contextmanager
def caused_by(origin: EditOrigin) -> Iterator[None]:
    """Marks the edits within the context as parts of a larger operation; see `part`."""
    token = _cause.set(origin)
    try:
        yield
    finally:
        _cause.reset(token)


def part(operation: str) -> EditOrigin:
    """Returns the origin of an edit that is a part of the larger operation of `caused_by`, with its reason and
    connection options."""
    return (_cause.get() or EditOrigin(operation))._replace(operation=operation)


class SavedEdit(NamedTuple):
    """An edit whose before-images are saved before its first write.

    ``images`` are the files of before-images, one for each store that is written. ``results`` executes the edit: each
    ``next`` returns the result of one group. Close ``results`` if you do not exhaust it, because the edit in progress
    may hold group locks.
    """

    images: tuple[BeforeImageFile, ...]
    results: Generator[GroupEditResult, None, None]


def execute_saved(
    store: OffsetStore,
    plan: EditPlan,
    path: Path,
    origin: EditOrigin,
    on_durable: Callable[[Path], None] = lambda _path: None,
) -> SavedEdit:
    """Starts an edit, which the operation log records. See `start_edit` and `record_operation`."""
    return record_operation(start_edit(store, plan, path, on_durable), plan, origin)


def start_edit(store: OffsetStore, plan: EditPlan, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
    """Starts an edit. For a `StorePair`, ``path`` gets the suffixes ``.primary`` and ``.secondary``.

    ``on_durable`` is called with the path of each file as soon as the file is durable. Raises any error of a store that
    does not report its identity.
    """
    if not isinstance(store, StorePair):
        image = image_file(path, store, plan, on_durable)
        return SavedEdit((image,), execute(store, [plan], image))
    first, second = (
        image_file(path.with_stem(f"{path.stem}.{which}"), one, plan, on_durable)
        for which, one in (("primary", store.primary), ("secondary", store.secondary))
    )
    return SavedEdit((first, second), execute_dual(store, plan, (first, second)))


def record_operation(started: SavedEdit, plan: EditPlan, origin: EditOrigin) -> SavedEdit:
    """Returns the edit, which the operation log records. The first ``next`` of its results raises `FileFailure` if the
    operation log cannot be written; nothing was changed then."""
    return SavedEdit(started.images, _recorded(started, plan, origin))


def _recorded(started: SavedEdit, plan: EditPlan, origin: EditOrigin) -> Generator[GroupEditResult, None, None]:
    start = OperationStart(
        name=origin.operation,
        stores=tuple(image.header.source_uri for image in started.images),
        groups=first_groups(group.group for group in plan if group.problem is None),
        group_count=plan.counts.groups,
        changes=plan.counts.writes,
        files=tuple(str(image.path.absolute()) for image in started.images),
        undo=tuple(undo_of(image, origin.undo_options) for image in started.images),
        reason=origin.reason,
    )
    with closing(started.results) as results, OperationLog().recorded(start) as progress:
        progress.failed = plan.counts.problems
        for result in results:
            progress.failed += len(result.failures) + (result.error is not None)
            progress.written += sum(
                found.status is EditStatus.WRITTEN or isinstance(found.error, Overwritten)
                for found in result.outcomes.values()
            )
            yield result


def undo_of(image: BeforeImageFile, options: Mapping[str, Argument], **more: Argument) -> Invocation:
    """Returns the call that undoes the edit of one store."""
    named = {"store": image.header.source_uri, **options, **more}
    return Invocation("offsets import", (str(image.path.absolute()),), named)
