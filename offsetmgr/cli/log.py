"""``offsetmgr log``: Kafka's logs on disk. Only combines the commands, each in its own module.

A new command: a module ``log_NAME.py`` with its own ``app = typer.Typer()``, named in `PARTS`, in the order of the
help; the text of `offsetmgr.cli.app.REGISTRY` names it too. Heavy modules are imported inside the command.
"""

from __future__ import annotations

from typing import Final

import typer

from offsetmgr.cli import log_dump, log_offsets, log_recovery, log_verify

PARTS: Final = (log_dump.app, log_verify.app, log_recovery.app, log_offsets.app)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Kafka's logs on disk, without a broker: segment files, and the directories that hold them.",
)
for part in PARTS:
    app.add_typer(part)
