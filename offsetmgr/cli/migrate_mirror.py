"""``offsetmgr migrate mirror``: keeps a target in step with a source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from offsetmgr.cli import migrate_output
from offsetmgr.cli.connect_flags import ConnectFlags, command
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
from offsetmgr.cli.render import OutputFormat, rows_of, write_rows
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.errors import UsageError

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


class MirrorFlags(NamedTuple):
    """The options of a command that changes production, and saves before-images when it begins."""

    yes: Yes = False
    before_image: BeforeImage = None
    reason: Reason = None


@command(app, "mirror")
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
        float, seconds_option("--window", "Maximum time that --once watches live old consumers.")
    ] = 150.0,
    trust_zookeeper_only: Annotated[
        bool,
        flag(
            "--trust-zookeeper-only",
            "Accept groups with live old consumers without watching them. Use this only if these consumers "
            "commit only to ZooKeeper.",
        ),
    ] = False,
    flags: MirrorFlags = MirrorFlags(),
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
    from offsetmgr.app import migrate

    if if_ahead is AheadPolicy.REWIND:
        raise UsageError("--if-ahead rewind", "a mirror only moves offsets forward", "use: offsetmgr migrate plan")
    options = migrate.PlanOptions(if_ahead, False, tuple(topic or ()), groups.selection(), parse_renames(rename))
    shown = migrate_output.MirrorLine()
    settings = migrate.MirrorSettings(
        once,
        interval_ms,
        settle_ms,
        window_s,
        trust_zookeeper_only,
        translate,
        Path(flags.before_image) if flags.before_image else None,
        shown.show,
    )
    sides = connect.sides(configs)._replace(
        arguments=connect.repeated(command_config=configs.to_command_config)  # of the undo, an import
    )
    mirror = migrate.mirror(connect, from_, to, options, sides=sides, settings=settings, reason=flags.reason or "")
    shown.show(mirror.status(), last=True)
    bad = [mirrored for mirrored in mirror.groups.values() if not mirrored.succeeded]
    if bad or format is not OutputFormat.TABLE:
        columns = migrate_output.MIRROR_COLUMNS
        rows = rows_of(columns, bad or mirror.groups.values())
        write_rows(columns, ((*row[:-1], for_command_line(row[-1])) for row in rows), format)
    if mirror.interrupted:
        raise migrate.Interrupted("some offsets were not copied yet")
    fail_if(bad)
