"""``offsetmgr offsets diff``: shows the differences between two stores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.columns import GROUP_PARTITION
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFlags, TopicsOption, opt
from offsetmgr.cli.read_error_report import ReadErrorReport
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.core.errors import GroupNotFound, UsageError
from offsetmgr.core.model import Committed
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore

app = typer.Typer()


DIFFERENCES: Final = (
    *GROUP_PARTITION,
    Column("difference"),
    Column("from_offset", right=True, title="FROM"),
    Column("to_offset", right=True, title="TO"),
    Column("from_metadata", optional=True),
    Column("to_metadata", optional=True),
)
KINDS: Final = {"only-left": "only-from", "only-right": "only-to"}
"""Maps the name of a difference between two stores to its name in the output. The names in the output refer to the
options --from and --to."""


@app.command("diff")
@connected
@many_clusters
def diff(
    connect: ConnectFlags,
    groups: GroupFlags,
    source: Annotated[
        str | None,
        opt("--from", "URI", "One store (default: the configured ZooKeeper)."),
    ] = None,
    target: Annotated[
        str | None,
        opt("--to", "URI", "The other store (default: the configured brokers)."),
    ] = None,
    topic: TopicsOption = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the differences between two stores; the exit code is 1 on any difference.

    Without --from and --to, the command compares the configured ZooKeeper with the configured brokers, also of several
    contexts. Without --group it compares all groups of both stores.
    """
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.diff import diff as differences
    from offsetmgr.groups.scan import require_kind
    from offsetmgr.groups.topic_matches import TopicMatches

    selection = groups._replace(all_groups=groups.all_groups or not groups.group).selection()
    topics = TopicSelection.parse(topic or [])
    connect.reject_for_many({"--from": source, "--to": target}, "it names a store of one cluster")
    left, right = _sides(connect, source, target)
    topics.within(left.capabilities.partitions, right.capabilities.partitions)
    try:
        chosen = selection.within({*left.groups(), *right.groups()}, f"{left.uri} and {right.uri}")
    except GroupNotFound as missing:
        for name, store in product(missing.groups, (left, right)):
            require_kind(store, name)
        raise
    if not chosen:
        raise GroupNotFound(
            "nothing to compare", f"no groups in {left.uri} nor in {right.uri}", "check the addresses and the chroot"
        )
    errors, topic_matches = ReadErrorReport(), TopicMatches(topics)
    found = differences(left, right, progress(chosen, "comparing", len(chosen)), topics, topic_matches)

    def rows() -> Iterator[tuple[Any, ...]]:
        for name, tp, kind, here, there, error in found:
            if error is not None:
                errors.add(error)
            a, b = (c if isinstance(c, Committed) else None for c in (here, there))
            yield (
                name,
                tp.topic if tp else None,
                tp.partition if tp else None,
                KINDS.get(kind, kind),
                a.offset if a else None,
                b.offset if b else None,
                a.metadata if a and kind == "metadata" else None,
                b.metadata if b and kind == "metadata" else None,
            )

    count = 0

    def counted() -> Iterator[tuple[Any, ...]]:
        nonlocal count
        for row in rows():
            count += 1
            yield row

    write_rows(DIFFERENCES, counted(), output)
    if count:
        note(count_of(count, "difference"))
    topic_matches.require_all(f"{left.uri} and {right.uri}")
    fail_if(count)
    note(f"no difference in {count_of(len(chosen), 'group')}")


def _sides(connect: ConnectFlags, source: str | None, target: str | None) -> tuple[OffsetStore, OffsetStore]:
    """Returns the two stores. Raises `UsageError` if one is neither given nor configured."""
    from offsetmgr.stores.uri import zookeeper_of

    store = connect.resolved.store
    own = zookeeper_of(store, connect.resolved.connection) if store else None
    zookeeper = own or connect.resolved.zookeeper
    defaults = (f"zookeeper://{zookeeper}" if zookeeper else None, _kafka_uri(connect.bootstrap()))
    found = [given or default for given, default in zip((source, target), defaults, strict=True)]
    for option, name, uri in zip(("--from", "--to"), ("ZooKeeper", "broker"), found, strict=True):
        if uri is None:
            raise UsageError(option, f"no store is named, and no {name} is configured", f"add {option} URI")
    return connect.store(found[0]), connect.store(found[1])


def _kafka_uri(bootstrap: str | None) -> str | None:
    return None if bootstrap is None else f"kafka://{bootstrap}"
