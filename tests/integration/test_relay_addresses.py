"""Addresses and APIs that the relay advertises on real brokers: clients never bypass the relay."""

from __future__ import annotations

import asyncio

import pytest
from relay_clients import (
    COMMIT,
    DESCRIBE_CLUSTER,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN,
    LEAVE,
    METADATA,
    NO_EXTRAS,
    SYNC,
    connect,
)
from running_relay import NODE_ID, RunningRelay

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.protocol.channel import Request

pytest_plugins = ["relay_fixtures"]

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("version", range(13))
def test_metadata_contains_only_addresses_of_the_relay(relay: RunningRelay, version: int) -> None:
    async def named() -> list[tuple[int, str, int]]:
        connection = await connect(relay)
        answer = await connection.call(Request(METADATA, version, {"topics": [], **NO_EXTRAS}), 60)
        await connection.close()
        return [(b["node_id"], b["host"], b["port"]) for b in answer["brokers"]]

    (node_id, port), = relay.relay.ports().items()  # fmt: skip
    assert relay.run(named()) == [(node_id, "127.0.0.1", port), (NODE_ID, "127.0.0.1", relay.port)]


def test_managers_coordinate_groups_and_relay_ports_represent_transaction_coordinators(
    kraft_relay: RunningRelay,
) -> None:
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
        assert [b["port"] for b in cluster["brokers"]] == [*kraft_relay.relay.ports().values(), kraft_relay.port]
        return coordinators

    (node_id, port), = kraft_relay.relay.ports().items()  # fmt: skip
    manager, broker = (NODE_ID, kraft_relay.port), (node_id, port)
    assert kraft_relay.run(found()) == [
        (version, kind, *(broker if kind and version else manager)) for version in range(7) for kind in (0, 1)
    ]


def test_apis_that_would_bypass_the_relay_are_not_advertised(kraft_relay: RunningRelay) -> None:
    async def advertised() -> dict[int, tuple[int, int]]:
        connection = await connect(kraft_relay)
        await connection.close()
        return dict(connection.versions)

    versions = kraft_relay.run(advertised())
    assert not versions.keys() & {25, 28, 68, 69, 76, 77, 78, 79, 88, 89, 29, 30, 31, 50, 51}
    assert (versions[0][1], versions[1][1], versions[24][1], versions[26][1]) == (9, 15, 3, 4)
    assert {JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, 9, 75}.issubset(versions)
