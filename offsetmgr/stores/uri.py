"""Stores as URIs: what they look like, and `open_store`, the one place that knows every concrete store.

Concrete stores are imported when one is opened, so that reading a URI costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import InvalidUri, UsageError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.stores.origin import Translate

if TYPE_CHECKING:
    from offsetmgr.stores.switched.mode_listener import Lease
    from offsetmgr.stores.switched.store import SwitchedStore
    from offsetmgr.zookeeper.client.session import ZookeeperSession

EXAMPLES: Final = "zookeeper://h1:2181/chroot, kafka://h1:9092, manager://h1:9192, dual:NAME, file:offsets.avro"
_OPTIONS: Final = {
    "zookeeper": {"layout", "root"},
    "kafka": set[str](),
    "manager": set[str](),
    "dual": {"primary", "secondary", "translate"},
    "switched": {"zookeeper", "kafka", "start", "translate"},
    "file": {"format", "group", "unterminated"},
}
_LAYOUTS: Final = ("0.8", "0.7", "storm")
_MODES: Final = ("zookeeper", "dual", "kafka")
_TWO: Final = {"dual": ("primary", "secondary"), "switched": ("zookeeper", "kafka")}
"""Stores of two others, and how these are called."""
_ROOT: Final = re.compile("(/(?!\\.{1,2}(/|$))[^/]+)+")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class StoreUri:
    """A store URI taken apart: ``address`` is ``h1:p1,h2:p2`` (or a file's path, or a dual store's name),
    ``path`` ZooKeeper's chroot with its leading slash, or nothing."""

    kind: str
    address: str
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)


def parse_uri(uri: str) -> StoreUri:
    """Takes a store URI apart. Raises `InvalidUri` naming the part that is wrong, without showing credentials, and
    `UsageError` for ``file:-``."""
    shown = redact(uri)
    kind, colon, rest = uri.partition(":")
    if not colon or kind not in _OPTIONS:
        raise InvalidUri(f"store {shown!r}", f"unknown kind {kind!r}" if colon else "no kind", f"as in {EXAMPLES}")
    body, _, query = rest.partition("?")
    if kind == "file" and body.startswith("///"):
        body = body[2:]
    options = _parse_options(shown, kind, query)
    if kind == "file" or kind in _TWO:
        return _without_servers(shown, kind, body, options)
    if not body.startswith("//"):
        raise InvalidUri(f"store {shown!r}", f"{kind}: must be followed by //HOST:PORT", f"as in {EXAMPLES}")
    if "@" in body:
        raise InvalidUri(
            f"store {shown!r}",
            "credentials do not belong in a URI",
            "put them in the file of --command-config (zookeeper.auth=digest:USER:PASSWORD for ZooKeeper)",
        )
    address, slash, path = body[2:].partition("/")
    _check_hosts(shown, kind, address)
    path = f"/{path}".rstrip("/") if slash else ""
    if path and kind != "zookeeper":
        raise InvalidUri(f"store {shown!r}", f"{kind}: has no path, but {path!r} was given")
    if "//" in path:
        raise InvalidUri(f"store {shown!r}", f"the chroot {path!r} has an empty part")
    if kind == "zookeeper":
        _check_layout(shown, options)
    return StoreUri(kind, address, path, options)


def _check_layout(shown: str, options: dict[str, str]) -> None:
    layout = options.get("layout", "0.8")
    if layout not in _LAYOUTS:
        raise InvalidUri(f"store {shown!r}", f"unknown layout {layout!r}", f"layouts: {', '.join(_LAYOUTS)}")
    root = options.get("root", "")
    if (layout == "storm") != bool(root):
        why = "layout storm needs root=/PATH, the spouts' zkRoot" if not root else f"layout {layout} has no root"
        raise InvalidUri(f"store {shown!r}", why, "as in zookeeper://h:2181?layout=storm&root=/kafkastorm")
    if root and not _ROOT.fullmatch(root):
        raise InvalidUri(f"store {shown!r}", f"root {root!r} is no absolute path", "as in root=/kafkastorm")


def redact(uri: str) -> str:
    """The URI without anything before an ``@``, fit for an error text."""
    return re.sub(r"//[^/?#]*@", "//***@", re.sub(r"%2[Ff]%2[Ff][^%&]*(?:%3[Aa][^%&]*)?%40", "%2F%2F***%40", uri))


def _parse_options(shown: str, kind: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise InvalidUri(f"store {shown!r}", "after ? there must be NAME=VALUE pairs joined by &") from error
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidUri(f"store {shown!r}", "an option is given twice")
    if unknown := sorted(set(options) - _OPTIONS[kind]):
        known = ", ".join(sorted(_OPTIONS[kind])) or "none"
        raise InvalidUri(f"store {shown!r}", f"unknown option {unknown[0]!r}", f"options of {kind}: {known}")
    return options


def _without_servers(shown: str, kind: str, body: str, options: dict[str, str]) -> StoreUri:
    if kind == "file":
        if not body:
            raise InvalidUri(f"store {shown!r}", "no path after file:", f"as in {EXAMPLES}")
        refuse_dash(f"store {shown!r}", unquote(body), "name a file; file:/dev/stdin?format=csv reads standard input")
        if (unterminated := options.get("unterminated", "accept")) != "accept":
            raise InvalidUri(
                f"store {shown!r}", f"unterminated={unterminated} is not known", "as in unterminated=accept"
            )
        return StoreUri(kind, unquote(body), "", options)
    first, second = _TWO[kind]
    inner = {first, second} & set(options)
    if bool(body) == bool(inner) or (inner and len(inner) != 2):
        example = {"primary": "kafka%3A%2F%2Fh%3A9092", "kafka": "kafka%3A%2F%2Fh%3A9092"}
        query = "&".join(f"{name}={example.get(name, 'zookeeper%3A%2F%2Fh%3A2181')}" for name in (first, second))
        raise InvalidUri(
            f"store {shown!r}",
            f"needs either the name of a [store.NAME] section, or both {first} and {second}",
            f"as in {kind}:NAME, or {kind}:?{query}",
        )
    if (start := options.get("start", _MODES[0])) not in _MODES:
        raise InvalidUri(f"store {shown!r}", f"unknown mode {start!r}", f"modes: {', '.join(_MODES)}")
    _translate(f"store {shown!r}", options)
    return StoreUri(kind, unquote(body), "", options)


def refuse_dash(what: str, path: str, instead: str) -> None:
    """Raises `UsageError` for the path ``-``: people mean standard input or output by it, and here it would be a file
    of that name. ``instead`` is what they can give."""
    if path == "-":
        raise UsageError(what, "- is not standard input or output here", instead)


def _translate(where: str, settings: Mapping[str, str]) -> Translate | None:
    said = settings.get("translate")
    if said is None:
        return None
    if said not in tuple(Translate):
        raise InvalidUri(where, f"unknown translation {said!r}", "translate=none is the only one")
    return Translate(said)


def _check_hosts(shown: str, kind: str, address: str) -> None:
    for host in address.split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            raise InvalidUri(f"store {shown!r}", f"{host!r} is not HOST:PORT" if host else "a host is missing")
        if match[1] is None and kind != "zookeeper":
            raise InvalidUri(f"store {shown!r}", f"{host!r} has no port", f"as in {kind}://{host}:9092")
        if match[1] is not None and not 0 < int(match[1]) < 65536:
            raise InvalidUri(f"store {shown!r}", f"{match[1]} is not a port")


def open_store(uri: str, config: ConnectionConfig | None = None) -> OffsetStore:
    """The store at ``uri``. Construction does no I/O; the store's first call connects.

    Raises `InvalidUri` where the URI cannot be understood.
    """
    config = ConnectionConfig() if config is None else config
    parsed = parse_uri(uri)
    if parsed.kind == "zookeeper":
        return _open_zookeeper(parsed, config)
    if parsed.kind == "kafka":
        from offsetmgr.stores.kafka import KafkaStore

        return KafkaStore(parsed.address, config)
    if parsed.kind == "manager":
        from offsetmgr.stores.manager import ManagerStore

        return ManagerStore(parsed.address, config)
    if parsed.kind == "file":
        from offsetmgr.stores.snapshot import SnapshotStore

        return SnapshotStore(
            parsed.address,
            format=parsed.options.get("format"),
            group=parsed.options.get("group"),
            accept_unterminated="unterminated" in parsed.options,
        )
    return open_switched(uri, config) if parsed.kind == "switched" else _open_dual(uri, config)


def _open_zookeeper(parsed: StoreUri, config: ConnectionConfig) -> OffsetStore:
    from offsetmgr.stores.zookeeper import ZookeeperStore

    layout, root = parsed.options.get("layout", "0.8"), parsed.options.get("root", "")
    return ZookeeperStore(parsed.address + parsed.path, layout=layout, config=config, root=root)


def _open_dual(uri: str, config: ConnectionConfig) -> OffsetStore:
    inner = inner_uris(uri, config)
    from offsetmgr.stores.dual import DualStore

    return DualStore(open_store(inner[0], config), open_store(inner[1], config), translate=translate_of(uri, config))


def open_switched(
    uri: str, config: ConnectionConfig, bound: tuple[ZookeeperSession, Lease] | None = None
) -> SwitchedStore:
    """The switched store at ``uri``; with ``bound`` it lives in that member's session. Raises `InvalidUri`."""
    from offsetmgr.core.commit_mode import Phase
    from offsetmgr.stores.switched.backends import SwitchedPlaces
    from offsetmgr.stores.switched.store import SwitchedStore
    from offsetmgr.stores.zookeeper import ZookeeperStore

    zookeeper, kafka = inner_uris(uri, config)
    parsed = parse_uri(zookeeper)
    connect = parsed.address + parsed.path

    def open_places(session: ZookeeperSession) -> SwitchedPlaces:
        first = ZookeeperStore(connect, config=config)
        first.session = session
        return SwitchedPlaces(first, open_store(kafka, config), translate)

    translate = translate_of(uri, config)
    start = parse_uri(uri).options.get("start")
    return SwitchedStore(uri, connect, open_places, config, start=None if start is None else Phase(start), bound=bound)


def inner_uris(uri: str, config: ConnectionConfig) -> tuple[str, str]:
    """The two URIs of a dual store (primary, secondary) or of a switched one (ZooKeeper's, Kafka's).

    Raises `InvalidUri`."""
    parsed = parse_uri(uri)
    names = _TWO[parsed.kind]
    settings = parsed.options
    if parsed.address:
        if parsed.address not in config.stores:
            known = ", ".join(sorted(config.stores)) or "none"
            raise InvalidUri(
                f"store {uri!r}", f"the config file has no [store.{parsed.address}]", f"stores there: {known}"
            )
        settings = dict(config.stores[parsed.address])
        if set(settings) - {"translate"} != set(names):
            raise InvalidUri(f"store {uri!r}", f"[store.{parsed.address}] needs both {names[0]} and {names[1]}")
    inner = (settings[names[0]], settings[names[1]])
    if parsed.kind == "switched":
        return _switchable(uri, inner)
    for one in inner:
        if (kind := parse_uri(one).kind) in _TWO:
            raise InvalidUri(f"store {redact(uri)!r}", f"a {kind} store cannot stand inside another")
    if len({parse_uri(one).options.get("layout") == "0.7" for one in inner}) > 1:
        raise InvalidUri(
            f"store {redact(uri)!r}",
            "one of its stores holds byte positions of Kafka 0.7 and the other offsets, which never agree",
            "see migrate plan --partition-map",
        )
    return inner


def translate_of(uri: str, config: ConnectionConfig) -> Translate | None:
    """What a dual or switched store's URI, or its section of the config file, says where its two stores belong to
    different Kafka clusters; None for other stores. Raises `InvalidUri`."""
    parsed = parse_uri(uri)
    if parsed.kind not in _TWO:
        return None
    section = config.stores.get(parsed.address, {}) if parsed.address else {}
    return _translate(f"[store.{parsed.address}]", {**section, **parsed.options})


def _switchable(uri: str, inner: tuple[str, str]) -> tuple[str, str]:
    """Raises `InvalidUri` unless the first is a ZooKeeper in Kafka's layout and the second speaks Kafka's protocol."""
    zookeeper, kafka = parse_uri(inner[0]), parse_uri(inner[1])
    if zookeeper.kind != "zookeeper" or zookeeper.options.get("layout", "0.8") != "0.8":
        raise InvalidUri(f"store {redact(uri)!r}", "its zookeeper must be zookeeper://HOST:PORT/CHROOT, layout 0.8")
    if kafka.kind not in ("kafka", "manager"):
        raise InvalidUri(f"store {redact(uri)!r}", "its kafka must be kafka://HOST:PORT or manager://HOST:PORT")
    return inner


def bootstrap_of(uri: str, config: ConnectionConfig) -> str | None:
    """The Kafka brokers that a store's URI names (its own, or one of the two of a dual or switched one), or None.

    A manager's listener counts as one: it answers for the logs of the cluster behind it.
    """
    parsed = parse_uri(uri)
    if parsed.kind in ("kafka", "manager"):
        return parsed.address
    if parsed.kind in _TWO:
        return next((found for one in inner_uris(uri, config) if (found := bootstrap_of(one, config))), None)
    return None


def zookeeper_of(uri: str, config: ConnectionConfig) -> str | None:
    """The ZooKeeper connect string (with chroot) in which a store's consumers register themselves: its own, or that
    of one inside a dual store; None where there is none. Storm's spouts register nowhere."""
    parsed = parse_uri(uri)
    if parsed.kind == "zookeeper":
        return None if parsed.options.get("layout") == "storm" else parsed.address + parsed.path
    if parsed.kind in _TWO:
        return next((found for one in inner_uris(uri, config) if (found := zookeeper_of(one, config))), None)
    return None
