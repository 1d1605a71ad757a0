"""``offsetmgr zk elect|reassign|delete-topic``: requests to the cluster's controller, through ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from offsetmgr.cli.columns import PARTITION
from offsetmgr.cli.confirm import RunFlags
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.controller_request import WAIT_S, ControllerRequest, Row, Wait
from offsetmgr.cli.errors import exit_with
from offsetmgr.cli.options import TopicsOption, file_to_write, flag, opt
from offsetmgr.cli.render import Column, note
from offsetmgr.core.errors import FileFailure, OffsetMgrError, UnknownTopicOrPartition, UsageError
from offsetmgr.core.os_errors import os_error_as
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.zookeeper.admin.reassignment import ReassignmentStep
    from offsetmgr.zookeeper.admin.state import RequestProgress
    from offsetmgr.zookeeper.client.session import ZookeeperSession

app = typer.Typer()

ELECTION: Final = (*PARTITION, Column("leader", right=True), Column("preferred", right=True))
REASSIGNMENT: Final = (*PARTITION, Column("before"), Column("after"), Column("adding"), Column("removing"))
DELETION: Final = (Column("topic"), Column("partitions", right=True), Column("replicas", right=True))


@app.command("elect")
@connected
def elect(
    connect: ConnectFlags,
    topic: TopicsOption = None,
    all_topics: Annotated[bool, flag("--all-topics", "All topics of the cluster.")] = False,
    wait: Wait = WAIT_S,
    *,
    flags: RunFlags,
) -> None:
    """Make the preferred replica of each partition its leader again (preferred replica election).

    A partition whose preferred replica is dead or not in sync is rejected; the others get their election.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.election import encode_election, plan_election, progress_of
    from offsetmgr.zookeeper.admin.submit import submit
    from offsetmgr.zookeeper.client.transactions import Create
    from offsetmgr.zookeeper.nodes import paths

    if bool(topic) == all_topics:
        why = "both --topic and --all-topics are given" if all_topics else "none is named"
        raise UsageError("--topic", why, "as in --topic NAME (repeatable, globs, :0,1), or --all-topics")
    session = connect.zookeeper("zk elect")
    chosen, unreadable = _chosen(session, topic or [])
    state = read_state(session, {tp.topic for tp in chosen})
    steps = plan_election(state, chosen)
    request = ControllerRequest(
        "zk elect",
        session.connect,
        ELECTION,
        (
            *(Row(name, (name, None, None, None), False, error) for name, error in unreadable.items()),
            *(
                Row(str(s.partition), (*s.partition, s.leader, s.preferred), s.needed, s.rejected, _led(s.needed))
                for s in steps
            ),
        ),
        all_or_nothing=False,
    )
    electable = {str(s.partition): (s.partition, s.preferred) for s in steps if s.preferred is not None}

    def submit_rows(rows: list[Row]) -> None:
        data = encode_election(electable[row.key][0] for row in rows)
        submit(session, "preferred replica election", [Create(paths.PREFERRED_REPLICA_ELECTION, data)], state, ())

    def poll(rows: list[Row]) -> RequestProgress:
        requested = dict(electable[row.key] for row in rows)
        return progress_of(read_state(session, {tp.topic for tp in requested}), requested)

    action = f"elect {count_of(len(request.todo), 'leader')}"
    exit_with(request.run(action=action, flags=flags, wait_s=wait, submit=submit_rows, poll=poll))


def _led(wanted: bool) -> str:
    return "" if wanted else "is the leader already"


def _chosen(session: ZookeeperSession, texts: list[str]) -> tuple[list[TopicPartition], dict[str, OffsetMgrError]]:
    """Returns the partitions that --topic selects, and the topics whose partitions cannot be read. Without --topic, all
    partitions are selected.

    Raises `UnknownTopicOrPartition` if no partition is selected.
    """
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.zookeeper.admin.admin_reader import read_state, topic_names

    selection = TopicSelection.parse(texts)
    names = topic_names(session)
    selected = [name for name in names if selection.matches_topic(name)]
    state = read_state(session, selected)
    partition_counts: dict[str, int] = {}
    partitions: list[TopicPartition] = []
    unreadable: dict[str, OffsetMgrError] = {}
    for name in selected:
        try:
            numbers = state.topic(name).partitions
        except UnknownTopicOrPartition:  # the topic was deleted after the names were read
            continue
        except OffsetMgrError as error:
            unreadable[name] = error
            continue
        partition_counts[name] = len(numbers)
        partitions += [TopicPartition(name, number) for number in numbers]
    readable = [text for text in texts if TopicSelection.parse([text]).patterns[0].name not in unreadable]
    found = TopicSelection.parse(readable).expand(partition_counts, partitions) if readable or not texts else []
    if not found and not unreadable:
        raise UnknownTopicOrPartition(" ".join(texts) or "--all-topics", f"no topic of {session.connect} matches")
    return found, unreadable


@app.command("reassign")
@connected
def reassign(
    connect: ConnectFlags,
    reassignment_json_file: Annotated[
        Path,
        opt(
            "--reassignment-json-file",
            "FILE",
            "The brokers for each partition, in the format of kafka-reassign-partitions.",
        ),
    ],
    allow_replication_change: Annotated[
        bool, flag("--allow-replication-change", "Allow the number of replicas to change.")
    ] = False,
    before_image: Annotated[
        Path | None,
        opt(
            "--before-image",
            "FILE",
            "File for the present replicas, which undoes the request (default: a new file in the state directory).",
            callback=file_to_write,
        ),
    ] = None,
    wait: Wait = WAIT_S,
    *,
    flags: RunFlags,
) -> None:
    """Move partitions to other brokers (partition reassignment).

    The command first checks that brokers are alive, partitions exist, no broker occurs twice, the number of replicas
    stays the same, and no reassignment is under way. One failed check rejects the whole request.
    """
    from offsetmgr.groups.before_images import default_image_path
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.reassignment import (
        cancel_command,
        decode_reassignment,
        encode_reassignment,
        plan_reassignment,
        progress_of,
    )
    from offsetmgr.zookeeper.admin.submit import submit
    from offsetmgr.zookeeper.client.transactions import Create
    from offsetmgr.zookeeper.nodes import paths

    what = f"file {reassignment_json_file}"
    with os_error_as(FileFailure, what):
        assignment = decode_reassignment(what, reassignment_json_file.read_bytes())
    session = connect.zookeeper("zk reassign")
    state = read_state(session, {tp.topic for tp in assignment})
    steps = {
        str(s.partition): s
        for s in plan_reassignment(state, assignment, allow_replication_change=allow_replication_change)
    }
    request = ControllerRequest(
        "zk reassign", session.connect, REASSIGNMENT, _reassignment_rows(steps), all_or_nothing=True
    )
    image = before_image or default_image_path("zk reassign").with_suffix(".json")
    other_counts = any(len(s.before) != len(s.after) for s in steps.values())
    undo = (
        f"offsetmgr zk reassign --reassignment-json-file {quote(str(image))} --zookeeper {quote(session.connect)}"
        f"{connect.followup_options}{' --allow-replication-change' if other_counts else ''}"
    )

    def submit_rows(rows: list[Row]) -> None:
        moved = [steps[row.key] for row in rows]
        data = encode_reassignment({s.partition: s.after for s in moved})
        _write_before_image(image, encode_reassignment({s.partition: s.before for s in moved}))
        topics, brokers = {s.partition.topic for s in moved}, {broker for s in moved for broker in s.after}
        submit(session, "reassignment", [Create(paths.REASSIGN_PARTITIONS, data)], state, topics, brokers)

    def poll(rows: list[Row]) -> RequestProgress:
        requested = {steps[row.key].partition: steps[row.key].after for row in rows}
        return progress_of(read_state(session, {tp.topic for tp in requested}), requested)

    action = f"change the replicas of {count_of(len(request.todo), 'partition')}"
    exit_with(
        request.run(
            action=action,
            flags=flags,
            wait_s=wait,
            submit=submit_rows,
            poll=poll,
            undo=undo,
            cancel=cancel_command(str(image), connect.bootstrap()),
        )
    )


def _reassignment_rows(steps: Mapping[str, ReassignmentStep]) -> Iterator[Row]:
    """Yields one row for each step of a reassignment."""
    from offsetmgr.zookeeper.admin.state import numbers

    for key, step in steps.items():
        replicas = (numbers(ids) or None for ids in (step.before, step.after, step.adding, step.removing))
        moves = bool(step.adding or step.removing)
        text = "" if moves else "another preferred leader" if step.changes else "has these replicas already"
        yield Row(key, (*step.partition, *replicas), step.changes, step.rejected, text)


def _write_before_image(path: Path, data: bytes) -> None:
    """Writes the before-image to disk. Raises `FileFailure`."""
    from offsetmgr.core.atomic_file import replace_file

    with os_error_as(FileFailure, f"directory {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda out: out.write(data), overwrite=False)
    note(f"before-image: {path}")


@app.command("delete-topic")
@connected
def delete_topic(
    connect: ConnectFlags,
    topic: Annotated[list[str], opt("--topic", "NAME", "A topic, by its whole name; repeatable.")],
    wait: Wait = WAIT_S,
    *,
    flags: RunFlags,
) -> None:
    """Delete topics with all their messages. This cannot be undone.

    With --bootstrap-server the command first asks the controller whether it deletes topics at all
    (delete.topic.enable). One rejected topic rejects the whole request.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.deletion import plan_deletion, progress_of
    from offsetmgr.zookeeper.admin.submit import submit
    from offsetmgr.zookeeper.client.transactions import Create
    from offsetmgr.zookeeper.nodes import paths

    session = connect.zookeeper("zk delete-topic")
    state = read_state(session, topic)
    steps = plan_deletion(state, topic, enabled=_deletion_enabled(connect, state.controller))
    request = ControllerRequest(
        "zk delete-topic",
        session.connect,
        DELETION,
        (
            Row(
                s.topic,
                (s.topic, s.partitions, s.replicas),
                True,
                s.rejected,
                f"will wait for {s.waits_for}" if s.waits_for else "",
            )
            for s in steps
        ),
        all_or_nothing=True,
    )

    def submit_rows(rows: list[Row]) -> None:
        nodes = [Create(f"{paths.DELETE_TOPICS}/{row.key}") for row in rows]
        submit(session, "deletion of topics", nodes, state, [row.key for row in rows])

    def poll(rows: list[Row]) -> RequestProgress:
        requested = {row.key: state.topic(row.key).czxid for row in rows}
        return progress_of(read_state(session, requested), requested)

    action = f"delete {count_of(len(request.todo), 'topic')} for good"
    exit_with(request.run(action=action, flags=flags, wait_s=wait, submit=submit_rows, poll=poll))


def _deletion_enabled(connect: ConnectFlags, controller: int | None) -> bool | None:
    """Returns the controller's ``delete.topic.enable``, or None if the value is unknown. Prints a note if no brokers
    are known or the request fails."""
    cluster = connect.cluster_or_none()
    if cluster is None:
        note("not checked: delete.topic.enable of the controller (no --bootstrap-server)")
        return None
    try:
        value = None if controller is None else cluster.broker_setting(controller, "delete.topic.enable")
    except OffsetMgrError as error:
        note(f"not checked: delete.topic.enable of the controller ({error})")
        return None
    if value is None and controller is not None:
        note("not checked: delete.topic.enable of the controller (the broker does not report it to this login)")
    return None if value is None else value == "true"
