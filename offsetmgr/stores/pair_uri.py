"""Parser of ``dual:`` URIs, which name two stores: the primary store and the secondary store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import InvalidUri
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.stores.scheme import StoreUri
from offsetmgr.stores.uri import bootstrap_of, parse_uri, redact, zookeeper_of

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


def translate_of(uri: str, config: ConnectionConfig) -> OffsetTranslation | None:
    """Returns the option ``translate`` of a dual store, from its URI or from its section of the configuration file.
    Returns None if the option is not set. Raises `InvalidUri`."""
    parsed = parse_uri(uri)
    section = config.stores.get(parsed.address, {}) if parsed.address else {}
    return _parse_translate(f"[store.{parsed.address}]", {**section, **parsed.options})


def pair_bootstrap(uri: str, config: ConnectionConfig) -> str | None:
    """Returns the Kafka brokers that a store of the pair names; None if neither store names brokers. If both stores
    name brokers, the first store is used."""
    return next((found for one in inner_uris(uri, config) if (found := bootstrap_of(one, config))), None)


def pair_zookeeper(uri: str, config: ConnectionConfig) -> str | None:
    """Returns the ZooKeeper in which the consumers of a store of the pair register; None if there is no such ZooKeeper.
    If both stores have a ZooKeeper, the first store is used."""
    return next((found for one in inner_uris(uri, config) if (found := zookeeper_of(one, config))), None)
