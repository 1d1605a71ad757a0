"""``offsetmgr migrate``: moves groups from one store to another, and back. This module only combines the commands.

`PARTS` lists the apps of the combined modules, in the order in which the help shows their commands.
"""

from __future__ import annotations

from typing import Final

import typer

from offsetmgr.cli import (
    migrate_apply,
    migrate_finalize,
    migrate_mirror,
    migrate_plan,
    migrate_renew,
    migrate_rollback,
    migrate_status,
    migrate_verify,
)

PARTS: Final = (
    migrate_plan.app,
    migrate_apply.app,
    migrate_renew.app,
    migrate_status.app,
    migrate_verify.app,
    migrate_rollback.app,
    migrate_finalize.app,
    migrate_mirror.app,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Move groups between stores, and back.")
for part in PARTS:
    app.add_typer(part)
