"""``offsetmgr offsets``: shows and edits committed offsets. This module only combines the commands.

`PARTS` lists the apps of the combined modules, in the order in which the help shows their commands.
"""

from __future__ import annotations

from typing import Final

import typer

from offsetmgr.cli import offset_diff, offset_edits, offset_peek, offset_reports, snapshot_files

PARTS: Final = (offset_reports.app, offset_peek.app, offset_edits.app, snapshot_files.app, offset_diff.app)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Committed offsets.")
for part in PARTS:
    app.add_typer(part)
