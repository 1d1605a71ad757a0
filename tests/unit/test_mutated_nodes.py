"""Mutated znodes: each gives a value or a typed error that names the node, and can be printed.

100,000 mutations with OFFSETMGR_SOAK, 10,000 without; OFFSETMGR_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

from zookeeper_examples import EXAMPLES

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion
from offsetmgr.zookeeper.nodes.kinds import describe

MUTATIONS = 100_000 if os.environ.get("OFFSETMGR_SOAK") else 10_000
SEED = int(os.environ.get("OFFSETMGR_SEED", "20261122"))

NODES = [(one.path, one.corrected.encode()) for one in EXAMPLES] + [
    ("/brokers/ids/1", b"h1-1330000000000:h1:9092"),
    (
        "/brokers/ids/2",
        b'{"features":{"f":{"min_version":1,"max_version":3}},"listener_security_protocol_map":{"A":"SSL"},'
        b'"endpoints":["A://[::1]:9092"],"jmx_port":-1,"port":-1,"host":null,"version":5,"timestamp":"17","rack":"r"}',
    ),
    (
        "/brokers/topics/t",
        b'{"removing_replicas":{"0":[1]},"partitions":{"0":[1,2]},"topic_id":"Rk1f","adding_replicas":{},"version":3}',
    ),
    ("/consumers/g/ids/c", b"*4*white.*"),
    ("/config/users/alice", b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x","producer_byte_rate":"10"}}'),
    ("/config/changes/config_change_0", b'{"version":2,"entity_path":"topics/t"}'),
    ("/feature", b'{"features":{"f":{"max_version_level":3}},"version":2,"status":1}'),
    ("/latest_producer_id_block", b'{"version":1,"broker":0,"block_start":"0","block_end":"999"}'),
    ("/isr_change_notification/isr_change_0", b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'),
    ("/log_dir_event_notification/log_dir_event_0", b'{"version":1,"broker":1,"event":1}'),
    ("/consumers/g/offsets/t/1", b"9" * 4_290),  # Python itself reads no number of more than 4,300 digits
    ("/controller", b'{"version":2,"brokerid":0,"timestamp":"17","kraftControllerEpoch":-1}'),
]
JUNK: list[Any] = [
    None, True, -1, -2, 0, 2**31, 2**63, 10**40, 1.5, float("nan"), "", "x", "17", "\ud800", "\x00", "-", "9" * 4400,
    [], [1], ["x"], [None], [[]], {}, {"": 1}, {"0": [1]}, {"0": None}, {"x": {"y": {}}}, [{"topic": "t"}],
]  # fmt: skip


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Returns other bytes. For a JSON node, they are often other JSON of a similar shape."""
    if chance.random() < 0.5:
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if isinstance(value, dict) and value:
            return json.dumps(reshaped(chance, value)).encode()
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0:
                out[at : at + chance.randint(1, 20)] = b""
            case 1:
                out[at:at] = chance.randbytes(chance.randint(1, 6))
            case 2:
                out[at:at] = out[at : at + chance.randint(1, 30)] * chance.randint(1, 40)
            case 3:
                del out[at:]
            case _:
                out[at : at + 1] = chance.choice([b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"0", b"-", b"\n"])
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
        path, data = NODES[n % len(NODES)]
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


def test_strict_parsers_raise_typed_errors_too() -> None:
    chance = random.Random(SEED)

    for n in range(MUTATIONS // 10):
        one = EXAMPLES[n % len(EXAMPLES)]
        junk = mutated(chance, one.corrected.encode())
        try:
            one.parse(one.path, junk)
        except OffsetMgrError as error:
            assert error.what == f"ZooKeeper node {one.path}", junk
