"""Prints and counts the read errors of commands that show many groups, and notes an empty listing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.output_collector import COLLECTOR
from offsetmgr.cli.render import note
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError
from offsetmgr.core.group_tree import UnrecognisedData
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore

_MAX_NAMED: Final = 20


def note_unrecognised(data: Iterable[UnrecognisedData]) -> None:
    """Prints a warning for data of groups that offsetmgr does not understand."""
    found = list(data)
    for one in found[:_MAX_NAMED]:
        note(f"warning: {one}")
    if len(found) > _MAX_NAMED:
        note(f"warning: and {len(found) - _MAX_NAMED:,} more; offsetmgr zk check names them")


def unrecognised_errors(found: GroupOffsets | None) -> list[OffsetMgrError]:
    """Names data of a group that offsetmgr does not understand: returns the error if it may be offsets, and prints a
    warning otherwise."""
    if found is not None and found.hidden is None:
        note_unrecognised(found.unrecognised)
    return [] if found is None or found.hidden is None else [found.hidden]


class ReadErrorReport:
    """Prints each read error and its hint on stderr when the error occurs, unless the same text was already printed.
    Counts all errors, because the exit code depends on them."""

    def __init__(self) -> None:
        self.count = 0
        self._printed: set[str] = set()

    def add(self, error: OffsetMgrError) -> None:
        self.count += 1
        if (collector := COLLECTOR.get()) is not None:
            collector.errors.append(error)
            return
        text = " ".join(str(error).split())
        if text in self._printed:
            return
        self._printed.add(text)
        note(f"error: {text}")
        if error.hint and error.hint not in self._printed:
            self._printed.add(error.hint)
            note(f"hint: {error.hint}")

    def add_or_raise(self, error: OffsetMgrError, groups: int) -> None:
        """Adds the error of one of ``groups`` groups. Raises it if there is only one group, because a table without
        rows would say nothing more."""
        if groups == 1 and isinstance(error, GroupNotFound):
            raise error
        self.add(error)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that shows the groups without errors."""
        return FAILED if self.count else 0


def empty_note(store: OffsetStore, what: str) -> str:
    """Returns the note for an empty listing. The note contains the URI of the store."""
    from offsetmgr.stores.cross_cluster_check import names_cluster

    is_zookeeper = what == "groups" and ("zookeeper:" in store.uri or "zookeeper%3A" in store.uri)
    return f"no {what} in {store.uri}{'; is the chroot right?' if is_zookeeper and not names_cluster(store) else ''}"
