"""``offsetmgr offsets``: shows and edits committed offsets."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.options import (
    AllGroups,
    AllowRewind,
    AllTopics,
    BeforeImage,
    ConnectFlags,
    Execute,
    Format,
    Groups,
    OneGroup,
    OnlyWithLag,
    Overwrite,
    Topics,
    TranslateOption,
    Yes,
    connected,
    require_groups,
)
from offsetmgr.cli.render import Column, OutputFormat, note, nothing_in, progress, write_rows
from offsetmgr.cli.stale import StaleSnapshot
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.selection import TopicSelection
    from offsetmgr.kafka.cluster.base import Cluster

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Committed offsets.")

OFFSETS: Final = (
    Column("group"),
    Column("topic"),
    Column("partition", right=True, title="PART"),
    Column("state"),
    Column("offset", right=True),
    Column("metadata", optional=True),
    Column("leader_epoch", right=True, optional=True, title="EPOCH"),
    Column("commit_timestamp", optional=True, title="COMMITTED-AT", time=True),
)
LAG: Final = (
    *(c if c.name in ("group", "topic", "partition", "offset") else replace(c, detail=True) for c in OFFSETS),
    Column("log_start_offset", right=True, detail=True),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True),
    Column("note", optional=True),
)
DIFFERENCES: Final = (
    Column("group"),
    Column("topic"),
    Column("partition", right=True, title="PART"),
    Column("difference"),
    Column("from_offset", right=True, title="FROM"),
    Column("to_offset", right=True, title="TO"),
    Column("from_metadata", optional=True),
    Column("to_metadata", optional=True),
)


KINDS: Final = {"only-left": "only-from", "only-right": "only-to"}
"""Kinds of differences, in terms of --from and --to."""


def _cells(group: str, tp: TopicPartition, found: Offset) -> tuple[Any, ...]:
    if isinstance(found, Committed):
        return (group, tp[0], tp[1], "committed", found[0], found[1], found[2], found[3])
    return (group, tp[0], tp[1], "absent", None, None, None, None)


class _Errors:
    """Read errors: printed at once on stderr, and counted for the exit code."""

    def __init__(self) -> None:
        self.count = 0
        self._said: set[str] = set()

    def add(self, error: OffsetMgrError) -> None:
        self.count += 1
        text = " ".join(str(error).split())
        if text in self._said:
            return
        self._said.add(text)
        note(f"error: {text}")
        if error.hint and self.count == 1:
            note(f"hint: {error.hint}")

    def finish(self) -> None:
        if self.count:
            raise typer.Exit(FAILED)


class UncommittedGroups:
    """Reports topics, given by full name, without a commit of a group: for a named group as an error, for others as a
    note if no group has any."""

    def __init__(self, uri: str, topics: TopicSelection, errors: _Errors) -> None:
        self._uri = uri
        self._topics = topics
        self._errors = errors
        self._left = {p.name for p in topics.patterns if p.partitions is None}.intersection(topics.named())
        self._seen: set[str] = set()

    def look(self, group: str, committed: Iterable[TopicPartition], *, named: bool) -> None:
        """Records the committed partitions of one group."""
        if not self._left:
            return
        missing = self._topics.without(committed)
        if named:
            for topic in missing:
                if topic in self._left:
                    self._errors.add(GroupNotFound(f"group {group!r}", f"has no committed offsets in topic {topic}"))
        self._seen.update(set(self._topics.named()).difference(missing))

    def finish(self, shown: int | None) -> None:
        """Reports topics without a commit in any group, and an empty result; ``shown`` rows (None: some were left
        out)."""
        if self._errors.count:
            return
        for topic in sorted(self._left - self._seen):
            note(f"no committed offsets in topic {topic} in {self._uri}")
        if shown == 0 and not self._left - self._seen:
            note(nothing_in(self._uri, "committed offsets"))


def _partition_counts(cluster: Cluster | None, topics: list[str]) -> Mapping[str, int]:
    """Partition counts of existing topics; empty, with a note, if brokers are unknown or unreachable."""
    if cluster is None or not topics:
        return {}
    try:
        return cluster.topics(topics)
    except OffsetMgrError as error:
        note(f"mind: only committed partitions are shown, since topics cannot be looked up: {error}")
        return {}


@app.command("get")
@connected
def get(
    connect: ConnectFlags,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show committed offsets.

    Partitions given by number, and those of topics given by full name, are shown even without a commit.
    """
    from offsetmgr.groups.selection import (
        TopicSelection,
        choose_groups,
        named_groups,
        require_known,
        scan_in_order,
    )

    names = require_groups(group, all_groups)
    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    chosen = choose_groups(store, names, all_groups=all_groups)
    named = named_groups(names, chosen)
    held = store.capabilities.partitions
    asked = topics.asked_for(_partition_counts(connect.cluster_or_none(), topics.named()) if named else {}, held)
    errors = _Errors()
    without = UncommittedGroups(store.uri, topics, errors)

    def rows() -> Iterator[tuple[Any, ...]]:
        for found in progress(scan_in_order(store, chosen), "reading", len(chosen)):
            if not all_groups and not (found.offsets or found.errors or found.error):
                require_known(store, [found.group])
            if found.error is not None:
                errors.add(found.error)
            for tp, error in sorted(found.errors.items()):
                if topics.matches(tp):
                    errors.add(error)
            wanted = {tp: c for tp, c in found.offsets.items() if topics.matches(tp)}
            if found.error is None:
                without.look(found.group, [*wanted, *found.errors], named=found.group in named)
            missing = asked if found.group in named else topics.numbered(held)
            missing = [tp for tp in missing if tp not in wanted and tp not in found.errors]
            for tp in sorted([*wanted, *missing]):
                yield _cells(found.group, tp, wanted.get(tp, ABSENT))

    shown = write_rows(OFFSETS, rows(), output)
    without.finish(shown)
    errors.finish()


@app.command("lag")
@connected
def lag(
    connect: ConnectFlags,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    only_with_lag: OnlyWithLag = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show how far behind the log's end each committed offset is.

    Lag counts from the log's start if the committed offset is below it. Unknown values are null (-).
    """
    from offsetmgr.groups.lag import NOTHING, needs_log_range
    from offsetmgr.groups.lag import lag as lag_of_groups
    from offsetmgr.groups.selection import TopicSelection, choose_groups, named_groups

    names = require_groups(group, all_groups)
    topics = TopicSelection.parse(topic or [])
    cluster, store = connect.cluster("offsets lag"), connect.store()
    newer = connect.newer_store(store)
    chosen = choose_groups(store, names, all_groups=all_groups)
    named = named_groups(names, chosen)
    counts = _partition_counts(cluster, topics.named()) if named else {}
    also = dict.fromkeys(named, topics.asked_for(counts, store.capabilities.partitions))
    errors = _Errors()
    without = UncommittedGroups(store.uri, topics, errors)

    def rows() -> Iterator[tuple[Any, ...]]:
        found = lag_of_groups(store, cluster, chosen, topics, strict=not all_groups, also=also, newer=newer)
        for one in progress(found, "reading", len(chosen)):
            if one.error is not None:
                errors.add(one.error)
            else:
                there = [r.partition for r in one.rows if r.note != NOTHING]
                without.look(one.group, there, named=one.group in named)
            for row in one.rows:
                if row.error is not None:
                    errors.add(row.error)
                    if row.committed is ABSENT and row.note != NOTHING:  # unreadable, as distinct from absent
                        continue
                if only_with_lag and not needs_log_range(row):
                    continue
                yield (*_cells(*row[:3]), row.log_start, row.log_end, row.lag, row.note or None)

    stale = StaleSnapshot(newer)
    shown = write_rows(LAG, stale.counted(rows()), output)
    stale.finish()
    without.finish(None if only_with_lag else shown)
    errors.finish()


LARGEST_OFFSET: Final = 2**63 - 1


def _offset(text: str) -> int:
    """Only digits: Python's own parser would accept ``1_000`` as well."""
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not an offset.")
    if len(text.lstrip("0")) > len(str(LARGEST_OFFSET)) or int(text) > LARGEST_OFFSET:
        raise typer.BadParameter(f"{text[:30]!r} is beyond the largest offset, {LARGEST_OFFSET}.")
    return int(text)


ToOffset = Annotated[
    int | None, typer.Option("--to-offset", metavar="N", parser=_offset, help="To this offset.", show_default=False)
]
AcceptUnterminated = Annotated[
    bool,
    typer.Option(
        "--accept-unterminated", help="Read a file of lines although its last line has no line end: it is complete."
    ),
]
NewGroup = Annotated[bool, typer.Option("--new-group", help="Allow a group that does not exist yet.")]


@app.command("set")
@connected
def set_offsets(
    connect: ConnectFlags,
    group: OneGroup,
    topic: Annotated[
        list[str],
        typer.Option("--topic", metavar="NAME[:0,1]", help="Partitions (a topic: those committed); repeatable."),
    ],
    to_offset: Annotated[
        int, typer.Option("--to-offset", metavar="N", parser=_offset, help="The next offset to consume.")
    ],
    metadata: Annotated[str, typer.Option("--metadata", help="Text to be committed with it.")] = "",
    new_group: NewGroup = False,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Commit an offset without checking the log (reset checks it)."""
    from offsetmgr.cli.edit_command import Edit, run_edit
    from offsetmgr.groups.reset import propose_set
    from offsetmgr.groups.selection import TopicSelection
    from offsetmgr.groups.topic_matches import require_topics

    topics = TopicSelection.parse(topic)
    store = connect.store()

    def wanted(committed: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        chosen = {*topics.numbered(store.capabilities.partitions), *(tp for tp in committed if topics.matches(tp))}
        if not chosen:
            raise GroupNotFound(
                f"group {group!r}", "has no committed offsets in these topics", "name partitions, as in --topic t:0,1"
            )
        return {tp: OffsetAndMetadata(to_offset, metadata) for tp in chosen}

    edit = Edit(
        "offsets set",
        connect,
        store,
        connect.edited_directory(),
        execute=execute,
        yes=yes,
        output=output,
        image=before_image,
    )
    proposal = propose_set(store, group, wanted, create=new_group)
    run_edit(edit.run(require_topics([proposal], topics, store.uri)))


@app.command("reset")
@connected
def reset(
    connect: ConnectFlags,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    all_topics: AllTopics = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log's start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the log's end.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the committed offset; to the log's end without one.")
    ] = False,
    to_offset: ToOffset = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="By so many records; back: -N.", show_default=False)
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="PnDTnHnMnS", help="To this long ago.", show_default=False),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="YYYY-MM-DDTHH:mm:SS.sss",
            help="To the first record at or after this time; UTC without a zone.",
            show_default=False,
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            help="To the offsets of a file: .avro, .csv, .zk or .json (any other name: CSV).",
            show_default=False,
        ),
    ] = None,
    accept_unterminated: AcceptUnterminated = False,
    translate: TranslateOption = None,
    export_csv: Annotated[
        bool, typer.Option("--export", help="Print the new offsets alone, as CSV that --from-file reads back.")
    ] = False,
    new_group: NewGroup = False,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Move groups to another position in their logs, by the scenarios of kafka-consumer-groups.

    Exactly one of --to-earliest ... --from-file. Offsets outside the log are clamped to it, with a note.
    """
    from offsetmgr.cli.edit_command import Edit, checked_crossing, run_edit
    from offsetmgr.cli.scenario import scenario_of
    from offsetmgr.groups.reset import ToOffsets, propose_reset
    from offsetmgr.groups.selection import TopicSelection, choose_groups
    from offsetmgr.groups.topic_matches import require_topics

    scenario = scenario_of(
        group or [],
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_current=to_current,
        to_offset=to_offset,
        shift_by=shift_by,
        by_duration=by_duration,
        to_datetime=to_datetime,
        from_file=from_file,
        accept_unterminated=accept_unterminated,
        crossing=lambda snapshot: checked_crossing("offsets reset", snapshot, connect.store(), translate),
    )
    names = require_groups(group, all_groups)
    if not isinstance(scenario, ToOffsets) and bool(topic) == all_topics:
        why = "both --topic and --all-topics are given" if all_topics else "no topic is named"
        raise UsageError("which topics?", why, "as in --topic NAME (repeatable, globs), or --all-topics")
    topics = TopicSelection.parse(topic or [])
    store, cluster = connect.store(), connect.cluster("offsets reset")
    chosen = choose_groups(store, names, all_groups=all_groups)
    if isinstance(scenario, ToOffsets) and (all_groups or not group):
        chosen = sorted(scenario.offsets)
    edit = Edit(
        "offsets reset",
        connect,
        store,
        connect.edited_directory(),
        execute=execute,
        yes=yes,
        output=output,
        image=before_image,
        as_csv=export_csv,
    )
    proposals = propose_reset(store, cluster, chosen, topics, scenario, create=new_group)
    run_edit(edit.run(require_topics(proposals, topics, store.uri)))


@app.command("delete")
@connected
def delete(
    connect: ConnectFlags,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    all_topics: AllTopics = False,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Delete committed offsets."""
    from offsetmgr.cli.edit_command import Edit, run_edit
    from offsetmgr.groups.edits import propose_delete
    from offsetmgr.groups.selection import TopicSelection, choose_groups
    from offsetmgr.groups.topic_matches import require_topics

    names = require_groups(group, all_groups)
    if bool(topic) == all_topics:
        why = "both --topic and --all-topics are given" if all_topics else "no topic is named"
        raise UsageError("which topics?", why, "as in --topic NAME (repeatable, globs), or --all-topics")
    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, names, all_groups=all_groups)
    edit = Edit(
        "offsets delete",
        connect,
        store,
        connect.edited_directory(),
        execute=execute,
        yes=yes,
        output=output,
        image=before_image,
    )
    run_edit(edit.run(require_topics(propose_delete(store, chosen, topics), topics, store.uri)))


FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help=".avro (lossless), .csv, .zk, .json; - for standard input or output, with --as.",
        show_default=False,
    ),
]
FileFormat = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="FORMAT", help="avro|csv|zk|json|spark, where the name does not tell.", show_default=False
    ),
]


@app.command("export")
@connected
def export(
    connect: ConnectFlags,
    file: FileArgument,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    file_format: FileFormat = None,
    overwrite: Overwrite = False,
) -> None:
    """Write committed offsets to a snapshot file."""
    from offsetmgr.core.version import __version__
    from offsetmgr.groups.before_images import header_for
    from offsetmgr.groups.export import export_groups
    from offsetmgr.groups.selection import TopicSelection, choose_groups
    from offsetmgr.snapshots.registry import format_name
    from offsetmgr.stores.snapshot import write_snapshot

    names = require_groups(group, all_groups)
    topics = TopicSelection.parse(topic or [])
    name = format_name(file, file_format)
    store = connect.store()
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, names, all_groups=all_groups)
    ids = {name: topic_id for name, topic_id in store.topic_ids().items() if topics.matches_some_of(name)}
    header = header_for(store, f"offsetmgr {__version__}", ids)
    groups = export_groups(store, chosen, topics, strict=not all_groups)
    with _written_to(file) as path:
        done = write_snapshot(
            path,
            header,
            progress(groups, "exporting", len(chosen)),
            format=name,
            group=chosen[0] if name == "spark" and len(chosen) == 1 else None,
            overwrite=overwrite,
        )
    where = "standard output" if file == "-" else file
    note(f"exported {count_of(done.offsets, 'offset')} of {count_of(done.groups, 'group')} to {where}")
    for lost in done.lost:
        note(f"not in the file, which cannot carry it: {lost}")


@contextmanager
def _written_to(file: str) -> Iterator[str]:
    """The path to write for ``file``. For standard output (``-``) it is a temporary file, which is copied there at the
    end, so that a failure leaves nothing half-written."""
    if file != "-":
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="offsetmgr-") as directory:
        path = Path(directory) / "standard-output"
        yield str(path)
        with path.open("rb") as written:
            shutil.copyfileobj(written, sys.stdout.buffer)
        sys.stdout.flush()


def _say_empty(store: OffsetStore, created: list[str]) -> None:
    """Reports the groups without offsets after an undo that deleted everything the edit had created; they may have
    existed, empty, before it."""
    from offsetmgr.groups.edits import groups_left_without_offsets

    if stay := groups_left_without_offsets(store, created):
        others = f" and {count_of(len(stay) - 1, 'other')}" if len(stay) > 1 else ""
        verb, them = ("stay", "them") if others else ("stays", "it")
        note(f"group {stay[0]!r}{others} {verb}, empty; offsetmgr groups delete --group NAME --execute removes {them}")


@app.command("import")
@connected
def import_offsets(
    connect: ConnectFlags,
    file: FileArgument,
    group: Groups = None,
    topic: Topics = None,
    file_format: FileFormat = None,
    accept_unterminated: AcceptUnterminated = False,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Load the offsets of a snapshot file into a store.

    A file of before-images undoes its edit: overwritten offsets are restored, created ones are deleted, and offsets
    that have moved since are rejected unless --allow-rewind. --group names the group for files that do not contain it.
    """
    from offsetmgr.cli.edit_command import Edit, checked_crossing, run_edit
    from offsetmgr.groups.before_images import holds_images, load_images
    from offsetmgr.groups.edits import propose_import, propose_undo
    from offsetmgr.groups.export import open_file, seekable
    from offsetmgr.groups.selection import TopicSelection, matching_groups
    from offsetmgr.groups.topic_matches import require_topics
    from offsetmgr.snapshots.registry import format_name

    topics = TopicSelection.parse(topic or [])
    store = connect.store()
    topics.within(store.capabilities.partitions)
    if file == "-" and file_format is None:
        format_name(file)  # raises for an unknown file name extension
    with seekable(file) as path:
        if holds_images(path):
            with closing(open_file(path, "avro")) as images_file:
                crossing = checked_crossing("offsets import", images_file, store, translate)
            edit = Edit(
                "offsets import undo",
                connect,
                store,
                connect.edited_directory(),
                execute=execute,
                yes=yes,
                output=output,
                image=before_image,
            )
            meant = set(matching_groups(group or [], (one.group for one in load_images(path))))
            images = (one for one in load_images(path) if one.group in meant)
            note(f"{file} holds before-images: taking that edit back")
            code = edit.run(
                require_topics(propose_undo(store, images, topics, force=allow_rewind, crossing=crossing), topics, file)
            )
            if edit.asked:
                _say_empty(store, [one.group for one in load_images(path) if one.group in meant and not one.before])
            run_edit(code)
            return
        single = group[0] if group and len(group) == 1 else None
        opened = open_file(path, file_format, single, accept_unterminated=accept_unterminated)
        with closing(opened) as snapshot:
            chosen = matching_groups(group or [], snapshot.groups())
            if not chosen:
                why = f"holds no group {', '.join(group)}" if group else "holds no groups"
                raise GroupNotFound(f"file {file}", why)
            edit = Edit(
                "offsets import",
                connect,
                store,
                connect.edited_directory(),
                execute=execute,
                yes=yes,
                output=output,
                image=before_image,
            )
            wanted = snapshot.read(set(chosen))
            crossing = checked_crossing("offsets import", snapshot, store, translate)
            proposals = propose_import(store, wanted, topics, allow_rewind=allow_rewind, crossing=crossing)
            run_edit(edit.run(require_topics(proposals, topics, file)))


@app.command("diff")
@connected
def diff(
    connect: ConnectFlags,
    source: Annotated[str, typer.Option("--from", metavar="URI", help="One store.", show_default=False)],
    target: Annotated[str, typer.Option("--to", metavar="URI", help="The other store.", show_default=False)],
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show the differences between two stores; the exit code is 1 on any difference. Without --group: all groups of
    both."""
    from offsetmgr.groups.diff import diff as differences
    from offsetmgr.groups.selection import TopicSelection, matching_groups
    from offsetmgr.groups.topic_matches import TopicMatches

    if group and all_groups:
        raise UsageError("which groups?", "both --group and --all-groups are given")
    topics = TopicSelection.parse(topic or [])
    left, right = connect.store(source), connect.store(target)
    topics.within(left.capabilities.partitions, right.capabilities.partitions)
    known = {*left.groups(), *right.groups()}
    for name in group or []:
        if not matching_groups([name], known):
            raise GroupNotFound(f"group {name!r}", "is in neither store")
    chosen = matching_groups(group or [], sorted(known))
    if not chosen:
        raise GroupNotFound(
            "nothing to compare", f"no groups in {left.uri} nor in {right.uri}", "check the addresses and the chroot"
        )
    errors, topic_matches = _Errors(), TopicMatches(topics)
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
    if count:
        raise typer.Exit(FAILED)
    note(f"no difference in {count_of(len(chosen), 'group')}")
