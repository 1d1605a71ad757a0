"""``offsetmgr groups``: lists, describes and edits groups. This module only combines the
commands.

`PARTS` lists the apps of the combined modules, in the order in which the help shows their commands.
"""

from __future__ import annotations

from typing import Final

import typer

from offsetmgr.cli import group_details, group_edits, group_list, group_where

PARTS: Final = (group_list.app, group_details.app, group_where.app, group_edits.app)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Consumer groups.")
for part in PARTS:
    app.add_typer(part)
