"""``offsetmgr log``: Kafka's logs on disk. This module only combines the commands.

To add a command, create a module ``log_NAME.py`` with its own ``app = typer.Typer()``, and add the app to `PARTS`,
which is in the order in which the help shows the commands. Also add the command to the text in
`offsetmgr.cli.root.REGISTRY`. Import heavy modules inside the command.
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
