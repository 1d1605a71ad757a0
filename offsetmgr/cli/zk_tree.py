"""``offsetmgr zk tree``: the nodes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.options import Connect, Format, connected
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.watching import Count, Watch, WatchCommand, watching
from offsetmgr.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.zookeeper.session import ZookeeperSession

app = typer.Typer()

TREE: Final = (
    Column("path"),
    Column("ephemeral_owner", optional=True),
    Column("version", right=True),
    Column("mtime", time=True),
    Column("data"),
)


@app.command("tree", cls=WatchCommand)
@connected
def tree(
    connect: Connect,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The node to begin at.")] = "/brokers",
    watch: Watch = None,
    count: Count = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """A node and all that is below it, with what they hold."""
    if not path.startswith("/") or (path != "/" and path.endswith("/")):
        raise UsageError(f"path {path!r}", "is no path of ZooKeeper", "as in /brokers/ids")
    session = connect.zookeeper("zk tree")

    def once() -> int:
        if not write_rows(TREE, _rows(session, path), output):
            note(f"no node {path} in ZooKeeper at {session.connect}")
            return FAILED
        return 0

    if code := watching(once, watch, count):
        raise typer.Exit(code)


def _rows(session: ZookeeperSession, path: str) -> Iterator[tuple[Any, ...]]:
    for at, node in sorted(session.tree(path).items()):
        owner = f"{node.ephemeral_owner:#x}" if node.ephemeral_owner else None
        yield at, owner, node.version, node.mtime_ms, node.data.decode("utf-8", "backslashreplace")
