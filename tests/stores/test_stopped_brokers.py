"""One broker of two stops, or does not answer, between two requests of a call: the call goes on at the other one."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from fake_broker import FakeBroker

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import ErrorCode, TimedOut, Unreachable
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, Guard
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.stores.kafka import KafkaStore

TP = TopicPartition("t", 0)
CONFIG = ConnectionConfig(timeout_ms=20_000)
GROUP = {"error_code": 0, "group_id": "g", "group_state": "Empty", "protocol_type": "", "protocol_data": ""}
COMMITTED = {"topics": [{"name": "t", "partitions": [{"error_code": 0, "partition_index": 0}]}]}
FOUND = {"node_id": 1, "error_code": 0, "error_message": None, "key": "g", "host": "127.0.0.1"}
Message = Mapping[str, Any]


class Pair:
    """Two brokers. ``first`` is the coordinator of the group; if it has stopped, ``second`` is."""

    def __init__(self, first: FakeBroker, second: FakeBroker) -> None:
        self.first, self.second, self.stopped = first, second, False
        self.bootstrap = f"{first.bootstrap},{second.bootstrap}"
        for broker in (first, second):
            broker.versions = dict.fromkeys(ApiKey, (0, 9))
            broker.add_topic("t", 1)
            broker.handlers |= {
                ApiKey.FIND_COORDINATOR: lambda _: {
                    "coordinators": [FOUND | {"port": (second if self.stopped else first).port}]
                },
                ApiKey.DESCRIBE_GROUPS: lambda _: {"groups": [GROUP | {"members": []}]},
                ApiKey.OFFSET_FETCH: lambda _: {"groups": [{"error_code": 0, "group_id": "g", "topics": []}]},
                ApiKey.OFFSET_COMMIT: lambda _: COMMITTED,
            }

    def stop_first(self, message: Message) -> Message | None:
        """A handler of the first broker, which stops instead of an answer."""
        if message.get("topics") == [{"name": "?"}]:  # looks for brokers before 0.10
            return {"brokers": [], "controller_id": 1, "topics": []}
        self.stopped = True
        self.first.stop()
        return None


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack.enter_context(FakeBroker()), stack.enter_context(FakeBroker()))


def test_an_edit_goes_on_at_the_next_coordinator_if_the_first_stops_after_it_described_the_group(pair: Pair) -> None:
    pair.first.handlers[ApiKey.OFFSET_FETCH] = pair.stop_first
    with KafkaStore(pair.bootstrap, CONFIG) as store:
        (result,) = store.edit([GroupEdit("g", {TP: Change(OffsetAndMetadata(1))}, Guard.COMPARE)])
    assert (result.failures, result.outcomes[TP].status) == ({}, EditStatus.WRITTEN)


@pytest.mark.parametrize("ask", [lambda c: c.topics(["t"]), KafkaCluster.topics, KafkaCluster.cluster_id])
def test_what_every_broker_knows_is_asked_at_another_one(pair: Pair, ask: Callable[[KafkaCluster], object]) -> None:
    pair.first.handlers[ApiKey.METADATA] = pair.stop_first
    with KafkaCluster(pair.bootstrap, CONFIG) as cluster:
        ask(cluster)
    assert pair.second.requests(ApiKey.METADATA)
    pair.second.stop()
    with KafkaCluster(pair.bootstrap) as other, pytest.raises(Unreachable, match="Connection refused"):
        other.topics()


def test_a_lookup_that_the_first_broker_does_not_answer_goes_to_another_one(pair: Pair) -> None:
    pair.first.handlers[ApiKey.FIND_COORDINATOR] = lambda _: None
    with KafkaStore(pair.bootstrap, ConnectionConfig(timeout_ms=3_000)) as store:
        assert dict(store.fetch("g")) == {}


def test_a_slow_broker_has_the_whole_time_and_the_error_names_it(pair: Pair) -> None:
    def delayed(message: Message) -> Message:
        time.sleep(1.5 if message["topics"] is None else 0)
        return {"brokers": [], "controller_id": 1, "topics": []}

    pair.first.handlers[ApiKey.METADATA] = pair.second.handlers[ApiKey.METADATA] = delayed
    with KafkaCluster(pair.bootstrap, ConnectionConfig(timeout_ms=2_200)) as cluster:
        assert cluster.topics() == {}
    short = ConnectionConfig(timeout_ms=600)
    with KafkaCluster(pair.bootstrap, short) as other, pytest.raises(TimedOut, match=r"no answer within 0\.[56]"):
        other.topics()


@pytest.mark.parametrize(("code", "others"), [(ErrorCode.COORDINATOR_NOT_AVAILABLE, 0), (ErrorCode.NOT_COORDINATOR, 1)])
def test_lookups_stay_at_a_broker_that_answers_unless_it_names_a_former_coordinator(pair, code, others: int) -> None:
    codes = [code, 0]
    pair.first.handlers[ApiKey.OFFSET_FETCH] = lambda _: {
        "groups": [{"error_code": codes.pop(0), "group_id": "g", "topics": []}]
    }
    with KafkaStore(pair.bootstrap, CONFIG) as store:
        assert dict(store.fetch("g")) == {}
    assert len(pair.second.requests(ApiKey.FIND_COORDINATOR)) == others
