"""``offsetmgr zk rebalance``: compares the owners of a group's partitions with the computed assignment, and predicts
the assignment after changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.group_arguments import one_group
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, file_to_write
from offsetmgr.cli.render import OutputFormat, note
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.cli.zk_rebalance_changes import changes_of, with_initial_sizes
from offsetmgr.cli.zk_rebalance_output import (
    CURRENT_TEXTS,
    PREDICTED_TEXTS,
    summary_line,
    write_owners,
    write_prediction,
)
from offsetmgr.core.errors import FileFailure, UsageError

if TYPE_CHECKING:
    from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot

app = typer.Typer()

POLL_INTERVAL_S: Final = 0.25


def _change(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=f"{text} Repeatable.", show_default=False)


@app.command("rebalance", cls=WatchCommand)
@connected
@many_clusters
def rebalance(
    connect: ConnectFlags,
    group: Annotated[str | None, typer.Argument(metavar="[GROUP]", help="The group.", show_default=False)] = None,
    group_option: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="The group, as in other commands.")
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Show the effect of the changes below.")] = False,
    join: Annotated[
        list[str] | None,
        _change("--join", "HOST[:STREAMS]", "A member joins on this host (or give a whole consumer id, GROUP_...)."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="MEMBER",
            help="The member whose subscription the joining members copy.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        _change("--topic", "NAME", "A topic that the joining members subscribe to, instead of --like."),
    ] = None,
    leave: Annotated[
        list[str] | None, _change("--leave", "MEMBER", "A member leaves: its consumer id, or its host.")
    ] = None,
    grow: Annotated[
        list[str] | None,
        _change("--grow", "TOPIC=N", "The topic grows to N partitions, or is created (Kafka 0.7: TOPIC=BROKER:N)."),
    ] = None,
    delete_topic: Annotated[list[str] | None, _change("--delete-topic", "TOPIC", "The topic is deleted.")] = None,
    lose_broker: Annotated[list[int] | None, _change("--lose-broker", "ID", "The broker stops.")] = None,
    add_broker: Annotated[
        list[int] | None, _change("--add-broker", "ID", "A broker starts, without partitions.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="range, roundrobin, roundrobin-0.8.2, clustered (default: inferred from the owners, else range).",
            show_default=False,
        ),
    ] = None,
    internal_topics: Annotated[
        bool,
        typer.Option(
            "--internal-topics", help="Let patterns select internal topics too (exclude.internal.topics=false)."
        ),
    ] = False,
    partitions: Annotated[bool, typer.Option("--partitions", help="Show partitions instead of members.")] = False,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            help="Read a file written by --save, or the output of zk members --format json, instead of ZooKeeper.",
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            callback=file_to_write,
            help="Save the present state of the group in a new file.",
            show_default=False,
        ),
    ] = None,
    settle_s: Annotated[
        float,
        typer.Option(
            "--settle",
            metavar="SECONDS",
            min=0,
            help="Maximum wait for a rebalance to end before differences are reported.",
        ),
    ] = 5,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Compare the owners of a group's partitions with the computed assignment; or with --simulate, predict the
    assignment after changes.

    DUE is the number of partitions that the computed assignment gives to a member. Without --simulate, the exit code is
    0 if every partition has the owner that the members would assign, else 1. The command changes nothing.
    """
    from offsetmgr.zookeeper.rebalance_preview.live_group import read_group

    connect.reject_for_many({"--from-file": from_file, "--save": save}, "the file has the state of one cluster")
    name = one_group(group, group_option)
    change = changes_of(join, like, topic, leave, grow, delete_topic, lose_broker, add_broker)
    if change is not None and not simulate:
        raise UsageError("zk rebalance", "changes can only be simulated", "add --simulate")
    if from_file is not None:
        saved = _read(from_file, name)
        if saved.owners is None and not simulate:
            raise UsageError(f"file {from_file}", "contains no owners, so nothing can be compared", "add --simulate")
        if saved.owners is None and not saved.topics:  # the file contains only a list of members
            saved = with_initial_sizes(saved, grow)
        settle_s = 0

        def read_snapshot() -> GroupSnapshot:
            return saved
    else:
        if name is None:
            raise UsageError("--group", "no group is named", "as in zk rebalance GROUP")
        session = connect.zookeeper("zk rebalance")

        def read_snapshot() -> GroupSnapshot:
            return read_group(session, name, topic or ())

    if save is not None:
        _save(read_snapshot(), save)

    def once() -> int:
        if simulate:
            return _simulate(read_snapshot(), change, strategy, internal_topics, partitions, output)
        return _compare(read_snapshot, settle_s, strategy, internal_topics, partitions, output)

    if code := watch_command(once, watch, count):
        raise typer.Exit(code)


def _simulate(
    snapshot: GroupSnapshot,
    change: Callable[[GroupSnapshot], GroupSnapshot] | None,
    strategy: str | None,
    internal: bool,
    by_partition: bool,
    output: OutputFormat,
) -> int:
    from offsetmgr.zookeeper.rebalance_preview.predict import predict

    after = snapshot if change is None else change(snapshot)
    chosen, why = _strategy(snapshot, strategy, internal)
    prediction = predict(snapshot, after, chosen, internal=internal)
    write_prediction(prediction, snapshot, after, output, by_partition=by_partition)
    if not prediction.observed:
        note("before: computed, because the file contains no owners")
    summary_line(prediction, why, PREDICTED_TEXTS)
    return 0


def _compare(
    read_snapshot: Callable[[], GroupSnapshot],
    settle_s: float,
    strategy: str | None,
    internal: bool,
    by_partition: bool,
    output: OutputFormat,
) -> int:
    """Shows the owners and the computed assignment. Returns `FAILED` if they differ, else 0."""
    from offsetmgr.zookeeper.rebalance_preview.predict import predict

    deadline = time.monotonic() + settle_s
    while True:
        snapshot = read_snapshot()
        chosen, why = _strategy(snapshot, strategy, internal)
        prediction = predict(snapshot, snapshot, chosen, internal=internal)
        if not prediction.moves.changed or time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    write_owners(prediction, snapshot, output, by_partition=by_partition)
    summary_line(prediction, why, CURRENT_TEXTS)
    if not snapshot.members:
        note("no live members")
    return FAILED if prediction.moves.changed else 0


def _strategy(snapshot: GroupSnapshot, named: str | None, internal: bool) -> tuple[str, str]:
    """Returns the name of the assignment strategy, and a text that describes how the strategy was determined."""
    from offsetmgr.core.errors import AssignmentRefused, InvalidPattern, UnsupportedOperation
    from offsetmgr.zookeeper.rebalance_preview.predict import default_strategy, matching_strategies

    if named is not None:
        return named, "as given"
    try:
        explaining = matching_strategies(snapshot, internal=internal)
    except (AssignmentRefused, InvalidPattern, UnsupportedOperation):
        explaining = []  # the simulated change may remove the member that causes the error
    if explaining:
        return explaining[0], "inferred from the owners"
    return default_strategy(snapshot), "the default; it cannot be inferred from the owners"


def _read(path: Path, group: str | None) -> GroupSnapshot:
    from offsetmgr.zookeeper.rebalance_preview.snapshot_file import decode

    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileFailure(f"file {path}", error.strerror or str(error)) from error
    return decode(str(path), data, group)


def _save(snapshot: GroupSnapshot, path: Path) -> None:
    from offsetmgr.core.atomic_file import replace_file
    from offsetmgr.zookeeper.rebalance_preview.snapshot_file import encode

    data = encode(snapshot, time.time_ns() // 1_000_000)
    replace_file(path, lambda file: file.write(data), overwrite=False)
    note(f"saved in {path}")
