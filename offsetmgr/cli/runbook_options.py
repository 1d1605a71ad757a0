"""Options that the commands of ``offsetmgr runbook`` share, and the selection of their groups."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.api.endpoints import SourceAndTarget
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.cli.render import note
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.groups.selection import GroupSelection, is_pattern, literal_pattern
from offsetmgr.migration.fleet import select_groups
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import append_to_journal, open_plan
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.migration.group_observer import GroupView
    from offsetmgr.migration.journal import JournalRecord
    from offsetmgr.migration.observation import Observation

Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="The runbook JSON that was written before the bounce; it lists the members at that time.",
        show_default=False,
    ),
]
Poll = Annotated[float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Polling interval.")]
Quiet = Annotated[
    float,
    typer.Option(
        "--quiet", metavar="SECONDS", min=0, help="Time without a change after which a partition counts as idle."
    ),
]
AcceptIdle = Annotated[
    bool,
    typer.Option("--accept-idle", help="Accept partitions without traffic if the offsets show that nothing is lost."),
]
AcceptSpare = Annotated[
    bool,
    typer.Option(
        "--accept-spare",
        help="Accept new members that own no partition, although there is no evidence of where they commit.",
    ),
]

Plan = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="A migration plan: names the servers, selects groups, and its journal records each group's phase.",
        show_default=False,
    ),
]


class PhaseName(StrEnum):
    """The values of options that name a phase of a rolling bounce."""

    ZOOKEEPER = "zookeeper"
    DUAL = "dual"
    KAFKA = "kafka"


def connection_options(connect: ConnectFlags, planned: PlanOfGroups | None = None) -> str:
    """Returns the connection options for the commands that are printed for the user."""
    if planned is not None and not (connect.flags.zookeeper or connect.flags.store):
        return f"--plan {shlex.quote(str(planned.plan.path))}"
    from offsetmgr.stores.uri import zookeeper_of

    address = zookeeper_of(connect.uri, connect.resolved.connection)
    return f"--zookeeper {shlex.quote(address or '')} --bootstrap-server {shlex.quote(connect.bootstrap() or '')}"


def baseline_of(path: Path | None, group: str) -> Observation | None:
    from offsetmgr.migration.runbook import read_baseline

    return None if path is None else read_baseline(path, group)


class PlanOfGroups(NamedTuple):
    """The plan of ``--plan`` with the state of its journal. ``names`` maps the name of a group in ZooKeeper to its name
    in the plan."""

    plan: PlanFile
    state: MigrationState
    names: dict[str, str]

    @classmethod
    def open(cls, path: Path | None) -> PlanOfGroups | None:
        if path is None:
            return None
        plan, state = open_plan(path)
        to_zookeeper = plan.header.target.kind == "zookeeper"
        names = {group.target_group if to_zookeeper else group.group: group.group for group in plan.groups()}
        return cls(plan, state, names)

    def select(self, patterns: Iterable[str], waves: Iterable[int]) -> list[str]:
        """Returns the names in ZooKeeper of the groups that a pattern or a wave selects. A pattern selects names in the
        plan. It may also be the name in ZooKeeper of a group that the plan renames."""
        of_zookeeper = {planned: name for name, planned in self.names.items()}
        patterns = [
            pattern if pattern in of_zookeeper or pattern not in self.names else literal_pattern(self.names[pattern])
            for pattern in patterns
        ]
        chosen = select_groups(self.plan, patterns, waves) or frozenset()
        return sorted(of_zookeeper[planned] for planned in chosen)

    def select_one(self, pattern: str) -> str:
        """Returns the name in ZooKeeper of the only group that a pattern selects. Raises `UsageError` if it selects
        several."""
        first, *others = self.select([pattern], ())
        if others:
            raise UsageError(f"--group {pattern}", f"matches {len(others) + 1} groups of the plan", "name one group")
        return first

    def record(self, records: Iterable[JournalRecord]) -> None:
        """Appends records to the plan's journal. If this fails, prints a warning, because the bounce itself is done."""
        try:
            append_to_journal(self.plan, records)
        except OffsetMgrError as error:
            note(f"warning: the plan's journal does not record this step: {error}")


def view_of(connect: ConnectFlags, planned: PlanOfGroups | None) -> GroupView:
    """Returns the view of the groups: at the servers of the plan, or at those that the connection options name."""
    if planned is None or connect.flags.zookeeper or connect.flags.store:
        return connect.group_view()
    connection = connect.connection(None)
    sides = SourceAndTarget.of_plan(connect, planned.plan.header, connection, connection)
    return sides.old_consumer_view(planned.plan.header)


def groups_of(
    view: GroupView, planned: PlanOfGroups | None, patterns: list[str] | None, waves: list[int] | None
) -> list[str]:
    """Returns the groups of ``--group`` and ``--wave``, sorted. The groups of a wave or of a glob are left out if they
    have no live member in ZooKeeper or are finalized, because they have no member to restart.

    Raises `UsageError` if no group is named or ``--wave`` has no plan, and `GroupNotFound` if a pattern matches none.
    """
    if not patterns and not waves:
        raise UsageError("--group", "no group is named", "as in --group NAME (repeatable, globs)")
    if waves and planned is None:
        raise UsageError("--wave", "the waves are in a plan", "add --plan PLAN")
    named = sorted({name for name in patterns or () if not is_pattern(name)})
    globs = [name for name in patterns or () if is_pattern(name)]
    if planned is not None:
        named = planned.select(named, ())
        wide = planned.select(globs, waves or ())
    else:
        wide = []
        known = set(view.zookeeper.groups()) if globs else set()
        for pattern in globs:
            selection = GroupSelection.parse([pattern], known)
            matched = [group for group in known if selection.matches(group)]
            if not matched:
                raise GroupNotFound(f"group {pattern}", f"matches no group in {view.zookeeper.uri}")
            wide += matched
    return sorted({*named, *_with_members(view, planned, sorted(set(wide) - set(named)))})


def _with_members(view: GroupView, planned: PlanOfGroups | None, groups: list[str]) -> list[str]:
    ended = {
        name
        for name, group in (planned.names.items() if planned else ())
        if planned and planned.state.group_finalized_at(group) is not None
    }
    alive = [name for name in groups if name not in ended and view.registry.members(name, view.cluster.topics).members]
    if left := len(groups) - len(alive):
        note(f"left out {left} of {len(groups)} groups: finalized, or without a live member in ZooKeeper")
    return alive
