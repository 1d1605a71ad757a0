"""Attacks on the managers' group by a member that has the right to use the group, but does not know the secret.

The member speaks the group protocol by itself, on a real broker. Its goal is that clients connect to its own address.
"""

import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from backend_listeners import ManagerListener
from processes import wait_for

from offsetmgr.cli.app import run
from offsetmgr.core.errors import NotCoordinator, TimedOut
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.manager.group_secret import GroupSecret
from offsetmgr.manager.ownership import PROTOCOL, PROTOCOL_TYPE, managers_group
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

SHARDS = 8
GROUPS = [f"group{n}" for n in range(40)]
SECRET, OTHER_SECRET = "secret of all managers " * 2, "secret of others " * 2
ROGUE = Address("10.6.6.6", 666)
CLAIMS = {"host": ROGUE.host, "port": ROGUE.port, "owned": {str(n): 2**31 - 1 for n in range(SHARDS)}}
"""The fields of metadata with which the rogue claims each shard group."""


class Rogue:
    """A member of the managers' group that is no manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.group = managers_group(topic)
        self.member_id = ""
        self._thread = ClientThread(Client(bootstrap, Security()), 60)

    def send(self, request: Any, address: Address | None = None, timeout_s: float = 60) -> Message:
        async def exchange(deadline: float) -> Message:
            at = address or await self._thread.client.coordinator(self.group, deadline)
            return await self._thread.client.call(at, request, deadline)

        return self._thread.run(exchange, timeout_s)

    def messages(self) -> dict[str, tuple[bytes, bytes]]:
        """The metadata and the assignment of the two managers, as every principal with the right Describe sees them."""

        def seen() -> dict[str, tuple[bytes, bytes]]:
            (described,) = self.send(requests.describe_groups([self.group]))["groups"]
            members = [m for m in described["members"] if m["member_id"] != self.member_id and m["member_assignment"]]
            return {m["member_id"]: (m["member_metadata"], m["member_assignment"]) for m in members}

        wait_for(lambda: len(seen()) == 2, "both managers have an assignment")
        return seen()

    def join(self, metadata: bytes, timeout_s: float = 60) -> Message:
        """Joins or rejoins the group, and waits for the next generation."""
        while True:
            protocol = {PROTOCOL: metadata}
            request = requests.join_as(self.group, self.member_id, PROTOCOL_TYPE, protocol, 20_000, 20_000)
            answer = self.send(request, timeout_s=timeout_s)
            self.member_id = answer["member_id"] or self.member_id
            if answer["error_code"] == 0:
                return answer

    def sync(self, joined: Message, assignments: Mapping[str, bytes]) -> None:
        membership = requests.LockMembership(self.group, self.member_id, joined["generation_id"])
        self.send(requests.sync_group(membership, assignments))

    def remove(self, member_id: str) -> None:
        self.send(requests.evict(self.group, [(member_id, None)]))

    def lead(self, forge: Callable[[Message], bytes]) -> None:
        """Removes the leaders of the group until this member leads it, and gives the managers a forged assignment."""
        leads, members = False, []
        while not leads or len(members) < 3:
            joined = self.join(b"{}")
            leads, members = joined["leader"] == self.member_id, joined["members"]
            self.sync(joined, {member["member_id"]: forge(joined) for member in members})
            if not leads:
                self.remove(joined["leader"])

    def close(self) -> None:
        self.remove(self.member_id)
        self._thread.close()


Managers: TypeAlias = list[ManagerListener]


@contextmanager
def managers(broker: KafkaBroker, topic: str, directory: Path) -> Iterator[Callable[..., ManagerListener]]:
    """Starts managers: without a secret, or with one."""
    with ExitStack() as stack:

        def start(secret: str = "", required: str = "true") -> ManagerListener:
            file = directory / f"{uuid.uuid4()}.toml"
            file.write_text(f"secrets = ['{secret}']\nrequired = {required}\n")
            options = {"managers_secret": str(file)} if secret else {}
            listener = ManagerListener(broker.bootstrap, topic, partitions=SHARDS, **options)
            stack.push(listener)  # stops it also if its start fails
            return listener.__enter__()

        yield start


@pytest.fixture(scope="module")
def two(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managers]:
    """Two managers with a secret."""
    with managers(kafka, f"offsets-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("secrets")) as start:
        yield [start(SECRET), start(SECRET)]


@pytest.fixture
def rogue(kafka: KafkaBroker, two: Managers) -> Iterator[Rogue]:
    """A rogue in the group of the two managers, which serve all shards."""
    with closing(Rogue(kafka.bootstrap, two[0].process._settings.offsets_topic)) as rogue:
        wait_until_served(two, rogue)
        yield rogue


def coordinators(listener: ManagerListener, rogue: Rogue) -> dict[str, Address]:
    """The address to which the manager sends the clients of each group."""
    found = rogue.send(requests.find_coordinator(GROUPS), Address("127.0.0.1", listener.port))["coordinators"]
    return {one["key"]: Address(one["host"], one["port"]) for one in found if not one["error_code"]}


def addresses(listeners: Managers, rogue: Rogue) -> set[Address]:
    """All addresses that clients receive from the managers."""
    found: set[Address] = set()
    for one in listeners:
        nodes = rogue.send(requests.metadata(), Address("127.0.0.1", one.port))
        found.update(requests.broker_addresses(nodes).values(), coordinators(one, rogue).values())
    return found


def commits(listener: ManagerListener, rogue: Rogue) -> int:
    """Commits for each group at its coordinator. Returns the number of successful commits."""
    done = 0
    for group, address in coordinators(listener, rogue).items():
        if address != ROGUE:
            request = requests.offset_commit(group, {TopicPartition("t", 0): OffsetAndMetadata(1)})
            done += rogue.send(request, address)["topics"][0]["partitions"][0]["error_code"] == 0
    return done


def wait_until_served(listeners: Managers, rogue: Rogue) -> None:
    wait_for(lambda: all(commits(one, rogue) == len(GROUPS) for one in listeners), "all commits succeed")


def alarms(listener: ManagerListener) -> str:
    return "\n".join(listener.process.status()["alarms"])


def with_fields(
    message: bytes, fields: Mapping[str, Any], secret: str, group: str, kind: str = "", subject: object = ""
) -> bytes:
    """A message with other fields, signed with a secret."""
    content = json.dumps(json.loads(message) | fields).encode()
    return GroupSecret(group, [secret] if secret else []).signed(content, kind, subject)


FORGED_METADATA: dict[str, Callable[[Rogue, bytes], bytes]] = {
    "no HMAC": lambda rogue, seen: with_fields(seen, CLAIMS, "", rogue.group, "member", rogue.member_id),
    "other secret": lambda rogue, seen: with_fields(seen, CLAIMS, OTHER_SECRET, rogue.group, "member", rogue.member_id),
    "other group": lambda rogue, seen: with_fields(seen, CLAIMS, SECRET, "other.managers", "member", rogue.member_id),
    "HMAC of a manager": lambda _, seen: with_fields(seen, CLAIMS, "", "")[:-1] + seen[seen.index(b',"hmacs"') :],
    "copy of a manager": lambda _, seen: seen,
}


@pytest.mark.parametrize("forge", FORGED_METADATA.values(), ids=FORGED_METADATA)
def test_a_follower_without_the_secret_gets_no_shard(two, rogue: Rogue, forge: Callable[[Rogue, bytes], bytes]) -> None:
    metadata, _ = next(iter(rogue.messages().values()))
    rogue.sync(rogue.join(b"{}"), {})  # now it has a member id
    rogue.sync(rogue.join(forge(rogue, metadata)), {})
    assert all(rogue.member_id.encode() not in assignment for _, assignment in rogue.messages().values())
    wait_for(lambda: any(rogue.member_id in alarms(one) for one in two), "the leader raises an alarm")
    wait_until_served(two, rogue)
    assert ROGUE not in addresses(two, rogue)


def all_to_the_leader(joined: Message) -> Mapping[str, Any]:
    """The fields of an assignment that gives each shard group to the leader, and names its address everywhere."""
    node = {"node_id": 1_000_000_000, "host": ROGUE.host, "port": ROGUE.port, "relay": {}}
    owners = {str(shard_group): joined["leader"] for shard_group in range(SHARDS)}
    nodes = {member["member_id"]: node for member in joined["members"]}
    return {"generation": joined["generation_id"], "nodes": nodes, "owners": owners}


@pytest.mark.parametrize("forgery", ["no HMAC", "other secret", "earlier generation"])
def test_a_leader_without_the_secret_redirects_no_client(two: Managers, rogue: Rogue, forgery: str, capsys) -> None:
    _, assignment = next(iter(rogue.messages().values()))

    def forge(joined: Message) -> bytes:
        secret = OTHER_SECRET if forgery == "other secret" else ""
        signed = (rogue.group, "generation", joined["generation_id"])
        fields = all_to_the_leader(joined)
        return assignment if forgery == "earlier generation" else with_fields(assignment, fields, secret, *signed)

    before = addresses(two, rogue)
    rogue.lead(forge)
    for number, one in enumerate(two):
        wait_for(lambda one=one: "rejected the assignment" in alarms(one), f"manager {number} raises an alarm")  # type: ignore[misc]
        assert one.process._backend is not None
        assert one.process._backend.metrics()["unproven_messages_total"] > 0
    assert addresses(two, rogue) <= before
    assert run(["manager", "status", "--bootstrap-server", two[0].bootstrap]) == 1
    assert "managers' group, generation" in capsys.readouterr().err
    rogue.remove(rogue.member_id)
    wait_until_served(two, rogue)


def test_a_manager_with_another_secret_does_not_start(kafka, two: Managers, rogue: Rogue, tmp_path: Path) -> None:
    with (
        managers(kafka, two[0].process._settings.offsets_topic, tmp_path) as start,
        pytest.raises(NotCoordinator, match="the sender has another secret"),
    ):
        start(OTHER_SECRET)
    wait_until_served(two, rogue)


def test_earlier_metadata_under_the_id_of_its_manager_redirects_no_client(two: Managers, rogue: Rogue) -> None:
    victim, (earlier, _) = next(iter(rogue.messages().items()))
    before = addresses(two, rogue)
    rogue.sync(rogue.join(b"{}"), {})
    rogue.remove(rogue.member_id)
    wait_until_served(two, rogue)
    now, alarms_before = rogue.messages()[victim][0], [alarms(one) for one in two]
    assert now != earlier
    rogue.member_id = victim
    with contextlib.suppress(TimedOut):  # the coordinator answers the victim instead
        rogue.join(earlier, timeout_s=1)
    rogue.member_id = ""
    wait_for(lambda: rogue.messages()[victim][0] not in (now, earlier), "the victim rejoins")
    wait_until_served(two, rogue)
    assert addresses(two, rogue) == before
    assert [alarms(one) for one in two] == alarms_before


def test_an_assignment_of_a_deleted_group_is_invalid_in_its_successor(kafka, unique: str, tmp_path: Path) -> None:
    """The generations of a group that is created again begin again, so the HMAC of the assignment is valid."""
    with closing(Rogue(kafka.bootstrap, unique)) as rogue:
        with managers(kafka, unique, tmp_path) as start:
            wait_until_served([start(SECRET), start(SECRET)], rogue)
            assignment = next(iter(rogue.messages().values()))[1]
        rogue.send(requests.delete_groups([rogue.group]))
        generation, attempt = json.loads(assignment)["generation"], itertools.count()
        while (joined := rogue.join(str(next(attempt)).encode()))["generation_id"] < generation - 1:
            rogue.sync(joined, {})
        rogue.sync(joined, {})

        def replay() -> None:
            membership = requests.LockMembership(rogue.group, rogue.member_id, generation - 1)
            wait_for(lambda: rogue.send(requests.heartbeat(membership))["error_code"], "the manager joins")
            joined = rogue.join(b"again")
            assert (joined["generation_id"], len(joined["members"])) == (generation, 2)
            rogue.sync(joined, {member["member_id"]: assignment for member in joined["members"]})

        with managers(kafka, unique, tmp_path) as start, ThreadPoolExecutor() as pool:
            replayed = pool.submit(replay)
            with pytest.raises(NotCoordinator, match="does not name this manager"):
                start(SECRET)
            replayed.result()


def test_a_manager_says_that_it_believes_members_without_proof(kafka, unique, tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr("offsetmgr.manager.group_secret._ALARM_S", 0.0)
    with managers(kafka, unique, tmp_path) as start:
        start()
        assert "every principal with a right on their group can send clients to another address" in caplog.text
        optional = start(SECRET, required="false")
        assert "managers without the secret are accepted until the secret is required" in caplog.text
        assert "does not have the managers' secret" in alarms(optional)
