"""One scheme of store URIs: how its URI is read, and how its store is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.offset_store import OffsetStore


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


@dataclass(frozen=True, slots=True)
class Scheme:
    """A kind of store.

    ``parse`` takes the URI as error messages show it, the text between ``scheme:`` and ``?``, and the options.
    ``bootstrap`` returns the Kafka brokers that a URI names, ``zookeeper`` the ZooKeeper in which the consumers of the
    store register themselves; both return None where there is none. Each function raises `InvalidUri`.
    """

    options: frozenset[str]
    parse: Callable[[str, str, dict[str, str]], StoreUri]
    open: Callable[[str, ConnectionConfig], OffsetStore]
    bootstrap: Callable[[str, ConnectionConfig], str | None] = lambda _uri, _config: None
    zookeeper: Callable[[str, ConnectionConfig], str | None] = lambda _uri, _config: None
