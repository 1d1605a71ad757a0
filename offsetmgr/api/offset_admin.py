"""`OffsetAdmin`: reads and edits the committed offsets of one store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from offsetmgr.api.connections import Connections
from offsetmgr.api.planned_edit import PlannedEdit
from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection, SettingsLayer, resolve
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.describe import DescribedGroup, describe, reject_active
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan
from offsetmgr.groups.lag import GroupLag, lag
from offsetmgr.groups.reset import Scenario, plan_reset, plan_set
from offsetmgr.groups.selection import TopicSelection, choose_groups, matching_groups
from offsetmgr.groups.topic_matches import require_topics
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.group_observer import ObservationWindow
    from offsetmgr.migration.phase_inference import PhaseReport
    from offsetmgr.stores.cross_cluster_check import OriginStore
    from offsetmgr.stores.snapshot import SnapshotReport


class OffsetAdmin:
    """Reads and edits the committed offsets of one store. Every edit is planned first; see `PlannedEdit`.

    Example::

        from offsetmgr import OffsetAdmin, ToEarliest

        with OffsetAdmin("kafka://h1:9092") as admin:
            for group in admin.lag("orders-*"):
                print(group.group, sum(row.lag or 0 for row in group.rows), "records behind")
            plan = admin.plan_reset("orders-test", ToEarliest(), topics=["orders"])
            print(plan.execute().written, "offsets written")

    The parameter ``groups`` of every method is a name or a glob, several of them, or None for all groups. The parameter
    ``topics`` has the form of ``--topic``: ``orders``, ``orders*``, ``orders:0,4-7``; empty means all topics.

    One thread at a time may use an object; several objects can be used at the same time. All methods block; call them
    in a thread (``asyncio.to_thread``) from asynchronous programs. Every call to a server ends after
    ``ConnectionConfig.timeout_ms`` milliseconds.
    """

    def __init__(
        self,
        store: str,
        *,
        bootstrap_server: str | None = None,
        zookeeper: str | None = None,
        config: ConnectionConfig | None = None,
    ) -> None:
        """``store`` is the URI of the store, such as ``kafka://h1:9092``, ``zookeeper://h1:2181/chroot``,
        ``dual:NAME`` or ``file:offsets.avro``.

        ``bootstrap_server`` (``host:port,...``) names the brokers whose logs give the lag, if the URI names no brokers.
        ``zookeeper`` (``host:port/chroot``) names the registry of old consumers that commit to Kafka. ``config`` has
        credentials and timeouts. Servers are contacted on first use. Raises `InvalidUri`.
        """
        from offsetmgr.stores.uri import parse_uri

        parse_uri(store)
        self._connections = Connections(
            ResolvedConnection(config or ConnectionConfig(), store, bootstrap_server, zookeeper)
        )
        self._store: OffsetStore | None = None
        self._plans: list[EditPlan] = []

    @classmethod
    def from_settings(cls, context: str | None = None) -> Self:
        """Returns an `OffsetAdmin` with the settings of the command line: ``OFFSETMGR_*`` variables over ``context``
        of the configuration file. Raises `ConfigError`, and `UsageError` if the settings name no store."""
        resolved = resolve(SettingsLayer(), context)
        return cls(
            Connections(resolved).uri,
            bootstrap_server=resolved.bootstrap_server,
            zookeeper=resolved.zookeeper,
            config=resolved.connection,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and the plans."""
        for plan in self._plans:
            plan.close()
        self._connections.close()

    @property
    def store(self) -> OffsetStore:
        """The store itself, with ``fetch``, ``commit``, ``scan`` and ``edit``."""
        if self._store is None:
            self._store = self._connections.store()
        return self._store

    # --- reading -----------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Returns the names of all groups of the store, sorted. Raises `Unreachable`, `TimedOut`."""
        return sorted(self.store.groups())

    def lag(self, groups: str | Iterable[str] | None = None, topics: str | Iterable[str] = ()) -> Iterator[GroupLag]:
        """Yields the lag of each group, in records. ``LagRow.lag`` is None if the lag is unknown, for example because
        no brokers are known.

        Raises `GroupNotFound` for a named group that does not exist, `Unreachable`, `TimedOut`. An error of one group
        or partition is not raised: it is the ``error`` of its `GroupLag` or `LagRow`.
        """
        cluster = self._connections.cluster_or_none()
        yield from lag(self.store, cluster, self._chosen(groups), self._topics(topics), strict=groups is not None)

    def describe(
        self, groups: str | Iterable[str] | None = None, topics: str | Iterable[str] = ()
    ) -> Iterator[DescribedGroup]:
        """Yields each group's state, members, offsets and lag. A group that cannot be described has an ``error``.
        Raises `Unreachable`, `TimedOut`."""
        yield from describe(
            self.store,
            self._connections.cluster_or_none(),
            self._connections.directory(),
            self._chosen(groups),
            self._topics(topics),
        )

    def write_snapshot(
        self,
        path: str | os.PathLike[str],
        groups: str | Iterable[str] | None = None,
        topics: str | Iterable[str] = (),
        *,
        overwrite: bool = False,
    ) -> SnapshotReport:
        """Writes the committed offsets of groups to a file; its suffix (``.avro``, ``.csv``, ``.json``, ``.zk``) names
        the format. Only Avro keeps every field. The file is complete or absent.

        Returns the counts, and the data that the format cannot hold. Raises `GroupNotFound`, `FileFailure`, and the
        error of an offset that cannot be read.
        """
        from offsetmgr.core.version import __version__
        from offsetmgr.groups.before_images import header_for
        from offsetmgr.groups.export import export_groups
        from offsetmgr.stores.snapshot import write_snapshot

        selection, store = self._topics(topics), self.store
        chosen = self._chosen(groups)
        ids = {name: topic_id for name, topic_id in store.topic_ids().items() if selection.matches_topic(name)}
        header = header_for(store, f"offsetmgr {__version__}", ids)
        found = export_groups(store, chosen, selection, strict=groups is not None)
        return write_snapshot(path, header, found, overwrite=overwrite)

    def check_phase(
        self,
        group: str,
        phase: CommitMode,
        *,
        rules: EvidenceThresholds | None = None,
        window: ObservationWindow | None = None,
    ) -> PhaseReport:
        """Watches a group of old consumers, and returns whether every member commits as ``phase`` demands: only to
        ZooKeeper, to both stores, or only to Kafka (``offsetmgr runbook check``).

        ``window`` limits the observation (default: 180 s); it ends earlier if the result is final.
        ``PhaseReport.passed`` is True only if every member and partition is known to fit the phase. The admin needs
        ZooKeeper and brokers. Raises `GroupNotFound`, `OtherCluster`, `UsageError`, `Unreachable`, `TimedOut`.
        """
        from offsetmgr.migration.runbook import check_phase

        return check_phase(self._connections.group_view(), group, phase, rules=rules, window=window)

    # --- planning edits ----------------------------------------------------------------------------------------

    def plan_reset(
        self,
        groups: str | Iterable[str],
        to: Scenario,
        topics: str | Iterable[str] = (),
        *,
        create: bool = False,
    ) -> PlannedEdit:
        """Plans to move groups to another position in their logs: `ToEarliest`, `ToLatest`, `ToCurrent`, `ToOffset`,
        `ShiftBy`, `ToTime` or `ToOffsets`. Offsets outside the log are clamped to it, with a note.

        A topic that is named exactly is reset in every partition; otherwise only partitions with a commit are.
        ``create`` allows groups that do not exist. Raises `UsageError` if no brokers are known, `GroupNotFound`,
        `UnknownTopicOrPartition`, `Unreachable`, `TimedOut`.
        """
        selection, store = self._topics(topics), self.store
        cluster = self._connections.cluster("a reset")
        found = plan_reset(store, cluster, self._chosen(groups), selection, to, create=create)
        return self._planned("offsets reset", store, require_topics(found, selection, store.uri))

    def plan_set(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], *, create: bool = False
    ) -> PlannedEdit:
        """Plans to commit these offsets (the next offsets to consume) without comparing them with the log.

        ``create`` allows a group that does not exist. Raises `GroupNotFound`, `Unreachable`, `TimedOut`.
        """
        values = {tp: OffsetAndMetadata(one) if isinstance(one, int) else one for tp, one in offsets.items()}
        plan = plan_set(self.store, group, lambda _committed: values, create=create)
        return self._planned("offsets set", self.store, [plan])

    def plan_delete(self, groups: str | Iterable[str], topics: str | Iterable[str] = ()) -> PlannedEdit:
        """Plans to delete committed offsets. Raises `GroupNotFound`, `UnknownTopicOrPartition`, `Unreachable`,
        `TimedOut`."""
        from offsetmgr.groups.edits import plan_delete

        selection, store = self._topics(topics), self.store
        found = plan_delete(store, self._chosen(groups), selection)
        return self._planned("offsets delete", store, require_topics(found, selection, store.uri))

    def plan_copy(
        self,
        group: str,
        new_group: str,
        topics: str | Iterable[str] = (),
        *,
        to: str | None = None,
        allow_rewind: bool = False,
        translate: OffsetTranslation | None = None,
    ) -> PlannedEdit:
        """Plans to copy a group's offsets to another name, or to the store at the URI ``to``.

        Offsets that would move backward are rejected unless ``allow_rewind``. ``translate`` states that offsets of
        another Kafka cluster are valid in the target. Raises `GroupNotFound`, `OtherCluster`,
        `UnknownTopicOrPartition`, `Unreachable`, `TimedOut`.
        """
        from offsetmgr.groups.copy import plan_copy

        selection, target = self._topics(topics), self._connections.store(to) if to else self.store
        crossing = self._crossing("groups copy", self.store, target, translate)
        found = plan_copy(self.store, group, target, new_group, selection, allow_rewind=allow_rewind, crossing=crossing)
        return self._planned("groups copy", target, require_topics(found, selection, self.store.uri), to)

    def plan_import(
        self,
        path: str | os.PathLike[str],
        groups: str | Iterable[str] | None = None,
        topics: str | Iterable[str] = (),
        *,
        allow_rewind: bool = False,
        translate: OffsetTranslation | None = None,
    ) -> PlannedEdit:
        """Plans to load the offsets of a snapshot file. Offsets that would move backward are rejected unless
        ``allow_rewind``. Raises `GroupNotFound`, `MalformedData`, `OtherCluster`, `Unreachable`, `TimedOut`."""
        from offsetmgr.groups.edits import plan_import
        from offsetmgr.groups.export import open_file

        selection, names = self._topics(topics), _names(groups)
        with closing(open_file(Path(path))) as snapshot:
            chosen = matching_groups(names or (), snapshot.groups())
            if not chosen:
                raise GroupNotFound(f"file {os.fspath(path)}", "holds no such group" if names else "holds no groups")
            crossing = self._crossing("offsets import", snapshot, self.store, translate)
            found = plan_import(
                self.store, snapshot.read(set(chosen)), selection, allow_rewind=allow_rewind, crossing=crossing
            )
            return self._planned("offsets import", self.store, require_topics(found, selection, str(path)))

    def plan_undo(self, before_images: str | os.PathLike[str], *, force: bool = False) -> PlannedEdit:
        """Plans to undo an edit with the file that it wrote (``EditReport.before_images``): overwritten offsets are
        restored and created ones are deleted. An offset that has moved since the edit is rejected unless ``force``.

        Raises `MalformedData` if the file is damaged, `OtherCluster`, `Unreachable`, `TimedOut`.
        """
        from offsetmgr.groups.before_images import load_images
        from offsetmgr.groups.edits import plan_undo
        from offsetmgr.groups.export import open_file

        path = Path(before_images)
        with closing(open_file(path, "avro")) as header:
            crossing = self._crossing("offsets import", header, self.store, None)
        found = plan_undo(self.store, load_images(path), force=force, crossing=crossing)
        return self._planned("offsets import undo", self.store, found)

    # --- shared ------------------------------------------------------------------------------------------------

    def _planned(
        self, operation: str, store: OffsetStore, found: Iterable[GroupEditPlan], uri: str | None = None
    ) -> PlannedEdit:
        """Reads the plan completely, and rejects the changes of groups that have members."""
        plan = EditPlan.of(reject_active(self._connections.directory_for_edit(uri), found))
        self._plans.append(plan)
        return PlannedEdit(operation, store, plan)

    def _chosen(self, groups: str | Iterable[str] | None) -> list[str]:
        names = _names(groups)
        return choose_groups(self.store, names or (), all_groups=names is None)

    def _topics(self, topics: str | Iterable[str]) -> TopicSelection:
        given = [topics] if isinstance(topics, str) else topics
        return TopicSelection.parse(given).within(self.store.capabilities.partitions)

    @staticmethod
    def _crossing(
        what: str, source: OriginStore, target: OffsetStore, translate: OffsetTranslation | None
    ) -> CrossClusterCheck:
        crossing = CrossClusterCheck(source, target, translate)
        crossing.check(what)
        return crossing


def _names(groups: str | Iterable[str] | None) -> list[str] | None:
    if groups is None:
        return None
    return [groups] if isinstance(groups, str) else list(groups)
