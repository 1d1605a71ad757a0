"""``offsetmgr offsets set|reset|delete``: edits committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import typer

from offsetmgr.cli.confirm import EditFlags
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.options import (
    AllTopics,
    GroupFlags,
    OneGroup,
    RunningFlag,
    TopicsOption,
    TranslateOption,
    UnterminatedOption,
    WaitEmpty,
    check_topics,
    flag,
    opt,
    running_edit,
)
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition

app = typer.Typer()

NewGroup = Annotated[bool, flag("--new-group", "Allow a group that does not exist yet.")]


LARGEST_OFFSET: Final = 2**63 - 1


def _offset(text: str) -> int:
    """Parses an offset. Accepts only digits, whereas Python's ``int`` would also accept ``1_000``."""
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not an offset.")
    if len(text.lstrip("0")) > len(str(LARGEST_OFFSET)) or int(text) > LARGEST_OFFSET:
        raise typer.BadParameter(f"{text[:30]!r} is beyond the largest offset, {LARGEST_OFFSET}.")
    return int(text)


ToOffsetOption = Annotated[
    int | None,
    opt("--to-offset", "N", "Move to this offset.", parser=_offset),
]


@app.command("set")
@connected
def set_offsets(
    connect: ConnectFlags,
    group: OneGroup,
    topic: Annotated[
        list[str],
        opt(
            "--topic -t",
            "NAME[:0,1]",
            "Partitions; without numbers, the topic's committed ones; repeatable.",
        ),
    ],
    to_offset: Annotated[int, opt("--to-offset", "N", "The next offset to consume.", parser=_offset)],
    metadata: Annotated[
        str | None,
        opt(
            "--metadata",
            None,
            "Metadata to commit with the offset; without it, an offset that stays keeps its metadata.",
        ),
    ] = None,
    new_group: NewGroup = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Commit an offset exactly as given; an offset outside its log gets a warning.

    The warning needs brokers. offsets reset clamps an offset outside its log.
    """
    from offsetmgr.cli.edit_command import exit_edit
    from offsetmgr.cli.log_notes import noted_outside_logs
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.reset import plan_set
    from offsetmgr.groups.topic_matches import require_topics

    topics = TopicSelection.parse(topic)
    store = connect.store()

    named = topics.numbered(store.capabilities.partitions)

    def new_offsets(committed: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        chosen = {*named, *(tp for tp in committed if topics.matches(tp))}
        if not chosen:
            raise GroupNotFound(
                f"group {group!r}", "has no committed offsets in these topics", "name partitions, as in --topic t:0,1"
            )
        return {tp: OffsetAndMetadata(to_offset, metadata or "") for tp in chosen}

    how = running_edit(running, wait_empty_s)
    connect.wait_until_empty([group], wait_empty_s)
    edit = connect.edit_of("offsets set", flags, store, how)
    keeps_metadata = metadata is None
    proposal = plan_set(store, group, new_offsets, named, create=new_group, keeps_metadata=keeps_metadata)
    proposals = noted_outside_logs(connect, edit, [proposal], "set")
    exit_edit(edit.run(require_topics(proposals, topics, store.uri)))


@app.command("reset")
@connected
def reset(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    all_topics: AllTopics = False,
    to_earliest: Annotated[bool, flag("--to-earliest", "To the log's start.")] = False,
    to_latest: Annotated[bool, flag("--to-latest", "To the log's end.")] = False,
    to_current: Annotated[bool, flag("--to-current", "To the committed offset; to the log's end without one.")] = False,
    to_offset: ToOffsetOption = None,
    shift_by: Annotated[int | None, opt("--shift-by", "N", "By N offsets; backward with -N.")] = None,
    by_duration: Annotated[
        str | None,
        opt("--by-duration", "PnDTnHnMnS", "To this long ago; also 1d2h30m."),
    ] = None,
    to_datetime: Annotated[
        str | None,
        opt(
            "--to-datetime",
            "YYYY-MM-DDTHH:mm:SS.sss",
            "To the first record at or after this time; also 'yesterday 14:00'; UTC without a zone.",
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        opt("--from-file", "FILE", "To the offsets of a file: .avro, .csv, .zk or .json (any other name: CSV)."),
    ] = None,
    skip: Annotated[
        int | None,
        opt("--skip", "N", "Past the next N records of one partition, if the group does not move meanwhile.", min=1),
    ] = None,
    accept_unterminated: UnterminatedOption = False,
    translate: TranslateOption = None,
    export_csv: Annotated[
        bool, flag("--export", "Print the new offsets alone, as CSV that --from-file reads back.")
    ] = False,
    new_group: NewGroup = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Move groups to another position in their logs, by the scenarios of kafka-consumer-groups.

    Exactly one of --to-earliest ... --skip. Offsets outside the log are clamped to it, with a note.
    """
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.cli.scenario import ScenarioOptions, scenario_of
    from offsetmgr.cli.skip_records import skipped_records
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.reset import ToOffsets, plan_reset
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.groups.topic_matches import require_topics

    selection = groups.selection()
    options = ScenarioOptions(
        to_earliest,
        to_latest,
        to_current,
        to_offset,
        shift_by,
        by_duration,
        to_datetime,
        from_file,
        accept_unterminated,
        skip,
    )
    scenario = scenario_of(
        options,
        selection,
        lambda snapshot: cross_cluster_check("offsets reset", snapshot, connect.store(), translate),
    )
    how = running_edit(running, wait_empty_s, conditional=skip is not None)
    if not isinstance(scenario, ToOffsets):
        check_topics(topic, all_topics)
    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    cluster = connect.cluster_for_edit("offsets reset", store)
    chosen = choose_groups(store, selection)
    if isinstance(scenario, ToOffsets) and groups.all_groups:
        chosen = selection.within(scenario.offsets, f"file {from_file}")
    connect.wait_until_empty(chosen, wait_empty_s)
    skipped = None if skip is None else skipped_records(connect, store, chosen, topics, skip)
    edit = connect.edit_of("offsets reset", flags, store, how, as_csv=export_csv)
    if skipped is not None:
        scenario = skipped.scenario()
    assert scenario is not None
    proposals = plan_reset(store, cluster, chosen, topics, scenario, create=new_group)
    proposals = proposals if skipped is None else skipped.check(proposals)
    exit_edit(edit.run(require_topics(proposals, topics, store.uri)))


@app.command("delete")
@connected
def delete(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    all_topics: AllTopics = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Delete committed offsets."""
    from offsetmgr.cli.edit_command import exit_edit
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.edits import plan_delete
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.groups.topic_matches import require_topics

    selection = groups.selection()
    check_topics(topic, all_topics)
    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, selection)
    how = running_edit(running, wait_empty_s)
    connect.wait_until_empty(chosen, wait_empty_s)
    edit = connect.edit_of("offsets delete", flags, store, how)
    exit_edit(edit.run(require_topics(plan_delete(store, chosen, topics), topics, store.uri)))
