"""One migration between two stores in memory, through the library."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from in_process import command, rows
from memory_stores import LOGS, OneLog, in_memory, logs_in_memory

from offsetmgr import Migration as Library
from offsetmgr import MigrationConfig, PlanOptions, TopicPartition
from offsetmgr.app.connections import Connections
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import Committed
from offsetmgr.migration.journaled_writer import Report
from offsetmgr.migration.progress import Journal, JournalRecord
from offsetmgr.testing.memory import MemoryStore

ORDERS = [TopicPartition("orders", p) for p in range(4)]
Groups = str | tuple[str, ...] | None


@dataclass
class Migration:
    """One plan between the stores ``memory:source`` and ``memory:target``. Each command is a method."""

    directory: Path
    source: MemoryStore = field(default_factory=lambda: MemoryStore("source"))
    target: MemoryStore = field(default_factory=lambda: MemoryStore("target"))
    options: PlanOptions = field(default_factory=PlanOptions)
    name: str = "plan.json"

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def journal(self) -> Path:
        return self.path.with_suffix(".journal")

    def plan(self, logs: OneLog | None = None, **options: Any) -> Library:
        self.directory.mkdir(exist_ok=True)
        with self.stores(logs) as config:
            planned = Library.plan("memory:source", "memory:target", self.path, self.options, config=config, **options)
        planned.close()
        return planned

    def start(
        self,
        source: Sequence[int | None],
        target: Sequence[int | None] = (),
        *,
        options: PlanOptions | None = None,
        logs: OneLog | None = None,
        apply: bool = True,
    ) -> None:
        """Plans and applies group ``g``, which has these offsets of ``orders`` in the source and in the target."""
        commit(self.source, "g", *source)
        if target:
            commit(self.target, "g", *target)
        self.options = options or self.options
        self.plan(logs)
        if apply:
            self.apply(logs=logs)

    def plan_again(self, **options: Any) -> Library:
        """Makes a new plan of the same name. The journal of the old one stays."""
        self.path.unlink()
        return self.plan(**options)

    @contextmanager
    def opened(self, logs: OneLog | None = None) -> Iterator[Library]:
        with self.stores(logs) as config, Library(self.path, config) as library:
            yield library

    @contextmanager
    def stores(self, logs: OneLog | None = None) -> Iterator[MigrationConfig]:
        """The operation log is in the directory of the migration: earlier copies are evidence for a plan."""
        in_memory(source=self.source, target=self.target)
        with logs_in_memory(logs), patch.dict(os.environ, XDG_STATE_HOME=str(self.directory / "state")):
            yield MigrationConfig(None if logs is None else LOGS)

    @contextmanager
    def configured(self, zookeeper: str = "source", kafka: str = "target") -> Iterator[None]:
        """The settings name these stores as ZooKeeper and as Kafka."""
        sides = {"zookeeper": f"memory:{zookeeper}", "kafka": f"memory:{kafka}"}
        with self.stores(), patch.object(Connections, "configured_stores", lambda _self: sides):
            yield

    def state(self) -> Any:
        with self.opened() as library:
            return library.state()

    def apply(self, groups: Groups = None, *, logs: OneLog | None = None, accept_stale: bool = False) -> Report:
        with self.opened(logs) as library:
            return library.apply(groups=groups, accept_stale=accept_stale, raise_on_failure=False)

    def rollback(self, groups: Groups = None, *, force: bool = False) -> Any:
        with self.opened() as library:
            return library.rollback(groups=groups, allow_rewind=force)

    def results(self, logs: OneLog | None = None, groups: Groups = None) -> list[Any]:
        """The results of verify, one for each partition."""
        with self.opened(logs) as library:
            found = library.verify(groups=groups)
            results, self.verified = list(found), found.summary
        return results

    def verify(self, logs: OneLog | None = None) -> dict[str, str]:
        return {f"{one.target_group} {one.tp}": one.status.value for one in self.results(logs)}

    def target_offsets(self) -> dict[str, dict[TopicPartition, int]]:
        return {g: {tp: c.offset for tp, c in stored.items()} for g, stored in self.target.data.items() if stored}

    def run(self, name: str, *arguments: str, code: int | None = 0) -> str:
        """Runs ``offsetmgr migrate NAME PLAN``, and returns what it prints on standard error."""
        return self.command("migrate", name, self.path, *arguments, code=code)

    def command(self, *arguments: object, code: int | None = 0) -> str:
        with self.stores():
            return command(*arguments, code=code).stderr

    def status(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """The row of each group in ``migrate status``."""
        with self.stores():
            return {row["group"]: row for row in rows("migrate", "status", self.path, *arguments)}

    def states(self) -> dict[str, str]:
        return {group: row["state"] for group, row in self.status().items()}

    def append(self, *records: JournalRecord) -> None:
        """Appends records to the journal, as a command does that observes or restarts members."""
        sha256 = json.loads(self.path.read_text())["sha256"]
        time.sleep(0.001)  # a journal orders steps by their millisecond
        with Journal(self.journal, plan_sha256=sha256, clock=SystemClock()) as opened:
            opened.append(records)

    def edits(self, *arguments: str) -> list[dict[str, Any]]:
        """The recorded operations, the oldest first; with ``show ID`` the details of one."""
        with self.stores():
            return list(rows("edits", *(arguments or ("list",))))


def commit(store: MemoryStore, group: str, *offsets: int | None) -> None:
    """Sets ``orders`` 0, 1, ... of a group; None leaves a partition without a commit."""
    committed = {tp: Committed(o, version=0) for tp, o in zip(ORDERS, offsets, strict=False) if o is not None}
    store.data.setdefault(group, {}).update(committed)
