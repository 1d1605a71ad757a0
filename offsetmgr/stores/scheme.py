"""The definition of one scheme of store URIs: how to parse a URI and how to open its store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

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


class Scheme(NamedTuple):
    """The functions of one scheme.

    ``options`` are the names of the valid options. ``parse`` receives the URI as error messages show it, the text
    between ``scheme:`` and ``?``, and the options. ``open`` returns the store. ``bootstrap`` returns the Kafka brokers
    that a URI names, or None if it names none. ``zookeeper`` returns the connect string of the ZooKeeper in which the
    store's consumers register, or None if there is no such ZooKeeper. Each function raises `InvalidUri`.
    """

    options: frozenset[str]
    parse: Callable[[str, str, dict[str, str]], StoreUri]
    open: Callable[[str, ConnectionConfig], OffsetStore]
    bootstrap: Callable[[str, ConnectionConfig], str | None] = lambda _uri, _config: None
    zookeeper: Callable[[str, ConnectionConfig], str | None] = lambda _uri, _config: None
