"""Groups as trees of znodes: data that offsetmgr does not understand, and stores that save and restore whole trees."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from offsetmgr.core.errors import CorruptData


class UnrecognisedData(NamedTuple):
    """Data of a group that offsetmgr does not understand: the znode's path, and a description of the data.
    ``may_hold_offsets`` is True if the znode is at a place where clients store offsets."""

    path: str
    what: str
    may_hold_offsets: bool = False

    def __str__(self) -> str:
        return f"ZooKeeper node {self.path} {self.what}"


def hidden_offsets(group: str, unrecognised: Sequence[UnrecognisedData], *, known: bool) -> CorruptData | None:
    """Returns the error of a group that may have offsets that offsetmgr does not understand: there is such data at a
    place of offsets, or the group has other data, and no ``known`` offset."""
    if left := [one for one in unrecognised if one.may_hold_offsets or not known]:
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        why = f"its offsets may be incomplete: {left[0]}{more}"
        return CorruptData(f"group {group!r}", why, "find out which client writes it")
    return None


class SavedNode(NamedTuple):
    """One znode of a group, as a file of before-images keeps it. ``path`` is relative to the group's znode, whose own
    path is empty. ``acl`` has the permissions, the scheme and the id of each entry. ``data`` is None if the data could
    not be read and the user accepts its loss. ``version`` is the data version, which no file keeps."""

    path: str
    data: bytes | None
    acl: tuple[tuple[int, str, str], ...] = ()
    version: int = -1


@runtime_checkable
class GroupTreeStore(Protocol):
    """A store whose groups are trees of znodes, which can hold more than offsets."""

    def unrecognised(self, groups: Iterable[str]) -> Iterator[UnrecognisedData]:
        """Yields the data of the groups that offsetmgr does not understand. Reads no offsets."""
        ...

    def saved_tree(self, group: str, unsaved: Container[str] = ()) -> tuple[SavedNode, ...]:
        """Returns all znodes of a group, parents first. ``unsaved`` are the paths of znodes that may be lost.

        Raises `GroupNotFound`, `GroupActive` if a znode is ephemeral, and `NotAuthorized` if a znode cannot be read."""
        ...

    def delete_group(self, group: str, saved: Sequence[SavedNode] | None = None) -> object:
        """Deletes all znodes of a group. Raises `Conflict` if one is not as in ``saved``, and without ``saved`` if one
        has data that is not an offset."""
        ...

    def restore_tree(self, group: str, nodes: Sequence[SavedNode]) -> int:
        """Creates the znodes that do not exist, with their data and ACLs, and returns their number. Raises `Conflict`
        before the first creation if another znode exists with other data than before."""
        ...
