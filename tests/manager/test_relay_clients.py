"""Unmodified clients read and write through the relay on real brokers, and only the manager stores their offsets."""

import asyncio
import socket
import struct

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from processes import wait_for
from relay_clients import DESCRIBE_CLUSTER, FIND_COORDINATOR, committed, connect, consumer, produce, read
from running_relay import NODE_ID, RunningRelay

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.sandbox import java_tool
from offsetmgr.server.security.authorization import AuthorizationRules, Operation, Rule

pytestmark = pytest.mark.servers
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def test_a_consumer_that_assigns_itself_commits_fetches_and_seeks(relay, make_topic, unique) -> None:
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


def test_two_members_share_a_topic_and_take_over_where_the_other_left_off(relay, make_topic, unique) -> None:
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
    wait_for(lambda: first.consume(10, 0.05) == [] and len(first.assignment()) == 4, "the first member owns all")
    produce(relay, unique, 4, 1)
    assert len(read(first, 4)) == 4
    first.commit(asynchronous=False)
    first.close()
    assert committed(relay, unique) == {(unique, p): 26 for p in range(4)}


def test_java_console_consumers_resume_where_their_group_left_off(release, make_topic, unique) -> None:
    jars, relay = release
    make_topic(unique, 1, bootstrap=relay.bootstrap)
    produce(relay, unique, 1, 20)

    def console(count: int) -> list[str]:
        tool = java_tool(
            jars,
            CONSOLE,
            ["--bootstrap-server", relay.bootstrap, "--topic", unique, "--group", unique, "--from-beginning",
             "--max-messages", str(count), "--timeout-ms", "60000"],
        )  # fmt: skip
        return [line for line in tool.stdout.splitlines() if line.startswith("0-")]

    assert console(8) == [f"0-{n}" for n in range(8)]
    assert committed(relay, unique) == {(unique, 0): 8}
    assert console(4) == ["0-8", "0-9", "0-10", "0-11"]
    assert committed(relay, unique) == {(unique, 0): 12}


def test_requests_of_old_clients_are_forwarded_for_the_topics_of_their_rules(kafka, make_topic, unique) -> None:
    """In versions that Kafka 4 has removed: Fetch, ListOffsets and OffsetForLeaderEpoch."""
    make_topic(unique, 1)
    make_topic(f"other-{unique}", 1)
    allowed = Rule(frozenset("*"), (), (unique,), frozenset({Operation.CONSUME, Operation.DESCRIBE}))
    number, place = struct.Struct(">i"), {"fetch": ">iqi", "list": ">iqi", "epoch": ">ii"}
    heads = [(1, 0, ">iii", "fetch"), (1, 2, ">iii", "fetch"), (1, 3, ">iiii", "fetch"), (2, 0, ">i", "list")]
    with RunningRelay(kafka.bootstrap, authorizer=AuthorizationRules([allowed])) as relay:

        def answer(port: int, key: int, version: int, head: str, kind: str, topic: str) -> bytes:
            fields = [-1, 10, 0, 1 << 20][: struct.calcsize(head) // 4]
            part = struct.pack(place[kind], *[0, 0, 1 << 10][: len(place[kind]) - 1])
            name = struct.pack(">h", len(topic)) + topic.encode()
            body = struct.pack(head, *fields) + number.pack(1) + name + number.pack(1) + part
            request = struct.pack(">hhih", key, version, 7, -1) + body
            with socket.create_connection(("127.0.0.1", port), 60) as client:
                client.sendall(number.pack(len(request)) + request)
                with client.makefile("rb") as stream:
                    return stream.read(number.unpack(size)[0]) if (size := stream.read(4)) else b""

        (broker,) = relay.relay.brokers.ports().values()
        for one in (*heads, (23, 0, ">", "epoch"), (23, 1, ">", "epoch")):
            real = answer(int(kafka.bootstrap.rpartition(":")[2]), *one, unique)
            assert real and answer(broker, *one, unique) == real
            assert answer(broker, *one, f"other-{unique}") == b"", "the connection is closed"


def test_javas_group_tool_shows_members_and_lag_and_deletes_no_offsets_of_active_members(
    kraft_relay: RunningRelay, make_topic: MakeTopic, unique: str
) -> None:
    relay = kraft_relay
    make_topic(unique, 2, bootstrap=relay.bootstrap)
    produce(relay, unique, 2, 10)
    client = consumer(relay, unique, **{"client.id": "some-client"})
    client.subscribe([unique])
    read(client, 20)
    client.commit(offsets=[TopicPartition(unique, 0, 4), TopicPartition(unique, 1, 10)], asynchronous=False)

    def tool(*arguments: str) -> str:
        where = ["--bootstrap-server", relay.bootstrap, "--group", unique, "--timeout", "30000"]
        done = java_tool("kafka-4.4", GROUPS, [*where, *arguments])
        return done.stdout + done.stderr

    rows = sorted(line.split() for line in tool("--describe").splitlines() if line.startswith(unique))
    assert [row[1:6] for row in rows] == [[unique, "0", "4", "10", "6"], [unique, "1", "10", "10", "0"]]
    assert rows[0][8] == "some-client"
    refused = tool("--delete-offsets", "--topic", unique)
    assert "subscribed" in refused or "GROUP_SUBSCRIBED_TO_TOPIC" in refused
    assert committed(relay, unique) == {(unique, 0): 4, (unique, 1): 10}
    client.close()


def test_groups_are_listed_described_and_deleted_with_and_without_members(relay, make_topic, unique) -> None:
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
    listed = admin.list_consumer_groups().result(90)
    assert listed.errors == []
    states = {group.group_id: group.state.name for group in listed.valid}
    assert (states[simple], states[subscribed]) == ("EMPTY", "STABLE")
    described = admin.describe_consumer_groups([simple, subscribed, f"{unique}-none"])
    assert [described[name].result(90).state.name for name in (simple, subscribed)] == ["EMPTY", "STABLE"]
    assert len(described[subscribed].result(90).members) == 1
    with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
        admin.delete_consumer_groups([subscribed])[subscribed].result(90)
    assert committed(relay, subscribed) == {(unique, 0): 1}
    member.close()
    for group in (simple, subscribed):
        admin.delete_consumer_groups([group])[group].result(90)
        assert committed(relay, group) == {}
    with pytest.raises(KafkaException, match=r"GROUP_ID_NOT_FOUND|not found|does not exist"):
        admin.delete_consumer_groups([simple])[simple].result(90)
    alone.close()


def test_producers_of_every_kind(kraft_relay: RunningRelay, make_topic: MakeTopic, unique: str) -> None:
    """Unacknowledged, idempotent and transactional producers work. Offsets in a transaction are rejected."""
    relay = kraft_relay
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


def test_the_consumer_protocol_of_kip_848_is_rejected_with_a_clear_error(kraft_relay, make_topic, unique) -> None:
    make_topic(unique, 1, bootstrap=kraft_relay.bootstrap)
    done = java_tool(
        "kafka-4.4",
        CONSOLE,
        ["--bootstrap-server", kraft_relay.bootstrap, "--topic", unique, "--group", unique, "--timeout-ms", "20000",
         "--consumer-property", "group.protocol=consumer"],
    )  # fmt: skip
    assert "Set group.protocol=classic on the consumer configs" in done.stdout + done.stderr


def test_large_responses_arrive_complete_while_the_client_reads_slowly(relay, make_topic, unique) -> None:
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


def test_managers_coordinate_groups_and_relay_ports_represent_transaction_coordinators(kraft_relay) -> None:
    async def found() -> list[tuple[int, int, int, int]]:
        connection = await connect(kraft_relay)
        coordinators = []
        for version in range(7):
            for kind in (0, 1):
                question = {"key": "x", "key_type": kind, "coordinator_keys": ["x"]}
                for _ in range(100):
                    answer = await connection.call(Request(FIND_COORDINATOR, version, question), 60)
                    one = answer.get("coordinators", [answer])[0]
                    if one["error_code"] != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                        break
                    await asyncio.sleep(0.05)
                coordinators.append((version, kind, one["node_id"], one["port"]))
        cluster = await connection.call(
            Request(DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": False}), 10
        )
        await connection.close()
        assert [b["port"] for b in cluster["brokers"]] == [
            *kraft_relay.relay.brokers.ports().values(),
            kraft_relay.port,
        ]
        return coordinators

    (node_id, port), = kraft_relay.relay.brokers.ports().items()  # fmt: skip
    manager, broker = (NODE_ID, kraft_relay.port), (node_id, port)
    assert kraft_relay.run(found()) == [
        (version, kind, *(broker if kind and version else manager)) for version in range(7) for kind in (0, 1)
    ]
