"""Store URIs: `parse_uri` parses one, `open_store` opens its store.

`offsetmgr.core` lists the modules of the schemes. A scheme's module is imported when a URI names it, so that parsing a
URI imports no store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from offsetmgr.config.connection import ConnectionConfig, split_connect
from offsetmgr.core import SCHEMES, example_uris, redact
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import InvalidUri, UsageError
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.offset_store import OffsetStore

# The definition of one scheme of store URIs: how to parse a URI and how to open its store.


@dataclass(frozen=True, slots=True)
class StoreUri:
    """The parts of a store URI.

    ``address`` is ``h1:p1,h2:p2``, the path of a file, or the name of a dual store. ``path`` is the ZooKeeper chroot
    with its leading slash, or empty.
    """

    kind: str
    address: str
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)


class Scheme(NamedTuple):
    """The functions of one scheme.

    ``options`` are the names of the valid options. ``parse`` receives the URI as error messages show it, the text
    between ``scheme:`` and ``?``, and the options. ``open`` returns the store. ``bootstrap`` returns the Kafka brokers
    that a URI names, or None if it names none. ``zookeeper`` returns the connect string of the ZooKeeper in which the
    store's consumers register, or None if there is no such ZooKeeper. Each function raises `InvalidUri`.
    ``coordinators`` is whether the store has group coordinators, which report the members of a group.
    """

    options: frozenset[str]
    parse: Callable[[str, str, dict[str, str]], StoreUri]
    open: Callable[[str, ConnectionConfig], OffsetStore]
    bootstrap: Callable[[str, ConnectionConfig], str | None] = lambda _uri, _config: None
    zookeeper: Callable[[str, ConnectionConfig], str | None] = lambda _uri, _config: None
    coordinators: bool = False


# Parser of URIs that list servers: ``kafka://h1:9092,h2:9092`` and ``zookeeper://h1:2181/chroot``.

_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d+))?")


def parse_server_uri(
    kind: str, shown: str, body: str, options: dict[str, str], *, is_zookeeper: bool = False
) -> StoreUri:
    """Returns the parts of a URI of the scheme ``kind``. Only the servers of ZooKeeper have a chroot, and a port that
    can be left out. Raises `InvalidUri`."""
    if not body.startswith("//"):
        raise InvalidUri(f"store {shown!r}", f"{kind}: must be followed by //HOST:PORT", f"as in {example_uris()}")
    if "@" in body:
        raise InvalidUri(
            f"store {shown!r}",
            "credentials do not belong in a URI",
            Advice("put them in the file of {command_config} (zookeeper.auth=digest:USER:PASSWORD for ZooKeeper)"),
        )
    address, path = split_connect(body[2:], f"store {shown!r}")
    for host in address.split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            raise InvalidUri(f"store {shown!r}", f"{host!r} is not HOST:PORT" if host else "a host is missing")
        if match[1] is None and not is_zookeeper:
            raise InvalidUri(f"store {shown!r}", f"{host!r} has no port", f"as in {kind}://{host}:9092")
        if match[1] is not None and not 0 < int(match[1]) < 65536:
            raise InvalidUri(f"store {shown!r}", f"{match[1]} is not a port")
    if path and not is_zookeeper:
        raise InvalidUri(f"store {shown!r}", f"{kind}: URIs have no path, but {path!r} was given")
    if "//" in path:
        raise InvalidUri(f"store {shown!r}", f"the chroot {path!r} has an empty part")
    return StoreUri(kind, address, path, options)


def scheme_of(uri: str) -> Scheme:
    """Returns the scheme of ``uri``. Raises `InvalidUri` if the scheme is unknown."""
    kind, colon, rest = uri.partition(":")
    if not colon or kind not in SCHEMES:
        why = f"unknown kind {kind!r}" if colon else "no kind"
        likely = "zookeeper" if re.search(r"/|:2181\b", uri) else "kafka"
        hint = f"as in {redact(f'{likely}://{uri}') if rest[:1].isdigit() else example_uris()}"
        if colon and kind == "switched":
            why = "an earlier offsetmgr had it"
            hint = "name the store that the group uses: zookeeper://... or kafka://..."
        raise InvalidUri(f"store {redact(uri)!r}", why, hint)
    module, _, attribute = SCHEMES[kind].location.partition(":")
    found: Scheme = getattr(import_module(module), attribute)
    return found


def parse_uri(uri: str) -> StoreUri:
    """Returns the parts of ``uri``.

    Raises `InvalidUri`, which names the invalid part and contains no credentials. Raises `UsageError` for ``file:-``.
    """
    scheme = scheme_of(uri)
    shown = redact(uri)
    kind, _, rest = uri.partition(":")
    body, _, query = rest.partition("?")
    return scheme.parse(shown, body, _parse_options(shown, kind, query, scheme.options))


def _parse_options(shown: str, kind: str, query: str, known: frozenset[str]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise InvalidUri(f"store {shown!r}", "after ? there must be NAME=VALUE pairs joined by &") from error
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidUri(f"store {shown!r}", "an option is given twice")
    if unknown := sorted(set(options) - known):
        names = ", ".join(sorted(known)) or "none"
        raise InvalidUri(f"store {shown!r}", f"unknown option {unknown[0]!r}", f"options of {kind}: {names}")
    return options


def open_store(uri: str, config: ConnectionConfig | None = None) -> OffsetStore:
    """Returns the store at ``uri``, which connects on its first call.

    ``uri`` has the form ``zookeeper://h1:2181/chroot``, ``kafka://h1:9092``, ``manager://h1:9192``, ``dual:NAME`` or
    ``file:offsets.avro``. ``config`` has credentials and timeouts. One thread at a time may use a store; close it, or
    use it in a ``with`` statement. Raises `InvalidUri` if ``uri`` is not valid.

    Example::

        from offsetmgr import OffsetAndMetadata, TopicPartition, open_store

        orders = TopicPartition("orders", 0)
        with open_store("kafka://h1:9092") as store:
            store.commit("shop-library", {orders: OffsetAndMetadata(3)})
            print(store.fetch("shop-library", [orders])[orders])
            store.delete("shop-library", [orders])
    """
    return scheme_of(uri).open(uri, ConnectionConfig() if config is None else config)


def bootstrap_of(uri: str, config: ConnectionConfig) -> str | None:
    """Returns the addresses of the Kafka brokers that the URI names; None if the URI names no brokers. For a pair of
    stores, these are the addresses in the URI of one of the two stores.

    A manager's listener counts as a broker, because it also serves requests about the logs of the cluster behind it.
    """
    return scheme_of(uri).bootstrap(uri, config)


def zookeeper_of(uri: str, config: ConnectionConfig) -> str | None:
    """Returns the connect string (with chroot) of the ZooKeeper in which the store's consumers register, or None.

    The result is None for Storm's layout, because Storm's spouts do not register.
    """
    return scheme_of(uri).zookeeper(uri, config)


# Parser of ``dual:`` URIs, which name two stores: the primary store and the secondary store.

_STORES: Final = ("primary", "secondary")
"""The two options that contain the stores' URIs."""


def parse_pair_uri(shown: str, body: str, options: dict[str, str]) -> StoreUri:
    """Returns the parts of a dual URI. Raises `InvalidUri`."""
    inner = set(_STORES) & set(options)
    if bool(body) == bool(inner) or (inner and len(inner) != 2):
        raise InvalidUri(
            f"store {shown!r}",
            "needs either the name of a [store.NAME] section, or both primary and secondary",
            "as in dual:NAME, or dual:?primary=kafka%3A%2F%2Fh%3A9092&secondary=zookeeper%3A%2F%2Fh%3A2181",
        )
    _parse_translate(f"store {shown!r}", options)
    return StoreUri("dual", unquote(body), "", options)


def _parse_translate(where: str, settings: Mapping[str, str]) -> OffsetTranslation | None:
    value = settings.get("translate")
    if value is None:
        return None
    if value not in tuple(OffsetTranslation):
        raise InvalidUri(where, f"unknown translation {value!r}", "translate=none is the only one")
    return OffsetTranslation(value)


def inner_uris(uri: str, config: ConnectionConfig) -> tuple[str, str]:
    """Returns the two URIs of a dual store: primary, secondary.

    Raises `InvalidUri`, or the `ConfigError` of the store's section.
    """
    parsed = parse_uri(uri)
    settings = parsed.options
    if parsed.address:
        if parsed.address in config.store_errors:
            raise config.store_errors[parsed.address]
        if parsed.address not in config.stores:
            known = ", ".join(sorted(config.stores)) or "none"
            raise InvalidUri(
                f"store {uri!r}", f"the config file has no [store.{parsed.address}]", f"stores there: {known}"
            )
        settings = dict(config.stores[parsed.address])
        if set(settings) - {"translate"} != set(_STORES):
            raise InvalidUri(f"store {uri!r}", f"[store.{parsed.address}] needs both primary and secondary")
    inner = (settings["primary"], settings["secondary"])
    for one in inner:
        if parse_uri(one).kind == "dual":
            raise InvalidUri(f"store {redact(uri)!r}", "a dual store cannot be part of another pair of stores")
    if len({parse_uri(one).options.get("layout") == "0.7" for one in inner}) > 1:
        raise InvalidUri(
            f"store {redact(uri)!r}",
            "one of its stores holds byte positions of Kafka 0.7 and the other one holds offsets",
            Advice("see migrate plan {partition_map}"),
        )
    return inner


def part_uris(uri: str, config: ConnectionConfig) -> tuple[str, ...]:
    """Returns the URIs of the stores at ``uri``: the `inner_uris` of a dual store, otherwise the URI itself."""
    return inner_uris(uri, config) if parse_uri(uri).kind == "dual" else (uri,)


def translate_of(uri: str, config: ConnectionConfig) -> OffsetTranslation | None:
    """Returns the option ``translate`` of a dual store, from its URI or from its section of the configuration file.
    Returns None if the option is not set. Raises `InvalidUri`."""
    parsed = parse_uri(uri)
    section = config.stores.get(parsed.address, {}) if parsed.address else {}
    return _parse_translate(f"[store.{parsed.address}]", {**section, **parsed.options})


def _first_of_pair(
    address_of: Callable[[str, ConnectionConfig], str | None], uri: str, config: ConnectionConfig
) -> str | None:
    """Returns the brokers or the ZooKeeper of the first store of the pair that has some; None if neither has."""
    return next((found for one in inner_uris(uri, config) if (found := address_of(one, config))), None)


# The schemes with one store behind each URI: ``zookeeper``, ``kafka``, ``manager`` and ``file``.

_LAYOUTS: Final = ("0.8", "0.7", "storm")
_ROOT: Final = re.compile("(/(?!\\.{1,2}(/|$))[^/]+)+")


def _parse_zookeeper(shown: str, body: str, options: dict[str, str]) -> StoreUri:
    parsed = parse_server_uri("zookeeper", shown, body, options, is_zookeeper=True)
    layout = options.get("layout", "0.8")
    if layout not in _LAYOUTS:
        raise InvalidUri(f"store {shown!r}", f"unknown layout {layout!r}", f"layouts: {', '.join(_LAYOUTS)}")
    root = options.get("root", "")
    if (layout == "storm") != bool(root):
        why = "layout storm needs root=/PATH, the spouts' zkRoot" if not root else f"layout {layout} has no root"
        raise InvalidUri(f"store {shown!r}", why, "as in zookeeper://h:2181?layout=storm&root=/kafkastorm")
    if root and not _ROOT.fullmatch(root):
        raise InvalidUri(f"store {shown!r}", f"root {root!r} is not an absolute path", "as in root=/kafkastorm")
    return parsed


def _open_zookeeper(uri: str, config: ConnectionConfig) -> OffsetStore:
    from offsetmgr.stores.zookeeper import ZookeeperStore

    parsed = parse_uri(uri)
    layout, root = parsed.options.get("layout", "0.8"), parsed.options.get("root", "")
    return ZookeeperStore(parsed.address + parsed.path, layout=layout, config=config, root=root)


def _zookeeper_of(uri: str, _config: ConnectionConfig) -> str | None:
    parsed = parse_uri(uri)
    return None if parsed.options.get("layout") == "storm" else parsed.address + parsed.path


def _open_kafka(uri: str, config: ConnectionConfig) -> OffsetStore:
    from offsetmgr.stores.kafka import KafkaStore

    return KafkaStore(parse_uri(uri).address, config)


def _open_manager(uri: str, config: ConnectionConfig) -> OffsetStore:
    from offsetmgr.stores.manager import ManagerStore

    return ManagerStore(parse_uri(uri).address, config)


def _address_of(uri: str, _config: ConnectionConfig) -> str | None:
    return parse_uri(uri).address


def _parse_file(shown: str, body: str, options: dict[str, str]) -> StoreUri:
    if body.startswith("///"):
        body = body[2:]
    if not body:
        raise InvalidUri(f"store {shown!r}", "no path after file:", f"as in {example_uris()}")
    if unquote(body) == "-":  # the store would be a file with this name
        hint = "name a file; file:/dev/stdin?format=csv reads standard input"
        raise UsageError(f"store {shown!r}", "- is not standard input or output here", hint)
    if (unterminated := options.get("unterminated", "accept")) != "accept":
        raise InvalidUri(f"store {shown!r}", f"unterminated={unterminated} is not known", "as in unterminated=accept")
    return StoreUri("file", unquote(body), "", options)


def _open_file(uri: str, _config: ConnectionConfig) -> OffsetStore:
    from offsetmgr.stores.snapshot import SnapshotStore

    parsed = parse_uri(uri)
    return SnapshotStore(
        parsed.address,
        format=parsed.options.get("format"),
        group=parsed.options.get("group"),
        accept_unterminated="unterminated" in parsed.options,
    )


ZOOKEEPER: Final = Scheme(frozenset({"layout", "root"}), _parse_zookeeper, _open_zookeeper, zookeeper=_zookeeper_of)
KAFKA: Final = Scheme(
    frozenset(), partial(parse_server_uri, "kafka"), _open_kafka, bootstrap=_address_of, coordinators=True
)
MANAGER: Final = Scheme(
    frozenset(), partial(parse_server_uri, "manager"), _open_manager, bootstrap=_address_of, coordinators=True
)
FILE: Final = Scheme(frozenset({"format", "group", "unterminated"}), _parse_file, _open_file)


# The scheme ``dual``: a primary store and a secondary store with the same offsets.


def _open(uri: str, config: ConnectionConfig) -> OffsetStore:
    inner = inner_uris(uri, config)
    from offsetmgr.stores.dual import DualStore

    return DualStore(open_store(inner[0], config), open_store(inner[1], config), translate=translate_of(uri, config))


DUAL: Final = Scheme(
    frozenset({"primary", "secondary", "translate"}),
    parse_pair_uri,
    _open,
    partial(_first_of_pair, bootstrap_of),
    partial(_first_of_pair, zookeeper_of),
)
