"""``offsetmgr zk``: Kafka's directories in ZooKeeper. Only combines the commands, each in its own module.

A new command: a module ``zk_NAME.py`` with its own ``app = typer.Typer()``, imported and named in `PARTS`, in the order
of the help; the text of `offsetmgr.cli.app.REGISTRY` names it too. Heavy modules are imported inside the command.
"""

from __future__ import annotations

from typing import Final

import typer

from offsetmgr.cli import zk_admin, zk_check, zk_cluster, zk_groups, zk_rebalance, zk_tree

PARTS: Final = (zk_tree.app, zk_cluster.app, zk_groups.app, zk_rebalance.app, zk_check.app, zk_admin.app)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Kafka in ZooKeeper: its directories, and what its controller can be asked there.",
)
for part in PARTS:
    app.add_typer(part)
