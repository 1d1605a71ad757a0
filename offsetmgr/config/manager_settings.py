"""`ManagerSettings`: all settings of an offset manager, from its listener down to its shards.

This module is the only place with their defaults. The options of ``manager serve`` are generated from the fields that
have a `SettingOption`; each such option is also a variable ``OFFSETMGR_MANAGER_NAME`` and a key of ``[manager]`` in the
configuration file.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.config.connection import ConnectionConfig, load_document
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import ConfigError, UsageError
from offsetmgr.core.log_origin import OffsetTranslation

HOUR_MS: Final = 60 * 60 * 1000
ENVIRONMENT: Final = "OFFSETMGR_MANAGER_"
"""The prefix of the environment variables, such as ``OFFSETMGR_MANAGER_RETENTION_MINUTES``."""

Members: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bool]]]
"""Returns for each group whether it has members. If a group is missing from the result, it is unknown whether the group
has members."""


class RecordFormatName(StrEnum):
    """The format of records in the offsets topic."""

    AVRO = "avro"
    KAFKA = "kafka"


class SettingOption(NamedTuple):
    """The option of a setting. ``help`` and ``metavar`` are texts of the help. ``type`` is the type of the option's
    value, and ``default`` its default in the unit of the option. ``convert`` converts a value of the option, and the
    name of the argument for its errors, to a value of the field."""

    name: str
    type: Any
    help: str
    default: Any = None
    metavar: str | None = None
    least: int | None = None
    convert: Callable[[Any, str], Any] = lambda value, _name: value
    required: bool = False


def _option(help: str, *, default: Any = None, kind: Any = str, name: str = "", **more: Any) -> Any:
    """A field with an option. ``name`` is the argument of the option if it differs from the name of the field.
    ``kind`` is the type of its value if it has no default."""
    found = SettingOption(name, kind if default is None else type(default), help, default, **more)
    return field(default=None if default is None else found.convert(default, name), metadata={"option": found})


def _milliseconds(name: str, help: str, *, default: int, least: int) -> Any:
    """A field in seconds whose option is in milliseconds."""
    return _option(help, name=name, default=default, metavar="MS", least=least, convert=lambda ms, _: ms / 1000)


def _address(text: str, argument: str) -> tuple[str, int]:
    """Parses ``host:port`` or ``[v6]:port``. Raises `UsageError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or not host:
        named = f"{{{argument}}}"
        raise UsageError(Advice(f"{named} {{}}", text), "is not HOST:PORT", Advice(f"as in {named} 127.0.0.1:9192"))
    return host.removeprefix("[").removesuffix("]"), int(port)


def _port_range(text: str, argument: str) -> range:
    """Parses ``first-last``, both included. Raises `UsageError`."""
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or not 0 < int(first) <= int(last) <= 65_535:
        named = f"{{{argument}}}"
        raise UsageError(Advice(f"{named} {{}}", text), "is not FIRST-LAST", Advice(f"as in {named} 9193-9210"))
    return range(int(first), int(last) + 1)


def _if_given(convert: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    """Returns a conversion for which an empty text means that the option is not given."""
    return lambda text, argument: convert(text, argument) if text else None


@dataclass(frozen=True)
class ManagerSettings:
    """The settings of one offset manager. Times are in seconds and sizes in bytes, unless the name of a field ends with
    another unit. The corresponding Kafka settings are in parentheses. Files are paths as the user gave them.

    >>> ManagerSettings(connection=ConnectionConfig(timeout_ms=2_000)).timeout_s
    2.0
    """

    bootstrap: str = ""
    """The addresses of the brokers."""
    connection: ConnectionConfig = field(default_factory=ConnectionConfig)
    store: str | None = None
    """The URI of the store to serve; None for the offset manager's own topic."""

    # --- the listener, the topic and the shards: the options of ``manager serve`` ------------------------

    listen: tuple[str, int] = _option(
        "The address to listen on.",
        name="listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        convert=_address,
        required=True,
    )
    """Port 0 is any free port. A manager inside a program has no listener."""
    advertise: tuple[str, int] | None = _option(
        Advice("The address that clients receive, if it differs from {listen}."),
        metavar="HOST:PORT",
        convert=_if_given(_address),
    )
    relay: bool = _option(
        "Relay requests to the brokers: clients bootstrap from here, and data passes through.", default=False
    )
    relay_ports: range | None = _option(
        Advice("One port for each broker (default: the ports after that of {listen})."),
        metavar="FIRST-LAST",
        convert=_if_given(_port_range),
    )
    translate: OffsetTranslation | None = _option(  # noqa: RUF009 - a field
        "Allow another Kafka cluster as the target. none: equal topics, so offsets stay the same.",
        kind=OffsetTranslation,
    )
    """How to translate offsets if the store belongs to a Kafka cluster other than ``bootstrap``; None if the user did
    not specify this."""
    offsets_topic: str = _option("The topic that stores the offsets.", default="__offsetmgr_offsets", metavar="NAME")
    partitions: int = _option("Number of shards of a new topic; it must match an existing one.", default=50, least=1)
    replication_factor: int | None = _option(
        "For a new topic (default: that of the brokers' own offsets topic).", kind=int, least=1
    )
    min_insync_replicas: int | None = _option(
        "For a new topic (default: 2 with at least 3 replicas, else 1).", kind=int, least=1
    )
    record_format: str = _option(
        "avro: offsetmgr's own; kafka: as in __consumer_offsets.",
        default=RecordFormatName.AVRO,
        convert=lambda name, _: str(name.value),
    )
    retention_ms: int = _option(
        "How long offsets of a group without members are kept.",
        name="retention_minutes",
        default=10_080,
        least=1,
        convert=lambda minutes, _: minutes * 60_000,
    )
    """How long an offset is kept after its commit, or after the last member left its group
    (``offsets.retention.minutes``). The managers of one topic must have the same retention."""
    commit_timeout_s: float = _milliseconds(
        "commit_timeout", "Maximum time until a commit gets its response.", default=5_000, least=100
    )
    """The time limit of a commit (``offsets.commit.timeout.ms``)."""
    session_timeout_s: float = _milliseconds(
        "session_timeout",
        "Time after which the other managers replace one that is frozen or cut off.",
        default=10_000,
        least=1_000,
    )
    """The session timeout of the managers' group. If a manager dies, other managers own its shard groups after this
    time."""
    standby: bool = _option("Follow the shards of other managers, to take them over quickly.", default=True)
    """Whether to follow the shard groups of other managers, so that a takeover reads only the end of the log."""
    metrics_listen: tuple[str, int] | None = _option(
        "HTTP: /metrics (Prometheus), /health, /ready.", metavar="HOST:PORT", convert=_if_given(_address)
    )
    tls_certificate: str | None = _option("PEM certificate chain; clients must then use TLS.", metavar="FILE")
    tls_key: str | None = _option("PEM private key of the certificate.", metavar="FILE")
    credentials: str | None = _option(
        "File of the users that may log in (SASL PLAIN, SCRAM); without it clients need no login.", metavar="FILE"
    )
    sasl_plain: bool = _option("Allow logins with SASL PLAIN, not only with SCRAM.", default=True)
    managers_secret: str | None = _option(
        "File of the secrets by which managers know each other; without it they believe each member of their group.",
        metavar="FILE",
    )
    rules: str | None = _option(
        "File of rules for groups, topics and admin APIs; without it every client may do everything.", metavar="FILE"
    )
    max_request_bytes: int = _option("Maximum size of a request.", default=8 * 1024 * 1024, least=1_024)
    """Size of one request (socket.request.max.bytes). The length field is checked before memory is allocated."""
    max_connections: int = _option("Maximum number of connections of all clients.", default=4_000, least=1)
    """Connections of all clients together (max.connections)."""
    max_login_bytes: int = _option("Maximum size of a request before the SASL login.", default=64 * 1024, least=1_024)
    """Size of one request before the login (sasl.server.max.receive.size)."""
    max_api_versions_bytes: int = _option("Maximum size of an ApiVersions request.", default=8 * 1024, least=256)
    """Size of an ApiVersions request, which clients send before they log in."""
    max_names: int = _option(
        "Maximum number of groups in one FindCoordinator, DescribeGroups or DeleteGroups request.",
        default=50_000,
        least=1,
    )
    """Groups in one FindCoordinator, DescribeGroups or DeleteGroups. Kafka's tools name all groups at once."""
    max_partitions: int = _option(
        "Maximum number of partitions of a group in one OffsetCommit, OffsetFetch or OffsetDelete.",
        default=15_000,
        least=1,
    )
    """Partitions of one group in one OffsetCommit, OffsetFetch or OffsetDelete. A broker has a similar limit, because
    all offsets of a commit must fit into one record batch of at most message.max.bytes (1 MiB)."""
    max_answer_bytes: int = _option(
        "Maximum size of an OffsetFetch response, and of the responses that a client has not read yet.",
        default=64 * 1024 * 1024,
        least=65_536,
    )
    """Size of the responses that wait to be sent on one connection. At this size the server neither reads nor starts
    further requests of the connection, and the remaining groups of an OffsetFetch get INVALID_REQUEST. The offsets of a
    single group may be larger."""
    max_name_bytes: int = _option(
        "Maximum length of a group's name, and of other strings in a request.", default=32_767, least=249
    )
    max_topic_bytes: int = _option("Maximum length of a topic's name; brokers allow 249.", default=249, least=1)
    """Size of a topic's name. Brokers have the same limit (org.apache.kafka.common.internals.Topic)."""
    max_tags: int = _option("Maximum number of tagged fields of a structure in a request.", default=64, least=1)
    idle_timeout_s: float = _milliseconds(
        "idle_timeout", "Time after which an idle connection is closed.", default=600_000, least=1_000
    )
    """Time after which the server closes an idle connection (connections.max.idle.ms). A connection is idle if it has
    no request in flight and receives no request, or if the client does not read its responses."""

    # --- clients ---------------------------------------------------------------------------------------

    max_connections_per_address: int = 2_000
    """Connections of one host (max.connections.per.ip)."""
    max_held_bytes: int = 256 * 1024 * 1024
    """Size of all unanswered requests, complete or incomplete (queued.max.request.bytes). Above this size, the server
    does not read from connections that have an unanswered complete request. It closes connections whose only request is
    large and incomplete. Unread responses have the same limit; above it, the server closes the connections with the
    most."""
    max_in_flight: int = 500
    """Unanswered requests of one connection. At this number the server stops reading from the connection."""
    request_timeout_s: float = 60.0
    """Maximum time from the first byte of a request to its last byte. The client gets an additional second for every 16
    KiB that it has sent."""
    login_timeout_s: float = 10.0
    """Maximum time from the opening of the connection until the client has sent its password."""

    # --- the node --------------------------------------------------------------------------------------

    topic_check_interval_s: float = 5.0
    """The interval between two checks of the topic. If the topic is recreated, the manager may serve the old offsets
    for this interval and the duration of one check."""
    min_expiration_s: float = 600.0
    """The shortest time after which brokers may drop a producer id or a transactional id. Brokers with a shorter time
    are rejected. With this time a refresh of the claims is due every 150 s, and three refreshes in succession may fail
    before a broker forgets a claim. A restart of a broker, or the election of leaders, takes less time. Only tests set
    a shorter time."""

    # --- the runtime -----------------------------------------------------------------------------------

    claim_timeout_s: float = 10.0
    """The timeout of a claim, and of each request for the log's ends."""
    retry_pause_s: float = 0.5
    """The pause after a failed claim or load. The pause doubles with each failure, up to ``max_retry_pause_s``."""
    max_retry_pause_s: float = 2.0
    max_append_records: int = 10_000
    """When an append has at least this number of records, no further commit joins it, because replaying the records of
    one append must not block the loop for long."""
    max_append_bytes: int = 4 << 20
    claim_refresh_s: float = 3600.0
    """The interval at which an owner claims its shard groups again, so that the brokers do not forget its producers.
    The value must be far below ``producer.id.expiration.ms`` and ``transactional.id.expiration.ms`` of the brokers."""
    max_pending_records: int = 200_000
    """The number of unacknowledged records at which `ManagerRuntime.backpressure` begins. Backpressure ends at half of
    this number."""
    load_threads: int = 2
    """The number of shard groups that are loaded at the same time. A larger number does not help, because the
    interpreter runs one thread at a time."""
    standby_poll_s: float = 0.2
    """How long a poll of the standby waits for records."""
    standby_records: int = 2_000
    """The maximum number of records that the standby passes to the loop at a time. The loop applies this number of
    records in a few milliseconds."""
    lag_interval_s: float = 5.0
    """The interval at which the standby requests the end offsets of the log."""
    max_standby_age_s: float = 3600.0
    """The longest time for which a standby may be behind the log's end, for example because it was suspended or
    disconnected. After a longer time the log cleaner may have removed tombstones that the standby has not read, so the
    standby reads the log from the start. The value must be far below the topic's ``delete.retention.ms`` (24 h)."""
    expiry_interval_s: float = 600.0
    """The interval between two expiration passes over a shard (``offsets.retention.check.interval.ms``)."""
    members: Members | None = None
    """Called on the manager's event loop before offsets expire, to determine which groups have members. If it is None,
    every group of a manager without relay counts as a group without members."""
    own_process: bool = False
    """Whether the process runs only the manager, so that its allocator and garbage collector may be tuned."""

    # --- the shards ------------------------------------------------------------------------------------

    max_metadata_length: int = 4096
    """The maximum length of a commit's metadata, counted like Kafka's ``offset.metadata.max.bytes``: UTF-16 code
    units."""
    max_activity_age_ms: int = 6 * HOUR_MS
    """The maximum age of the activity record of a group with members."""
    max_tombstones: int = 5_000
    """The maximum number of offsets that one `Shard.expire` deletes."""

    def __post_init__(self) -> None:
        for name in ("load_threads", "max_append_records", "max_append_bytes", "max_pending_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        durations = ("commit_timeout_s", "claim_timeout_s", "expiry_interval_s", "lag_interval_s", "retry_pause_s")
        for name in (*durations, "claim_refresh_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")

    def check(self) -> None:
        """Raises `UsageError` if settings of a manager with a listener contradict each other."""
        if self.translate is not None and self.store is None:
            why = Advice("works only with {store}: a manager's topic is in the cluster of its clients")
            raise UsageError(Advice("{translate}"), why)
        if (self.tls_certificate is None) != (self.tls_key is None):
            why = Advice("{tls_certificate} and {tls_key} go together")
            raise UsageError("manager serve", why, "add the other one")
        if self.relay_ports is not None and not self.relay:
            raise UsageError(Advice("{relay_ports}"), Advice("works only with {relay}"), Advice("add {relay}"))
        if (self.advertise or self.listen)[0] in ("0.0.0.0", "::"):
            host, port = self.listen
            what = Advice("{listen} {}", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            hint = Advice("add {advertise} HOST:PORT")
            raise UsageError(what, "is not an address that clients can connect to", hint)

    @property
    def timeout_s(self) -> float:
        """The timeout of each request to the brokers about the topic."""
        return self.connection.timeout_ms / 1000


def setting_options() -> dict[str, SettingOption]:
    """Returns the options of ``manager serve`` by field, in the order of the help."""
    found = {one.name: one.metadata["option"] for one in fields(ManagerSettings) if "option" in one.metadata}
    return {name: option._replace(name=option.name or name) for name, option in found.items()}


def with_options(values: Mapping[str, Any], **others: Any) -> ManagerSettings:
    """Returns the settings of a manager. ``values`` are the values of the options by argument; None keeps the default.
    ``others`` are values of fields. Raises `UsageError`."""
    given = {
        name: option.convert(values[option.name], option.name)
        for name, option in setting_options().items()
        if values.get(option.name) is not None
    }
    return ManagerSettings(**given, **others)


def configured_settings() -> dict[str, Any]:
    """Returns the values of ``[manager]`` in the configuration file by argument. Raises `ConfigError` for an unknown
    key, and for a value of another type than that of the option."""
    path, document = load_document(os.environ)
    table = document.get("manager", {})
    where = f"config file {path}: [manager]"
    if not isinstance(table, dict):
        raise ConfigError(f"config file {path}", "'manager' must be a table [manager]")
    options = {option.name.replace("_", "-"): option for option in setting_options().values()}
    if unknown := sorted(set(table) - set(options)):
        raise ConfigError(where, f"unknown key {unknown[0]!r}", f"known: {', '.join(sorted(options))}")
    for key, value in table.items():
        expected = options[key].type if options[key].type in (bool, int) else str
        if type(value) is not expected:
            names = {bool: "true or false", int: "a whole number", str: "a string"}
            raise ConfigError(where, f"{key} must be {names[expected]}")
    return {options[key].name: value for key, value in table.items()}
