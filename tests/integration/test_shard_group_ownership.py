"""Ownership of shard groups when managers join, leave, die and freeze, with real processes and a real coordinator.

Two processes never own a shard group at the same time. `owned_intervals` reads the events that each process recorded,
and counts a process as an owner while its lease is valid, even if the process was frozen or dead by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from processes import create_topic, wait_for

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.groups.group_member import GroupMemberConfig, KafkaGroupMember
from offsetmgr.manager.assignment import SharedConfig
from offsetmgr.manager.lease import LEASE_DURATION_S, boottime
from offsetmgr.manager.ownership import OwnershipManager
from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = pytest.mark.servers

SESSION_TIMEOUT_S = 6.0
"""Session timeout in seconds: the shortest that brokers allow."""
REBALANCE_TIMEOUT_S = 20
"""The rebalance timeout of a `shard_group_owner`, in sessions."""
SHARD_GROUPS = frozenset(range(8))


@dataclass
class Owner:
    """One `shard_group_owner` process and the events that it recorded."""

    name: str
    path: Path
    process: subprocess.Popen[bytes]

    def entries(self) -> list[dict[str, Any]]:
        lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else []
        return [json.loads(line) for line in lines[:-1]]

    def shard_groups(self) -> frozenset[int]:
        """The shard groups that the process owns now."""
        owned: set[int] = set()
        for entry in self.entries():
            if entry["event"] == "assigned":
                owned.add(entry["shard_group"])
            elif entry["event"] == "revoked":
                owned.discard(entry["shard_group"])
        return frozenset(owned)

    def revoked(self, since: float) -> list[int]:
        return [e["shard_group"] for e in self.entries() if e["event"] == "revoked" and e["t"] >= since]

    def taken_at(self, shard_group: int, since: float) -> float:
        return next(
            e["t"]
            for e in self.entries()
            if e["event"] == "assigned" and e["shard_group"] == shard_group and e["t"] >= since
        )

    def samples(self) -> list[dict[str, Any]]:
        return [e for e in self.entries() if e["event"] == "lease"]

    def valid(self) -> bool:
        samples = self.samples()
        return bool(samples) and samples[-1]["valid"]

    def samples_after(self, moment: float) -> list[dict[str, Any]]:
        """The samples that began after a moment. Waits until there is at least one."""
        wait_for(lambda: self.samples()[-1]["t"] > moment, f"{self.name} is running again")
        return [e for e in self.samples() if e["t"] > moment]

    def lease_end(self) -> float:
        """The time at which the latest lease ends or ended."""
        return max(e["t"] + e["left"] for e in self.samples() if e["valid"])

    def owned_intervals(self) -> list[tuple[int, float, float]]:
        """Shard group, start and end of each interval in which the process owned it with a valid lease."""
        found = []
        taken: dict[int, float] = {}
        entries = self.entries()
        leases = [(e["t"], e["t"] + e["left"]) for e in self.samples() if e["valid"]]
        for entry in [
            *entries,
            *({"t": float("inf"), "event": "revoked", "shard_group": shard_group} for shard_group in SHARD_GROUPS),
        ]:
            if entry["event"] == "assigned":
                taken[entry["shard_group"]] = entry["t"]
            elif entry["event"] == "revoked" and entry["shard_group"] in taken:
                start, end = taken.pop(entry["shard_group"]), entry["t"]
                for begin, until in leases:
                    if begin < end and until > start:
                        found.append((entry["shard_group"], max(begin, start), min(until, end)))
        return found


@dataclass
class Owners:
    """The managers of one group."""

    bootstrap: str
    group: str
    directory: Path
    session: float = SESSION_TIMEOUT_S
    all: list[Owner] = field(default_factory=list)

    def start(self, name: str) -> Owner:
        path = self.directory / f"{name}.jsonl"
        script = Path(__file__).with_name("shard_group_owner.py")
        port = 20_000 + len(self.all)
        command = [sys.executable, str(script), self.bootstrap, self.group, str(port), str(path), str(self.session)]
        with (self.directory / f"{name}.log").open("wb") as log:
            owner = Owner(name, path, subprocess.Popen(command, stdout=log, stderr=log))
        self.all.append(owner)
        return owner

    def wait_until_shared_by(self, *owners: Owner, seconds: float = 180) -> None:
        """Waits until these owners share all shard groups evenly and have valid leases."""

        def shared() -> bool:
            shard_groups = [owner.shard_groups() for owner in owners]
            sizes = [len(owned) for owned in shard_groups]
            return (
                sum(sizes) == len(SHARD_GROUPS)
                and frozenset().union(*shard_groups) == SHARD_GROUPS
                and max(sizes) - min(sizes) <= 1
                and all(owner.valid() for owner in owners)
            )

        wait_for(shared, f"shard groups are shared by {[owner.name for owner in owners]}", seconds)

    def assert_single_owner(self) -> None:
        intervals = [
            (shard_group, start, end, o.name) for o in self.all for shard_group, start, end in o.owned_intervals()
        ]
        for shard_group in SHARD_GROUPS:
            owned = sorted((start, end, name) for s, start, end, name in intervals if s == shard_group)
            assert owned, f"shard group {shard_group} was never owned"
            last: dict[str, float] = {}
            for start, end, name in owned:
                for other, until in last.items():
                    assert other == name or until <= start, f"shard group {shard_group}: {other} and {name} at {start}"
                last[name] = max(last.get(name, 0.0), end)

    def kill_all(self) -> None:
        for owner in self.all:
            owner.process.kill()
            owner.process.wait(90)


@pytest.fixture
def owners_at(unique: str, tmp_path: Path) -> Iterator[Callable[..., Owners]]:
    with contextlib.ExitStack() as stack:

        def make(bootstrap: str, session: float = SESSION_TIMEOUT_S) -> Owners:
            create_topic(bootstrap, unique, 1)
            owners = Owners(bootstrap, unique, tmp_path, session)
            stack.callback(owners.kill_all)
            return owners

        yield make


def test_shard_groups_move_at_once_when_a_manager_leaves_and_only_a_fair_share_moves_when_one_joins(
    kafka: KafkaBroker, owners_at: Callable[..., Owners]
) -> None:
    # Sessions are so long that no shard group moves because a session has expired.
    owners = owners_at(kafka.bootstrap, session=300.0)
    first, second, third = owners.start("first"), owners.start("second"), owners.start("third")
    owners.wait_until_shared_by(first, second, third)

    # One leaves cleanly: its shard groups move long before its session would expire, and the others lose none.
    since = boottime()
    first.process.send_signal(signal.SIGTERM)
    owners.wait_until_shared_by(second, third, seconds=owners.session / 3)
    assert second.revoked(since) == third.revoked(since) == []
    assert first.process.wait(90) == 0

    # Another one joins: it gets its share, and no other shard group moves.
    since = boottime()
    fourth = owners.start("fourth")
    owners.wait_until_shared_by(second, third, fourth)
    assert len(second.revoked(since) + third.revoked(since)) == len(fourth.shard_groups())
    owners.assert_single_owner()


def test_shard_groups_move_when_the_session_of_a_dead_or_frozen_manager_expires(
    kafka: KafkaBroker, owners_at: Callable[..., Owners]
) -> None:
    owners = owners_at(kafka.bootstrap)
    second, third, fourth = owners.start("second"), owners.start("third"), owners.start("fourth")
    owners.wait_until_shared_by(second, third, fourth)

    # One is killed: its shard groups move when its session expires, and the rebalance does not wait for its timeout.
    since = boottime()
    second.process.kill()
    owners.wait_until_shared_by(third, fourth)
    moved = [
        heir.taken_at(shard_group, since)
        for shard_group in second.shard_groups()
        for heir in (third, fourth)
        if shard_group in heir.shard_groups()
    ]
    assert len(moved) == len(second.shard_groups())
    assert second.lease_end() < min(moved) <= max(moved) < since + REBALANCE_TIMEOUT_S * SESSION_TIMEOUT_S

    # One is frozen past its session: its shard groups move, and when it resumes, it detects at once that it owns none.
    frozen = third.shard_groups()
    third.process.send_signal(signal.SIGSTOP)
    owners.wait_until_shared_by(fourth)
    assert fourth.shard_groups() >= frozen
    resumed = boottime()
    third.process.send_signal(signal.SIGCONT)
    assert third.samples_after(resumed)[0]["valid"] is False
    owners.wait_until_shared_by(third, fourth)
    assert set(third.revoked(resumed)) == frozen
    owners.assert_single_owner()


def test_without_a_coordinator_no_manager_owns_a_shard_group(tmp_path: Path, owners_at: Callable[..., Owners]) -> None:
    with KraftBroker(tmp_path / "kraft") as broker:
        owners = owners_at(broker.bootstrap)
        first, second = owners.start("first"), owners.start("second")
        owners.wait_until_shared_by(first, second)
        broker.freeze()
        frozen = boottime()
        wait_for(lambda: not first.valid() and not second.valid(), "leases have run out")
        for owner in (first, second):
            # A lease from before the freeze is valid to its end and no longer.
            end = owner.lease_end()
            assert frozen < end <= frozen + LEASE_DURATION_S
            # A sample is complete when the next one begins.
            assert all(sample["valid"] for sample, after in pairwise(owner.samples_after(frozen)) if after["t"] < end)
            assert not any(sample["valid"] for sample in owner.samples_after(frozen + LEASE_DURATION_S))
        broker.thaw()
        owners.wait_until_shared_by(first, second)
        owners.assert_single_owner()


def test_errors_that_only_an_administrator_can_fix_are_reported_at_once(kafka: KafkaBroker, unique: str) -> None:
    async def refusals() -> tuple[str, str]:
        client = Client(kafka.bootstrap, Security.of({}))

        def ownership(protocol: str, session: float) -> OwnershipManager:
            return OwnershipManager(
                "127.0.0.1",
                1,
                SharedConfig("offsets", 50, 8, "avro", 1, 1, False),
                lambda events: KafkaGroupMember(
                    client,
                    GroupMemberConfig(unique, "offsetmgr", protocol, session, 30, proof=TopicPartition(unique, 0)),
                    events,
                    clock=boottime,
                ),
            )

        first = ownership("offsetmgr-1", 10)
        await first.start(Idle())
        reported = []
        for other in (ownership("offsetmgr-2", 10), ownership("offsetmgr-1", 1)):
            with pytest.raises(OffsetMgrError) as caught:
                await other.start(Idle())
            reported.append(str(caught.value))
            await other.stop()
        await first.stop()
        await client.close()
        return reported[0], reported[1]

    another_protocol, another_session = asyncio.run(refusals())
    assert another_protocol == f"group {unique}: the group's members use another protocol (INCONSISTENT_GROUP_PROTOCOL)"
    assert another_session.endswith("exclude our session timeout (INVALID_SESSION_TIMEOUT)")


def test_a_manager_with_different_settings_is_excluded_with_a_reason(
    kafka: KafkaBroker, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def exclusion_reason() -> str | None:
        client = Client(kafka.bootstrap, Security.of({}))

        def ownership(port: int, format: str) -> OwnershipManager:
            return OwnershipManager(
                "127.0.0.1",
                port,
                SharedConfig("offsets", 50, 8, format, 1, 1, False),
                lambda events: KafkaGroupMember(
                    client,
                    GroupMemberConfig(unique, "offsetmgr", "offsetmgr-1", 10, 30, proof=TopicPartition(unique, 0)),
                    events,
                    clock=boottime,
                ),
            )

        first, other = ownership(1, "avro"), ownership(2, "kafka")
        await first.start(Idle())
        await other.start(Idle())
        reported = other.exclusion_reason
        await other.stop()
        await first.stop()
        await client.close()
        return reported

    assert "kafka" in (asyncio.run(exclusion_reason()) or "")
    assert "assigns no shard groups" not in caplog.text


class Idle:
    """An `OwnershipListener` that does nothing."""

    def on_assigned(self, shard_group: int, not_before: float) -> None: ...

    async def on_revoked(self, shard_group: int) -> None: ...
