"""Options that the migration commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.cli.options import ExcludeGroup, opt
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.migration.plan import GroupScope
    from offsetmgr.migration.plan_file import PlanFile

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file; its journal is in the same directory.")]
PlanGroups = Annotated[
    list[str] | None,
    opt("--group -g", "NAME", "Only this group of the plan, or a glob; repeatable."),
]
WaveOption = Annotated[
    list[int] | None,
    opt("--wave", "N", "Only the groups of this wave; repeatable.", min=1),
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


SourceStore = Annotated[str, opt("--from", "URI", "The store to read: zookeeper://..., kafka://..., file:...")]
TargetStore = Annotated[str, opt("--to", "URI", "The store to write.")]
Rename = Annotated[
    list[str] | None,
    opt("--rename", "OLD=NEW", "Give a group another name in the target; repeatable."),
]
FromConfig = Annotated[
    str | None,
    opt("--from-command-config", "FILE", "Like --command-config, but only for the source."),
]
ToConfig = Annotated[
    str | None,
    opt("--to-command-config", "FILE", "Like --command-config, but only for the target."),
]


class SideConfigs(NamedTuple):
    """The files with the settings of the source and of the target."""

    from_command_config: FromConfig = None
    to_command_config: ToConfig = None
