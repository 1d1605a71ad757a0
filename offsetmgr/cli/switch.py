"""``offsetmgr migrate switch``: changes the storage mode of a group while its members run."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.confirm import confirm
from offsetmgr.cli.errors import FAILED, Interrupted
from offsetmgr.cli.former_locks import patient_cluster
from offsetmgr.cli.options import BeforeImage, ConnectFlags, Execute, Format, OneGroup, TranslateOption, Yes, connected
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.stop_signals import stopping
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import Conflict, UsageError
from offsetmgr.core.log_origin import Relation
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.log_origin import Translate
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.core.offset_store import Change, OffsetStore
    from offsetmgr.migration.live.live_migration import LiveMigration, Record
    from offsetmgr.migration.live.switch_evidence import SwitchEvidence, SwitchSnapshot
    from offsetmgr.stores.switched.nodes import FollowerState

SAID: Final = {
    "announced": "its members are asked to stop committing",
    "acknowledged": "all of them have stopped",
    "copied": "the store that is kept has been looked after",
    "compared": "both stores are compared, and no client has committed",
    "changed": "the new mode holds",
    "followed": "looked for members that have acknowledged it",
}

app = typer.Typer()

SESSION_TIMEOUT_MS: Final = 10_000
"""Session timeout of the switch: this long after its end, the members of a killed switch return to the old mode."""
COLUMNS: Final = (
    Column("group"),
    Column("member"),
    Column("host"),
    Column("process", right=True),
    Column("epoch", right=True, optional=True),
    Column("held_at", time=True, optional=True, title="STOPPED"),
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
        bool, typer.Option("--declare", help="Set the initial mode (where members commit today).")
    ] = False,
    ack_timeout: Annotated[
        int,
        typer.Option("--ack-timeout", metavar="MS", min=1, help="How long to wait for all members to stop committing."),
    ] = 30_000,
    stay: Annotated[
        bool, typer.Option("--stay", help="Go on waiting after that, until Ctrl-C, instead of going back.")
    ] = False,
    translate: TranslateOption = None,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    format: Format = OutputFormat.TABLE,
) -> None:
    """Change where a group's offsets are stored while its members run: zookeeper, dual, kafka, and back.

    For members that follow the mode (offsets=switched of ZookeeperConsumer, and every program that commits to a
    switched: store). They stop committing, the switch copies missing offsets to the store that stays, compares both
    stores, and the members continue in the new mode; they keep consuming meanwhile. If the switch is killed, either
    nothing has changed or everything. Name both stores: --zookeeper and --bootstrap-server, or --store switched:NAME.
    """
    from offsetmgr.core.commit_mode import CommitMode
    from offsetmgr.migration.live.live_migration import LiveMigration, SwitchSides
    from offsetmgr.zookeeper.client.session import ZookeeperSession

    zookeeper, kafka = _stores(connect)
    connection = connect.resolved.connection
    mode = CommitMode(to.value)
    first, second = connect.store(zookeeper), connect.store(kafka)
    with ZookeeperSession(_connect_string(zookeeper), connection, session_timeout_ms=SESSION_TIMEOUT_MS) as session:
        switch = LiveMigration(
            session,
            group,
            SwitchSides(
                first,
                second,
                patient_cluster(connect.cluster_at(_brokers(kafka), connection)),
                translate or _translate(connect),
            ),
            who=f"{getpass.getuser()} on {socket.gethostname()} (process {os.getpid()})",
            record=_recorder(group, before_image),
            on_step=lambda step: note(f"{group}: {SAID[step]}"),
            on_wait=_say_waiting(),
        )
        if switch.crossing.compared.relation is not Relation.SAME:
            note(f"numbers {switch.crossing.text()}")
        if declare:
            _declare(switch, group, mode, execute=execute, yes=yes)
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
        with stopping("the switch goes back to the old mode, unless it says that the new one holds") as stop:
            try:
                evidence = switch.execute(mode, wait_s=ack_timeout / 1000, stay=stay, stop=stop)
            except Conflict as given_up:
                if not stop():
                    raise
                raise Interrupted(f"{given_up.what} {given_up.why}") from given_up
    _show_after(evidence, format)
    if evidence.unacknowledged:
        raise typer.Exit(FAILED)


def _stores(connect: ConnectFlags) -> tuple[str, str]:
    """The URIs of the ZooKeeper and of the Kafka side."""
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


def _translate(connect: ConnectFlags) -> Translate | None:
    """The value in the URI of --store switched:, or in its section of the config file."""
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


def _declare(switch: LiveMigration, group: str, mode: Any, *, execute: bool, yes: bool) -> None:
    switch.require_undeclared()
    if not execute:
        note(f"dry run: would say that the offsets of group {group} are in mode {mode.value}; nothing was changed")
        note("hint: add --execute to do it")
        return
    confirm(f"say that the members of group {group} commit in mode {mode.value} already?", yes=yes)
    switch.declare(mode)
    note(f"group {group}: mode {mode.value}, because you say so; nothing was moved")


def _recorder(group: str, path: str | None) -> Record:
    """Records before-images, as the editing commands do."""
    from offsetmgr.config.connection import state_directory
    from offsetmgr.groups.before_images import header_for, new_path, write_images
    from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange

    def record(store: OffsetStore, changes: Mapping[TopicPartition, Change]) -> None:
        now_ms = SystemClock().now_ms()
        file = Path(path) if path else new_path(state_directory() / "before-images", "migrate switch", now_ms)
        proposed = tuple(
            PlannedChange(tp, change.expected, change.after)
            for tp, change in sorted(changes.items())
            if change.expected is not None
        )
        with EditPlan.of([GroupEditPlan(group, proposed)]) as proposal:
            write_images(file, proposal, header_for(store))
        note(f"{group}: copies {count_of(len(proposed), 'offset')} into {store.uri}; before-images: {file}")

    return record


def _say_waiting() -> Any:
    said: set[str] = set()

    def waiting(late: list[FollowerState]) -> None:
        for follower in late:
            if follower.name not in said:
                said.add(follower.name)
                note(f"waiting for {follower}")

    return waiting


def _show_before(snapshot: SwitchSnapshot, group: str, to: Any, format: OutputFormat, *, quiet: bool) -> None:
    storage = snapshot.state.storage
    note(f"group {group}: {storage.mode.value}, epoch {storage.epoch}, by {storage.who}; to {to.value}")
    if not quiet:
        rows = [(group, f.name, f.node.host, f.node.process, f.node.epoch, None, None) for f in snapshot.followers]
        write_rows(COLUMNS, rows, format)
    if not snapshot.followers:
        note("no member follows it now")
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
        f"switched group {evidence.group} {evidence.start.value} -> {evidence.to.value}, epoch {evidence.epoch}: seen, "
        f"{count_of(len(evidence.members), 'member')} had stopped, {count_of(len(evidence.copies), 'offset')} copied, "
        f"{count_of(evidence.compared, 'partition')} compared; commits waited {held:.1f} s"
    )
    for member in evidence.unacknowledged:
        note(
            f"has not acknowledged the new mode yet (and commits nothing in the old one): {member.name} on "
            f"{member.host}"
        )
