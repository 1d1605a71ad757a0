"""``offsetmgr offsets export|import``: writes and loads snapshot files."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from offsetmgr.cli.confirm import EditFlags
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import report_and_exit_code
from offsetmgr.cli.followup_commands import delete_groups_command
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import (
    AllowRewind,
    FormatOption,
    GroupFilter,
    GroupFlags,
    Overwrite,
    RunningFlag,
    TopicsOption,
    TranslateOption,
    UnterminatedOption,
    WaitEmpty,
    flag,
    opt,
    running_edit,
)
from offsetmgr.cli.read_error_report import note_unrecognised
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import GroupOffsets, OffsetStore

app = typer.Typer()

EXPORTED: Final = (Column("file"), Column("groups", right=True), Column("offsets", right=True))
"""The rows of an export of several clusters."""

FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help=".avro (lossless), .csv, .zk or .json; - with --as: standard input or output.",
    ),
]
FileFormat = Annotated[
    str | None,
    opt("--as", "FORMAT", "avro|csv|zk|json|spark, if the file name extension does not show it."),
]


@app.command("export")
@connected
@many_clusters
def export(
    connect: ConnectFlags,
    file: FileArgument,
    groups: GroupFlags,
    topic: TopicsOption = None,
    file_format: FileFormat = None,
    overwrite: Overwrite = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write committed offsets to a snapshot file.

    If --context selects several clusters, each gets a file of its own: backup-CONTEXT.avro for backup.avro.
    """
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.core.version import __version__
    from offsetmgr.groups.before_images import header_for
    from offsetmgr.groups.export import export_groups
    from offsetmgr.groups.scan import choose_groups
    from offsetmgr.snapshots.registry import format_name
    from offsetmgr.stores.snapshot import write_snapshot

    selection = groups.selection()
    topics = TopicSelection.parse(topic or [])
    name = format_name(file, file_format)
    if connect.cluster_name:
        connect.reject_for_many({"FILE -": file == "-"}, "each cluster needs a file of its own")
        path_of_all = Path(file)
        file = str(path_of_all.with_stem(f"{path_of_all.stem}-{connect.cluster_name}"))
    store = connect.store_of(selection)
    topics.within(store.capabilities.partitions)
    chosen = choose_groups(store, selection)
    ids = {name: topic_id for name, topic_id in store.topic_ids().items() if topics.matches_topic(name)}
    header = header_for(store, f"offsetmgr {__version__}", ids)
    failed: list[OffsetMgrError] = []

    def noted(found: GroupOffsets) -> GroupOffsets:
        note_unrecognised(found.unrecognised)
        return found

    exported = export_groups(store, chosen, topics, strict=not groups.all_groups)
    with _written_to(file) as path:
        done = write_snapshot(
            path,
            header,
            progress(map(noted, exported), "exporting", len(chosen)),
            format=name,
            group=chosen[0] if name == "spark" and len(chosen) == 1 else None,
            overwrite=overwrite,
            keep_errors=True,
            on_error=failed.append,
        )
    if connect.cluster_name:
        write_rows(EXPORTED, [(file, done.groups, done.offsets)], output)
    where = "standard output" if file == "-" else file
    note(f"exported {count_of(done.offsets, 'offset')} of {count_of(done.groups, 'group')} to {where}")
    for lost in done.lost:
        note(f"not in the file, because its format cannot hold it: {lost}")
    if failed:
        records = "records what could not be read" if done.errors else "does not record which groups it lacks"
        note(f"warning: {where} is incomplete, and {records}")
        raise typer.Exit(report_and_exit_code(failed))


@contextmanager
def _written_to(file: str) -> Iterator[str]:
    """Yields the path to which the snapshot is written. If ``file`` is ``-``, yields the path of a temporary file, and
    copies this file to standard output when the snapshot is complete. Therefore a failure leaves no partial output."""
    if file != "-":
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="offsetmgr-") as directory:
        path = Path(directory) / "standard-output"
        yield str(path)
        with path.open("rb") as written:
            shutil.copyfileobj(written, sys.stdout.buffer)
        sys.stdout.flush()


def _note_empty_groups(store: OffsetStore, created: list[str], options: Sequence[str]) -> None:
    """Prints the groups that exist without offsets after an edit was undone.

    The undo deleted the offsets that the edit had created in these groups. The groups may have existed without offsets
    before the edit.
    """
    from offsetmgr.groups.edits import groups_left_without_offsets

    if stay := groups_left_without_offsets(store, created):
        others = f" and {count_of(len(stay) - 1, 'other')}" if len(stay) > 1 else ""
        note(f"group {stay[0]!r}{others} {'stay' if others else 'stays'}, empty")
        note(f"to remove: {delete_groups_command(store.uri, stay, options)}")


@app.command("import")
@connected
def import_offsets(
    connect: ConnectFlags,
    file: FileArgument,
    groups: GroupFilter,
    topic: TopicsOption = None,
    file_format: FileFormat = None,
    unterminated: UnterminatedOption = False,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    unchecked: Annotated[
        bool, flag("--unchecked", "Write the offsets without a check against topics and logs.")
    ] = False,
    running: RunningFlag = False,
    wait_empty_s: WaitEmpty = 0.0,
    *,
    flags: EditFlags,
) -> None:
    """Load the offsets of a snapshot file into a store.

    If brokers are known, offsets are checked as by offsets reset: an offset outside its log is clamped, and one of a
    missing topic is rejected. A file of before-images undoes its edit: overwritten offsets are restored, created ones
    are deleted, and offsets that have moved since are rejected unless --allow-rewind. An undo restores offsets exactly:
    an offset outside its log gets a note and a warning, and is not clamped. --group names the group for files that do
    not contain it.
    """
    from offsetmgr.app.edit_targets import log_checks
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.cli.log_notes import noted_outside_logs
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.before_images import holds_images, load_images
    from offsetmgr.groups.edits import plan_import, plan_undo
    from offsetmgr.groups.export import name_of, open_file, seekable
    from offsetmgr.groups.topic_matches import require_topics
    from offsetmgr.snapshots.registry import format_name

    topics, selection = TopicSelection.parse(topic or []), groups.selection()
    how = running_edit(running, wait_empty_s)
    store = connect.store()
    topics.within(store.capabilities.partitions)
    if file == "-" and file_format is None:
        format_name(file)  # raises an error, because the format of standard input is unknown
    with seekable(file) as path:
        if holds_images(path):
            with closing(open_file(path, "avro")) as images_file:
                crossing = cross_cluster_check("offsets import", images_file, store, translate)
            undone = selection.within((one.group for one in load_images(path)), f"file {file}")
            connect.wait_until_empty(undone, wait_empty_s)
            edit = connect.edit_of("offsets import undo", flags, store, how)
            selected = set(undone)
            images = (one for one in load_images(path) if one.group in selected)
            note(f"{file} holds before-images: undoing that edit")
            proposals = plan_undo(store, images, topics, force=allow_rewind, crossing=crossing)
            proposals = proposals if unchecked else noted_outside_logs(connect, edit, proposals, "restored")
            code = edit.run(require_topics(proposals, topics, file))
            if edit.confirmed:
                created = (one.group for one in load_images(path) if not (one.before or one.nodes))
                _note_empty_groups(store, [one for one in created if one in selected], connect.undo_options(store))
            exit_edit(code)
            return
        opened = open_file(
            path, file_format, selection.single, accept_unterminated=unterminated, shown=name_of(file), note=note
        )
        with closing(opened) as snapshot:
            where = name_of(file) if file == "-" else f"file {file}"
            chosen = selection.within(snapshot.groups(), where)
            if not chosen:
                raise GroupNotFound(where, "holds no groups")
            connect.wait_until_empty(chosen, wait_empty_s)
            edit = connect.edit_of("offsets import", flags, store, how)
            entries = snapshot.read(set(chosen))
            crossing = cross_cluster_check("offsets import", snapshot, store, translate)
            checks = None if unchecked else log_checks(connect, store, note)
            proposals = plan_import(store, entries, topics, allow_rewind=allow_rewind, crossing=crossing, checks=checks)
            exit_edit(edit.run(require_topics(proposals, topics, file)))
