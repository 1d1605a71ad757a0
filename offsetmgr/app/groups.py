"""``offsetmgr groups``: lists, describes, locates and edits groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.app.connections import Connections
from offsetmgr.app.offsets import Found
from offsetmgr.core.advice import Advice, Argument
from offsetmgr.core.batches import by_key
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import Conflict, GroupNotFound, OffsetMgrError, UnsupportedOperation, UsageError
from offsetmgr.core.model import GroupKind
from offsetmgr.core.offset_store import OtherGroupKind
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.selection import ALL_GROUPS, ALL_TOPICS, KNOWN_GROUPS, GroupSelection, TopicSelection, accept_names

if TYPE_CHECKING:
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.offset_store import OffsetStore, RunningEdit, UnrecognisedData
    from offsetmgr.groups.describe import DescribedGroup as DescribedGroup
    from offsetmgr.groups.describe import Descriptions
    from offsetmgr.migration.location import GroupLocation as GroupLocation
    from offsetmgr.migration.location import LocatedPartition as LocatedPartition

STATES: Final = (
    "Stable",
    "Empty",
    "Dead",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Unknown",
)
"""Kafka's names of the states of a group (``org.apache.kafka.common.GroupState``)."""


TYPES: Final = ("classic", "consumer", "share", "streams")
"""Kafka's types of groups (``org.apache.kafka.common.GroupType``)."""


class ListedGroup(NamedTuple):
    """A group of a store: its state, its type and protocol (see `GroupKind`), and the number of its members. A value
    is None if it was not read or is unknown."""

    name: str
    state: str | None = None
    type: str | None = None
    protocol: str | None = None
    members: int | None = None


def list_(
    connections: Connections,
    selection: GroupSelection = ALL_GROUPS,
    *,
    with_state: bool = False,
    states: Iterable[str] = (),
    with_kind: bool = False,
    types: Iterable[str] = (),
    protocols: Iterable[str] = (),
) -> Found[ListedGroup]:
    """Reads the groups of the selected store that may have committed offsets, and share groups that are named.
    ``with_state`` also reads the state of each group, and ``states`` leaves out the groups in other states.

    ``with_kind`` reads the groups of every kind, such as share groups and the groups of Connect workers, with the type,
    the protocol, the state and the members of each. ``types`` and ``protocols`` do so too, and leave out the groups of
    other types and protocols. They also leave out the groups whose type or protocol is unknown, as an error.

    Raises `UsageError` for an unknown state or type, and the first error if no group is left.
    """
    from offsetmgr.groups.edits import tree_store

    selected = _checked(Advice("{state}"), "state", states, STATES)
    only_types = _checked(Advice("{type}"), "type", types, TYPES)
    only_protocols = {protocols} if isinstance(protocols, str) else set(protocols)
    store = connections.selected()
    with_kind = bool(with_kind or only_types or only_protocols)
    of_kinds = connections.group_kinds() if with_kind else {}
    known = {*store.groups(), *of_kinds}
    names, errors = _existing(store, selection, known)
    found: Found[ListedGroup] = Found(connections, store, names)
    found.errors += errors
    if errors and not found.groups:
        raise errors[0]

    def listed() -> Iterator[ListedGroup]:
        chosen = {name: of_kinds.get(name, GroupKind()) for name in found.groups}
        unknown = [name for name, kind in chosen.items() if None in _compared(kind, only_types, only_protocols)]
        chosen = {name: kind for name, kind in chosen.items() if all(_compared(kind, only_types, only_protocols))}
        described: Descriptions = {}
        if with_state or selected or with_kind:
            described = connections.group_describer(every_kind=True)(chosen)
        found.errors += _failures(described)
        for name, kind in chosen.items():
            group = described.get(name)
            group = None if isinstance(group, OffsetMgrError) else group
            # A group with the state DEAD is shown as EMPTY, because the store still has offsets of the group.
            state = None if group is None else "EMPTY" if group.state == "DEAD" and kind.commits else group.state
            members = len(group.members) if with_kind and group is not None and group.membership else None
            if not selected or _plain(str(state)) in selected:
                yield ListedGroup(name, state, kind.type, kind.protocol, members)
        if unknown:
            why = f"left out, because {store.uri} does not report the type or the protocol"
            hint = "without the names of types and protocols, the command lists them"
            found.errors.append(UnsupportedOperation(count_of(len(unknown), "group"), why, hint))
        if (trees := tree_store(store)) is not None:
            connections.warn_of_unrecognised(trees.unrecognised(found.groups))

    return found.of(listed())


def _failures(described: Descriptions) -> Iterator[OffsetMgrError]:
    """Yields the errors of groups that could not be described: one for all groups with the same reason."""
    failed = ((one, name) for name, one in described.items() if isinstance(one, OffsetMgrError))
    for same in by_key(((type(one), one.why), (one, name)) for one, name in failed).values():
        error, what = same[0][0], f"{count_of(len(same), 'group')}: {list_of((name for _, name in same), 5)}"
        yield error if len(same) == 1 else type(error)(what, error.why, error.hint)


def _existing(store: OffsetStore, selection: GroupSelection, known: set[str]) -> tuple[list[str], list[OffsetMgrError]]:
    """Returns the selected groups that exist, and the errors of the others. ``known`` are those that were listed."""
    errors: list[OffsetMgrError] = []
    selection = GroupSelection(selection.patterns, exclude=selection.excluded, on_missing=errors.append)
    names = selection.within(known, store.uri, unlisted=True)
    unlisted = [name for name in names if name not in known]
    kinds = {found.name: found.error for found in store.scan(unlisted)}
    existing = known | {name for name in unlisted if isinstance(kinds.get(name), OtherGroupKind)}
    for name in unlisted:
        if name not in existing:
            why = f"does not exist in {store.uri}"
            errors.append(GroupNotFound(f"group {name!r}", why, KNOWN_GROUPS, groups=[name]))
    return [name for name in names if name in existing], errors


def _checked(option: Advice, what: str, chosen: Iterable[str], known: Iterable[str]) -> set[str]:
    """Returns names in the form of `_plain`. Raises `UsageError` for a name that is not ``known``."""
    names, plain = [chosen] if isinstance(chosen, str) else list(chosen), set(map(_plain, known))
    if unknown := [one for one in names if _plain(one) not in plain]:
        why = f"{', '.join(unknown)} is not a {what} of a group"
        raise UsageError(option, why, f"{what}s: {', '.join(known)}")
    return set(map(_plain, names))


def _compared(kind: GroupKind, types: set[str], protocols: set[str]) -> list[bool | None]:
    """Returns, for each selection that is not empty, whether it has the kind; None if that is unknown."""
    pairs = ((types, kind.type and _plain(kind.type)), (protocols, kind.protocol))
    return [None if value is None else value in only for only, value in pairs if only]


def _plain(name: str) -> str:
    """Returns a state's name in a form that can be compared. Kafka's tool writes PreparingRebalance, and Kafka's
    protocol PREPARING_REBALANCE."""
    return name.strip().replace("_", "").upper()


def describe(
    connections: Connections,
    selection: GroupSelection,
    topics: TopicSelection = ALL_TOPICS,
    *,
    only_with_lag: bool = False,
    members_only: bool = False,
) -> Found[DescribedGroup]:
    """Reads the state and the members of groups, with their committed offsets, log ranges and lag (see
    `offsetmgr.app.offsets.lag`). ``only_with_lag`` leaves out partitions that need no attention. A group that does not
    exist or cannot be described has an ``error``. With ``members_only``, errors of partitions are no errors of the
    read."""
    from offsetmgr.groups.describe import describe, first_members
    from offsetmgr.groups.lag import needs_log_range
    from offsetmgr.groups.scan import choose_groups

    store, others = connections.selected(), connections.others
    cluster = connections.cluster(Advice("{only_with_lag}")) if only_with_lag else connections.cluster_or_none()
    found: Found[DescribedGroup] = Found(connections, store, choose_groups(store, selection, others), topics, others)
    describer = connections.group_describer(every_kind=True)
    for other in others:  # a group may have members only in another store
        describer = partial(first_members, describer, connections.group_describer(other.uri))

    def described() -> Iterator[DescribedGroup]:
        writes = connections.last_writes
        for one in describe(store, cluster, describer, found.groups, found.topics, others=others, writes=writes):
            found.unrecognised(one.read)
            found.topics.incomplete |= one.error is not None
            found.errors += [] if one.error is None else [one.error]
            if not members_only:
                found.rows(row for row, _ in one.partitions)
            left = [each for each in one.partitions if needs_log_range(each.row)] if only_with_lag else one.partitions
            yield one._replace(partitions=left)
        found.check_topics(store.uri)

    return found.of(described())


def delete(
    connections: Connections, groups: GroupSelection, *, lose: Iterable[str] = (), accept_unseen: bool = False
) -> PlannedEdit:
    """Plans the deletion of groups with all their committed offsets; see `OffsetAdmin.plan_delete_groups`."""
    from offsetmgr.app.edits import GroupDeletion
    from offsetmgr.groups.scan import choose_groups

    store = connections.selected()
    chosen = choose_groups(store, groups)
    return GroupDeletion(connections, "groups delete", store, chosen, lose=frozenset(lose), accept_unseen=accept_unseen)


def copy(
    connections: Connections,
    group: str,
    new_group: str,
    topics: TopicSelection = ALL_TOPICS,
    *,
    to: str | None = None,
    allow_rewind: bool = False,
    translate: OffsetTranslation | None = None,
    running: RunningEdit | None = None,
) -> PlannedEdit:
    """Plans to copy a group's committed offsets to another name, or to the store at the URI ``to``; see
    `OffsetAdmin.plan_copy`. ``running`` allows a target whose consumers run."""
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.groups.edits import plan_copy
    from offsetmgr.groups.scan import TopicMatches, require_topics

    if group == new_group and to is None:
        raise UsageError("groups copy", "both names are the same")
    store = connections.selected()
    for home in connections.homes([group]).values():
        raise home.refusal()
    target = store
    if to is not None:
        to = connections.uri_of(to, "to")
        target = connections.copied_to[to] = connections.opened(to)
    crossing = connections.check_crossing("groups copy", store, target, translate)
    topics = TopicMatches(topics.within(store.capabilities.partitions))
    found = plan_copy(store, group, target, new_group, topics, allow_rewind=allow_rewind, crossing=crossing)
    plans = require_topics(found, topics, store.uri)
    edit = PlannedEdit(connections, "groups copy", target, plans, to, running=running, comparison=crossing.text())
    edit.copied = group, topics
    return edit


def rename(
    connections: Connections, group: str, new_group: str, *, lose: Iterable[str] = (), accept_unseen: bool = False
) -> PlannedEdit:
    """Plans to rename a group; see `OffsetAdmin.plan_rename`. Data of a group that offsetmgr does not understand is not
    copied, so ``lose`` must have the path of its znode."""
    from offsetmgr.app.edits import GroupDeletion, GroupRename
    from offsetmgr.groups.describe import require_idle

    if group == new_group:
        raise UsageError("groups rename", "both names are the same")
    store = connections.selected()
    require_idle(connections.group_describer_for_edit(), [group, new_group], "renaming")
    (there,) = store.scan([new_group])
    if there.offsets or there.errors:
        raise Conflict(f"group {new_group!r}", "exists already and has committed offsets", "choose another name")
    if (unknown := there.error or there.hidden) is not None:
        raise unknown
    lost = frozenset(lose)
    arguments = connections, "groups rename delete", store, [group]
    deletion = partial(GroupDeletion, *arguments, lose=lost, accept_unseen=accept_unseen)
    with deletion() as planned:
        (checked,) = planned
    if left := next((one.path for one in checked.unrecognised if one.path not in lost), None):
        why = f"the data in {left} would not be copied, because offsetmgr does not understand it"
        raise Conflict(f"group {group!r}", why, Advice("if no client needs the data, add {lose} {}", left))
    if checked.problem is not None:
        raise checked.problem
    return GroupRename(connections, store, (group, new_group), deletion, accept_unseen=accept_unseen)


class LocatedGroups:
    """The locations of the selected groups; they are read while the object is iterated. ``unlisted`` are the errors of
    the stores whose groups could not be listed. After the iteration, ``missing`` has the errors of groups that no store
    has."""

    def __init__(
        self, connections: Connections, selection: GroupSelection, window_s: float | None, plans: Iterable[str | Path]
    ) -> None:
        from offsetmgr.migration.observation import ObservationWindow

        self._connections = connections
        self.locator = connections.group_locator(must_respond=not plans)
        self._known, self.unlisted = self.locator.groups()
        self.missing: list[OffsetMgrError] = []
        self._names: list[str] = []
        stores = ", ".join(one.store.uri for one in self.locator.stores)
        try:
            self._names = selection.within(self._known, stores, unlisted=True)
        except GroupNotFound as absent:
            self.missing.append(absent)
        for plan in plans:
            self.locator.add_plan(Path(plan))
        waiting = connections.waits.for_commits
        self._window = None if window_s is None else ObservationWindow(window_s, waiting=waiting)

    def __iter__(self) -> Iterator[GroupLocation]:
        ui, located = self._connections.ui, self.locator.locate(self._names, self._window)
        unrecognised: list[UnrecognisedData] = []
        for one in ui.progress(located, "groups", len(self._names)):
            if (missing := one.missing(self._known)) is not None:
                self.missing.append(missing)
                continue
            unrecognised += (data for store in one.sample.stores for data in store.unrecognised)
            yield one
        self._connections.warn_of_unrecognised(unrecognised)
        self._connections.warn_of_unread(self.locator.unread_plans)

    @staticmethod
    def document(one: GroupLocation, options: str) -> Mapping[str, object]:
        """Returns a location as a JSON object. ``options`` are the connection options of the next command."""
        from offsetmgr.migration.group_locator import document_of

        return document_of(one, options)

    @staticmethod
    def expiry_texts(found: Iterable[GroupLocation], arguments: Mapping[str, Argument]) -> Iterator[str]:
        """Yields the sentences about copied offsets that expire. ``arguments`` are the connection arguments of the call
        that renews them."""
        from offsetmgr.migration.progress import expiry_texts

        dates = by_key((one.sample.plan.path, one.expires_ms) for one in found if one.sample.plan is not None)
        for path, expiring in dates.items():
            yield from expiry_texts(path, expiring, SystemClock().now_ms(), arguments, watched=True)


def where(
    connections: Connections,
    selection: GroupSelection,
    *,
    window_s: float | None = None,
    plans: Iterable[str | Path] = (),
) -> LocatedGroups:
    """Locates the selected groups in all configured stores: where they commit, how sure that is, and what to do next.
    With ``window_s``, first watches their commits for at most this time in seconds. ``plans`` are migrations whose
    journals are evidence.

    Raises `UsageError` if the settings name no store of groups, `OtherCluster` if the stores belong to different
    clusters, the error of the first store if no store responds and there is no plan, `PlanError` and `JournalError`.
    """
    return LocatedGroups(connections, selection, window_s, plans)


accept_names(globals())
