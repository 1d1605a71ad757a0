"""``offsetmgr manager``: runs the offset manager as a server, and shows its state."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, exit_with, fail_if
from offsetmgr.cli.many_clusters import many_clusters, one_cluster
from offsetmgr.cli.options import FormatOption, TranslateOption, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.stop_signals import print_hangups
from offsetmgr.cli.watch import Changes, Count, Watch, WatchCommand, watch_command
from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.kafka.client.managers import ManagerReport

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The offset manager: run it, show its state, print a shard's offsets.",
)


class RecordFormatName(StrEnum):
    """The format of records in the offsets topic."""

    AVRO = "avro"
    KAFKA = "kafka"


class LogFormat(StrEnum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"


@app.command("serve")
@connected
@one_cluster("a manager serves one cluster")
def serve(
    connect: ConnectFlags,
    listen: Annotated[str, opt("--listen", "HOST:PORT", "The address to listen on.")],
    advertise: Annotated[
        str | None,
        opt("--advertise", "HOST:PORT", "The address that clients receive, if it differs from --listen."),
    ] = None,
    relay: Annotated[
        bool,
        flag("--relay", "Relay requests to the brokers: clients bootstrap from here, and data passes through."),
    ] = False,
    relay_ports: Annotated[
        str | None,
        opt("--relay-ports", "FIRST-LAST", "One port for each broker (default: the ports after that of --listen)."),
    ] = None,
    translate: TranslateOption = None,
    offsets_topic: Annotated[
        str, opt("--offsets-topic", "NAME", "The topic that stores the offsets.")
    ] = "__offsetmgr_offsets",
    partitions: Annotated[
        int, opt("--partitions", None, "Number of shards of a new topic; it must match an existing one.", min=1)
    ] = 50,
    replication_factor: Annotated[
        int | None,
        opt("--replication-factor", None, "For a new topic (default: that of the brokers' own offsets topic).", min=1),
    ] = None,
    min_insync_replicas: Annotated[
        int | None,
        opt("--min-insync-replicas", None, "For a new topic (default: 2 with at least 3 replicas, else 1).", min=1),
    ] = None,
    record_format: Annotated[
        RecordFormatName,
        opt("--record-format", None, "avro: offsetmgr's own; kafka: as in __consumer_offsets."),
    ] = RecordFormatName.AVRO,
    retention_minutes: Annotated[
        int,
        opt("--retention-minutes", None, "How long offsets of a group without members are kept.", min=1),
    ] = 10_080,
    commit_timeout_ms: Annotated[
        int,
        opt("--commit-timeout", "MS", "Maximum time until a commit gets its response.", min=100),
    ] = 5_000,
    session_timeout_ms: Annotated[
        int,
        opt(
            "--session-timeout",
            "MS",
            "Time after which the other managers replace one that is frozen or cut off.",
            min=1_000,
        ),
    ] = 10_000,
    standby: Annotated[
        bool,
        flag("--standby/--no-standby", "Follow the shards of other managers, to take them over quickly."),
    ] = True,
    metrics_listen: Annotated[
        str | None,
        opt("--metrics-listen", "HOST:PORT", "HTTP: /metrics (Prometheus), /health, /ready."),
    ] = None,
    tls_certificate: Annotated[
        str | None,
        opt("--tls-certificate", "FILE", "PEM certificate chain; clients must then use TLS."),
    ] = None,
    tls_key: Annotated[
        str | None,
        opt("--tls-key", "FILE", "PEM private key of the certificate."),
    ] = None,
    credentials: Annotated[
        str | None,
        opt(
            "--credentials",
            "FILE",
            "File of the users that may log in (SASL PLAIN, SCRAM); without it clients need no login.",
        ),
    ] = None,
    rules: Annotated[
        str | None,
        opt(
            "--rules",
            "FILE",
            "File of rules for groups, topics and admin APIs; without it every client may do everything.",
        ),
    ] = None,
    max_request_bytes: Annotated[int, opt("--max-request-bytes", None, "Maximum size of a request.", min=1_024)] = (
        8 * 1024 * 1024
    ),
    max_connections: Annotated[
        int, opt("--max-connections", None, "Maximum number of connections of all clients.", min=1)
    ] = 4_000,
    max_login_bytes: Annotated[
        int, opt("--max-login-bytes", None, "Maximum size of a request before the SASL login.", min=1_024)
    ] = 64 * 1024,
    max_api_versions_bytes: Annotated[
        int, opt("--max-api-versions-bytes", None, "Maximum size of an ApiVersions request.", min=256)
    ] = 8 * 1024,
    max_names: Annotated[
        int,
        opt(
            "--max-names",
            None,
            "Maximum number of groups in one FindCoordinator, DescribeGroups or DeleteGroups request.",
            min=1,
        ),
    ] = 50_000,
    max_partitions: Annotated[
        int,
        opt(
            "--max-partitions",
            None,
            "Maximum number of partitions of a group in one OffsetCommit, OffsetFetch or OffsetDelete.",
            min=1,
        ),
    ] = 15_000,
    max_answer_bytes: Annotated[
        int,
        opt("--max-answer-bytes", None, "Maximum size of the responses that a client has not read yet.", min=65_536),
    ] = 64 * 1024 * 1024,
    max_name_bytes: Annotated[
        int,
        opt("--max-name-bytes", None, "Maximum length of a group's name, and of other strings in a request.", min=249),
    ] = 32_767,
    max_topic_bytes: Annotated[
        int, opt("--max-topic-bytes", None, "Maximum length of a topic's name; brokers allow 249.", min=1)
    ] = 249,
    max_tags: Annotated[
        int, opt("--max-tags", None, "Maximum number of tagged fields of a structure in a request.", min=1)
    ] = 64,
    idle_timeout_ms: Annotated[
        int,
        opt("--idle-timeout", "MS", "Time after which an idle connection is closed.", min=1_000),
    ] = 600_000,
    log_format: Annotated[LogFormat, opt("--log-format", None, "How events are logged.")] = LogFormat.TEXT,
) -> None:
    """Run a manager until Ctrl-C or SIGTERM. The manager then hands its shards over to other managers and exits.

    By default, offsets are stored in a topic, which all managers of that topic share. With --store URI, the manager
    serves that store instead: zookeeper: for modern clients, or dual: for dual commit. The store's offsets must belong
    to the Kafka cluster of --bootstrap-server.
    """
    print_hangups()
    from offsetmgr.server.logs import start_logging
    from offsetmgr.server.network.limits import ServerLimits
    from offsetmgr.server.process.config import ServeOptions, address, port_range
    from offsetmgr.server.process.manager_process import run_manager

    bootstrap = connect.resolved.bootstrap_server
    if translate is not None and connect.flags.store is None:
        raise UsageError("--translate", "works only with --store: a manager's topic is in the cluster of its clients")
    if bootstrap is None:
        raise UsageError("manager serve", "no brokers are known", "add --bootstrap-server HOST:PORT")
    _require_paired_options(tls_certificate, tls_key, relay_ports, relay=relay)
    listen_address, advertised = _addresses(listen, advertise)
    options = ServeOptions(
        bootstrap=bootstrap,
        connection=connect.resolved.connection,
        listen=listen_address,
        advertise=advertised,
        relay=relay,
        relay_ports=port_range(relay_ports) if relay_ports else None,
        # Only the flag --store selects a store. Otherwise the manager could accidentally serve a store from a context,
        # or the offsets in the brokers.
        store=connect.flags.store,
        translate=translate,
        topic=offsets_topic,
        partitions=partitions,
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
        record_format=record_format.value,
        retention_ms=retention_minutes * 60_000,
        commit_timeout_s=commit_timeout_ms / 1000,
        session_timeout_s=session_timeout_ms / 1000,
        standby=standby,
        metrics_listen=address(metrics_listen, "--metrics-listen") if metrics_listen else None,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        credentials=credentials,
        rules=rules,
        limits=ServerLimits(
            request_bytes=max_request_bytes,
            unauthenticated_bytes=max_login_bytes,
            api_versions_bytes=max_api_versions_bytes,
            names=max_names,
            answer_bytes=max_answer_bytes,
            partitions=max_partitions,
            name_bytes=max_name_bytes,
            topic_bytes=max_topic_bytes,
            tags=max_tags,
            connections=max_connections,
            idle_seconds=idle_timeout_ms / 1000,
        ),
    )
    start_logging(sys.stderr, log_format.value)
    run_manager(options)


def _require_paired_options(certificate: str | None, key: str | None, relay_ports: str | None, *, relay: bool) -> None:
    """Raises `UsageError` if an option is given without another option that it needs."""
    if (certificate is None) != (key is None):
        raise UsageError("manager serve", "--tls-certificate and --tls-key go together", "add the other one")
    if relay_ports is not None and not relay:
        raise UsageError("--relay-ports", "works only with --relay", "add --relay")


def _addresses(listen: str, advertise: str | None) -> tuple[tuple[str, int], tuple[str, int] | None]:
    """Returns the address to listen on and the advertised address. The advertised address is None if clients receive
    the address to listen on.

    Raises `UsageError` if the address that clients receive is not one that they can connect to, such as 0.0.0.0.
    """
    from offsetmgr.server.process.config import address

    listen_address = address(listen, "--listen")
    advertised = address(advertise, "--advertise") if advertise else None
    if (advertised or listen_address)[0] in ("0.0.0.0", "::"):
        raise UsageError(
            f"--listen {listen}", "is not an address that clients can connect to", "add --advertise HOST:PORT"
        )
    return listen_address, advertised


@app.command("status", cls=WatchCommand)
@connected
@many_clusters
def status(
    connect: ConnectFlags,
    managers: Annotated[bool, flag("--managers", "Show a row for each manager instead of one for each shard.")] = False,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show shards, their owners, loads, and the lag of standbys; exit code 1 if there is a problem.

    --bootstrap-server (or --store manager://...) names any manager. With --watch, CHANGE is the change of the number of
    offsets, and PER-SECOND the rate of records in the shard's log (with --managers, of offsets).
    """
    from offsetmgr.kafka.client.managers import Managers

    columns, key, position = (MANAGERS, "node_id", "offsets") if managers else (SHARDS, "partition", "position")
    changes = None if watch is None else Changes(columns, key=[key], value="offsets", position=position)

    def once() -> int:
        with Managers(_managers(connect), connect.resolved.connection) as running:
            reports = running.reports()
        rows = (manager_rows if managers else shard_rows)(reports)
        if changes is None:
            write_rows(columns, rows, output)
        else:
            write_rows(changes.columns, changes.add(rows), output)
        for report in reports:
            if not managers and report.status is not None and not stores_in_topic(report.status):
                note(f"manager {report.address} has no shards: its offsets are in {report.status['store']}")
        wrong = list(alarms(reports))
        for text in wrong:
            note(f"alarm: {text}")
        return FAILED if wrong else 0

    exit_with(watch_command(once, watch, count))


ENTRIES = (
    Column("group"),
    Column("topic"),
    Column("partition", right=True),
    Column("offset", right=True),
    Column("leader_epoch", right=True, optional=True),
    Column("metadata", optional=True),
    Column("commit_timestamp", time=True),
    Column("expire_timestamp", time=True, optional=True),
)


@app.command("dump")
@connected
@many_clusters
def dump(
    connect: ConnectFlags,
    shard: Annotated[list[int], opt("--shard", "N", "A shard's number; repeatable.", min=0)],
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Print the offsets that the owner of a shard holds in memory; exit code 1 if it cannot decode some."""
    from offsetmgr.kafka.client.managers import Managers

    with Managers(_managers(connect), connect.resolved.connection) as running:
        rows = (tuple(row[column.name] for column in ENTRIES) for number in shard for row in running.dump(number))
        if not write_rows(ENTRIES, rows, output):
            note("no offset is committed in these shards")
        # The records are counted after the dump, because the dump decodes every value.
        hidden = {
            number: count
            for number in shard
            if (owned := running.owned_shard(number)) and (count := unreadable_records(owned))
        }
    for number, count in hidden.items():
        note(f"alarm: shard {number} has {count} more records, which its owner cannot read; its log names them")
    fail_if(hidden)


def _managers(connect: ConnectFlags) -> str:
    store = connect.resolved.store
    if store is not None and store.startswith("manager://"):
        return store.removeprefix("manager://").split("?")[0]
    if connect.resolved.bootstrap_server is None:
        raise UsageError("manager", "no address is given", "add --bootstrap-server HOST:PORT of a manager")
    return connect.resolved.bootstrap_server


MANAGERS: Final = (
    Column("node_id", right=True, title="NODE"),
    Column("address"),
    Column("lease"),
    Column("shard_groups", optional=True),
    Column("active", right=True),
    Column("standby", right=True),
    Column("loading", right=True),
    Column("offsets", right=True),
    Column("since", time=True),
    Column("error", optional=True),
)

SHARDS: Final = (
    Column("partition", right=True, title="SHARD"),
    Column("shard_group", right=True),
    Column("owner"),
    Column("state"),
    Column("since", time=True),
    Column("position", right=True),
    Column("offsets", right=True),
    Column("groups", right=True),
    Column("loaded", right=True, optional=True),
    Column("standbys", right=True),
    Column("standby_lag", right=True, title="STANDBY LAG"),
    Column("unreadable", right=True),
    Column("error", optional=True),
)

_UNREADABLE: Final = [column.name for column in SHARDS].index("unreadable")


def manager_rows(reports: Sequence[ManagerReport]) -> Iterator[tuple[Any, ...]]:
    for node_id, address, status, error in reports:
        if status is None:
            yield (node_id, str(address), None, None, None, None, None, None, None, str(error))
            continue
        shards = status["shards"]
        owned = [s for s in shards if s["role"] == "owner"]
        yield (
            node_id,
            str(address),
            "valid" if status["lease"] else "none",
            ",".join(map(str, sorted({s["shard_group"] for s in owned}))) or None,
            sum(s["state"] == "ACTIVE" for s in owned),
            sum(s["role"] == "standby" for s in shards),
            sum(s["state"].upper() == "LOADING" for s in shards),
            sum(s["offsets"] for s in shards),
            status["started"],
            None,
        )


def shard_rows(reports: Sequence[ManagerReport]) -> Iterator[tuple[Any, ...]]:
    """One row per shard: the owner of the shard, and the largest lag of its standbys. A shard that two managers report
    as their own has two rows."""
    shards = ((report, shard) for report in reports for shard in (report.status or {}).get("shards", ()))
    found = by_key((shard["partition"], (report, shard)) for report, shard in shards)
    for partition, seen in sorted(found.items()):
        standbys = [shard for _, shard in seen if shard["role"] == "standby"]
        owners = [(report, shard) for report, shard in seen if shard["role"] == "owner"]
        lags = [shard["lag"] for shard in standbys]
        lag = None if not lags or None in lags else max(lags)
        if not owners:
            yield (
                partition,
                seen[0][1]["shard_group"],
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                len(standbys),
                lag,
                None,
                None,
            )
            continue
        for report, shard in owners:  # while a shard moves, two managers may report it as their own
            loading = shard["state"] == "LOADING" and shard["load_total"]
            yield (
                partition,
                shard["shard_group"],
                str(report.address),
                shard["state"],
                shard["since"],
                shard["position"],
                shard["offsets"],
                shard["groups"],
                f"{100 * shard['load_read'] // shard['load_total']}%" if loading else None,
                len(standbys),
                lag,
                unreadable_records(shard),
                shard["last_error"] or None,
            )


def alarms(reports: Sequence[ManagerReport]) -> Iterator[str]:
    """Yields one sentence for each problem that needs the attention of an operator."""
    for report in reports:
        if report.error is not None:
            yield f"manager {report.address}: {str(report.error).removeprefix(f'manager {report.address}: ')}"
        if report.status is not None and not report.status["lease"]:
            yield f"manager {report.address}: it cannot reach the managers' group, so it serves no requests"
        for text in (report.status or {}).get("alarms", ()):
            yield f"manager {report.address}: {text}"
    rows = list(shard_rows(reports))
    if not rows and any(report.status is not None and stores_in_topic(report.status) for report in reports):
        yield "no manager has any shard"
    unowned = [row[0] for row in rows if row[2] is None]
    if unowned:
        yield f"{len(unowned)} shards have no owner: {_numbers(unowned)}"
    unserved = [row[0] for row in rows if row[2] is not None and row[3] != "ACTIVE"]
    if unserved:
        yield f"{len(unserved)} shards are not served yet: {_numbers(unserved)}"
    for row in rows:
        if row[_UNREADABLE]:
            yield (
                f"shard {row[0]}: its owner cannot read {count_of(row[_UNREADABLE], 'record')}, so groups may"
                " look as if they had committed nothing; its log names them"
            )


def unreadable_records(shard: Mapping[str, Any]) -> int:
    """Returns the number of a shard's records that the owner cannot decode: records with unreadable values, and records
    whose keys have an unknown version."""
    return int(shard["unreadable"]) + int(shard.get("unknown_keys", 0))  # older managers do not report unknown keys


def stores_in_topic(status: Mapping[str, Any]) -> bool:
    """Whether the manager stores offsets in the shards of a topic. Otherwise it serves another store."""
    return str(status["store"]).startswith("topic ")


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown}, ..." if len(numbers) > 10 else shown
