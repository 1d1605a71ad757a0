"""Files of before-images: their paths, durable writes, and reads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Final

from offsetmgr.config.user_directories import state_directory
from offsetmgr.core import __version__
from offsetmgr.core.advice import Advice
from offsetmgr.core.atomic_file import remove_abandoned, replace_file, write_atomically
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import FileFailure, OffsetMgrError, UsageError
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import GroupEditResult, GroupTreeStore, OffsetStore, SavedNode
from offsetmgr.core.selection import TopicSelection
from offsetmgr.groups.edit_plan import GroupEditPlan, PlannedChange
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.stores.cross_cluster_check import with_origin

if TYPE_CHECKING:
    from offsetmgr.snapshots.group_images import GroupImages

_OTHER_FILE: Final = Advice("name another file with {before_images:before_image}")
_NAMES: Final = "[0-9]*T[0-9]*Z-*-[0-9]*.avro"
"""The glob of the file names that `default_image_path` returns."""


def default_image_path(operation: str) -> Path:
    """Returns a new path for the before-images of ``operation`` in the state directory (``XDG_STATE_HOME``). The file
    name consists of the time (UTC, with milliseconds), the operation and the process id. Each call in a process returns
    another path, even if several threads call the function in the same millisecond."""
    taken_at_ms = _image_times.next_ms()
    at = datetime.fromtimestamp(taken_at_ms / 1000, UTC)
    stamp = f"{at:%Y%m%dT%H%M%S}.{taken_at_ms % 1000:03}Z"
    return state_directory() / "before-images" / f"{stamp}-{operation.replace(' ', '-')}-{os.getpid()}.avro"


class _DistinctTimes:
    """The current time in milliseconds, increased if needed so that no two calls return the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0

    def next_ms(self) -> int:
        with self._lock:
            self._last_ms = max(SystemClock().now_ms(), self._last_ms + 1)
            return self._last_ms


_image_times: Final = _DistinctTimes()


def header_for(store: OffsetStore, topic_ids: Mapping[str, str] = MappingProxyType({})) -> SnapshotHeader:
    """Returns the header for a snapshot of ``store``, or for a file of before-images of ``store``. ``topic_ids`` maps
    the topics of the store to their ids.

    Raises any error from `OffsetStore.identity`.
    """
    identity = store.identity()
    header = SnapshotHeader.new(store.uri, identity.kind, identity.id, f"offsetmgr {__version__}")
    return with_origin(header, store.log_origin(), topic_ids)


@dataclass
class BeforeImageFile:
    """A new file with the before-images of a whole plan. The object is the sink of one edit (see `EditSink`). An import
    of the file undoes the edit.

    Calls ``on_durable`` once the file is durable, before any change. The file also contains the znodes of the groups
    that the plan deletes.
    """

    path: Path
    header: SnapshotHeader
    on_durable: Callable[[Path], None] = lambda _path: None

    def intend(self, batch: Iterable[GroupEditPlan]) -> None:
        """Writes the values before and after each change of a plan. When the function returns, the file and its
        directory entry are durable.

        Raises `UsageError` if the file exists, and `FileFailure` if it cannot be written.
        """
        if self.path.exists():
            why = "exists already"
            raise UsageError(f"before-image {self.path}", why, _OTHER_FILE)
        self._write(batch, overwrite=False)
        self.on_durable(self.path)

    def rewrite(self, batch: Iterable[GroupEditPlan]) -> None:
        """Replaces the file by the values before and after each change of ``batch``, like `intend`. A crash leaves
        either the old or the new file. Raises `FileFailure` if the file cannot be written."""
        self._write(list(batch), overwrite=True)  # `_write` iterates over the batch twice

    def _write(self, batch: Iterable[GroupEditPlan], *, overwrite: bool) -> None:
        from offsetmgr.snapshots.group_images import VERSION, VERSION_WITH_NODES, write_images

        def groups() -> Iterator[tuple[str, list[PlannedChange], tuple[SavedNode, ...], dict[TopicPartition, bytes]]]:
            for group in batch:
                rows = [change for change in group.changes if change[5] and change[4] is None]  # writes, and no problem
                if (rows or group.removes) and group.problem is None:
                    written = {row.partition for row in rows} if group.raw else ()
                    raw = {tp: data for tp, (data, _) in group.raw.items() if data is not None and tp in written}
                    yield group.name, rows, group.removes, raw

        path = self.path
        version = VERSION_WITH_NODES if any(group.removes or group.raw for group in batch) else VERSION
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(path.parent, _NAMES)  # each run has another file name, so no later run replaces the file
            write_atomically(
                path,
                lambda stream: write_images(stream, self.header, groups(), version=version),
                overwrite=overwrite,
            )
        except OffsetMgrError:  # of the store that the images are read from
            raise
        except OSError as error:
            hint = "free disk space, then run the same command again" if overwrite else _OTHER_FILE
            of = " of this group" if overwrite else ""  # the edit may have changed other groups already
            why = f"cannot be written: {error.strerror}; nothing{of} was changed"
            raise FileFailure(f"before-image {path}", why, hint) from error

    def record(self, planned: GroupEditPlan, result: GroupEditResult | None) -> GroupEditResult | None:
        """Returns ``result`` and writes nothing. An undo compares the values in the store with the planned values, so
        the file needs no outcomes. A group of which only znodes are deleted or restored has a result, too."""
        only_tree = result is None and planned.problem is None and (planned.removes or planned.restores)
        return GroupEditResult(planned.name, {}) if only_tree else result

    def close(self) -> None:
        """Does nothing, because the file is complete before the first edit."""


def image_file(
    path: Path, store: OffsetStore, plan: Iterable[GroupEditPlan], on_durable: Callable[[Path], None]
) -> BeforeImageFile:
    """Returns the file for the before-images of a plan; ``on_durable`` is called as soon as the file is durable.

    The header of the file contains the ids of the topics whose offsets the plan writes, because the before-images are
    valid only for topics with these ids. The trees that the plan restores are created as soon as the file is durable.
    """
    topics = {change.partition.topic for group in plan for change in group.changes if change.writes}
    header = header_for(store, store.topic_ids(topics))

    def durable(saved: Path) -> None:
        on_durable(saved)
        for group in plan:
            if group.restores and group.problem is None and isinstance(store, GroupTreeStore):
                store.restore_tree(group.name, group.restores)

    return BeforeImageFile(path, header, durable)


def save_plan(
    path: Path, store: OffsetStore, plan: Iterable[GroupEditPlan], copied: tuple[str, TopicSelection] | None
) -> None:
    """Writes a plan to the new file ``path``. An import of the file executes the plan if no offset has changed.
    ``copied`` is the group whose offsets in these topics the plan copies; these must be unchanged, too.

    Raises `FileFailure` if the file exists or cannot be written, and the errors of `header_for`.
    """
    from offsetmgr.snapshots.group_images import VERSION_OF_PLAN, ImageRow, write_images

    rows: dict[str, list[ImageRow]] = {}
    for group in plan:
        for tp, before, after, *_ in group.changes:
            new = ABSENT if after is None else Committed(*after)
            at = store.capabilities.position(before)
            rows.setdefault(group.name, []).append((tp, new, None if at is None else OffsetAndMetadata(at)))
            if copied is not None:
                rows.setdefault(copied[0], []).append((tp, new, after))
    header = header_for(store, store.topic_ids({row[0].topic for of_group in rows.values() for row in of_group}))

    def write(out: BinaryIO) -> int:
        return write_images(out, header, ((*of, (), {}) for of in rows.items()), version=VERSION_OF_PLAN, copied=copied)

    replace_file(path, write, overwrite=False)


def load_images(path: Path) -> Iterator[GroupImages]:
    """Yields the before-images in a file, one group at a time. The function checks the whole file before it yields the
    first group. If the file is damaged, it raises `MalformedData`."""
    from offsetmgr.snapshots.group_images import read_images

    with path.open("rb") as stream:
        yield from read_images(stream, what=f"before-images {path}")
