"""Parser of URIs that list servers: ``kafka://h1:9092,h2:9092`` and ``zookeeper://h1:2181/chroot``."""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.config.connection import split_connect
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import InvalidUri
from offsetmgr.stores.scheme import StoreUri
from offsetmgr.stores.uri import EXAMPLES

_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d+))?")


def parse_server_uri(kind: str, shown: str, body: str, options: dict[str, str]) -> StoreUri:
    """Returns the parts of a URI of the scheme ``kind``. Raises `InvalidUri`."""
    if not body.startswith("//"):
        raise InvalidUri(f"store {shown!r}", f"{kind}: must be followed by //HOST:PORT", f"as in {EXAMPLES}")
    if "@" in body:
        raise InvalidUri(
            f"store {shown!r}",
            "credentials do not belong in a URI",
            Advice("put them in the file of {command_config} (zookeeper.auth=digest:USER:PASSWORD for ZooKeeper)"),
        )
    address, path = split_connect(body[2:], f"store {shown!r}")
    _check_hosts(shown, kind, address)
    if path and kind != "zookeeper":
        raise InvalidUri(f"store {shown!r}", f"{kind}: URIs have no path, but {path!r} was given")
    if "//" in path:
        raise InvalidUri(f"store {shown!r}", f"the chroot {path!r} has an empty part")
    return StoreUri(kind, address, path, options)


def _check_hosts(shown: str, kind: str, address: str) -> None:
    for host in address.split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            raise InvalidUri(f"store {shown!r}", f"{host!r} is not HOST:PORT" if host else "a host is missing")
        if match[1] is None and kind != "zookeeper":
            raise InvalidUri(f"store {shown!r}", f"{host!r} has no port", f"as in {kind}://{host}:9092")
        if match[1] is not None and not 0 < int(match[1]) < 65536:
            raise InvalidUri(f"store {shown!r}", f"{match[1]} is not a port")
