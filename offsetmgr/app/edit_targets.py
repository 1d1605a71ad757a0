"""Selects the store to which a file of before-images belongs, and checks whether offsets may be written to a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.core.errors import UsageError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.dual_execute import StorePair
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.groups.edit_plan import GroupEditPlan
    from offsetmgr.groups.log_checks import LogChecks
    from offsetmgr.groups.running_groups import RunningChecks
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
    """Compares the Kafka clusters of ``source`` and ``target`` before the operation ``what`` writes offsets of
    ``source`` to ``target``. Returns the comparison. Raises `OtherCluster` if the clusters differ and ``translate`` is
    None."""
    crossing = CrossClusterCheck(source, target, translate)
    crossing.check(what)
    return crossing


def log_checks(
    connections: Connections, store: OffsetStore, warn: Callable[[str], None] = lambda _text: None
) -> LogChecks | None:
    """Returns the object that compares the offsets of an import into ``store`` with the logs; None if there are no logs
    to compare them with (see `Connections.has_logs`)."""
    from offsetmgr.groups.log_checks import LogChecks

    if not connections.has_logs(store, warn):
        return None
    return LogChecks(connections.cluster_for_edit("offsets import", store).log_ranges)


def without_active_groups(
    connections: Connections,
    plans: Iterable[GroupEditPlan],
    operation: str,
    store: OffsetStore,
    uri: str | None,
    *,
    running: bool,
) -> Iterator[GroupEditPlan]:
    """Returns the plans for ``store``, the selected store or the one at ``uri``. Rejects the changes of groups that
    have members; with ``running``, only those of groups that cannot be edited while their members run. Raises
    `UnsupportedOperation` if the store cannot edit running groups."""
    from offsetmgr.groups.describe import reject_active
    from offsetmgr.groups.running_groups import check_running

    if running:
        return check_running(running_checks(connections, operation, store, uri), plans)
    return reject_active(connections.group_describer_for_edit(uri), plans)


def running_checks(
    connections: Connections, operation: str, store: OffsetStore, uri: str | None = None
) -> RunningChecks:
    """Returns the checks of edits of running groups in ``store``, the selected store or the one at ``uri``. Raises
    `UnsupportedOperation` if the store cannot edit such groups."""
    from offsetmgr.groups.running_groups import RunningChecks, require_running_store
    from offsetmgr.stores.uri import bootstrap_of

    inspect = require_running_store(store).inspect_running
    connection = connections.resolved.connection
    bootstrap = bootstrap_of(uri, connection) if uri is not None else None
    cluster = (
        connections.cluster_at(bootstrap, connection) if bootstrap else connections.cluster_for_edit(operation, store)
    )
    members, registered = connections.group_describer(uri, edits=True), connections.group_describer_for_edit(uri)
    return RunningChecks(registered, members, cluster.log_ranges, inspect, {})
