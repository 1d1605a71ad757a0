"""Prints and counts the read errors of commands that show many groups, and notes an empty listing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offsetmgr.cli.render import note
from offsetmgr.core.group_tree import UnrecognisedData
from offsetmgr.core.offset_store import OffsetStore

_MAX_NAMED: Final = 20


def note_unrecognised(data: Iterable[UnrecognisedData]) -> None:
    """Prints a warning for data of groups that offsetmgr does not understand."""
    found = list(data)
    for one in found[:_MAX_NAMED]:
        note(f"warning: {one}")
    if len(found) > _MAX_NAMED:
        note(f"warning: and {len(found) - _MAX_NAMED:,} more; offsetmgr zk check names them")


def empty_note(store: OffsetStore, what: str) -> str:
    """Returns the note for an empty listing. The note contains the URI of the store."""
    from offsetmgr.stores.cross_cluster_check import names_cluster

    is_zookeeper = what == "groups" and ("zookeeper:" in store.uri or "zookeeper%3A" in store.uri)
    return f"no {what} in {store.uri}{'; is the chroot right?' if is_zookeeper and not names_cluster(store) else ''}"
