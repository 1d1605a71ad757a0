"""The scheme ``dual``: a primary store and a secondary store with the same offsets."""

from __future__ import annotations

from typing import Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.stores.uri import (
    Scheme,
    inner_uris,
    open_store,
    pair_bootstrap,
    pair_zookeeper,
    parse_pair_uri,
    translate_of,
)


def _open(uri: str, config: ConnectionConfig) -> OffsetStore:
    inner = inner_uris(uri, config)
    from offsetmgr.stores.dual import DualStore

    return DualStore(open_store(inner[0], config), open_store(inner[1], config), translate=translate_of(uri, config))


DUAL: Final = Scheme(
    frozenset({"primary", "secondary", "translate"}),
    parse_pair_uri,
    _open,
    pair_bootstrap,
    pair_zookeeper,
)
