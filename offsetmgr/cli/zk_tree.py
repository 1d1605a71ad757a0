"""``offsetmgr zk tree``: lists znodes with their kind and decoded content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, report_and_exit_code
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, opt
from offsetmgr.cli.render import Column, OutputFormat, progress, write_rows
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.errors import OffsetMgrError, ServerError, UsageError

if TYPE_CHECKING:
    from offsetmgr.zookeeper.nodes.tree import TreeNode

app = typer.Typer()

TREE: Final = (
    Column("path"),
    Column("kind"),
    Column("value"),
    Column("children", right=True, detail=True),
    Column("ephemeral_owner", optional=True),
    Column("version", right=True),
    Column("mtime", time=True),
    Column("ctime", detail=True),
    Column("notes", optional=True),
    Column("error", optional=True),
    Column("data", detail=True),
)


@app.command("tree", cls=WatchCommand)
@connected
@many_clusters
def tree(
    connect: ConnectFlags,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="The first node, below the chroot.")] = "/",
    depth: Annotated[int | None, opt("--depth", None, "Maximum number of levels below it.", min=0)] = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Print a znode and its descendants, decoded.

    NOTES lists irregularities of a node. If a node cannot be read, the other nodes are still shown. Credentials are
    hidden. --format json and csv include each node's raw data.
    """
    from offsetmgr.zookeeper.nodes.tree import walk

    if not path.startswith("/") or "//" in path or (path != "/" and path.endswith("/")):
        raise UsageError(f"path {path!r}", "is not a valid ZooKeeper path", "as in /brokers/ids")
    session = connect.zookeeper("zk tree")

    def once() -> int:
        errors: list[OffsetMgrError] = []
        found = progress(walk(session, path, depth), "nodes")
        if not write_rows(TREE, _rows(found, errors), output):
            errors.append(ServerError(f"ZooKeeper node {path}", f"does not exist in ZooKeeper at {session.connect}"))
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


def _rows(nodes: Iterable[TreeNode], errors: list[OffsetMgrError]) -> Iterator[tuple[Any, ...]]:
    for one in nodes:
        stat, what = one.node, one.description
        found = [error for error in (one.read_error or what.error, one.children_error) if error is not None]
        errors += found
        broken = "; ".join(error.why for error in found)
        yield (
            one.path,
            None if what.kind == "other" else what.kind,
            what.value,
            one.children,
            session_of(stat.ephemeral_owner) if stat else None,
            stat.version if stat else None,
            stat.mtime_ms if stat else None,
            stat.ctime_ms if stat else None,
            "; ".join(what.notes) or None,
            broken or None,
            None if stat is None or what.secret else stat.data.decode("utf-8", "backslashreplace"),
        )


def session_of(ephemeral_owner: int) -> str | None:
    """Formats a session id like ZooKeeper's own tools. Returns None for a persistent node, which has no session."""
    return f"{ephemeral_owner & 0xFFFFFFFFFFFFFFFF:#x}" if ephemeral_owner else None
