"""Options that the migration commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
