"""Kafka's nodes in ZooKeeper, of every version: the decoded line, the notes about what is unknown, and errors that
name the node. tests/commands/test_zookeeper_directories.py tests the commands that show them."""

import contextlib
import json
import os
import random
from typing import Any

import pytest

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.zookeeper.nodes.kinds import describe


def node(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def requested(*partitions: Any) -> bytes:
    """A node that lists partitions, each an object with these fields."""
    return node(version=1, partitions=list(partitions))


BROKER, TOPIC, STATE, COUNT = (
    "/brokers/ids/7",
    "/brokers/topics/t",
    "/brokers/topics/t/partitions/0/state",
    "/brokers/topics/t/0",
)
MEMBER, OFFSET, CONTROLLER, EPOCH = "/consumers/g/ids/c", "/consumers/g/offsets/t/0", "/controller", "/controller_epoch"
CLUSTER, CHANGE, MOVES = "/cluster/id", "/config/changes/config_change_1", "/admin/reassign_partitions"
ELECTION, DELETIONS, ISR = (
    "/admin/preferred_replica_election",
    "/admin/delete_topics",
    "/isr_change_notification/isr_change_0",
)
FEATURES, PRODUCERS, LOG_DIRS = "/feature", "/latest_producer_id_block", "/log_dir_event_notification/log_dir_event_0"
USER, BROKER_CONFIG, TOPIC_CONFIG = "/config/users/alice", "/config/brokers/1", "/config/topics/t"
PLAIN = ["PLAINTEXT://h1:9092"]
MOVING = {"partitions": {"0": [1, 2, 3]}, "adding_replicas": {"0": [3]}, "removing_replicas": {"0": [1]}}
FIELDS_OF_STATE = {"leader": 3, "leader_epoch": 5, "isr": [3, 1], "controller_epoch": 9}
ONE = {"topic": "t", "partition": 1}


VALID: list[tuple[str, bytes, str | None]] = [
    # brokers of 0.7, and versions 1 to 5
    (BROKER, b"h1:9092", "PLAINTEXT://h1:9092"),
    (BROKER, b"h1-1330000000000:h1:9092", "PLAINTEXT://h1:9092"),
    (BROKER, node(version=1, host="h1", port=9092, jmx_port=9999, timestamp="12"), "PLAINTEXT://h1:9092"),
    (
        BROKER,
        node(version=2, host="h", port=1, jmx_port=-1, endpoints=[*PLAIN, "SSL://h1:9093"]),
        "PLAINTEXT://h1:9092 SSL://h1:9093",
    ),
    (BROKER, node(version=3, host="h1", port=9092, endpoints=PLAIN, rack="dc1"), "PLAINTEXT://h1:9092 rack=dc1"),
    (
        BROKER,
        node(
            version=4,
            host=None,
            port=-1,
            endpoints=["FOR-CLIENTS.1://[::1]:9092"],
            listener_security_protocol_map={"FOR-CLIENTS.1": "SSL"},
        ),
        "FOR-CLIENTS.1://[::1]:9092",
    ),
    (
        BROKER,
        node(
            version=5,
            host="h1",
            port=9092,
            endpoints=["A://[::1]:1", "B://h:2"],
            rack="r1",
            features={"f": {"min_version": 1, "first_active_version": 2, "max_version": 3}},
        ),
        "A://[::1]:1 B://h:2 rack=r1",
    ),
    # topics of versions 1 to 3, and of 0.7
    (TOPIC, node(version=1, partitions={"10": [2, 1], "0": [1, 2]}), "2 partitions: 0=1,2 10=2,1"),
    (
        TOPIC,
        node(version=2, partitions={"0": [1]}, adding_replicas={"0": []}, removing_replicas={}),
        "1 partition: 0=1",
    ),
    (
        TOPIC,
        node(version=3, topic_id="Rk1fOTTzQdmDyhIlKQcoow", **MOVING),
        "1 partition: 0=1,2,3 adding: 0=3 removing: 0=1",
    ),
    (TOPIC, b"", None),
    (COUNT, b"4", "4"),
    (STATE, node(version=1, **FIELDS_OF_STATE), "leader 3 (epoch 5), in sync 3,1"),
    (STATE, node(version=1, **FIELDS_OF_STATE | {"leader": -1}), "no leader (epoch 5), in sync 3,1"),
    (
        STATE,
        node(version=1, **FIELDS_OF_STATE | {"leader": -2, "isr": []}),
        "no leader (epoch 5), in sync none, being deleted",
    ),
    (STATE, node(version=1, **FIELDS_OF_STATE, leader_recovery_state=1), "leader 3 (epoch 5), in sync 3,1, recovering"),
    # the cluster
    (CONTROLLER, b"3", "broker 3"),
    (CONTROLLER, node(version=1, brokerid=3, timestamp="17"), "broker 3"),
    (CONTROLLER, node(version=2, brokerid=3, timestamp="17", kraftControllerEpoch=-1), "broker 3"),
    (CONTROLLER, node(version=2, brokerid=3000, timestamp="17", kraftControllerEpoch=5), "broker 3000 (KRaft epoch 5)"),
    (EPOCH, b"12", "12"),
    (CLUSTER, node(version="1", id="a"), "a"),
    (CLUSTER, node(version="1", id="E3jMSf12QESTxJKiMoDyfg"), "E3jMSf12QESTxJKiMoDyfg"),
    (CLUSTER, node(version="1", id="_-" * 11), "_-" * 11),
    (
        FEATURES,
        node(version=2, status=1, features={"metadata.version": {"max_version_level": 19}}),
        "enabled metadata.version(max_version_level=19)",
    ),
    (FEATURES, node(version=1, status=0, features={}), "disabled none"),
    (PRODUCERS, node(version=1, broker=2, block_start="1000", block_end="1999"), "1000 to 1999 for broker 2"),
    (PRODUCERS, b"", None),
    (LOG_DIRS, node(version=1, broker=1, event=1), "broker 1: event 1"),
    # members of 0.7, and of 0.8 and later; 0.8.0 did not escape backslashes
    (MEMBER, b'{ "orders": 2,"audit": 1 }', "orders=2 audit=1"),
    (MEMBER, b"*4*white.*", "white_list white.*=4"),
    (MEMBER, b"!1!a|b!c", "black_list a|b!c=1"),
    (MEMBER, node(version=1, subscription={"orders": 2}, pattern="static", timestamp="1700000000123"), "orders=2"),
    (MEMBER, node(version=1, subscription={"a|b": 1}, pattern="white_list", timestamp=1), "white_list a|b=1"),
    (
        MEMBER,
        rb'{"version":1,"subscription":{"audit\\.d+":1},"pattern":"white_list","timestamp":"5"}',
        r"white_list audit\.d+=1",
    ),
    (OFFSET, b"0", "0"),
    (OFFSET, b"9223372036854775807", "9223372036854775807"),
    # configurations, and notices of changes from 0.8 to 3.9
    (TOPIC_CONFIG, node(version=1, config={"retention.ms": "1"}), "retention.ms=1"),
    (
        USER,
        node(version=1, config={"SCRAM-SHA-256": "salt=x", "producer_byte_rate": "10"}),
        "SCRAM-SHA-256=(hidden) producer_byte_rate=10",
    ),
    (
        BROKER_CONFIG,
        node(version=1, config={"listener.name.a.ssl.key.password": "sesame", "log.cleaner.threads": "2"}),
        "listener.name.a.ssl.key.password=(hidden) log.cleaner.threads=2",
    ),
    ("/delegation_token/tokens/t1", b"sesame", "(hidden)"),
    (CHANGE, b'"orders"', "topics/orders"),
    (CHANGE, node(version=1, entity_type="clients", entity_name="c1"), "clients/c1"),
    (CHANGE, node(version=2, entity_path="users/alice/clients/c1"), "users/alice/clients/c1"),
    # requests to the controller
    (MOVES, requested({**ONE, "replicas": [2, 3], "log_dirs": ["any", "any"]}), "t-1=2,3"),
    (ELECTION, requested(ONE), "t-1"),
    (ELECTION, requested(), "no partitions"),
    (ISR, requested(ONE), "t-1"),
    (DELETIONS, node(version=1, topics=["foo", "bar"]), "foo bar"),
    (DELETIONS, b"", None),
    # examples of Kafka's documents on 0.7, 0.8 and 0.10.1
    (f"{COUNT}-1", b"4", "4"),
    ("/consumers/g/offsets/t/0-1", b"1024", "1024"),
    ("/consumers/g/owners/t/0-1", b"g_host-1403061899859-1a2b3c4d-0", "g_host-1403061899859-1a2b3c4d-0"),
    (BROKER, b'{ "jmx_port": 6061, "timestamp":"1403061899859", "version": 1, "host": "h1", "port": 9092}', PLAIN[0]),
    (TOPIC, b'{\n"version": 1,\n"partitions": {\n"1": [1, 2],\n"0": [2, 1]\n}\n}', "2 partitions: 0=2,1 1=1,2"),
    (MEMBER, node(version=1, subscription={"a": 1}, pattern="black_list", timestamp="1478"), "black_list a=1"),
    (DELETIONS, b'{ "version": 1, "topics": ["foo", "bar"]}', "foo bar"),
]


@pytest.mark.parametrize(("path", "data", "value"), VALID)
def test_a_node_of_every_version_is_decoded_without_notes(path: str, data: bytes, value: str | None) -> None:
    found = describe(path, data)

    assert (found.value, found.notes, found.error) == (value, (), None)
    assert "sesame" not in repr(found)


@pytest.mark.parametrize(
    ("path", "data", "why"),
    [
        (BROKER, b"h1:99999", "is not LISTENER://HOST:PORT"),
        # as documents print them
        (BROKER, b"h1", "is not JSON"),
        (BROKER, b"host:port", ""),
        (
            BROKER,
            b'{ "jmx_port": 6061, "timestamp":"1403061899859" "version": 1, "host": "h1", "port": 9092}',
            "is not JSON",
        ),
        (
            BROKER,
            b'{"jmx_port":...,"timestamp":...,"endpoints":[...],"host":...,"version":...,"port":...}',
            "is not JSON",
        ),
        (TOPIC, b'{ "version": 1, "partitions": {"0": [1, 2],"1": [2, 1],"2": [1, 2],}}', "is not JSON"),
        (TOPIC_CONFIG, b'{ "version": 1, "config": { "config.a": "x", "config.b": "y", ... }}', "is not JSON"),
        (MEMBER, b'{ "topic1": #streams, ..., "topicN": #streams}', "is not JSON"),
        (OFFSET, b"offset_counter_value", "not a decimal number"),
        (COUNT, b"nPartitions", ""),
        (CONTROLLER, b"int (broker id of the controller)", ""),
        (CLUSTER, b"[a-zA-Z0-9_\\-]+", ""),
        (BROKER, b"null", "is JSON, but not an object"),
        (BROKER, node(version=1, host="h1", port=70_000), "its 'port' is not a number between -1 and 65535"),
        (BROKER, node(version=1, host="h"), "has no 'host' and 'port'"),
        (BROKER, node(version=4, endpoints=[]), "has no 'endpoints'"),
        (BROKER, node(version=4, endpoints=["h:9092"]), "is not LISTENER://HOST:PORT"),
        (BROKER, node(version=4, endpoints=["A://h:1"], rack=3), "rack"),
        (BROKER, node(version=5, endpoints="PLAINTEXT://h1:1"), "has no 'endpoints'"),
        (BROKER, node(version=5, endpoints=["A://h:1"], features={"f": 3}), "its 'features.f' is not an object"),
        (TOPIC, node(version=1), "has no 'partitions'"),
        *(
            (TOPIC, node(version=1, partitions=one), "partitions")
            for one in ([], {"0": 1}, {"0": ["1"]}, {"0": [-1]}, {"x": [1]}, {"01": [1]})
        ),
        *(
            (STATE, node(version=1, **{k: v for k, v in FIELDS_OF_STATE.items() if k != one}), one)
            for one in FIELDS_OF_STATE
        ),
        *((COUNT, one, "") for one in (b"", b"-1", b"4 ", b"four", b"9" * 20, b"9" * 5000)),
        *((CONTROLLER, one, "") for one in (b"-1", b"03", b"x", b"", b"9" * 5000)),
        (CONTROLLER, node(version=1), "brokerid"),
        (CONTROLLER, node(version=1, brokerid=-1), "brokerid"),
        (EPOCH, b"twelve", "the controller's epoch"),
        (CLUSTER, node(version="1"), "'id'"),
        *(
            (CLUSTER, node(version="1", id=one), "'id'")
            for one in ("", "a" * 23, "a b", "ä", "a+b", "a=", "a\n", 7, None)
        ),
        *(
            (MEMBER, one, "")
            for one in (b"", b"{", b"[]", b"\xff", b"{}", b"*x*a", b"*4!a", b"*99999999999*a", b"[" * 100_000)
        ),
        (MEMBER, node(version=1), "'subscription'"),
        *((MEMBER, node(version=1, subscription={"t": one}), "'subscription'") for one in ("many", None)),
        *((MEMBER, one, "'subscription'") for one in (b'{"orders": -1}', b'{"orders": 1.5}', b"*9999999999*a")),
        (MEMBER, node(version=1, subscription={"t": 1}, timestamp="yesterday"), "timestamp"),
        (MEMBER, node(version=1, subscription={"t": 1}, pattern=7), "pattern"),
        (OFFSET, b"", "is empty"),
        (OFFSET, b"-1", "negative"),
        *((OFFSET, one, "not a decimal number") for one in (b"abc", b"1_0", b" 7", b"7\n", b"\xff\x00", "٣".encode())),
        (OFFSET, b"9223372036854775808", "beyond the largest"),
        (BROKER_CONFIG, b'{"version":1,"config":{"ssl.key.password":"sesame"', "is not JSON"),
        (BROKER_CONFIG, b'{"version":1,"config":["sesame"]}', "config"),
        (MOVES, node(version=1), "'partitions' is not a list of objects"),
        (MOVES, requested("t-1"), "'partitions' is not a list of objects"),
        (MOVES, requested({"partition": 1, "replicas": [1]}), "has no 'partitions[0].topic'"),
        (MOVES, requested(ONE), "'partitions[0].replicas' is not a list of brokers' ids"),
        (MOVES, requested(*[{**ONE, "replicas": [2]}] * 2), "names 't-1' twice"),
    ],
)
def test_an_invalid_node_is_an_error_that_names_it_and_quotes_no_secret(path: str, data: bytes, why: str) -> None:
    found = describe(path, data)

    assert found.value is None
    assert isinstance(found.error, CorruptData)
    assert found.error.what == f"ZooKeeper node {path}"
    assert found.error.why and why in found.error.why
    assert "sesame" not in str(found.error)


VERSIONED: list[tuple[str, str, dict[str, Any]]] = [
    (BROKER, "1 to 5", {"endpoints": ["A://h:1"]}),
    (TOPIC, "1 to 3", {"partitions": {"0": [1]}}),
    (STATE, "1", FIELDS_OF_STATE),
    (CONTROLLER, "1 to 2", {"brokerid": 1}),
    (CLUSTER, "1", {"id": "abc"}),
    (MEMBER, "1", {"subscription": {"t": 1}}),
    (TOPIC_CONFIG, "1", {"config": {}}),
    (CHANGE, "1 to 2", {"entity_path": "topics/t"}),
    (MOVES, "1", {"partitions": []}),
    (ELECTION, "1", {"partitions": []}),
    (DELETIONS, "1", {"topics": ["t"]}),
    (ISR, "1", {"partitions": []}),
    (FEATURES, "1 to 2", {"status": 0, "features": {}}),
    (PRODUCERS, "1", {"broker": 1, "block_start": "0", "block_end": "999"}),
    (LOG_DIRS, "1", {"broker": 1, "event": 1}),
]


@pytest.mark.parametrize(("path", "known", "fields"), VERSIONED)
def test_unknown_and_missing_versions_and_unknown_fields_are_noted_with_the_value(path, known: str, fields) -> None:
    unknown, missing = (describe(path, node(version=version, **fields)) for version in (77, None))
    with_field = describe(path, node(version=77, invented=True, **fields))

    assert (unknown.notes, missing.notes) == ((f"unknown version 77 (known: {known})",), ("no version",))
    assert with_field.notes == (*unknown.notes, "unknown field 'invented'")
    assert None not in (unknown.value, missing.value, with_field.value)


BROKEN = [b"\xff", b"{", b"[]", b"null", b"[" * 100_000, b'{"version":' + b"9" * 5000 + b"}", b'{"x":"\\ud800"}']


@pytest.mark.parametrize("path", [path for path, _, _ in VERSIONED])
def test_broken_bytes_of_every_kind_are_a_typed_error_with_the_path(path: str) -> None:
    errors = [describe(path, data).error for data in BROKEN]

    assert [str(error).startswith(f"ZooKeeper node {path}: ") for error in errors] == [True] * len(BROKEN)


@pytest.mark.parametrize(
    ("data", "value", "note"),
    [
        (
            rb'{"version":1,"subscription":{"audit\.d+":1},"pattern":"white_list","timestamp":"5"}',
            r"white_list audit\.d+=1",
            "its backslashes are not escaped",
        ),
        (
            node(version=1, subscription={"t": 1}, pattern="fuzzy"),
            "fuzzy t=1",
            "unknown pattern 'fuzzy', which consumers treat as static",
        ),
    ],
)
def test_irregular_registrations_are_read_with_a_note(data: bytes, value: str, note: str) -> None:
    found = describe(MEMBER, data)

    assert (found.value, found.notes) == (value, (note,))


# --- mutations --------------------------------------------------------------------------------------------


MUTATIONS = 100_000 if os.environ.get("OFFSETMGR_SOAK") else 10_000
SEED = int(os.environ.get("OFFSETMGR_SEED", "20261122"))
"""Mutated nodes; OFFSETMGR_SEED repeats a run."""
JUNK: list[Any] = [
    None, True, -1, -2, 0, 2**31, 2**63, 10**40, 1.5, float("nan"), "", "x", "17", "\ud800", "\x00", "-", "9" * 4400,
    [], [1], ["x"], [None], [[]], {}, {"": 1}, {"0": [1]}, {"0": None}, {"x": {"y": {}}}, [{"topic": "t"}],
]  # fmt: skip


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Returns other bytes. For a JSON node, they are often other JSON of a similar shape."""
    value = None
    if chance.random() < 0.5:
        with contextlib.suppress(ValueError):
            value = json.loads(data)
    if isinstance(value, dict) and value:
        return json.dumps(reshaped(chance, value)).encode()
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        removed, added = chance.choice(
            [
                (chance.randint(1, 20), b""),
                (0, chance.randbytes(chance.randint(1, 6))),
                (0, out[at : at + chance.randint(1, 30)] * chance.randint(1, 40)),
                (len(out), b""),
                (1, chance.choice([b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"0", b"-", b"\n"])),
            ]
        )
        out[at : at + removed] = added
    return bytes(out)


def reshaped(chance: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    """Changes, drops, renames or adds a field somewhere in the object."""
    found = dict(value)
    name = chance.choice(list(found))
    inner = found[name]
    if isinstance(inner, dict) and inner and chance.random() < 0.6:
        found[name] = reshaped(chance, inner)
        return found
    if isinstance(inner, list) and inner and isinstance(inner[0], dict) and chance.random() < 0.6:
        found[name] = [reshaped(chance, inner[0]), *inner[1:]]
        return found
    match chance.randrange(4):
        case 0:
            found[name] = chance.choice(JUNK)
        case 1:
            del found[name]
        case 2:
            found[str(chance.choice(JUNK))[:50]] = found.pop(name)
        case _:
            found[chance.choice(["version", "extra", "partitions", "subscription", "0"])] = chance.choice(JUNK)
    return found


def test_mutated_nodes_are_values_or_typed_errors_with_their_path() -> None:
    chance = random.Random(SEED)
    valid = rejected = 0

    for n in range(MUTATIONS):
        path, data, _ = VALID[n % len(VALID)]
        junk = mutated(chance, data)
        try:
            found = describe(path, junk)
        except Exception as error:
            raise AssertionError(f"seed {SEED}, mutation {n}: {path} {junk!r:.300}") from error
        " ".join([found.value or "", *found.notes]).encode()  # every output format must be able to encode it
        if found.error is None:
            valid += 1
            continue
        rejected += 1
        assert isinstance(found.error, CorruptData | UnknownVersion), junk
        assert found.error.what == f"ZooKeeper node {path}", junk
        assert found.error.why and found.value is None, junk

    assert valid > MUTATIONS // 20, f"seed {SEED}: too few mutated nodes are valid"
    assert rejected > MUTATIONS // 4, f"seed {SEED}: too few mutated nodes are invalid"
