"""Merges connection settings from the command line, ``OFFSETMGR_*`` variables and the configuration file.

The flags of the command line override the environment, which overrides the context of the configuration file. Values
may be secrets, so neither the representation of `ConnectionConfig` nor an error contains them (data rule "secrets stay
secret").
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from offsetmgr.config.client_properties import ClientProperties, ClientSettings
from offsetmgr.config.user_directories import home_directory
from offsetmgr.core.errors import ConfigError, InvalidUri, UsageError

DEFAULT_TIMEOUT_MS: Final = 30_000
_TEXTS: Final = ("bootstrap_server", "zookeeper", "store", "command_config", "zookeeper_auth", "zookeeper_acl")
"""The fields of `SettingsLayer` that the environment and the configuration file give as texts."""


@dataclass(frozen=True, slots=True)
class ConnectionConfig(ClientSettings):
    """The settings with which offsetmgr connects to a store or a cluster. They do not include the address of the store
    or cluster.

    ``kafka`` contains librdkafka properties (``security.protocol``, ``sasl.username``, ...), translated from Java's
    names. ``zookeeper_auth`` contains pairs of scheme and credential: ``("digest", "user:password")``, or ``("sasl",
    "user:password")`` for DIGEST-MD5. ``zookeeper_acl`` is the ACL of znodes that offsetmgr creates: ``open``,
    ``creator``, or a list such as ``sasl:app:cdrw``. ``zookeeper_tls`` contains the TLS settings for ZooKeeper under
    librdkafka's names (``ssl.ca.location``, ...), or None for connections without TLS. ``timeout_ms`` limits each call
    to a server. ``stores`` maps the name of each ``[store.NAME]`` section to its settings, and ``store_errors`` that of
    each section that is not valid to its error. With ``ignore_persistent_members``, members whose registration in
    ZooKeeper is a persistent node do not count if no commit of their group is seen.

    >>> config = ConnectionConfig(kafka={"security.protocol": "SSL"}, timeout_ms=5_000)
    >>> config  # its text has no credentials
    ConnectionConfig(zookeeper_acl='', timeout_ms=5000)
    """

    timeout_ms: int = DEFAULT_TIMEOUT_MS
    stores: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    store_errors: Mapping[str, ConfigError] = field(default_factory=dict, repr=False)
    ignore_persistent_members: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """The settings of one source: a context of the configuration file, the environment, or the command line.

    None means that this source does not set the value. ``command_config`` is the path of a ``.properties`` file.
    ``other_stores`` are the URIs of other options.
    """

    bootstrap_server: str | None = None
    zookeeper: str | None = None
    store: str | None = None
    command_config: str | None = None
    timeout_ms: int | None = None
    zookeeper_auth: str | None = field(default=None, repr=False)
    zookeeper_acl: str | None = None
    ignore_persistent_members: bool | None = None
    other_stores: tuple[str, ...] | None = None


class ResolvedConnection(NamedTuple):
    """The merged settings of all layers.

    ``store`` is the URI of the store. The URI comes from the first layer that sets ``store``, ``zookeeper`` or
    ``bootstrap-server``. If this layer sets several of these settings, ``store`` has precedence over ``zookeeper``, and
    ``zookeeper`` over ``bootstrap-server``. If no layer sets any of them, the URI comes from ``bootstrap.servers`` in
    the ``.properties`` file. If ``bootstrap.servers`` is missing too, ``store`` is None. ``bootstrap_server`` and
    ``zookeeper`` (HOST:PORT/CHROOT) are set even if the store uses neither of them, because commands also read logs
    from the brokers, and registrations of old consumers from ZooKeeper. ``context`` is the name of the context; None
    without a context. ``command_config`` is the path of the ``.properties`` file; None without one.
    ``store_is_named`` is whether ``--store`` (in a program, an argument) names the store; otherwise
    the store is a default, and the group that a command is about may live in another configured store.
    ``unused_context`` is a default context that does not apply, because the flags, or for ``default-context`` also the
    variables, name servers of another cluster: its login and its name are not theirs.
    """

    connection: ConnectionConfig
    store: str | None
    bootstrap_server: str | None
    zookeeper: str | None = None
    context: str | None = None
    command_config: str | None = None
    store_is_named: bool = True
    unused_context: str | None = None


def resolve(
    flags: SettingsLayer,
    context: str | None = None,
    environ: Mapping[str, str] | None = None,
    file: tuple[Path, Mapping[str, Any]] | None = None,
) -> ResolvedConnection:
    """Merges the flags, the environment and the context of the configuration file. ``file`` is the path and the content
    of this file; by default it is read.

    ``context`` is the name of the context from the command line, else the variable ``OFFSETMGR_CONTEXT``, else
    ``default-context`` of the configuration file; the last two do not apply to servers of another cluster
    (``unused_context``). Raises `ConfigError` if the file, the context, a variable or the ``.properties`` file is not
    valid.
    """
    environ = os.environ if environ is None else environ
    path, document = file or load_document(environ)
    stores, store_errors = _stores(document, path)
    variables, of_variable = environment_layer(environ), environ.get("OFFSETMGR_CONTEXT")
    name = context or of_variable or document.get("default-context")
    layers, unused = [flags, variables, context_named(name, read_contexts(document, path), path)], None
    over = [*layers[: 1 if of_variable else 2], *(SettingsLayer(store=uri) for uri in flags.other_stores or ())]
    if not context and _names_others(over, layers[2], stores):
        layers[2], unused, name = SettingsLayer(), name, None

    def first(name: str) -> Any:
        return next((value for layer in layers if (value := getattr(layer, name)) is not None), None)

    command_config = first("command_config")
    properties = ClientProperties() if command_config is None else _client_properties(command_config)
    auth = properties.zookeeper_auth
    sources = ("zookeeper_auth", "OFFSETMGR_ZOOKEEPER_AUTH", f"config file {path}: zookeeper-auth")
    if (given := first("zookeeper_auth")) is not None:
        from offsetmgr.config.java_config import parse_zookeeper_auth

        auth = (parse_zookeeper_auth(given, sources[[one.zookeeper_auth for one in layers].index(given)]),)
    layers.append(SettingsLayer(properties.bootstrap_servers or None))
    bootstrap, zookeeper = first("bootstrap_server"), first("zookeeper")
    store = next((uri for layer in layers for uri in _stores_of(layer)), None)
    return ResolvedConnection(
        connection=ConnectionConfig(
            kafka=properties.kafka,
            zookeeper_auth=auth,
            zookeeper_acl=first("zookeeper_acl") or properties.zookeeper_acl,
            zookeeper_tls=properties.zookeeper_tls,
            timeout_ms=first("timeout_ms") or properties.timeout_ms or DEFAULT_TIMEOUT_MS,
            stores=stores,
            store_errors=store_errors,
            ignore_persistent_members=bool(flags.ignore_persistent_members),
        ),
        store=store,
        bootstrap_server=bootstrap and ",".join(map(str.strip, bootstrap.split(","))),
        zookeeper=zookeeper and "".join(split_connect(zookeeper)),
        context=name or None,
        command_config=command_config,
        store_is_named=flags.store is not None,
        unused_context=unused,
    )


def _names_others(
    over: Sequence[SettingsLayer], context: SettingsLayer, stores: Mapping[str, Mapping[str, str]]
) -> bool:
    """Returns whether the layers ``over`` a context name servers of another cluster than the context: other ones of the
    same kind, only ones of other kinds, or only stores of other kinds."""
    own, named = _servers(context, stores), [pair for layer in over for pair in _servers(layer, stores).items()]
    if named and "kafka" not in own and context.command_config is not None:
        from offsetmgr.config.properties import load_properties

        own |= _servers(SettingsLayer(load_properties(Path(context.command_config)).get("bootstrap.servers")), stores)
    of_store = {kind for layer in over for kind in _servers(SettingsLayer(store=layer.store), stores)} or {*own}
    others = [own[kind].isdisjoint(found) for kind, found in named if kind in own] or [True]
    return bool(own and named) and (any(others) or own.keys().isdisjoint(of_store))


def _servers(layer: SettingsLayer, stores: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    """Returns the servers that a layer names, with port and chroot, by the scheme of their stores."""
    uris = [*_stores_of(layer), *stores.get((layer.store or "").removeprefix("dual:"), {}).values()]
    found: dict[str, set[str]] = {}
    for kind, hosts, chroot in re.findall(r"(\w+)://([^/?&\n]+)(?:/([^?&\n]*))?", unquote("\n".join(uris))):
        parts = re.findall(r"([^\s,]+?)\.?(?::(\d+))?\s*(?:,|$)", hosts.lower())
        found.setdefault(kind, set()).update(f"{host}:{port or 2181}/{chroot}".rstrip("/") for host, port in parts)
    return found


def split_connect(text: str, what: str = "ZooKeeper connect string") -> tuple[str, str]:
    """Splits ``h1:2181, h2:2181/chroot`` into the servers and the chroot (empty, or with a leading slash). Removes
    blanks around the servers, as ZooKeeper's own client does.

    Raises `InvalidUri`, which names ``what``, if a server follows the chroot.
    """
    servers, slash, chroot = text.strip().partition("/")
    if "," in chroot:
        hint = "write the chroot once, at the end: h1:2181,h2:2181/chroot"
        raise InvalidUri(what, "the chroot follows the last host only", hint)
    return ",".join(part.strip() for part in servers.split(",")), f"/{chroot}".rstrip("/") if slash else ""


def with_properties(connection: ConnectionConfig, path: str) -> ConnectionConfig:
    """Returns a copy of ``connection`` in which the settings of the ``.properties`` file ``path`` replace the Kafka
    settings and the credentials, ACL and TLS settings for ZooKeeper. Raises `ConfigError`."""
    properties = _client_properties(path)
    return replace(connection, **{one.name: getattr(properties, one.name) for one in fields(ClientSettings)})


def _client_properties(path: str) -> ClientProperties:
    """Reads and translates a ``.properties`` file. Raises `ConfigError`."""
    from offsetmgr.config.java_config import translate_properties
    from offsetmgr.config.properties import load_properties

    return translate_properties(load_properties(Path(path)), path)


def _stores_of(layer: SettingsLayer) -> list[str]:
    """Returns the URIs of the stores that a layer names. The first one has precedence."""
    addresses = (("zookeeper", layer.zookeeper), ("kafka", layer.bootstrap_server))
    found = [f"{kind}://{address}" for kind, address in addresses if address is not None]
    return found if layer.store is None else [layer.store, *found]


def config_path(environ: Mapping[str, str]) -> Path:
    """Returns the path of the configuration file: ``OFFSETMGR_CONFIG``, else ``offsetmgr/config.toml`` in the XDG
    configuration directory."""
    if value := environ.get("OFFSETMGR_CONFIG"):
        return Path(value)
    return Path(environ.get("XDG_CONFIG_HOME") or home_directory(environ) / ".config") / "offsetmgr" / "config.toml"


def load_document(environ: Mapping[str, str], *, new: bool = False) -> tuple[Path, dict[str, Any]]:
    """Returns the path and the content of the configuration file; the content is empty if there is no file, unless
    ``OFFSETMGR_CONFIG`` names it and the file is not a ``new`` one. Raises `ConfigError`."""
    path = config_path(environ)
    what = f"config file {path}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if "OFFSETMGR_CONFIG" in environ and not new:
            raise ConfigError(what, "does not exist", "correct the environment variable OFFSETMGR_CONFIG") from None
        return path, {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(what, getattr(error, "strerror", None) or "is not UTF-8 text") from error
    document = parse_document(text, what)
    if unknown := sorted(set(document) - {"context", "store", "manager", "default-context"}):
        known = "known: default-context, [context.NAME], [store.NAME], [manager]"
        raise ConfigError(what, f"unknown key {unknown[0]!r}", known)
    return path, document


def parse_document(text: str, where: str = "config file") -> dict[str, Any]:
    """Parses the text of a configuration file. Raises `ConfigError`."""
    import tomllib  # Most commands read no configuration file and start faster without this import.

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(where, f"is not TOML: {error}") from error


def _section(document: Mapping[str, Any], kind: str, path: Path) -> Mapping[str, Mapping[str, Any]]:
    section = document.get(kind, {})
    if not isinstance(section, dict) or any(not isinstance(entry, dict) for entry in section.values()):
        raise ConfigError(f"config file {path}", f"{kind!r} must consist of tables such as [{kind}.NAME]")
    return section


def context_named(name: str | None, contexts: Mapping[str, SettingsLayer | ConfigError], path: Path) -> SettingsLayer:
    """Returns the settings of a context of the configuration file at ``path``; none without a name. Raises
    `ConfigError` if the context does not exist or is not valid."""
    if name is None:
        return SettingsLayer()
    if name not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise ConfigError(f"context {name!r}", f"not in {path}", f"contexts there: {known}")
    if isinstance(found := contexts[name], ConfigError):
        raise found
    return found


def read_contexts(document: Mapping[str, Any], path: Path) -> dict[str, SettingsLayer | ConfigError]:
    """Returns the settings, or the error, of each context of the configuration file. Raises `ConfigError` if the file
    has no tables of contexts."""
    found: dict[str, SettingsLayer | ConfigError] = {}
    for name in (contexts := _section(document, "context", path)):
        try:
            found[name] = _context(contexts[name], path, f"config file {path}: context {name!r}")
        except ConfigError as error:
            found[name] = error
    return found


def _context(table: Mapping[str, Any], path: Path, where: str) -> SettingsLayer:
    known = {"timeout", *(name.replace("_", "-") for name in _TEXTS)}
    if unknown := sorted(set(table) - known):
        raise ConfigError(where, f"unknown key {unknown[0]!r}", f"known: {', '.join(sorted(known))}")
    for key, value in table.items():
        if not isinstance(value, int | str if key == "timeout" else str) or isinstance(value, bool):
            expected = "milliseconds, or a duration such as '30s'" if key == "timeout" else "a string"
            raise ConfigError(where, f"{key} must be {expected}")
    texts = {name: table.get(name.replace("_", "-")) for name in _TEXTS}
    if (command_config := texts["command_config"]) is not None:
        texts["command_config"] = str(path.parent / Path(command_config).expanduser())
    return SettingsLayer(**texts, timeout_ms=_timeout(table.get("timeout"), f"{where}: timeout"))


def environment_layer(environ: Mapping[str, str]) -> SettingsLayer:
    """Returns the settings of the ``OFFSETMGR_*`` variables. Raises `ConfigError`."""
    texts: dict[str, Any] = {name: environ.get(f"OFFSETMGR_{name.upper()}") or None for name in _TEXTS}
    timeout_ms = _timeout(environ.get("OFFSETMGR_TIMEOUT") or None, "OFFSETMGR_TIMEOUT")
    return SettingsLayer(**texts, timeout_ms=timeout_ms)


def _timeout(value: int | str | None, where: str) -> int | None:
    """Converts a timeout of the environment or the configuration file to milliseconds. Raises `ConfigError`."""
    if value is None:
        return None
    from offsetmgr.core.durations import parse_milliseconds  # most commands have no such setting

    try:
        return parse_milliseconds(str(value), where)
    except UsageError as error:
        raise ConfigError(where, error.why, error.hint) from None


def _stores(document: Mapping[str, Any], path: Path) -> tuple[dict[str, Mapping[str, str]], dict[str, ConfigError]]:
    """Returns the settings of the stores of the configuration file, and the errors of those that are not valid."""
    stores: dict[str, Mapping[str, str]] = {}
    errors: dict[str, ConfigError] = {}
    for name, table in _section(document, "store", path).items():
        where = f"config file {path}: store {name!r}"
        if unknown := sorted(set(table) - {"primary", "secondary", "translate"}):
            known = "known: primary, secondary, translate (for dual:NAME)"
            errors[name] = ConfigError(where, f"unknown key {unknown[0]!r}", known)
        elif any(not isinstance(value, str) for value in table.values()):
            errors[name] = ConfigError(where, "all of its values must be strings")
        else:
            stores[name] = dict(table)
    return stores, errors
