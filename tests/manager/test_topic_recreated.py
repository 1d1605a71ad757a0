"""A manager whose offsets topic is deleted and recreated, or loses records, on a real broker."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest
from backend_listeners import ManagerListener
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from memory_listener import COMMIT, FETCH, WireClient, commit_errors, commit_message
from processes import delete_topic, fails, set_topic, wait_for

from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.sandbox import KafkaBroker, ports

pytestmark = pytest.mark.servers

PARTITIONS = 8
RETRIABLE = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
}  # fmt: skip


class Manager:
    """A running manager, and a client of it."""

    def __init__(self, listener: ManagerListener, client: WireClient) -> None:
        self.listener = listener
        self.client = client

    def commit(self, offset: int) -> int:
        """Returns the error code."""
        (code,) = commit_errors(self.client.commit("g", {("t", 0): offset})).values()
        return code

    def fetch(self) -> tuple[int, int | None]:
        """The error code, and the offset if there is no error (-1 without a commit)."""
        topics = [{"name": "t", "partition_indexes": [0]}]
        answer = self.client.ask(FETCH, 5, {"group_id": "g", "topics": topics})
        code = answer["error_code"]
        return code, None if code else answer["topics"][0]["partitions"][0]["committed_offset"]

    @property
    def alarms(self) -> list[str]:
        async def status() -> list[str]:
            return list(self.listener.process.status()["alarms"])

        return self.listener.run(status())

    @property
    def states(self) -> set[str]:
        async def status() -> set[str]:
            return {shard["state"] for shard in self.listener.process.status()["shards"]}

        return self.listener.run(status())

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """All offsets of the manager, with their times."""

        async def dump() -> list[Mapping[str, Any]]:
            process = self.listener.process
            return [entry for partition in range(PARTITIONS) for entry in process.dump(partition, None, 1_000)]

        return self.listener.run(dump())

    def wait_for_alarm(self, text: str) -> None:
        wait_for(lambda: any(text in alarm for alarm in self.alarms), f"an alarm: {text}")


@contextmanager
def serving(kafka: KafkaBroker, topic: str, **options: Any) -> Iterator[Manager]:
    often = {"partitions": PARTITIONS, "topic_check_interval_s": 0.1}
    with (
        ManagerListener(kafka.bootstrap, topic, timeout_ms=90_000, **often, **options) as listener,
        WireClient(listener.port) as client,
    ):
        manager = Manager(listener, client)
        wait_for(lambda: manager.states == {"ACTIVE"}, "all groups are served")
        yield manager


def create_topic_with_defaults(admin: AdminClient, topic: str) -> None:
    while True:
        try:
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
            return
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS  # the deletion is still in progress
            time.sleep(0.05)


def test_offsets_of_a_deleted_topic_are_no_longer_served_and_new_commits_are(kafka: KafkaBroker, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with serving(kafka, unique) as manager:
        assert manager.commit(5) == 0
        delete_topic(admin, unique)
        # As the guide states, acknowledged offsets can be read and saved until the topic is recreated.
        wait_for(lambda: manager.alarms != [], "the deletion is an alarm")
        assert manager.fetch() == (0, 5)
        time.sleep(3)  # two leases: the lease is extended although its proof cannot be committed
        assert manager.fetch() == (0, 5)
        ensure_topic(kafka.bootstrap, {}, unique, partitions=PARTITIONS)
        responses = [manager.fetch()]
        while responses[-1] != (0, -1):
            time.sleep(0.002)
            responses.append(manager.fetch())
        stale = responses.count((0, 5))
        assert responses[:stale] == [(0, 5)] * stale  # the old offset never returns
        assert {error for error, _ in responses[stale:-1]} <= RETRIABLE
        # The next check clears the fault.
        wait_for(lambda: ["recreated" in alarm for alarm in manager.alarms] == [True], "one alarm remains")
        wait_for(lambda: manager.commit(6) == 0, "commits are accepted")
        assert manager.fetch() == (0, 6)


def test_an_unsuitable_new_topic_is_not_served_until_it_is_fixed(kafka: KafkaBroker, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with serving(kafka, unique) as manager:
        assert manager.commit(5) == 0
        delete_topic(admin, unique)
        # With retention instead of compaction, as a broker creates topics by default.
        create_topic_with_defaults(admin, unique)
        wait_for(lambda: manager.fetch()[0] == KafkaError.COORDINATOR_NOT_AVAILABLE, "the group is not served")
        manager.wait_for_alarm("cleanup.policy is delete")
        assert manager.commit(6) == KafkaError.COORDINATOR_NOT_AVAILABLE
        set_topic(admin, unique, {"cleanup.policy": "compact"})
        manager.wait_for_alarm("message.timestamp.type is CreateTime")
        set_topic(admin, unique, {"message.timestamp.type": "LogAppendTime"})
        wait_for(lambda: manager.fetch() == (0, -1), "the new topic is served")
        wait_for(lambda: ["recreated" in alarm for alarm in manager.alarms] == [True], "one alarm remains")


GROUPS = [f"group-{number}" for number in range(40)]
"""Groups of all shards."""


def commit_groups(manager: Manager) -> list[Mapping[str, Any]]:
    """Commits an offset of each group, of some with a retention. Returns the entries of the offsets."""
    for number, group in enumerate(GROUPS):
        request = commit_message(group, {("t", 0): number}) | {"retention_time": 3_600_000 if number % 2 else -1}
        assert commit_errors(manager.client.ask(COMMIT, 4, request)) == {("t", 0): 0}
    assert len({entry["group"] for entry in manager.entries}) == len(GROUPS)
    return manager.entries


@contextmanager
def wrong_policy(admin: AdminClient, topic: str) -> Iterator[None]:
    """Deletes all records of the topic, as retention does while the topic has this cleanup policy."""
    set_topic(admin, topic, {"cleanup.policy": "delete"})
    yield
    ends = [TopicPartition(topic, partition, -1) for partition in range(PARTITIONS)]

    def delete() -> None:
        for deleted in admin.delete_records(ends).values():
            deleted.result(30)

    # Until the broker has applied the policy, it rejects the request.
    wait_for(lambda: not fails(KafkaException, delete), "the records are deleted")
    set_topic(admin, topic, {"cleanup.policy": "compact"})


def test_offsets_whose_records_were_deleted_survive_a_restart_once_the_alarm_ends(kafka: KafkaBroker, unique) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with serving(kafka, unique) as manager:
        before = commit_groups(manager)
        with wrong_policy(admin, unique):
            manager.wait_for_alarm("cleanup.policy is delete")
        wait_for(lambda: manager.alarms == [], "the alarm ends")
        assert manager.entries == before
    with serving(kafka, unique) as manager:
        assert manager.entries == before
        assert manager.alarms == []


def test_a_manager_is_not_ready_while_a_record_is_too_large_to_be_appended_again(kafka, unique, monkeypatch) -> None:
    monkeypatch.setattr("offsetmgr.manager.runtime.shard_group.NON_RETRIABLE_BACKOFF_S", 0.1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with serving(kafka, unique) as manager:
        large = commit_message("g", {("t", 0): 5})
        large["topics"][0]["partitions"][0]["committed_metadata"] = "m" * 3_000
        assert commit_errors(manager.client.ask(COMMIT, 4, large)) == {("t", 0): 0}
        with wrong_policy(admin, unique):
            manager.wait_for_alarm("cleanup.policy is delete")
            set_topic(admin, unique, {"max.message.bytes": "1500"})
        wait_for(lambda: ["max.message.bytes" in alarm for alarm in manager.alarms] == [True], "only the alarm of g")
        assert manager.listener.process._readiness().status == 503
        set_topic(admin, unique, {"max.message.bytes": "1000000"})
        wait_for(lambda: manager.alarms == [], "the alarm ends")
        assert manager.listener.process._readiness().status == 200


def test_a_manager_that_starts_after_records_were_deleted_names_the_shards_that_lost_offsets(kafka, unique) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with serving(kafka, unique) as manager:
        commit_groups(manager)
    with wrong_policy(admin, unique):
        pass
    for _ in range(2):
        port = ports.free_port()
        with serving(kafka, unique, metrics_listen=("127.0.0.1", port)) as manager:
            assert manager.entries == []
            shards = "shards 0, 1, 2, 3, 4 and 3 more"
            lost = f"topic {unique}: records of {shards} were deleted before this manager read them"
            assert [alarm.startswith(lost) for alarm in manager.alarms] == [True]
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                assert "offsetmgr_alarms 1.0" in page.read().decode().splitlines()
