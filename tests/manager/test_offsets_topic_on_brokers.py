"""The offsets topic on real brokers: creation by several managers at once, and rejection of unsafe settings."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from conftest import MakeTopic
from processes import wait_for

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import check_topic, ensure_topic
from offsetmgr.manager.log.topic import OffsetsTopicState, PartitionCountChanged, TooFewBrokers, UnsuitableTopic
from offsetmgr.sandbox import KraftBroker, java_tool

pytestmark = pytest.mark.servers


def test_three_managers_that_start_together_create_one_topic(bootstrap: str, unique: str) -> None:
    def ensure(_: int) -> OffsetsTopicState:
        return ensure_topic(bootstrap, {}, unique, partitions=5)

    with ThreadPoolExecutor(3) as pool:
        states = list(pool.map(ensure, range(3)))

    assert states == [states[0]] * 3
    assert (states[0].partitions, states[0].replication_factor, states[0].min_insync_replicas) == (5, 1, 1)
    assert ensure_topic(bootstrap, {}, unique, partitions=5) == states[0]
    assert check_topic(bootstrap, {}, states[0]) == states[0]


def test_more_replicas_than_brokers_are_rejected_and_create_nothing(bootstrap: str, unique: str) -> None:
    with pytest.raises(TooFewBrokers, match="it needs 3 replicas, but only 1 broker is up"):
        ensure_topic(bootstrap, {}, unique, partitions=2, replication_factor=3)

    assert unique not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics


def test_a_topic_with_the_timestamps_of_managers_is_rejected_until_the_command_in_the_hint_has_run(
    kraft: KraftBroker, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 5, bootstrap=kraft.bootstrap, config={"cleanup.policy": "compact"})

    with pytest.raises(UnsuitableTopic, match=r"message\.timestamp\.type is CreateTime") as rejected:
        ensure_topic(kraft.bootstrap, {}, unique, partitions=5)

    command = rejected.value.hint.removeprefix("set it with kafka-configs ").split()
    where = ["--bootstrap-server", kraft.bootstrap]
    done = java_tool("kafka-4.4", "org.apache.kafka.tools.ConfigCommand", [*where, *command])
    assert done.returncode == 0, done.stderr

    def suitable() -> bool:
        with contextlib.suppress(UnsuitableTopic):
            return ensure_topic(kraft.bootstrap, {}, unique, partitions=5).partitions == 5
        return False

    wait_for(suitable, "the topic is suitable")


def test_partitions_added_to_a_running_managers_topic_are_detected(bootstrap: str, unique: str) -> None:
    state = ensure_topic(bootstrap, {}, unique, partitions=2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(unique, 4)])[unique].result(90)

    assert detected_error(bootstrap, state) is PartitionCountChanged


def test_a_deleted_or_recreated_topic_is_detected(bootstrap: str, unique: str) -> None:
    state = ensure_topic(bootstrap, {}, unique, partitions=2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([unique])[unique].result(90)
    assert detected_error(bootstrap, state) is UnsuitableTopic
    assert unique not in admin.list_topics(timeout=60).topics, "a check does not create the topic"

    again = ensure_topic(bootstrap, {}, unique, partitions=2)

    with pytest.raises(UnsuitableTopic, match="recreated"):
        check_topic(bootstrap, {}, state)
    assert check_topic(bootstrap, {}, again) == again


def detected_error(bootstrap: str, state: OffsetsTopicState) -> type[OffsetMgrError]:
    """The error that `check_topic` raises once the brokers have applied a change."""
    errors: list[OffsetMgrError] = []

    def rejected() -> bool:
        try:
            check_topic(bootstrap, {}, state)
        except UnsuitableTopic as error:
            errors.append(error)
        return bool(errors)

    wait_for(rejected, "the change is detected")
    return type(errors[0])


def test_the_end_of_a_partition_that_appears_during_the_request(kafka, make_topic, unique) -> None:
    make_topic(unique, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    log = KafkaLog(kafka.bootstrap, unique, 2)

    def add_partition() -> None:
        (added,) = admin.create_partitions([NewPartitions(unique, 2)]).values()
        added.result(90)

    addition = threading.Timer(0.5, add_partition)
    addition.start()
    try:
        assert log.end_offsets([0, 1], 20) == {0: 0, 1: 0}
    finally:
        addition.join()
        log.close()
