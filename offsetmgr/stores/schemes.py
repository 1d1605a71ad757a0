"""The schemes with one store behind each URI: ``zookeeper``, ``kafka``, ``manager`` and ``file``."""

from __future__ import annotations

import re
from functools import partial
from typing import Final
from urllib.parse import unquote

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import InvalidUri
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.stores.uri import EXAMPLES, Scheme, StoreUri, parse_server_uri, parse_uri, reject_dash

_LAYOUTS: Final = ("0.8", "0.7", "storm")
_ROOT: Final = re.compile("(/(?!\\.{1,2}(/|$))[^/]+)+")


def _parse_zookeeper(shown: str, body: str, options: dict[str, str]) -> StoreUri:
    parsed = parse_server_uri("zookeeper", shown, body, options)
    _check_layout(shown, options)
    return parsed


def _check_layout(shown: str, options: dict[str, str]) -> None:
    layout = options.get("layout", "0.8")
    if layout not in _LAYOUTS:
        raise InvalidUri(f"store {shown!r}", f"unknown layout {layout!r}", f"layouts: {', '.join(_LAYOUTS)}")
    root = options.get("root", "")
    if (layout == "storm") != bool(root):
        why = "layout storm needs root=/PATH, the spouts' zkRoot" if not root else f"layout {layout} has no root"
        raise InvalidUri(f"store {shown!r}", why, "as in zookeeper://h:2181?layout=storm&root=/kafkastorm")
    if root and not _ROOT.fullmatch(root):
        raise InvalidUri(f"store {shown!r}", f"root {root!r} is not an absolute path", "as in root=/kafkastorm")


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
        raise InvalidUri(f"store {shown!r}", "no path after file:", f"as in {EXAMPLES}")
    reject_dash(f"store {shown!r}", unquote(body), "name a file; file:/dev/stdin?format=csv reads standard input")
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
KAFKA: Final = Scheme(frozenset(), partial(parse_server_uri, "kafka"), _open_kafka, bootstrap=_address_of)
MANAGER: Final = Scheme(frozenset(), partial(parse_server_uri, "manager"), _open_manager, bootstrap=_address_of)
FILE: Final = Scheme(frozenset({"format", "group", "unterminated"}), _parse_file, _open_file)
