"""The scheme ``switched``, and `open_switched`, which can open the store within a consumer's ZooKeeper session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.stores.pair_uri import inner_uris, pair_bootstrap, pair_zookeeper, parse_pair_uri, translate_of
from offsetmgr.stores.scheme import Scheme
from offsetmgr.stores.uri import open_store, parse_uri

if TYPE_CHECKING:
    from offsetmgr.stores.switched.store import SwitchedStore
    from offsetmgr.zookeeper.client.session import ZookeeperSession
    from offsetmgr.zookeeper.client.session_lease import SessionLeaseProtocol


def open_switched(
    uri: str, config: ConnectionConfig, bound: tuple[ZookeeperSession, SessionLeaseProtocol] | None = None
) -> SwitchedStore:
    """Returns the switched store at ``uri``. If ``bound`` is given, the store uses this session and lease; otherwise it
    opens its own session. Raises `InvalidUri`."""
    from offsetmgr.stores.switched.backends import SwitchedBackends
    from offsetmgr.stores.switched.store import SwitchedStore
    from offsetmgr.stores.zookeeper import ZookeeperStore

    zookeeper, kafka = inner_uris(uri, config)
    parsed = parse_uri(zookeeper)
    connect = parsed.address + parsed.path

    def open_backends(session: ZookeeperSession) -> SwitchedBackends:
        first = ZookeeperStore(connect, config=config)
        first.session = session
        return SwitchedBackends(first, open_store(kafka, config), translate)

    translate = translate_of(uri, config)
    start = parse_uri(uri).options.get("start")
    return SwitchedStore(
        uri, connect, open_backends, config, start=None if start is None else CommitMode(start), bound=bound
    )


SWITCHED: Final = Scheme(
    frozenset({"zookeeper", "kafka", "start", "translate"}),
    partial(parse_pair_uri, "switched"),
    open_switched,
    pair_bootstrap,
    pair_zookeeper,
)
