"""A group of old consumers that follows a script, and the ``runbook`` commands that observe it, in this process."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from in_process import Output, command

from offsetmgr.app.connections import Connections
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, GroupDescription, GroupMember, LogRange, Offset, TopicPartition
from offsetmgr.migration.observation import GroupView, PartitionOwner, RegisteredMember
from offsetmgr.testing.memory import MemoryStore

START_MS = 1_700_000_000_000


def member(name: str, czxid: int) -> RegisteredMember:
    return RegisteredMember(f"g_{name}-1700000000000-{czxid:08x}", name, START_MS, czxid, czxid, ("t",))


@dataclass
class ScriptedClock:
    """A clock that advances only in `sleep`."""

    seconds: float = 0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return START_MS + int(self.seconds * 1000)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class ScriptedStore(MemoryStore):
    """A store with the same offset in every partition, which depends on the second; None is no offset."""

    address: str = ""
    offset_at: Callable[[int, float], int | None] = lambda _partition, _second: None
    partitions: int = 2
    clock: ScriptedClock = field(default_factory=ScriptedClock)

    @property
    def uri(self) -> str:
        return self.address

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        now = self.clock.seconds
        found = {TopicPartition("t", n): self.offset_at(n, now) for n in range(self.partitions)}
        return {tp: Committed(offset, version=offset) for tp, offset in found.items() if offset is not None}


@dataclass
class ScriptedGroup:
    """A group whose members, owners and offsets depend on the second of the observation. ``by_partition`` means that
    the functions of offsets receive the partition too. ``outage`` are the seconds in which ZooKeeper is away."""

    members_at: Callable[[float], list[RegisteredMember]]
    owners_at: Callable[[float], Mapping[int, PartitionOwner]]
    zookeeper_at: Callable[..., int | None]
    kafka_at: Callable[..., int | None]
    partitions: int = 2
    name: str = "g"
    others: tuple[str, ...] = ()
    """Groups with the same members."""
    cluster_name: str = "c1"
    kafka_name: str = ""
    """The id of the Kafka store, if it is not that of ZooKeeper."""
    log_end: int = 1000
    by_plan: bool = False
    """Whether the commands take the servers from a plan."""
    by_partition: bool = False
    outage: tuple[float, float, OffsetMgrError] | None = None
    retention_ms: int | None = None
    session: object = True
    """The session with ZooKeeper, which no test uses."""
    clock: ScriptedClock = field(default_factory=ScriptedClock)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, int]:
        return {"t": self.partitions}

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        return dict.fromkeys(partitions, LogRange(0, self.log_end))

    def offsets_retention_ms(self) -> int | None:
        return self.retention_ms

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        return {group: GroupDescription(group, "EMPTY") for group in groups}

    def members(self, group: str, _existing: object) -> tuple[dict[str, RegisteredMember], tuple[str, ...]]:
        if self.outage and self.outage[0] <= self.clock.seconds < self.outage[1]:
            raise self.outage[2]
        live = self.members_at(self.clock.seconds) if group in (self.name, *self.others) else []
        return {m.id: m for m in live}, ()

    def describe(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        members = {group: tuple(map(GroupMember, self.members(group, ())[0])) for group in groups}
        return {group: GroupDescription(group, "", members=found) for group, found in members.items()}

    def owners(self, _group: str) -> tuple[dict[TopicPartition, PartitionOwner], tuple[str, ...]]:
        owned = self.owners_at(self.clock.seconds)
        return {TopicPartition("t", n): owner for n, owner in owned.items()}, ()

    def view(self) -> GroupView:
        def store(id_: str, address: str, offsets: Callable[..., int | None]) -> ScriptedStore:
            offset_at = offsets if self.by_partition else lambda _partition, second: offsets(second)
            return ScriptedStore(
                id_, address=address, offset_at=offset_at, partitions=self.partitions, clock=self.clock
            )

        zookeeper = store(self.cluster_name, "zookeeper://zk:2181", self.zookeeper_at)
        kafka = store(self.kafka_name or self.cluster_name, "kafka://k:9092", self.kafka_at)
        return GroupView(cast("Any", self), zookeeper, kafka, cast("Any", self), self.clock)

    def runbook(self, name: str, *arguments: object, code: int | None = 0) -> Output:
        """Runs ``offsetmgr runbook NAME`` for the group. A gate watches for up to 30 s."""
        named = () if "--wave" in arguments else ("--group", self.name)
        servers = () if self.by_plan else ("--zookeeper", "zk:2181", "--bootstrap-server", "k:9092")
        window = ("--window", "30", "--poll", "1")
        with (
            patch.object(Connections, "group_view", lambda _self: self.view()),
            patch.object(GroupView, "of_plan", lambda *_: self.view()),
        ):
            return command("runbook", name, *named, *window, *servers, *arguments, code=code)

    def bounce(self, to: str, restart: str, state: Path, *arguments: object, code: int | None = 0) -> Output:
        """Restarts the members with the shell command ``restart``."""
        options = ("--to-phase", to, "--command", restart, "--quiet", "2", "--state", state)
        return self.runbook("bounce", *options, "--execute", "--yes", *arguments, code=code)


def writes(text: str, path: Path) -> str:
    """The shell command that appends a line to a file, for a restart."""
    return f"echo {text} >> {shlex.quote(str(path))}"
