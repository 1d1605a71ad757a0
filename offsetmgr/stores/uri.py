"""Store URIs: `parse_uri` parses one, `open_store` opens its store.

`offsetmgr.core.scheme_table` lists the modules of the schemes. A scheme's module is imported when a URI names it, so
that parsing a URI imports no store.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Final
from urllib.parse import parse_qsl

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import InvalidUri, UsageError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.core.scheme_table import SCHEMES
from offsetmgr.stores.scheme import Scheme, StoreUri

EXAMPLES: Final = "zookeeper://h1:2181/chroot, kafka://h1:9092, manager://h1:9192, dual:NAME, file:offsets.avro"


def scheme_of(uri: str) -> Scheme:
    """Returns the scheme of ``uri``. Raises `InvalidUri` if the scheme is unknown."""
    kind, colon, _ = uri.partition(":")
    if not colon or kind not in SCHEMES:
        why, hint = f"unknown kind {kind!r}" if colon else "no kind", f"as in {EXAMPLES}"
        if colon and kind == "switched":
            why = "an earlier offsetmgr had it"
            hint = "name the store that the group uses: zookeeper://... or kafka://..."
        raise InvalidUri(f"store {redact(uri)!r}", why, hint)
    module, _, attribute = SCHEMES[kind].partition(":")
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


def redact(uri: str) -> str:
    """Returns the URI for error messages: asterisks replace the credentials in front of an ``@``."""
    return re.sub(r"//[^/?#]*@", "//***@", re.sub(r"%2[Ff]%2[Ff][^%&]*(?:%3[Aa][^%&]*)?%40", "%2F%2F***%40", uri))


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


def reject_dash(what: str, path: str, instead: str) -> None:
    """Raises `UsageError` if ``path`` is ``-``, because the command would use a file with the name ``-``, not standard
    input or output. ``instead`` is the hint of the error."""
    if path == "-":
        raise UsageError(what, "- is not standard input or output here", instead)


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
