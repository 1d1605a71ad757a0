"""The store to which a file of before-images belongs, and the check that offsets may be written to a store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.core.errors import UsageError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.dual_execute import StorePair
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.snapshots.base import SnapshotHeader
    from offsetmgr.stores.cross_cluster_check import OriginStore


def store_of_images(
    path: Path, header: SnapshotHeader | None, store: OffsetStore, others: Iterable[OffsetStore]
) -> OffsetStore:
    """Returns the store whose edit wrote the file ``path``: ``store``, one of the two stores of ``store`` if it is a
    pair, or one of ``others``.

    The URI in the file decides. If no store has this URI, for example because a broker has another address now, the
    identity of the stores decides. Raises `UsageError` if no store fits, because the undo would change nothing, or
    other offsets.
    """
    own = [store.primary, store.secondary] if isinstance(store, StorePair) else [store]
    known = [*own, *others]
    if header is None or not header.source_uri:
        return store
    for one in known:
        if one.uri == header.source_uri:
            return one
    identities = [(one, one.identity()) for one in known]
    same = [
        one
        for one, found in identities
        if found.kind == header.source_kind and header.cluster_id in (found.id, *found.former)
    ]
    if len(same) == 1:
        return same[0]
    raise UsageError(
        f"undo of {path}",
        f"the edit was made in {header.source_uri}, which is not {store.uri}",
        f"use OffsetAdmin({header.source_uri!r})",
    )


def checked_crossing(
    what: str, source: OriginStore, target: OffsetStore, translate: OffsetTranslation | None
) -> CrossClusterCheck:
    """Returns the check of one operation that writes offsets of ``source`` to ``target``. Raises `OtherCluster`."""
    crossing = CrossClusterCheck(source, target, translate)
    crossing.check(what)
    return crossing
