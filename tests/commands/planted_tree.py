"""`Planted`: a test's own tree of nodes on the shared ZooKeeper, and ``offsetmgr zk`` on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Output, command, rows
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.sandbox import ZooKeeperServer


class Planted:
    """The nodes below ``path``. ``client`` is another program's client of the whole ZooKeeper."""

    def __init__(self, server: ZooKeeperServer, client: KazooClient, chroot: str) -> None:
        self.connect = f"{server.connect}/{chroot}"
        self.path = f"/{chroot}"
        self.client = client
        client.create(self.path)

    def node(self, path: str, data: str | bytes = b"", *, live: bool = False, **options: Any) -> None:
        raw = data.encode() if isinstance(data, str) else data
        self.client.create(self.path + path, raw, ephemeral=live, makepath=True, **options)

    def data(self, path: str) -> bytes | None:
        """The data of a node; None if it does not exist."""
        return self.client.get(self.path + path)[0] if self.client.exists(self.path + path) else None

    def delete(self, path: str = "") -> None:
        self.client.delete(self.path + path, recursive=True)

    @property
    def session_id(self) -> str:
        return f"{self.client.client_id[0]:#x}"

    def zk(self, *arguments: str, code: int = 0) -> Output:
        return command("zk", *arguments, "--zookeeper", self.connect, code=code)

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        return list(rows("zk", *arguments, "--zookeeper", self.connect, code=code))


@pytest.fixture
def planted(zookeeper: ZooKeeperServer, unique: str, tmp_path: Path, monkeypatch) -> Iterator[Planted]:
    """An empty tree. Commands find no settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with connected(zookeeper.connect) as client:
        tree = Planted(zookeeper, client, unique)
        yield tree
        tree.delete()


def only(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]
