"""Writes the plan of a migration to a file, for `Migration.plan` and for ``offsetmgr migrate plan``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.selection import is_pattern
from offsetmgr.groups.topic_matches import TopicMatches
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.partition_map import PartitionMap
from offsetmgr.migration.plan import AheadPolicy, GroupPlan, GroupScope, PlanHeader, PlanOptions
from offsetmgr.migration.plan_file import PlanFile, PlanSummary, write_plan
from offsetmgr.migration.planner import Planner, no_groups_hint
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.reverse_plan import ReversePlanner, reverse_options
from offsetmgr.migration.waves import Waves

ShownPlans: TypeAlias = Callable[[Iterable[GroupPlan], int], Iterable[GroupPlan]]
"""Receives plans and their number, and yields the plans."""


class WrittenPlan(NamedTuple):
    """A plan that was written to a file: its header, the number of selected groups, its summary, and the SHA-256 of the
    file. ``one_behind`` tells whether the source is exactly one behind its log's end in every planned partition."""

    header: PlanHeader
    groups: int
    summary: PlanSummary
    sha256: str
    one_behind: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no selected group has an offset, and none failed."""
        return not self.summary.actions and not self.summary.failed_groups


def applicable_options(sides: SourceAndTarget, options: PlanOptions) -> PlanOptions:
    """Returns the options. A pattern that equals the name of a group in the source selects only that group.

    Raises `UsageError` if a selected topic cannot exist in one of the stores.
    """
    options.selection.within(sides.source.capabilities.partitions, sides.target.capabilities.partitions)
    selection = options.group_selection
    has_globs = any(map(is_pattern, (*(selection.patterns or ()), *selection.excluded)))
    return options.literal_first(sides.source.groups()) if has_globs else options


def write_plan_file(
    sides: SourceAndTarget,
    options: PlanOptions,
    path: Path,
    *,
    partition_map: PartitionMap | None,
    translate: OffsetTranslation | None,
    waves: Waves | None = None,
    shown: ShownPlans = lambda plans, _count: plans,
    window: ObservationWindow | None = None,
) -> WrittenPlan:
    """Plans the selected groups and writes the plan to the new file ``path``. ``waves`` gives groups their waves and
    owners; ``window`` is as in `Planner`.

    ``shown`` receives the plans and their number, and yields the plans, for example with progress. Raises
    `UnknownTopicOrPartition` if a selected topic is in no plan, `GroupNotFound` if a row of ``waves`` matches no
    selected group, and the errors of `Planner` and `write_plan`.
    """
    with sides.legacy_members() as members:
        planner = Planner(
            sides.source,
            sides.target,
            options,
            SystemClock(),
            sides.cluster(),
            members,
            partition_map=partition_map,
            translate=translate,
            window=window or ObservationWindow(0),
        )
        names = (
            planner.selected_groups()
        )  # without groups, the address is wrong, and the comparison of clusters misleads
        if not names:
            raise GroupNotFound(
                f"nothing to plan in {sides.source.uri}", "it has no groups", no_groups_hint(sides.source)
            )
        header = planner.header()
        if waves is not None:
            waves.require_all(names)
        planned = require_planned_topics(planner.plan(names), options, f"{sides.source.uri} and {sides.target.uri}")
        if waves is not None:
            planned = waves.assigned(planned)
        summary, sha256 = write_plan(path, header, shown(planned, len(names)), planner.target.topic_ids)
    return WrittenPlan(header, len(names), summary, sha256, set(planner.tails) == {True})


def write_reverse_plan_file(
    back: SourceAndTarget,
    plan: PlanFile,
    state: MigrationState,
    path: Path,
    *,
    allow_rewind: bool,
    if_ahead: AheadPolicy | None = None,
    only: GroupScope | None = None,
    shown: ShownPlans = lambda plans, _count: plans,
) -> WrittenPlan:
    """Plans the way back from ``plan``, and writes it to the new file ``path``. ``back`` is the reverse migration.

    ``allow_rewind`` also copies offsets that were rewound in the target, and ``if_ahead`` is the caller's word for
    offsets that are ahead in the old store. ``only`` limits the groups. ``shown`` is as in `write_plan_file`. Raises
    the errors of `ReversePlanner` and `write_plan`.
    """
    with back.legacy_members() as members:
        planner = Planner(
            back.source,
            back.target,
            reverse_options(plan, only, if_ahead),
            SystemClock(),
            back.cluster(),
            members,
            translate=plan.header.translate,
        )
        reverse = ReversePlanner(plan, state, planner, allow_rewind, only)
        header = planner.header()
        steps = shown(reverse.steps(), len(reverse.groups))
        summary, sha256 = write_plan(path, header, steps, planner.target.topic_ids)
    return WrittenPlan(header, len(reverse.groups), summary, sha256)


def require_planned_topics(plans: Iterable[GroupPlan], options: PlanOptions, where: str) -> Iterator[GroupPlan]:
    """Yields the plans. After the last plan, raises `UnknownTopicOrPartition` if a selected topic is in none of the
    plans."""
    topic_matches = TopicMatches(options.selection)
    for group in plans:
        topic_matches.record((step.source_tp for step in group.steps), incomplete=bool(group.error))
        yield group
    topic_matches.require_all(where)
