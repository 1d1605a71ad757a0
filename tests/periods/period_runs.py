"""A fixture for tests of the period coordinator on real ZooKeeper: the members, commands and nodes of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo_client import connected

from offsetmgr.cli.app import run as offsetmgr
from offsetmgr.core.model import TopicPartition
from offsetmgr.period import CoordinatorOptions, PeriodCoordinator, PeriodSchedule
from offsetmgr.sandbox import ZooKeeperServer


class Runs:
    """A run and its reruns. ``partitions`` lists the existing partitions. ``nodes`` is a client of ZooKeeper."""

    def __init__(self, connect: str, root: str, nodes: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.connect = connect
        self.root = root
        self.nodes = nodes
        self.schedule = PeriodSchedule(0, 1_000)
        self.partitions: list[TopicPartition] = []
        self.members: list[PeriodCoordinator] = []
        self._capsys = capsys

    def member(
        self, name: str, owned: list[TopicPartition], root: str | None = None, **options: Any
    ) -> PeriodCoordinator:
        found = PeriodCoordinator(
            self.connect,
            root or self.root,
            name,
            self.schedule,
            lambda: self.partitions,
            owned=owned,
            options=CoordinatorOptions(session_timeout_ms=20_000, **options),
        )
        self.members.append(found)
        return found.start()

    def period(self, *arguments: str, code: int = 0, root: str | None = None) -> tuple[str, str]:
        return self._run("period", *arguments, "--root", root or self.root, "--zookeeper", self.connect, code=code)

    def rows(self, *arguments: str, code: int = 0, root: str | None = None) -> list[dict[str, Any]]:
        found = json.loads(self.period(*arguments, "--format", "json", code=code, root=root)[0])
        assert isinstance(found, list)
        return found

    def periods(self, root: str | None = None) -> list[int]:
        return sorted({row["period"] for row in self.rows("history", root=root)})

    def last_edit(self) -> dict[str, Any]:
        (found,) = json.loads(self._run("edits", "list", "--last", "1", "--format", "json")[0])
        return dict(found)

    def _run(self, *command: str, code: int = 0) -> tuple[str, str]:
        self._capsys.readouterr()
        assert offsetmgr(list(command)) == code
        shown = self._capsys.readouterr()
        return shown.out, shown.err


@pytest.fixture
def runs(zookeeper: ZooKeeperServer, unique: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Runs]:
    with connected(zookeeper.connect) as nodes:
        found = Runs(zookeeper.connect, f"/{unique}", nodes, capsys)
        yield found
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(PeriodCoordinator.stop, found.members))
