"""Options that the migration commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.cli.options import ExcludeGroup
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.migration.plan import GroupScope
    from offsetmgr.migration.plan_file import PlanFile

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file; its journal is in the same directory.")]
PlanGroups = Annotated[
    list[str] | None,
    typer.Option(
        "--group", "-g", metavar="NAME", help="Only this group of the plan, or a glob; repeatable.", show_default=False
    ),
]
WaveOption = Annotated[
    list[int] | None,
    typer.Option("--wave", metavar="N", min=1, help="Only the groups of this wave; repeatable.", show_default=False),
]


class PlanScope(NamedTuple):
    """The options that limit a command to some groups of a plan."""

    group: PlanGroups = None
    wave: WaveOption = None
    exclude_group: ExcludeGroup = None

    def select(self, plan: PlanFile) -> GroupScope | None:
        """Returns the selected groups; None if these are all groups of the plan. See `select_groups`."""
        from offsetmgr.migration.fleet import select_groups

        return select_groups(
            plan, GroupSelection(self.group or None, exclude=self.exclude_group or ()), self.wave or ()
        )

    def words(self) -> tuple[str, ...]:
        """Returns the options that limit a further command to the same groups."""
        given = [("--group", name) for name in self.group or ()] + [("--wave", str(wave)) for wave in self.wave or ()]
        given += [("--exclude-group", name) for name in self.exclude_group or ()]
        return tuple(word for option in given for word in option)


SourceStore = Annotated[
    str, typer.Option("--from", metavar="URI", help="The store to read: zookeeper://..., kafka://..., file:...")
]
TargetStore = Annotated[str, typer.Option("--to", metavar="URI", help="The store to write.")]
Rename = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="Give a group another name in the target; repeatable."),
]
FromConfig = Annotated[
    str | None,
    typer.Option(
        "--from-command-config",
        metavar="FILE",
        help="Like --command-config, but only for the source.",
        show_default=False,
    ),
]
ToConfig = Annotated[
    str | None,
    typer.Option(
        "--to-command-config",
        metavar="FILE",
        help="Like --command-config, but only for the target.",
        show_default=False,
    ),
]


class SideConfigs(NamedTuple):
    """The files with the settings of the source and of the target."""

    from_command_config: FromConfig = None
    to_command_config: ToConfig = None
