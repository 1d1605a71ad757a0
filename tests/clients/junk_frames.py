"""Valid frames of every request and version that the listener answers, and damaged copies of them."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from typing import Any

from memory_listener import DEFAULT_FIELDS, WireClient, commit_message

from offsetmgr.kafka.protocol.schema_codec import encode_request

PART = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
FETCHED = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": list(range(20))}]}
SAMPLES: dict[int, tuple[range, dict[str, Any]]] = {
    2: (range(1, 11), {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [PART]}]}),
    3: (range(14), {"topics": [{"name": "orders", "topic_id": None}]}),
    8: (range(2, 10), commit_message("junk", {("orders", p): p for p in range(10)})),
    9: (
        range(1, 10),
        {**FETCHED, "groups": [{**FETCHED, "member_id": None, "member_epoch": -1}], "require_stable": False},
    ),
    10: (range(7), {"key": "g", "coordinator_keys": ["g", "h"], "key_type": 0}),
    15: (range(7), {"groups": ["g", "h"]}),
    16: (range(6), {"states_filter": ["Empty"], "types_filter": ["classic"]}),
    18: (range(5), {"client_software_name": "junk", "client_software_version": "1.0"}),
    42: (range(3), {"groups_names": ["none", "such"]}),
    47: (range(1), {"group_id": "none", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}),
    60: (range(3), {}),
    17: (range(1, 2), {"mechanism": "SCRAM-SHA-256"}),
    36: (range(3), {"auth_bytes": b"n,,n=alice,r=nonce"}),
}


def corpus() -> list[bytes]:
    """A valid frame of every request and version."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        client = WireClient(server.getsockname()[1])
    with client:
        return [
            client.frame(api_key, version, encode_request(api_key, version, {**DEFAULT_FIELDS, **message}), 7)
            for api_key, (versions, message) in SAMPLES.items()
            for version in versions
        ]


def mutated(rng: random.Random, frame: bytes, other: bytes) -> bytes:
    """A damaged frame. Its length field mostly fits, because the listener would not read on otherwise."""
    body = bytearray(frame[4:])
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(7)
        at = rng.randrange(len(body)) if body else 0
        if kind == 0 and body:
            body[at] = rng.randrange(256)
        elif kind == 1 and body:
            body[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del body[at:]
        elif kind == 3:
            del body[at : at + rng.randint(1, 8)]
        elif kind == 4:
            body[at:at] = rng.randbytes(rng.randint(1, 16))
        elif kind == 5:
            body[at:] = other[4 + rng.randrange(len(other) - 4) :]
        else:
            body[at : at + 4] = struct.pack(">i", rng.choice((-1, 0, 2**31 - 1, -(2**31), 1_000_000, 65_536)))
    length = len(body) if rng.random() < 0.95 else rng.choice((-1, 0, len(body) + 5, 100_000_000, 2**31 - 1))
    return struct.pack(">i", length) + body
