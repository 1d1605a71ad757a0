"""``offsetmgr migrate mirror``: keeps a target in step with a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.app.migration import applicable_options
from offsetmgr.app.ui import Interrupted
from offsetmgr.cli import migrate_output
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.options import (
    BeforeImage,
    FormatOption,
    GroupFlags,
    Reason,
    Rename,
    SideConfigs,
    SourceStore,
    TargetStore,
    TopicsOption,
    TranslateOption,
    Yes,
    flag,
    opt,
    seconds_option,
)
from offsetmgr.cli.render import OutputFormat, note, write_rows
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.cli.terminal import confirm
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import UsageError
from offsetmgr.core.offset_store import PartitionKinds
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.before_images import default_image_path
from offsetmgr.groups.operation_log import OperationLog
from offsetmgr.groups.saved_edit import EditOrigin
from offsetmgr.groups.topic_matches import TopicMatches
from offsetmgr.migration.plan import AheadPolicy, PlanOptions
from offsetmgr.migration.planner import Planner

if TYPE_CHECKING:
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.operation_log import OperationStart
    from offsetmgr.migration.mirror import Mirror
    from offsetmgr.migration.mirror_group import GroupMirror
    from offsetmgr.migration.mirror_images import MirrorImages
    from offsetmgr.migration.plan import PlanHeader

app = typer.Typer()

IfAhead = Annotated[
    AheadPolicy | None,
    opt(
        "--if-ahead",
        None,
        "For targets that are ahead. Default: keep those that were written last, and refuse the others.",
    ),
]


def parse_renames(pairs: list[str] | None) -> dict[str, str]:
    renames: dict[str, str] = {}
    for pair in pairs or []:
        old, equals, new = pair.partition("=")
        if not (equals and new):  # the empty group id is valid in Kafka
            raise UsageError(f"--rename {pair!r}", "must be OLD=NEW")
        if old in renames:
            raise UsageError(f"--rename {pair!r}", f"{old} is renamed twice")
        renames[old] = new
    return renames


@app.command("mirror")
@connected
def mirror_command(
    connect: ConnectFlags,
    from_: SourceStore,
    to: TargetStore,
    groups: GroupFlags,
    topic: TopicsOption = None,
    rename: Rename = None,
    translate: TranslateOption = None,
    if_ahead: IfAhead = None,
    once: Annotated[bool, flag("--once", "End as soon as nothing is left to copy.")] = False,
    interval_ms: Annotated[
        int, opt("--interval", "MS", "Polling interval of a source without watches.", min=50)
    ] = 1000,
    settle_ms: Annotated[
        int,
        opt(
            "--settle",
            "MS",
            "Before the first copy to a Kafka group: how long to watch the group for commits of other clients.",
            min=0,
        ),
    ] = 2000,
    window_s: Annotated[
        float,
        seconds_option("--window", "Maximum time that --once watches live old consumers."),
    ] = 150.0,
    trust_zookeeper_only: Annotated[
        bool,
        flag(
            "--trust-zookeeper-only",
            "Accept groups with live old consumers without watching them. Use this only if these consumers "
            "commit only to ZooKeeper.",
        ),
    ] = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    reason: Reason = None,
    format: FormatOption = OutputFormat.TABLE,
    *,
    configs: SideConfigs,
) -> None:
    """Copy new offsets from a source to a target, forward only, until Ctrl-C (or, with --once, until nothing is left to
    copy).

    This is for consumers that cannot commit to both stores. On Kafka 0.9 and later, the mirror holds a lock on each
    group of the target, so no other client can commit to the group. If a consumer starts with the group, it takes the
    group over, and the mirror of that group ends. Kafka 0.8.2 has no group lock: there the mirror reads and compares
    just before each write, and reads again after it. While the mirror holds a group, a consumer that commits to both
    stores could not commit to Kafka. Therefore the mirror accepts a group with live old consumers only after it has
    seen each consumer that owns partitions commit only to ZooKeeper.
    """
    from offsetmgr.migration.mirror import Mirror
    from offsetmgr.migration.mirror_images import MirrorImages

    if if_ahead is AheadPolicy.REWIND:
        raise UsageError("--if-ahead rewind", "a mirror only moves offsets forward", "use: offsetmgr migrate plan")
    options = PlanOptions(if_ahead, False, tuple(topic or ()), groups.selection(), parse_renames(rename))
    sides = SourceAndTarget(connect, from_, to, *connect.of_sides(*configs))
    options = applicable_options(sides, options)
    source, target = sides.source, sides.target
    _require_equal_layouts(source, target)
    planner = Planner(source, target, options, SystemClock(), translate=translate)
    header = planner.header()
    names = planner.selected_groups()
    _require_topics(source, options, names)
    refresh_s = _show_plan(sides, header, translate)
    note(f"mirrors {count_of(len(names), 'group')}, forward only: {source.uri} -> {target.uri}; Ctrl-C ends it")
    confirm(f"copy to {target.uri} until stopped?", yes=yes)
    path = Path(before_image) if before_image else default_image_path("migrate mirror")
    images = MirrorImages(source, target, options, path, planner.crossing, lambda path: note(f"before-images: {path}"))
    origin = EditOrigin(
        "migrate mirror", reason or "", connect.repeated_options(command_config=configs.to_command_config)
    )
    with (
        stop_on_signal("the mirror ends after this round") as stop,
        sides.notifier(options, interval_ms) as notifier,
        sides.legacy_groups() as legacy_groups,
    ):
        shown = migrate_output.MirrorLine()
        mirror = Mirror(
            source,
            target,
            options,
            notifier,
            SystemClock(),
            stop,
            shown.show,
            interval_ms / 1000 if once else 10.0,
            settle_ms / 1000,
            None if trust_zookeeper_only else legacy_groups,
            window_s,
            refresh_s,
            planner.crossing,
            partial(_prepare, images, sides, options),
        )
        with _recorded(mirror, images.operation(names, origin)):
            status = mirror.run(once=once)
    shown.show(status, last=True)
    _show_result(mirror, format)


def _prepare(images: MirrorImages, sides: SourceAndTarget, options: PlanOptions, new: Sequence[GroupMirror]) -> None:
    """Determines the last writers of new groups, and saves their before-images."""
    from offsetmgr.migration.copied_offsets import last_writes

    writes = last_writes(sides.source, sides.target, window_s=0, selects=options.selects)
    for mirrored, pair in zip(new, writes.find_of_groups([(m.group, m.target_group) for m in new]), strict=True):
        mirrored.writers, mirrored.first_offsets = pair.writers, pair.source.offsets
        mirrored.unread_partitions = frozenset({**pair.source.errors, **pair.target.errors})
        mirrored.unread = pair.source.error or pair.target.error or pair.target.hidden
        if mirrored.unread is not None:
            mirrored.fail(mirrored.unread, lag_unknown=True)
    images.save([mirrored for mirrored in new if mirrored.unread is None])


@contextmanager
def _recorded(mirror: Mirror, operation: OperationStart) -> Iterator[None]:
    """Records the mirror in the operation log."""
    with OperationLog().recorded(operation) as recorded:
        try:
            yield
        finally:
            recorded.written = mirror.status().copied
            recorded.failed = sum(not one.succeeded for one in mirror.groups.values())
            recorded.interrupted = mirror.interrupted


def _show_result(mirror: Mirror, format: OutputFormat) -> None:
    """Prints the groups that are not in step, or all groups for programs. Raises `Exit` with code 1 if there are any,
    and `Interrupted` if the user stopped a run with --once."""
    bad = [mirrored for mirrored in mirror.groups.values() if not mirrored.succeeded]
    if bad or format is not OutputFormat.TABLE:
        write_rows(migrate_output.MIRROR_COLUMNS, migrate_output.mirror_rows(bad or mirror.groups.values()), format)
    if mirror.interrupted:
        raise Interrupted("some offsets were not copied yet")
    fail_if(bad)


def _require_topics(source: OffsetStore, options: PlanOptions, names: list[str]) -> None:
    """Raises an error if a topic of ``options`` matches no offset of the groups."""
    if options.topics:
        topic_matches = TopicMatches(options.selection.within(source.capabilities.partitions))
        for found in source.scan(names):
            topic_matches.record_group(found)
        topic_matches.require_all(source.uri)


def _require_equal_layouts(source: OffsetStore, target: OffsetStore) -> None:
    """Raises `UsageError` if one of the two stores contains byte positions of Kafka 0.7 and the other one contains
    offsets."""
    if (PartitionKinds.OF_BROKERS in {one.capabilities.partitions for one in (source, target)}) and (
        source.capabilities.partitions is not target.capabilities.partitions
    ):
        raise UsageError(
            "migrate mirror",
            "one side holds byte positions of Kafka 0.7 and the other side offsets, which cannot be compared",
            "a plan can translate them once: migrate plan --partition-map",
        )


def _show_plan(sides: SourceAndTarget, header: PlanHeader, translate: OffsetTranslation | None) -> float:
    """Prints whether source and target belong to the same Kafka cluster, the weaknesses of the target, and when
    mirrored offsets expire.

    Returns the interval in seconds at which the mirror commits its offsets again.
    """
    if header.compared is not None:
        note(f"cluster {for_command_line(header.compared.text(translate))}")
    note(f"topics  recreated after the commit: {header.recreation}")
    migrate_output.show_weaknesses(header.weaknesses)
    refresh_s = 3600.0
    if (retention := sides.retention_ms()) is not None:
        refresh_s = retention / 4000
        migrate_output.show_mirror_expiry(retention, refresh_s)
    return refresh_s
