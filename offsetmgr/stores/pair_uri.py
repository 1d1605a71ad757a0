"""Parser of URIs that name two stores: ``dual:`` (primary, secondary) and ``switched:`` (ZooKeeper, Kafka)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import InvalidUri
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.stores.scheme import StoreUri
from offsetmgr.stores.uri import bootstrap_of, parse_uri, redact, zookeeper_of

PAIRS: Final = {"dual": ("primary", "secondary"), "switched": ("zookeeper", "kafka")}
"""The schemes of pairs of stores, and for each the two options that contain the stores' URIs."""
_MODES: Final = ("zookeeper", "dual", "kafka")


def parse_pair_uri(kind: str, shown: str, body: str, options: dict[str, str]) -> StoreUri:
    """Returns the parts of a URI of the scheme ``kind``. Raises `InvalidUri`."""
    first, second = PAIRS[kind]
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
    _parse_translate(f"store {shown!r}", options)
    return StoreUri(kind, unquote(body), "", options)


def _parse_translate(where: str, settings: Mapping[str, str]) -> OffsetTranslation | None:
    value = settings.get("translate")
    if value is None:
        return None
    if value not in tuple(OffsetTranslation):
        raise InvalidUri(where, f"unknown translation {value!r}", "translate=none is the only one")
    return OffsetTranslation(value)


def inner_uris(uri: str, config: ConnectionConfig) -> tuple[str, str]:
    """Returns the two URIs of a dual store (primary, secondary) or of a switched store (ZooKeeper, Kafka).

    Raises `InvalidUri`, or the `ConfigError` of the store's section.
    """
    parsed = parse_uri(uri)
    names = PAIRS[parsed.kind]
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
        if set(settings) - {"translate"} != set(names):
            raise InvalidUri(f"store {uri!r}", f"[store.{parsed.address}] needs both {names[0]} and {names[1]}")
    inner = (settings[names[0]], settings[names[1]])
    if parsed.kind == "switched":
        return _check_switched(uri, inner)
    for one in inner:
        if (kind := parse_uri(one).kind) in PAIRS:
            raise InvalidUri(f"store {redact(uri)!r}", f"a {kind} store cannot be part of another pair of stores")
    if len({parse_uri(one).options.get("layout") == "0.7" for one in inner}) > 1:
        raise InvalidUri(
            f"store {redact(uri)!r}",
            "one of its stores holds byte positions of Kafka 0.7 and the other one holds offsets",
            "see migrate plan --partition-map",
        )
    return inner


def translate_of(uri: str, config: ConnectionConfig) -> OffsetTranslation | None:
    """Returns the option ``translate`` of a dual or switched store, from its URI or from its section of the
    configuration file. Returns None if the option is not set, or if the store is neither dual nor switched. Raises
    `InvalidUri`."""
    parsed = parse_uri(uri)
    if parsed.kind not in PAIRS:
        return None
    section = config.stores.get(parsed.address, {}) if parsed.address else {}
    return _parse_translate(f"[store.{parsed.address}]", {**section, **parsed.options})


def _check_switched(uri: str, inner: tuple[str, str]) -> tuple[str, str]:
    """Raises `InvalidUri` unless the first URI names a ZooKeeper in Kafka's layout and the second URI names a store
    that speaks Kafka's protocol."""
    zookeeper, kafka = parse_uri(inner[0]), parse_uri(inner[1])
    if zookeeper.kind != "zookeeper" or zookeeper.options.get("layout", "0.8") != "0.8":
        raise InvalidUri(f"store {redact(uri)!r}", "its zookeeper must be zookeeper://HOST:PORT/CHROOT, layout 0.8")
    if kafka.kind not in ("kafka", "manager"):
        raise InvalidUri(f"store {redact(uri)!r}", "its kafka must be kafka://HOST:PORT or manager://HOST:PORT")
    return inner


def pair_bootstrap(uri: str, config: ConnectionConfig) -> str | None:
    """Returns the Kafka brokers that a store of the pair names; None if neither store names brokers. If both stores
    name brokers, the first store is used."""
    return next((found for one in inner_uris(uri, config) if (found := bootstrap_of(one, config))), None)


def pair_zookeeper(uri: str, config: ConnectionConfig) -> str | None:
    """Returns the ZooKeeper in which the consumers of a store of the pair register; None if there is no such ZooKeeper.
    If both stores have a ZooKeeper, the first store is used."""
    return next((found for one in inner_uris(uri, config) if (found := zookeeper_of(one, config))), None)
