"""The relay on real brokers: unmodified clients read and write through it, their offsets are ours alone, and nobody
commits who is no member any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from processes import wait_for
from relayed import NODE_ID, RunningRelay

from offsetmgr.errors import OffsetMgrError
from offsetmgr.sandbox import KafkaBroker, KraftBroker, java_tool
from offsetmgr.server.relay.upstream import Upstream
from offsetmgr.wire.asking import ask
from offsetmgr.wire.connection import Address, Connection
from offsetmgr.wire.consumer_protocol import encode_subscription
from offsetmgr.wire.security import Security

pytestmark = pytest.mark.servers

FIND_COORDINATOR, METADATA, DESCRIBE_CLUSTER, API_VERSIONS = 10, 3, 60, 18
COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 11, 12, 13, 14
NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, FENCED = 16, 22, 25, 27, 82
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def relay(kafka: KafkaBroker) -> Iterator[RunningRelay]:
    with RunningRelay(kafka.bootstrap) as running:
        yield running


@pytest.fixture(scope="module")
def relay41(kraft: KraftBroker) -> Iterator[RunningRelay]:
    with RunningRelay(kraft.bootstrap) as running:
        yield running


@pytest.fixture(params=["kafka-3.9", "kafka-4.1"])
def release(request: pytest.FixtureRequest) -> tuple[str, RunningRelay]:
    """Kafka's own tools of a release, and a relay before brokers of the same."""
    return request.param, request.getfixturevalue("relay" if request.param == "kafka-3.9" else "relay41")


def consumer(relay: RunningRelay, group: str, **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": relay.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )


def produce(relay: RunningRelay, topic: str, partitions: int, each: int, **config: Any) -> None:
    producer = Producer({"bootstrap.servers": relay.bootstrap, "linger.ms": 0, **config})
    for number in range(each):
        for partition in range(partitions):
            producer.produce(topic, f"{partition}-{number}".encode(), partition=partition)
    assert producer.flush(30) == 0


def read(client: Consumer, count: int, seconds: float = 30) -> list[str]:
    values: list[str] = []
    deadline = time.monotonic() + seconds
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records after {seconds} s"
        for message in client.consume(count - len(values), 0.1):
            assert message.error() is None, message.error()
            values.append(message.value().decode())
    return values


def committed(relay: RunningRelay, group: str) -> dict[tuple[str, int], int]:
    """What we hold of a group; and the real coordinator holds nothing of anybody."""
    assert relay.bypassed() == {}
    return {where: row[0] for where, row in relay.call(lambda: dict(relay.kept.offsets.get(group, {}))).items()}


# --- unmodified clients ---------------------------------------------------------------------------


def test_a_consumer_that_assigns_itself_commits_fetches_and_seeks(
    relay: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 2)
    produce(relay, unique, 2, 50)
    client = consumer(relay, unique)
    client.assign([TopicPartition(unique, 0), TopicPartition(unique, 1)])
    assert len(read(client, 100)) == 100
    client.commit(asynchronous=False)
    client.commit(offsets=[TopicPartition(unique, 1, 7, metadata="note")], asynchronous=True)
    wait_for(lambda: committed(relay, unique) == {(unique, 0): 50, (unique, 1): 7}, "the asynchronous commit")
    found = client.committed([TopicPartition(unique, 0), TopicPartition(unique, 1)], 10)
    assert [(p.offset, p.metadata or "") for p in found] == [(50, ""), (7, "note")]
    client.seek(TopicPartition(unique, 0, 48))
    assert read(client, 2) == ["0-48", "0-49"]
    client.close()


def test_two_members_share_a_topic_and_take_over_where_the_other_left_off(
    relay: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 4)
    produce(relay, unique, 4, 25)
    first = consumer(relay, unique)
    first.subscribe([unique])
    assert len(read(first, 100)) == 100
    first.commit(asynchronous=False)
    second = consumer(relay, unique)
    second.subscribe([unique])

    def shared() -> bool:
        for client in (first, second):
            assert client.consume(10, 0.05) == []
        return (len(first.assignment()), len(second.assignment())) == (2, 2)

    wait_for(shared, "both members have half of the partitions")
    assert [p.offset for p in second.committed(second.assignment(), 10)] == [25, 25]
    second.close()
    wait_for(lambda: first.consume(10, 0.05) == [] and len(first.assignment()) == 4, "the first has all again")
    produce(relay, unique, 4, 1)
    assert len(read(first, 4)) == 4
    first.commit(asynchronous=False)
    first.close()
    assert committed(relay, unique) == {(unique, p): 26 for p in range(4)}


def test_java_console_consumers_resume_where_their_group_left_off(
    release: tuple[str, RunningRelay], make_topic: MakeTopic, unique: str
) -> None:
    jars, relay = release
    make_topic(unique, 1, bootstrap=relay.bootstrap)
    produce(relay, unique, 1, 20)

    def console(count: int) -> list[str]:
        tool = java_tool(
            jars,
            CONSOLE,
            ["--bootstrap-server", relay.bootstrap, "--topic", unique, "--group", unique, "--from-beginning",
             "--max-messages", str(count), "--timeout-ms", "30000"],
        )  # fmt: skip
        return [line for line in tool.stdout.splitlines() if line.startswith("0-")]

    assert console(8) == [f"0-{n}" for n in range(8)]
    assert committed(relay, unique) == {(unique, 0): 8}
    assert console(4) == ["0-8", "0-9", "0-10", "0-11"]
    assert committed(relay, unique) == {(unique, 0): 12}


def test_javas_group_tool_sees_members_and_lag_and_deletes_nothing_under_them(
    relay41: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    relay = relay41
    make_topic(unique, 2, bootstrap=relay.bootstrap)
    produce(relay, unique, 2, 10)
    client = consumer(relay, unique, **{"client.id": "somebody"})
    client.subscribe([unique])
    read(client, 20)
    client.commit(offsets=[TopicPartition(unique, 0, 4), TopicPartition(unique, 1, 10)], asynchronous=False)

    def tool(*arguments: str) -> str:
        where = ["--bootstrap-server", relay.bootstrap, "--group", unique, "--timeout", "30000"]
        done = java_tool("kafka-4.1", GROUPS, [*where, *arguments])
        return done.stdout + done.stderr

    rows = sorted(line.split() for line in tool("--describe").splitlines() if line.startswith(unique))
    assert [row[1:6] for row in rows] == [[unique, "0", "4", "10", "6"], [unique, "1", "10", "10", "0"]]
    assert rows[0][8] == "somebody"
    refused = tool("--delete-offsets", "--topic", unique)
    assert "subscribed" in refused or "GROUP_SUBSCRIBED_TO_TOPIC" in refused
    assert committed(relay, unique) == {(unique, 0): 4, (unique, 1): 10}
    client.close()


def test_groups_are_listed_described_and_deleted_with_and_without_members(
    relay: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 1)
    produce(relay, unique, 1, 1)
    simple, subscribed = f"{unique}-simple", f"{unique}-subscribed"
    alone = consumer(relay, simple)
    alone.commit(offsets=[TopicPartition(unique, 0, 1)], asynchronous=False)
    member = consumer(relay, subscribed)
    member.subscribe([unique])
    read(member, 1)
    member.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": relay.bootstrap})
    listed = admin.list_consumer_groups().result(20)
    assert listed.errors == []
    states = {group.group_id: group.state.name for group in listed.valid}
    assert (states[simple], states[subscribed]) == ("EMPTY", "STABLE")
    described = admin.describe_consumer_groups([simple, subscribed, f"{unique}-none"])
    assert [described[name].result(20).state.name for name in (simple, subscribed)] == ["EMPTY", "STABLE"]
    assert len(described[subscribed].result(20).members) == 1
    with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
        admin.delete_consumer_groups([subscribed])[subscribed].result(20)
    assert committed(relay, subscribed) == {(unique, 0): 1}
    member.close()
    for group in (simple, subscribed):
        admin.delete_consumer_groups([group])[group].result(20)
        assert committed(relay, group) == {}
    with pytest.raises(KafkaException, match=r"GROUP_ID_NOT_FOUND|not found|does not exist"):
        admin.delete_consumer_groups([simple])[simple].result(20)
    alone.close()


def test_producers_of_every_kind(relay41: RunningRelay, make_topic: MakeTopic, unique: str) -> None:
    """Unacknowledged, idempotent, in a transaction; but offsets in a transaction are an error that says so."""
    relay = relay41
    make_topic(unique, 1, bootstrap=relay.bootstrap)
    produce(relay, unique, 1, 20, acks=0)
    produce(relay, unique, 1, 20, **{"enable.idempotence": True, "compression.type": "lz4"})
    producer = Producer({"bootstrap.servers": relay.bootstrap, "transactional.id": unique})
    producer.init_transactions(20)
    for ending in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(unique, ending.__name__.encode())
        producer.flush(20)
        ending(20)
    client = consumer(relay, unique)
    client.assign([TopicPartition(unique, 0, OFFSET_BEGINNING)])
    assert read(client, 41)[-1] == "commit_transaction"
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        offsets = [TopicPartition(unique, 0, 41)]
        producer.send_offsets_to_transaction(offsets, client.consumer_group_metadata(), 20)
    assert refused.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
    client.close()
    assert committed(relay, unique) == {}


def test_the_consumer_protocol_of_kip_848_is_refused_in_words(
    relay41: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 1, bootstrap=relay41.bootstrap)
    done = java_tool(
        "kafka-4.1",
        CONSOLE,
        ["--bootstrap-server", relay41.bootstrap, "--topic", unique, "--group", unique, "--timeout-ms", "20000",
         "--consumer-property", "group.protocol=consumer"],
    )  # fmt: skip
    assert "Set group.protocol=classic on the consumer configs" in done.stdout + done.stderr


def test_large_answers_arrive_whole_while_the_client_reads_slowly(
    relay: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 1, config={"max.message.bytes": "4000000"})
    producer = Producer({"bootstrap.servers": relay.bootstrap, "message.max.bytes": 4_000_000})
    sent = [bytes([n]) * 3_000_000 for n in range(10)]
    for value in sent:
        producer.produce(unique, value)
        producer.flush(30)
    client = consumer(relay, unique, **{"fetch.message.max.bytes": 8_000_000, "queued.max.messages.kbytes": 4_000})
    client.assign([TopicPartition(unique, 0, OFFSET_BEGINNING)])
    got = []
    while len(got) < len(sent):
        for message in client.consume(1, 10):
            got.append(message.value())
    assert got == sent
    client.close()


# --- what clients are told ------------------------------------------------------------------------


async def connect(relay: RunningRelay) -> Connection:
    return await Connection.open(Address("127.0.0.1", relay.port), Security(), 10)


@pytest.mark.parametrize("version", range(13))
def test_metadata_names_only_our_addresses(relay: RunningRelay, version: int) -> None:
    async def named() -> list[tuple[int, str, int]]:
        connection = await connect(relay)
        answer = await ask(connection, METADATA, version, {"topics": [], **NO_EXTRAS}, 10)
        await connection.close()
        return [(b["node_id"], b["host"], b["port"]) for b in answer["brokers"]]

    (node_id, port), = relay.relay.ports().items()  # fmt: skip
    assert relay.run(named()) == [(node_id, "127.0.0.1", port), (NODE_ID, "127.0.0.1", relay.port)]


NO_EXTRAS = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def test_coordinators_are_managers_for_groups_and_our_ports_for_transactions(relay41: RunningRelay) -> None:
    async def found() -> list[tuple[int, int]]:
        connection = await connect(relay41)
        coordinators = []
        for version in range(7):
            for kind in (0, 1):
                question = {"key": "x", "key_type": kind, "coordinator_keys": ["x"]}
                for _ in range(100):
                    answer = await ask(connection, FIND_COORDINATOR, version, question, 10)
                    one = answer.get("coordinators", [answer])[0]
                    if one["error_code"] != 15:  # the transactions' topic is being created
                        break
                    await asyncio.sleep(0.05)
                coordinators.append((version, kind, one["node_id"], one["port"]))
        cluster = await ask(connection, DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": False}, 10)
        await connection.close()
        assert [b["port"] for b in cluster["brokers"]] == [*relay41.relay.ports().values(), relay41.port]
        return coordinators

    (node_id, port), = relay41.relay.ports().items()  # fmt: skip
    manager, broker = (NODE_ID, relay41.port), (node_id, port)
    assert relay41.run(found()) == [
        (version, kind, *(broker if kind and version else manager)) for version in range(7) for kind in (0, 1)
    ]


def test_what_would_lead_past_us_is_not_advertised(relay41: RunningRelay) -> None:
    async def spoken() -> dict[int, tuple[int, int]]:
        connection = await connect(relay41)
        await connection.close()
        return connection.versions

    versions = relay41.run(spoken())
    assert not versions.keys() & {25, 28, 68, 69, 76, 77, 78, 79, 88, 89, 29, 30, 31, 50, 51}
    assert (versions[0][1], versions[1][1], versions[24][1], versions[26][1]) == (9, 15, 3, 4)
    assert {JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, 9, 75}.issubset(versions)


# --- who may commit -------------------------------------------------------------------------------


class Member:
    """A group member on a connection of its own, as a client's library is one."""

    def __init__(self, relay: RunningRelay, group: str, instance_id: str | None = None) -> None:
        self.relay = relay
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.connection: Connection

    async def open(self) -> Member:
        self.connection = await connect(self.relay)
        return self

    async def join(self) -> int:
        """JoinGroup; version 3 spares dynamic members the second request of KIP-394."""
        protocols = [{"name": "range", "metadata": encode_subscription()}]
        message = {
            "group_id": self.group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer",
            "member_id": self.member_id, "group_instance_id": self.instance_id, "protocols": protocols,
        }  # fmt: skip
        answer = await ask(self.connection, JOIN, 3 if self.instance_id is None else 5, message, 30)
        if answer["error_code"] == 0:
            self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        self.leads = answer["leader"] == answer["member_id"]
        return int(answer["error_code"])

    def _me(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }

    async def sync(self) -> int:
        assignments = [{"member_id": self.member_id, "assignment": b""}] if self.leads else []
        return int((await ask(self.connection, SYNC, 3, {**self._me(), "assignments": assignments}, 30))["error_code"])

    async def heartbeat(self) -> int:
        return int((await ask(self.connection, HEARTBEAT, 3, self._me(), 30))["error_code"])

    async def leave(self) -> int:
        members = [{"member_id": self.member_id, "group_instance_id": self.instance_id}]
        message = {"group_id": self.group, "members": members}
        return int((await ask(self.connection, LEAVE, 3, message, 30))["error_code"])

    async def commit(self, offset: int = 1) -> int:
        part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
                "committed_metadata": ""}  # fmt: skip
        message = {"generation_id_or_member_epoch": self.generation, **self._me(),
                   "topics": [{"name": "t", "partitions": [part]}]}  # fmt: skip
        answer = await ask(self.connection, COMMIT, 7, message, 30)
        return int(answer["topics"][0]["partitions"][0]["error_code"])


async def joined(relay: RunningRelay, group: str, instance_id: str | None = None) -> Member:
    """The only member of a group, synced."""
    member = await Member(relay, group, instance_id).open()
    assert (await member.join(), await member.sync()) == (0, 0)
    return member


def test_a_zombie_of_an_older_generation_is_refused(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        zombie = await joined(relay, unique)
        assert await zombie.commit(1) == 0
        other = await Member(relay, unique).open()
        joining = asyncio.ensure_future(other.join())
        while await zombie.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        assert await zombie.commit(2) == 0, "until the others have the next generation, it is a member like any"
        assert await zombie.leave() == 0  # its process is gone, for the coordinator; but it goes on
        assert await joining == 0
        assert await other.commit(3) == REBALANCING
        assert await other.sync() == 0
        assert await zombie.commit(99) == ILLEGAL_GENERATION
        assert await other.commit(3) == 0

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 3}


def test_who_is_no_member_is_refused_while_there_are_members(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        stranger = await Member(relay, unique).open()
        assert await stranger.commit(1) == 0, "no members yet"
        member = await joined(relay, unique)
        assert await stranger.commit(99) == UNKNOWN_MEMBER
        stranger.generation, stranger.member_id = member.generation, "somebody"
        assert await stranger.commit(99) == UNKNOWN_MEMBER
        stranger.generation, stranger.member_id = member.generation + 1, member.member_id
        assert await stranger.commit(99) == ILLEGAL_GENERATION
        stranger.generation, stranger.member_id = -1, ""
        assert await member.commit(2) == 0
        await member.leave()
        assert await stranger.commit(3) == 0, "no members any more"
        assert await member.commit(99) in (UNKNOWN_MEMBER, ILLEGAL_GENERATION)

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 3}


def test_a_static_member_that_was_replaced_is_fenced(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        old = await joined(relay, unique, "instance")
        assert await old.commit(1) == 0
        new = await Member(relay, unique, "instance").open()
        assert (await new.join(), await new.sync()) == (0, 0)
        assert new.member_id != old.member_id
        assert await old.commit(99) == FENCED
        assert await new.commit(2) == 0

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 2}


def test_a_new_owner_knows_nobody_and_asks_the_real_coordinator(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        zombie = await joined(relay, unique)
        other = await Member(relay, unique).open()
        joining = asyncio.ensure_future(other.join())
        while await zombie.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        await zombie.leave()
        assert (await joining, await other.sync()) == (0, 0)
        relay.kept.taken += 1  # as if another manager had been the owner until now
        before = asked()
        refused, accepted = await asyncio.gather(zombie.commit(99), other.commit(1))
        assert (refused in (UNKNOWN_MEMBER, ILLEGAL_GENERATION), accepted) == (True, 0)
        assert asked() > before
        before = asked()
        assert [await other.commit(n) for n in range(2, 20)] == [0] * 18
        assert asked() == before, "what was just proved is not asked again"

    def asked() -> float:
        return relay.guarded.metrics()["relay_members_asked_total"]

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 19}


def test_no_generation_is_given_out_before_the_commits_of_the_one_before_have_ended(
    relay: RunningRelay, unique: str
) -> None:
    async def story() -> None:
        first = await joined(relay, unique)
        relay.kept.held = asyncio.Event()
        try:
            slow = asyncio.ensure_future(first.commit(5))
            while not any(request.group == unique for request in relay.kept.requests):
                await asyncio.sleep(0.01)
            again = await Member(relay, unique).open()
            again.member_id = first.member_id
            joining = asyncio.ensure_future(again.join())  # the leader joins again: a new generation at once
            beating = await Member(relay, unique).open()
            beating.member_id, beating.generation = first.member_id, first.generation
            while await beating.heartbeat() != ILLEGAL_GENERATION:
                await asyncio.sleep(0.01)
            done, _ = await asyncio.wait([joining], timeout=0.2)
            assert not done, "the real coordinator has answered, and we hold the answer back"
            assert await beating.commit(99) == ILLEGAL_GENERATION
        finally:
            relay.kept.held.set()
            relay.kept.held = None
        assert (await slow, await joining) == (0, 0)
        assert again.generation == first.generation + 1

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 5}


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        pytest.param(NOT_COORDINATOR, 0, id="another's now"),
        pytest.param(0, 1, id="another's, and ours again"),
        pytest.param(14, 0, id="being loaded, whoever's it is"),
    ],
)
def test_a_join_answered_after_ownership_was_lost_gives_no_generation(
    relay: RunningRelay, unique: str, code: int, taken: int
) -> None:
    async def story() -> None:
        first = await joined(relay, unique)
        second = await Member(relay, unique).open()
        joining = asyncio.ensure_future(second.join())
        while await first.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        relay.kept.taken += taken
        relay.kept.code = code
        async with asyncio.timeout(20):
            direct = await Connection.open(Address.parse(relay.real), Security(), 10)
            members = [{"member_id": first.member_id, "group_instance_id": None}]
            await ask(direct, LEAVE, 3, {"group_id": unique, "members": members}, 10)
            await direct.close()
            assert await joining == NOT_COORDINATOR
        assert second.generation == -1

    try:
        relay.run(story())
    finally:
        relay.kept.code = 0


def test_commits_keep_their_order_while_their_member_is_being_proved(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        member = await joined(relay, unique)
        for _ in range(10):
            relay.kept.taken += 1
            answers = await asyncio.gather(*(member.commit(n) for n in range(20)))
            assert answers == [0] * 20
            made = [row for request in relay.kept.requests for _, rows in request.topics for row in rows]
            assert [row[1] for row in made[-20:]] == list(range(20))

    relay.run(story())


# --- brokers that fail ----------------------------------------------------------------------------


def test_a_broken_upstream_cuts_the_client_which_comes_back(
    relay: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 1)
    produce(relay, unique, 1, 10)
    client = consumer(relay, unique)
    client.subscribe([unique])
    read(client, 10)

    def break_all() -> int:
        upstreams = [u for c in relay.service.connections for u in each_upstream(c.state.get("relay"))]
        for upstream in upstreams:
            if upstream._transport is not None:
                upstream._transport.abort()
        return len(upstreams)

    assert relay.call(break_all) >= 2, "its data, and its membership"
    produce(relay, unique, 1, 5)
    assert len(read(client, 5)) == 5
    wait_for(lambda: commits(client), "commits again, as a member")
    assert committed(relay, unique) == {(unique, 0): 15}
    client.close()


def each_upstream(link: Any) -> list[Upstream]:
    return list(link._upstreams.values()) if link is not None else []


def commits(client: Consumer) -> bool:
    client.poll(0.05)
    try:
        client.commit(asynchronous=False)
    except KafkaException:
        return False
    return True


def test_a_cluster_that_does_not_answer_is_an_error_at_the_start(unique: str) -> None:
    def start() -> None:
        with RunningRelay("127.0.0.1:1"):
            pass

    refused: Callable[[], None] = start
    with pytest.raises(OffsetMgrError):
        refused()


# --- offsets that are not where they should be ----------------------------------------------------


def test_status_names_groups_whose_offsets_the_brokers_hold_too(
    relay: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 1)
    around = Consumer({"bootstrap.servers": relay.real, "group.id": unique})
    admin = AdminClient({"bootstrap.servers": relay.real})
    around.commit(offsets=[TopicPartition(unique, 0, 3)], asynchronous=False)
    assert relay.bypassed() == {}, "a group that is not ours is not our business"
    through = consumer(relay, unique)
    through.commit(offsets=[TopicPartition(unique, 0, 5)], asynchronous=False)
    try:
        assert relay.bypassed() == {unique: 1}
    finally:
        admin.delete_consumer_groups([unique])[unique].result(20)
    assert relay.bypassed() == {}
    around.close()
    through.close()


def test_who_lets_offsets_expire_is_told_which_groups_have_members(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        member = await joined(relay, unique)
        groups = [unique, f"{unique}-none"]
        assert await relay.relay.members(groups) == {unique: True, f"{unique}-none": False}
        await member.leave()
        assert (await relay.relay.members([unique])) == {unique: False}

    relay.run(story())
