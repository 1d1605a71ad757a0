"""``offsetmgr zk``: Kafka's directories in ZooKeeper. This module only combines the commands.

To add a command, create a module ``zk_NAME.py`` with its own ``app = typer.Typer()``, and add the app to `PARTS`, which
is in the order in which the help shows the commands. Also add the command to the text in `offsetmgr.cli.root.REGISTRY`.
Import heavy modules inside the command.
"""

from __future__ import annotations

from typing import Final

import typer

from offsetmgr.cli import zk_admin, zk_check, zk_cluster, zk_groups, zk_tree

PARTS: Final = (zk_tree.app, zk_cluster.app, zk_groups.app, zk_check.app, zk_admin.app)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Kafka in ZooKeeper: its znodes, and requests to its controller.",
)
for part in PARTS:
    app.add_typer(part)
