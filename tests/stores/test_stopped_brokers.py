"""One broker of two stops, or does not answer, between two requests of a call: the call goes on at the other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from fake_broker import FakeBroker

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.stores.kafka import KafkaStore

TP = TopicPartition("t", 0)
Message = Mapping[str, Any]


class Pair:
    """Two brokers. ``first`` coordinates every group and answers lookups; the other one follows when it has stopped."""

    def __init__(self, first: FakeBroker, second: FakeBroker) -> None:
        self.first, self.second, self.stopped = first, second, False
        for broker in (first, second):
            broker.versions = dict.fromkeys(ApiKey, (0, 9))
            broker.add_topic("t", 1)
            broker.handlers |= {
                ApiKey.FIND_COORDINATOR: self._coordinators,
                ApiKey.DESCRIBE_GROUPS: lambda m: {"groups": [_empty(group) for group in m["groups"]]},
                ApiKey.OFFSET_FETCH: lambda m: {
                    "groups": [{"error_code": 0, "group_id": g["group_id"], "topics": []} for g in m["groups"]]
                },
                ApiKey.JOIN_GROUP: lambda _: {
                    "error_code": 0,
                    "generation_id": 1,
                    "protocol_name": "x",
                    "leader": "m",
                    "member_id": "m",
                    "members": [],
                },
                ApiKey.OFFSET_COMMIT: lambda _: {
                    "topics": [{"name": "t", "partitions": [{"error_code": 0, "partition_index": 0}]}]
                },
            } | dict.fromkeys(
                (ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP), lambda _: {"error_code": 0, "assignment": b"", "members": []}
            )

    @property
    def bootstrap(self) -> str:
        return f"{self.first.bootstrap},{self.second.bootstrap}"

    def stop_first(self, message: Message) -> Message | None:
        """A handler of the first broker, which stops instead of an answer."""
        if message.get("topics") == [{"name": "?"}]:  # looks for brokers before 0.10
            return {"brokers": [], "controller_id": 1, "topics": []}
        self.stopped = True
        self.first.stop()
        return None

    def _coordinators(self, message: Message) -> Message:
        port = (self.second if self.stopped else self.first).port
        found = [
            {"node_id": 1, "error_code": 0, "error_message": None, "key": key, "host": "127.0.0.1", "port": port}
            for key in message["coordinator_keys"]
        ]
        return {"coordinators": found}


def _empty(group: str) -> Message:
    return {
        "error_code": 0,
        "protocol_data": "",
        "group_id": group,
        "group_state": "Empty",
        "protocol_type": "consumer",
        "members": [],
    }


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack.enter_context(FakeBroker()), stack.enter_context(FakeBroker()))


def test_an_edit_waits_for_the_next_coordinator_if_the_coordinator_stops_after_it_described_the_group(
    pair: Pair,
) -> None:
    pair.first.handlers[ApiKey.OFFSET_FETCH] = pair.stop_first
    with KafkaStore(pair.bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
        (result,) = store.edit([GroupEdit("g", {TP: Change(OffsetAndMetadata(1))})])
    assert (result.failures, result.outcomes[TP].status) == ({}, EditStatus.WRITTEN)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda cluster: cluster.topics(["t"]),
        lambda cluster: cluster.topics(),
        lambda cluster: cluster.brokers(),
        lambda cluster: cluster.cluster_id(),
        lambda cluster: cluster.describe_brokers(),
    ],
)
def test_what_every_broker_knows_is_asked_at_another_one_if_the_first_stops(
    pair: Pair, request_of: Callable[[KafkaCluster], object]
) -> None:
    pair.first.handlers[ApiKey.METADATA] = pair.stop_first
    with KafkaCluster(pair.bootstrap, ConnectionConfig(timeout_ms=20_000)) as cluster:
        request_of(cluster)
        pair.second.stop()
        with KafkaCluster(pair.bootstrap) as other, pytest.raises(Unreachable, match="Connection refused"):
            other.topics()
    assert pair.second.requests(ApiKey.METADATA)


def test_a_lookup_that_the_first_broker_does_not_answer_goes_to_another_one(pair: Pair) -> None:
    pair.first.handlers[ApiKey.FIND_COORDINATOR] = lambda _: None
    with KafkaStore(pair.bootstrap, ConnectionConfig(timeout_ms=3_000)) as store:
        assert dict(store.fetch("g")) == {}
