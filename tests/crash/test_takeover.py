"""The takeover of the shard groups of a killed manager, long before its session expires. A frozen manager is not taken
for a killed one.

The session timeout is 300 s in these tests, so a takeover within a minute is not the work of the session.
"""

import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from history import FETCH, violations
from manager_cluster import Manager, addresses_of, clients_of, history_of, managers_of, owned_by, served
from processes import wait_for

from offsetmgr.core.model import GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.manager.lease import TAKEOVER_WAIT_S
from offsetmgr.manager.ownership import managers_group
from offsetmgr.sandbox import KafkaBroker

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
ROUNDS = 200 if SOAK else 4
SEED = int(os.environ.get("OFFSETMGR_SEED", "20161129"))
BURNERS = 6
"""Processes that keep the processors busy in `test_no_manager_is_removed_by_mistake_on_a_busy_machine`."""
MAX_TAKEOVER_S = 60.0
OPTIONS = ("--session-timeout", "300000")
TP = TopicPartition("t", 0)
LEAVE_GROUP = 13
REMOVAL = re.compile(r"^(\S+) .*manager (\S+) has died", re.MULTILINE)

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(3000 if SOAK else 900)]


@pytest.fixture
def two(kafka: KafkaBroker, tmp_path: Path, unique: str) -> Iterator[list[Manager]]:
    with managers_of(tmp_path, [kafka], 2, "--offsets-topic", unique, *OPTIONS) as managers:
        yield managers


def removals(managers: list[Manager]) -> list[str]:
    """The addresses of the managers that other managers removed, from the log files, in order."""
    found = [match.groups() for manager in managers for match in REMOVAL.finditer(manager.log.read_text())]
    return [address for _, address in sorted(found)]


async def seconds_to_commit(manager: Manager, group: str, value: int, after: Callable[[], None]) -> float:
    """Calls ``after`` and repeats a commit at the manager until it is acknowledged. Returns the duration."""
    connection = await BrokerConnection.open(Address.parse(manager.address), Security(), 60)
    started_at = time.monotonic()
    after()
    try:
        while True:
            answer = await connection.call(requests.offset_commit(group, {TP: OffsetAndMetadata(value)}), 60)
            if answer["topics"][0]["partitions"][0]["error_code"] == 0:
                return time.monotonic() - started_at
            await asyncio.sleep(0.01)  # the pause between two attempts
    finally:
        await connection.close()


def restart(killed: Manager, managers: list[Manager]) -> None:
    killed.start()
    wait_for(lambda: served(addresses_of(managers), len(managers)), "both managers share the shards again")


def test_commits_resume_long_before_the_session_of_a_killed_owner_ends(two: list[Manager]) -> None:
    durations = []
    for number in range(3):
        killed, survivor = two[number % 2], two[1 - number % 2]
        group = owned_by(killed, addresses_of(two))
        durations.append(asyncio.run(seconds_to_commit(survivor, group, number, killed.kill)))
        restart(killed, two)
    sys.stdout.write(f"takeover after {', '.join(f'{seconds:.2f}' for seconds in durations)} s\n")
    assert max(durations) < MAX_TAKEOVER_S
    # The killed manager might have been alive, with a lease.
    assert min(durations) > TAKEOVER_WAIT_S
    assert removals(two) == [two[0].address, two[1].address, two[0].address]


def test_a_frozen_manager_is_not_removed_and_continues(two: list[Manager]) -> None:
    group = owned_by(two[0], addresses_of(two))
    two[0].freeze()
    time.sleep(6)  # longer than any takeover of a killed manager, and than the renewal of the connections
    assert served(two[1].address, 1) is False
    two[0].thaw()
    assert asyncio.run(seconds_to_commit(two[0], group, 1, lambda: None)) < MAX_TAKEOVER_S
    assert owned_by(two[0], addresses_of(two)) == group
    assert removals(two) == []


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


async def remove_member(bootstrap: str, group: str, dice: random.Random) -> None:
    """Removes a random member of the managers' group, as an administrator or a mistaken manager would."""
    client = Client(bootstrap, Security())
    deadline = asyncio.get_running_loop().time() + 120
    try:
        members: Sequence[GroupMember] = ()
        while len(members) < 2:  # a removed manager rejoins
            await asyncio.sleep(0.05)
            found = (await client.describe([group], deadline))[group]
            members = found.members if isinstance(found, GroupDescription) else ()
        member = dice.choice(members)
        connection = await client.node(await client.coordinator(group, deadline)).connection(deadline)
        leaving = {"member_id": member.member_id, "group_instance_id": None}
        answer = await connection.call(Request(LEAVE_GROUP, 3, {"group_id": group, "members": [leaving]}), 60)
        assert (answer["error_code"], answer["members"][0]["error_code"]) == (0, 0)
    finally:
        await client.close()


def test_living_managers_that_are_removed_from_the_group_answer_no_outdated_fetch(two, kafka, tmp_path, unique) -> None:
    """Half of the removed managers are frozen at the same time, so that they learn of the removal late."""
    sys.stdout.write(f"seed {SEED}\n")
    dice = random.Random(SEED)
    with clients_of(tmp_path, addresses_of(two), 2, 3) as files:
        for _ in range(ROUNDS // 2):
            asyncio.run(remove_member(kafka.bootstrap, managers_group(unique), dice))
            if dice.random() < 0.5:
                frozen = dice.choice(two)
                frozen.freeze()
                time.sleep(dice.uniform(0, 3))  # about the duration of a lease and of a takeover
                frozen.thaw()
            wait_for(lambda: served(addresses_of(two), 2), "both managers share the shards again")
    assert not violations(history_of(files))
    assert removals(two) == []


@pytest.mark.soak  # it keeps the processors busy, which would delay the other tests
def test_no_manager_is_removed_by_mistake_on_a_busy_machine(two: list[Manager], tmp_path: Path) -> None:
    """Managers are killed and frozen at random while clients commit and fetch. Only killed managers are removed, and no
    fetch returns an older offset than was acknowledged or fetched before."""
    sys.stdout.write(f"seed {SEED}, {ROUNDS} rounds\n")
    dice = random.Random(SEED)
    killed: list[str] = []
    durations = []
    with busy_machine(), clients_of(tmp_path, addresses_of(two), 2, 3) as files:
        for number in range(ROUNDS):
            one, other = two if dice.random() < 0.5 else two[::-1]
            if number % 2:
                one.freeze()
                time.sleep(dice.uniform(0.1, 8))  # shorter than the session
                one.thaw()
                time.sleep(dice.uniform(0, 2))  # the load between two faults
            else:
                group = owned_by(one, addresses_of(two))
                durations.append(asyncio.run(seconds_to_commit(other, group, number, one.kill)))
                killed.append(one.address)
                restart(one, two)
    history = history_of(files)
    sys.stdout.write(
        f"{len(killed)} killed, takeover after {min(durations):.2f} to {max(durations):.2f} s, median "
        f"{sorted(durations)[len(durations) // 2]:.2f} s; {sum(o.kind == FETCH and o.done for o in history)} fetches\n"
    )
    assert removals(two) == killed
    assert not violations(history)
