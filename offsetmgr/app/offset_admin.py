"""`OffsetAdmin`: reads and edits the committed offsets of one store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from offsetmgr.app import edits as edit_functions
from offsetmgr.app import groups as group_functions
from offsetmgr.app import offsets
from offsetmgr.app.connections import Connections
from offsetmgr.app.edits import PlannedEdit, RecordedOperation
from offsetmgr.app.offsets import set_
from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection, SettingsLayer, resolve
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import UsageError
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore, RunningEdit
from offsetmgr.core.scenario import Scenario
from offsetmgr.core.selection import GroupsArgument, GroupSelection, TopicsArgument, TopicSelection, groups_to_edit
from offsetmgr.groups.describe import DescribedGroup
from offsetmgr.groups.lag import GroupLag
from offsetmgr.groups.operation_log import OperationLog

if TYPE_CHECKING:
    from offsetmgr.app.groups import ListedGroup
    from offsetmgr.migration.evidence import EvidenceThresholds, PhaseReport
    from offsetmgr.migration.location import GroupLocation
    from offsetmgr.migration.observation import ObservationWindow
    from offsetmgr.snapshots.base import SnapshotReport


class OffsetAdmin(Closeable):
    """Reads and edits the committed offsets of one store. Every edit is planned first; see `PlannedEdit`.

    Example::

        from offsetmgr import OffsetAdmin, ToEarliest

        with OffsetAdmin("kafka://h1:9092") as admin:
            for group in admin.lag("shop*"):
                print(group.name, "lag:", group.total)  # it is None if one lag is unknown
            plan = admin.plan_reset("shop", ToEarliest(), topics="orders")
            report = plan.execute()
            print(report.written, "offsets written")
            for path in report.before_images:
                print("undone:", admin.plan_undo(path).execute().ok)

    The parameter ``groups`` of the methods is a name or a glob, several of them, or a `GroupSelection`, which can also
    exclude groups. A name that equals an existing group selects only that group, even if it could be read as a glob.
    Methods that read accept None for all groups; methods that edit need a name, or the glob ``*``.

    The parameter ``topics`` has the form of ``--topic``: ``orders``, ``orders*``, ``orders:0,4-7``; a `TopicPartition`
    or several values are accepted, too; None means all topics. An empty selection is a `UsageError`, because it must
    not mean "all".

    One thread at a time may use an object; several objects can be used at the same time. All methods block; call them
    in a thread (``asyncio.to_thread``) from asynchronous programs. Each request to a server ends after
    ``ConnectionConfig.timeout_ms`` milliseconds. Methods that plan an edit wait up to 47 s if a killed run of offsetmgr
    holds the lock of a group. After `close`, every method raises `UsageError`.
    """

    def __init__(
        self,
        store: str,
        *,
        bootstrap_server: str | None = None,
        zookeeper: str | None = None,
        config: ConnectionConfig | None = None,
        running: RunningEdit | None = None,
    ) -> None:
        """``store`` is the URI of the store, such as ``kafka://h1:9092``, ``zookeeper://h1:2181/chroot``,
        ``dual:NAME`` (a section of ``ConnectionConfig.stores``) or ``file:offsets.avro``.

        ``bootstrap_server`` (``host:port,...``) names the brokers whose logs give the lag, if the URI names no brokers.
        ``zookeeper`` (``host:port/chroot``) names the registry of old consumers that commit to Kafka. Each is also the
        other store of `where`, and of the notes of `lag`. ``config`` has credentials and timeouts. Servers are
        contacted on first use. Raises `InvalidUri`.

        If ``running`` is given, edits include groups whose consumers run; see `RunningEdit`. Otherwise a plan has a
        problem for each group with members.
        """
        from offsetmgr.stores.uri import parse_uri

        parse_uri(store)
        self._connections = Connections(
            ResolvedConnection(config or ConnectionConfig(), store, bootstrap_server, zookeeper)
        )
        self._running = running

    @classmethod
    def from_settings(cls, context: str | None = None) -> Self:
        """Returns an `OffsetAdmin` with the settings of the command line: the ``OFFSETMGR_*`` variables, which take
        precedence, and the section ``context`` of the configuration file (None: the default context).

        Its store is ``OFFSETMGR_STORE``, else ``OFFSETMGR_ZOOKEEPER``, else ``OFFSETMGR_BOOTSTRAP_SERVER``. `groups`
        lists only this store, and so does `lag` without names. Raises `ConfigError`, and `UsageError` if the settings
        name no store."""
        connections = Connections(resolve(SettingsLayer(), context))
        admin = cls(connections.uri)
        admin._connections = connections
        return admin

    def close(self) -> None:
        """Closes the connections and the plans. A second call does nothing."""
        self._connections.close()

    @property
    def store(self) -> OffsetStore:
        """The store itself, with ``fetch``, ``commit``, ``scan`` and ``edit``."""
        return self._connections.selected()

    def _topics(self, topics: TopicsArgument | None) -> TopicSelection:
        return TopicSelection.of(topics).within(self.store.capabilities.partitions)

    # --- reading -----------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Returns the names of all groups of the store that may have committed offsets, sorted. Raises `Unreachable`,
        `TimedOut`."""
        return sorted(self.store.groups())

    def list_groups(
        self, groups: GroupsArgument | None = None, *, types: Iterable[str] = (), protocols: Iterable[str] = ()
    ) -> Iterator[ListedGroup]:
        """Yields groups of every kind with their type, protocol, state and number of members, also share groups and the
        groups of Connect workers. ``types`` (classic, consumer, share, streams) and ``protocols`` leave out all others,
        and the groups of which this is unknown. Raises the first error after the last group, and `UsageError`."""
        selection = GroupSelection.of(groups)
        found = group_functions.list_(self._connections, selection, with_kind=True, types=types, protocols=protocols)
        yield from found
        if found.errors:
            raise found.errors[0]

    def lag(self, groups: GroupsArgument | None = None, topics: TopicsArgument | None = None) -> Iterator[GroupLag]:
        """Yields the lag of each group, in records. ``LagRow.lag`` is None if the lag is unknown, for example because
        no brokers are known. A topic that is named exactly has a row for each of its partitions, even for those without
        a commit. If another configured store of the same cluster holds another offset, the row has a ``note``: the lag
        counts from the offset that was written last, and is None if nothing shows which this is.

        Raises `GroupNotFound` if the only named group does not exist, `UnknownTopicOrPartition` for a topic that
        matches nothing, `Unreachable`, `TimedOut`. An error of one of several groups, also of a missing one, or of a
        partition is not raised: it is the ``error`` of its `GroupLag` or `LagRow`.
        """
        return offsets.lag(self._connections, GroupSelection.of(groups), self._topics(topics)).strict()

    def describe(
        self, groups: GroupsArgument | None = None, topics: TopicsArgument | None = None
    ) -> Iterator[DescribedGroup]:
        """Yields each group's state, members, offsets and lag. A group that does not exist or cannot be described has
        an ``error``. Raises `UnknownTopicOrPartition` for a topic that matches nothing, `Unreachable`, `TimedOut`."""
        chosen = self._topics(topics)
        return group_functions.describe(self._connections, GroupSelection.of(groups), chosen).strict()

    def where(
        self, groups: GroupsArgument | None = None, *, window_s: float | None = None, plans: Iterable[str | Path] = ()
    ) -> Iterator[GroupLocation]:
        """Yields where each group commits: its phase with the evidence, its offset in every configured store, its lag
        and its members. ``window_s`` is the longest time in seconds to watch commits; without it the phase is inferred.
        The journals of ``plans`` are evidence, too. Raises `GroupNotFound`, `PlanError`, `Unreachable`."""
        from offsetmgr.app.groups import where

        located = where(self._connections, GroupSelection.of(groups), window_s=window_s, plans=plans)
        if groups is None and located.unlisted:
            raise located.unlisted[0]
        yield from located
        if located.missing:
            raise located.missing[0]

    def write_snapshot(
        self,
        path: str | os.PathLike[str],
        groups: GroupsArgument | None = None,
        topics: TopicsArgument | None = None,
        *,
        overwrite: bool = False,
    ) -> SnapshotReport:
        """Writes the committed offsets of groups to a file; its suffix (``.avro``, ``.csv``, ``.json``, ``.zk``) names
        the format. Only Avro keeps every field. The file is complete or absent. If the settings of `from_settings` name
        two stores, and all groups live in the other one, its offsets are written; the logger ``offsetmgr`` gets a
        warning.

        Returns the counts, and the data that the format cannot hold (``lost``). Raises `GroupNotFound`,
        `UnknownTopicOrPartition`, `FileFailure`, and the error of an offset that cannot be read.
        """
        selection = self._topics(topics)
        return offsets.export(self._connections, path, GroupSelection.of(groups), selection, overwrite=overwrite)

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
        ``PhaseReport.passed`` is True only if every member and partition is known to fit the phase;
        ``PhaseReport.location`` is where the group is, and ``next`` the next step. The admin needs ZooKeeper and
        brokers. Raises `GroupNotFound`, `OtherCluster`, `UsageError`, `Unreachable`, `TimedOut`.
        """
        from offsetmgr.app.runbook import check

        self._connections.require_open()
        return check(self._connections, group, CommitMode(phase), rules=rules, window=window)

    # --- planning edits ----------------------------------------------------------------------------------------

    def plan_reset(
        self, groups: GroupsArgument, to: Scenario, topics: TopicsArgument | None = None, *, create: bool = False
    ) -> PlannedEdit:
        """Plans to move groups to another position in their logs: `ToEarliest`, `ToLatest`, `ToCurrent`, `ToOffset`,
        `ShiftBy`, `ToTime` or `ToOffsets`. Offsets outside the log are clamped to it, with a note.

        A topic that is named exactly is reset in every partition; otherwise only partitions with a commit are. If the
        groups are share groups, their start offsets are reset; a share group must have no members, and an undo does not
        restore which records are acknowledged. ``create`` allows groups that do not exist. Raises `UsageError` if no
        brokers are known, `GroupNotFound`, `UnknownTopicOrPartition`, `OtherCluster` if ``bootstrap_server`` is not the
        cluster of the ZooKeeper, `Unreachable`, `TimedOut`.
        """
        chosen, selection = groups_to_edit(groups), self._topics(topics)
        return offsets.reset(self._connections, chosen, to, selection, create=create, active=self._running or 0.0)

    def plan_set(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], *, create: bool = False
    ) -> PlannedEdit:
        """Plans to commit these offsets (the next offsets to consume) without comparing them with the log.

        ``create`` allows a group that does not exist. Raises `UsageError` if there are no offsets or one is not
        between 0 and 2^63-1, `GroupNotFound`, `Unreachable`, `TimedOut`.
        """
        return set_(self._connections, group, offsets, create=create, active=self._running or 0.0)

    def plan_delete(self, groups: GroupsArgument, topics: TopicsArgument | None = None) -> PlannedEdit:
        """Plans to delete committed offsets; without ``topics``, all offsets of the groups. Raises `GroupNotFound`,
        `UnknownTopicOrPartition`, `Unreachable`, `TimedOut`."""
        chosen, selection = groups_to_edit(groups), self._topics(topics)
        return offsets.delete(self._connections, chosen, selection, active=self._running or 0.0)

    def plan_copy(
        self,
        group: str,
        new_group: str,
        topics: TopicsArgument | None = None,
        *,
        to: str | None = None,
        allow_rewind: bool = False,
        translate: OffsetTranslation | None = None,
    ) -> PlannedEdit:
        """Plans to copy a group's offsets to another name, or to the store at the URI ``to``.

        The connection to ``to`` uses the same `ConnectionConfig`. Offsets that would move backward are rejected unless
        ``allow_rewind``. ``translate`` states that offsets of another Kafka cluster are valid in the target. Raises
        `UsageError` if both groups are the same, `GroupNotFound`, `OtherCluster`, `UnknownTopicOrPartition`,
        `Unreachable`, `TimedOut`.
        """
        return group_functions.copy(
            self._connections,
            group,
            new_group,
            self._topics(topics),
            to=to,
            allow_rewind=allow_rewind,
            translate=translate,
            running=self._running,
        )

    def plan_delete_groups(
        self, groups: GroupsArgument, *, lose: Iterable[str] = (), accept_unseen: bool = False
    ) -> PlannedEdit:
        """Plans to delete groups with all their offsets. In ZooKeeper the before-images hold all znodes of a group,
        except those at the paths ``lose``. A group has a problem if it has members, or if it may have offsets that the
        before-images cannot hold, unless ``accept_unseen``. Raises `GroupNotFound`, `Unreachable`, `TimedOut`."""
        return group_functions.delete(self._connections, groups_to_edit(groups), lose=lose, accept_unseen=accept_unseen)

    def plan_rename(
        self, group: str, new_group: str, *, lose: Iterable[str] = (), accept_unseen: bool = False
    ) -> PlannedEdit:
        """Plans to rename a group. ``execute`` copies the offsets, verifies the copy by another read, and deletes the
        group. The plan has the changes of the copy. See `plan_delete_groups` for the other parameters. Raises
        `Conflict` if ``new_group`` has offsets or if data would be lost, `GroupActive` if one of the groups has
        members, `UsageError`, `GroupNotFound`, `Unreachable`, `TimedOut`."""
        return group_functions.rename(self._connections, group, new_group, lose=lose, accept_unseen=accept_unseen)

    def plan_import(
        self,
        path: str | os.PathLike[str],
        groups: GroupsArgument | None = None,
        topics: TopicsArgument | None = None,
        *,
        allow_rewind: bool = False,
        unchecked: bool = False,
        translate: OffsetTranslation | None = None,
    ) -> PlannedEdit:
        """Plans to load the offsets of a snapshot file; without ``groups``, all groups of the file. If brokers are
        known, offsets outside their logs are clamped and those of missing topics rejected, unless ``unchecked``.
        Offsets that would move backward are rejected unless ``allow_rewind``. Raises `UsageError` for a file of
        before-images (see `plan_undo`), `GroupNotFound`, `MalformedData`, `OtherCluster`, `Unreachable`, `TimedOut`."""
        from offsetmgr.snapshots.group_images import images_kind

        if images_kind(Path(path)):
            raise UsageError(f"file {os.fspath(path)}", "it holds the before-images of an edit", "use plan_undo")
        selection, chosen = self._topics(topics), GroupSelection.of(groups)
        options = offsets.ImportOptions(translate=translate, allow_rewind=allow_rewind, unchecked=unchecked)
        return offsets.import_(self._connections, path, chosen, selection, options, active=self._running or 0.0)

    def plan_undo(
        self,
        before_images: str | os.PathLike[str],
        *,
        allow_rewind: bool = False,
        translate: OffsetTranslation | None = None,
    ) -> PlannedEdit:
        """Plans to undo an edit with a file that it wrote (``EditReport.before_images``): overwritten offsets are
        restored and created ones are deleted. An offset that has moved since the edit is rejected unless
        ``allow_rewind``. If the operation log has the edit, it then shows which edit undid it.

        The plan edits the store that the file names: this store, one of the two stores of a ``dual:`` store, or a store
        to which this object has copied a group. An edit of a ``dual:`` store has two files; undo both. Raises
        `UsageError` if the file belongs to another store, `MalformedData` or `UnknownVersion` if it holds no
        before-images, `FileFailure` if the operation log cannot be read, `OtherCluster`, `Unreachable`, `TimedOut`.
        """
        from offsetmgr.groups.before_images import load_images
        from offsetmgr.groups.edits import store_of_images
        from offsetmgr.groups.export import open_file
        from offsetmgr.snapshots.group_images import images_kind

        path, selected = Path(before_images), self.store
        with open_file(path, "avro") as images_file:
            store = store_of_images(path, images_file.header, selected, self._connections.copied_to.values())
        if images_kind(path) is None:
            next(load_images(path))  # raises the error that names the content of the file
        options = offsets.ImportOptions(translate=translate, allow_rewind=allow_rewind)
        planned = offsets.import_(self._connections, path, options=options, into=store, active=self._running or 0.0)
        planned.undoes = OperationLog().of_file(path)
        return planned

    # --- the operation log -------------------------------------------------------------------------------------

    def operations(self, group: str | None = None) -> list[RecordedOperation]:
        """Returns the edits and migrations in the operation log of this account, the oldest first; with ``group``, only
        those that may include this group. Raises `FileFailure`."""
        return edit_functions.list_(self._connections.ui, group)

    def plan_undo_of(self, operation_id: str, *, allow_rewind: bool = False) -> list[PlannedEdit]:
        """Plans to undo an edit in the operation log: one plan for each store that it wrote. Raises `UsageError` if the
        operation still runs, has no undo, is undone already, or is no edit, `OperationNotFound`, and the errors of
        `plan_undo`."""
        calls = edit_functions.undo(self._connections.ui, operation_id, allow_rewind=allow_rewind, execute=True).calls
        if other := next((call for call in calls if call.verb != "offsets import"), None):
            raise UsageError(f"undo of {operation_id}", f"the undo is {other}", "call this function")
        return [self.plan_undo(path, allow_rewind=allow_rewind) for call in calls for path in call.positional]
