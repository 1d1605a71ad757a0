"""``offsetmgr migrate switch``: changes the storage mode of a group while its members run."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, Interrupted
from offsetmgr.cli.options import BeforeImage, Execute, FormatOption, OneGroup, Reason, TranslateOption, Yes
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.core.errors import Conflict, UsageError
from offsetmgr.core.log_origin import Relation
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.before_images import default_image_path
from offsetmgr.groups.operation_log import OperationLog, OperationStart, user_name

if TYPE_CHECKING:
    from offsetmgr.core.commit_mode import CommitMode
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.before_images import BeforeImageFile
    from offsetmgr.groups.edit_plan import GroupEditPlan
    from offsetmgr.migration.live.live_migration import ImagesOf, LiveMigration
    from offsetmgr.migration.live.switch_evidence import SwitchEvidence, SwitchSnapshot
    from offsetmgr.stores.switched.nodes import FollowerState

STEP_TEXT: Final = {
    "announced": "recorded the switch; the members now stop committing",
    "acknowledged": "all members have stopped committing",
    "copied": "the store that is used next has all offsets",
    "compared": "compared both stores; no client has committed meanwhile",
    "changed": "the new mode is in effect",
    "followed": "read which members have acknowledged the new mode",
}

app = typer.Typer()

SESSION_TIMEOUT_MS: Final = 10_000
"""The ZooKeeper session timeout of the switch command. If the command is killed, the members return to the old mode
after this time."""
COLUMNS: Final = (
    Column("group"),
    Column("member"),
    Column("host"),
    Column("process", right=True),
    Column("epoch", right=True, optional=True),
    Column("stopped_at", time=True, optional=True, title="STOPPED"),
    Column("followed_at", time=True, optional=True, title="FOLLOWED"),
)


class Mode(StrEnum):
    """The values of ``--to``."""

    ZOOKEEPER = "zookeeper"
    DUAL = "dual"
    KAFKA = "kafka"


@app.command("switch")
@connected
def switch_command(
    connect: ConnectFlags,
    group: OneGroup,
    to: Annotated[Mode, typer.Option("--to", help="New storage mode of the group's offsets.")],
    declare: Annotated[
        bool,
        typer.Option(
            "--declare", help="Record --to as the initial mode, in which the members already commit; copy nothing."
        ),
    ] = False,
    ack_timeout_ms: Annotated[
        int,
        typer.Option(
            "--ack-timeout", metavar="MS", min=1, help="Maximum time until all members have stopped committing."
        ),
    ] = 30_000,
    stay: Annotated[
        bool,
        typer.Option(
            "--stay", help="After --ack-timeout, keep waiting until Ctrl-C instead of returning to the old mode."
        ),
    ] = False,
    translate: TranslateOption = None,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    reason: Reason = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Change where a group's offsets are stored while its members run: zookeeper, dual, kafka, and back.

    Use this only if all members follow the commit mode: consumers that use ZookeeperConsumer with offsets=switched, and
    programs that commit to a switched: store. During the switch, the members stop committing but keep consuming. The
    switch copies missing offsets to the store that is used next, and compares both stores. Then the members commit in
    the new mode. If the switch is killed, the group has either the old mode or the new one. Name both stores:
    --zookeeper and --bootstrap-server, or --store switched:NAME.
    """
    from offsetmgr.core.commit_mode import CommitMode
    from offsetmgr.migration.live.live_migration import LiveMigration, SwitchSides
    from offsetmgr.zookeeper.client.session import ZookeeperSession

    zookeeper, kafka = _stores(connect)
    connection = connect.resolved.connection
    mode = CommitMode(to.value)
    first, second = connect.store(zookeeper), connect.store(kafka)
    image = Path(before_image) if before_image else default_image_path("migrate switch")
    operation = OperationStart("migrate switch", (first.uri, second.uri), (group,), 1, 0, reason=reason or "")
    with ZookeeperSession(_connect_string(zookeeper), connection, session_timeout_ms=SESSION_TIMEOUT_MS) as session:
        switch = LiveMigration(
            session,
            group,
            SwitchSides(
                first,
                second,
                connect.lock_waiting(connect.cluster_at(_brokers(kafka), connection)),
                translate or _translate(connect),
            ),
            who=f"{user_name()} on {socket.gethostname()} (process {os.getpid()})",
            images_of=_image_files(group, image),
            on_step=lambda step: note(f"{group}: {STEP_TEXT[step]}"),
            on_wait=_waiting_notes(),
        )
        if switch.crossing.comparison.relation is not Relation.SAME:
            note(f"cluster {switch.crossing.text()}")
        if declare:
            _declare(switch, group, mode, operation, execute=execute, yes=yes)
            return
        snapshot = switch.inspect(mode)
        _show_before(snapshot, group, mode, format if not execute else OutputFormat.TABLE, quiet=execute)
        switch.check(snapshot, mode)
        change = f"{snapshot.state.storage.mode.value} -> {mode.value}"
        if not execute:
            note(f"dry run: would switch group {group} {change}; nothing was changed")
            note("hint: add --execute to do it")
            return
        confirm(f"switch group {group} {change}, with {count_of(len(snapshot.followers), 'member')}?", yes=yes)
        with stop_on_signal(
            "the switch returns to the old mode, unless it has printed that the new mode is in effect"
        ) as stop:
            undo = _undo(connect, (zookeeper, kafka), group, snapshot.state.storage.mode, translate)
            operation = replace(operation, changes=len(snapshot.copies), files=(str(image.absolute()),), undo=(undo,))
            evidence = _execute(switch, mode, operation, ack_timeout_ms / 1000, stay, stop)
    _show_after(evidence, format)
    if evidence.unacknowledged:
        raise typer.Exit(FAILED)


def _execute(
    switch: LiveMigration,
    mode: CommitMode,
    operation: OperationStart,
    wait_s: float,
    stay: bool,
    stop: Callable[[], bool],
) -> SwitchEvidence:
    """Executes the switch, which the operation log records. Raises `Interrupted` if the user stopped it."""
    try:
        with OperationLog().recorded(operation) as recorded:
            evidence = switch.execute(mode, wait_s=wait_s, stay=stay, stop=stop)
            recorded.written = len(evidence.copies)
            return evidence
    except Conflict as abandoned:
        if not stop():
            raise
        raise Interrupted(f"{abandoned.what} {abandoned.why}") from abandoned


def _undo(
    connect: ConnectFlags,
    stores: tuple[str, str],
    group: str,
    mode: CommitMode,
    translate: OffsetTranslation | None,
) -> str:
    """Returns the command line that switches the group back to ``mode``, without ``--execute``."""
    zookeeper, kafka = _connect_string(stores[0]), _brokers(stores[1])
    words = ["offsetmgr", "migrate", "switch", "--group", group, "--to", mode.value, "--zookeeper", zookeeper]
    words += ["--bootstrap-server", kafka]
    words += ["--translate", translate.value] if translate is not None else []
    return shlex.join((*words, *connect.repeated_options()))


def _stores(connect: ConnectFlags) -> tuple[str, str]:
    """Returns the URI of the ZooKeeper store and the URI of the Kafka store."""
    from offsetmgr.stores.pair_uri import inner_uris
    from offsetmgr.stores.uri import bootstrap_of, parse_uri, zookeeper_of

    store, connection = connect.resolved.store, connect.resolved.connection
    if store is not None and parse_uri(store).kind == "switched":
        return inner_uris(store, connection)
    found = zookeeper_of(store, connection) if store else None
    brokers = (bootstrap_of(store, connection) if store else None) or connect.resolved.bootstrap_server
    if found is None or brokers is None:
        raise UsageError(
            "migrate switch",
            "needs both stores",
            "add --zookeeper HOST:PORT/CHROOT and --bootstrap-server, or --store switched:NAME",
        )
    return f"zookeeper://{found}", f"kafka://{brokers}"


def _translate(connect: ConnectFlags) -> OffsetTranslation | None:
    """Returns the ``translate`` setting of a ``switched:`` store that --store names. The setting is in the URI of the
    store, or in the store's section of the config file."""
    from offsetmgr.stores.pair_uri import translate_of

    store = connect.resolved.store
    return None if store is None else translate_of(store, connect.resolved.connection)


def _connect_string(zookeeper: str) -> str:
    from offsetmgr.stores.uri import parse_uri

    parsed = parse_uri(zookeeper)
    return parsed.address + parsed.path


def _brokers(kafka: str) -> str:
    from offsetmgr.stores.uri import parse_uri

    return parse_uri(kafka).address


def _declare(
    switch: LiveMigration, group: str, mode: Any, operation: OperationStart, *, execute: bool, yes: bool
) -> None:
    switch.require_undeclared()
    if not execute:
        note(f"dry run: would declare that group {group} is in mode {mode.value}; nothing was changed")
        note("hint: add --execute to do it")
        return
    confirm(f"declare that the members of group {group} already commit in mode {mode.value}?", yes=yes)
    with OperationLog().recorded(replace(operation, name="migrate switch --declare", changes=1)) as recorded:
        switch.declare(mode)
        recorded.written = 1
    note(f"group {group}: declared mode {mode.value}; no offsets were copied")


def _image_files(group: str, path: Path) -> ImagesOf:
    """Returns a function that creates the file of before-images for the offsets that the switch copies to a store. The
    editing commands create the same kind of file."""
    from offsetmgr.groups.before_images import image_file

    def images_of(store: OffsetStore, plan: GroupEditPlan) -> BeforeImageFile:
        label = f"{group}: copies {count_of(len(plan.changes), 'offset')} into {store.uri}; before-images"
        return image_file(path, store, [plan], lambda path: note(f"{label}: {path}"))

    return images_of


def _waiting_notes() -> Any:
    printed: set[str] = set()

    def waiting(late: list[FollowerState]) -> None:
        for follower in late:
            if follower.name not in printed:
                printed.add(follower.name)
                note(f"waiting for {follower}")

    return waiting


def _show_before(snapshot: SwitchSnapshot, group: str, to: Any, format: OutputFormat, *, quiet: bool) -> None:
    storage = snapshot.state.storage
    note(
        f"group {group} is in mode {storage.mode.value} (epoch {storage.epoch}, set by {storage.who}); "
        f"new mode: {to.value}"
    )
    if not quiet:
        rows = [(group, f.name, f.node.host, f.node.process, f.node.epoch, None, None) for f in snapshot.followers]
        write_rows(COLUMNS, rows, format)
    if not snapshot.followers:
        note("no live member follows the mode")
    for tp, change in snapshot.copies.items():
        before = getattr(change.expected, "offset", "no offset")
        note(f"would copy {tp}: {before} -> {change.after.offset if change.after else None}")


def _show_after(evidence: SwitchEvidence, format: OutputFormat) -> None:
    rows = [
        (
            evidence.group,
            m.name,
            m.host,
            m.process,
            None if m.followed_ms is None else evidence.epoch,
            m.stopped_ms,
            m.followed_ms,
        )
        for m in evidence.members
    ]
    write_rows(COLUMNS, rows, format)
    held = (evidence.changed_ms - evidence.began_ms) / 1000
    note(
        f"switched group {evidence.group} {evidence.old_mode.value} -> {evidence.to.value}, epoch {evidence.epoch}: "
        f"{count_of(len(evidence.members), 'member')} had stopped, {count_of(len(evidence.copies), 'offset')} copied, "
        f"{count_of(evidence.compared, 'partition')} compared; commits waited {held:.1f} s"
    )
    for member in evidence.unacknowledged:
        note(
            f"has not acknowledged the new mode yet (and commits nothing in the old one): {member.name} on "
            f"{member.host}"
        )
