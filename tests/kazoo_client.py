"""A ZooKeeper client of another program, for tests that prepare or inspect nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient


@contextmanager
def connected(address: str, **options: Any) -> Iterator[KazooClient]:
    """A client of the servers at ``address``, whose session ends with the block. ``options`` are those of
    `KazooClient`."""
    client = KazooClient(address, **options)
    client.start(20)
    try:
        yield client
    finally:
        client.stop()
        client.close()
