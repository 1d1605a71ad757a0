"""The offsets topic: the settings of a new one, the requests about it as a broker on a socket receives them, and the
checks before and while a manager serves."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from blocking_writer import claimed
from confluent_kafka import KafkaError
from fake_broker import VERSIONS, FakeBroker
from memory_log import MemoryLog
from stopwatch import Stopwatch

from offsetmgr.core.advice import for_command_line
from offsetmgr.core.errors import (
    NotAuthorized,
    OffsetMgrError,
    ServerError,
    TimedOut,
    UnknownTopicOrPartition,
    Unreachable,
)
from offsetmgr.manager.log.format_check import check_format
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import check_topic, ensure_topic
from offsetmgr.manager.log.topic import (
    ExistingTopic,
    OffsetsTopicState,
    TooFewBrokers,
    UnsuitableTopic,
    durability_warnings,
    examine,
    replicas_for,
    settings_for,
)
from offsetmgr.manager.node.topic_monitor import MAX_FAILED_CHECKS, OffsetsTopicMonitor
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import EncodedRecord, FormatMismatch

# --- settings --------------------------------------------------------------------------------------------------


SUITABLE = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "2",
    "max.message.bytes": "1048588",
}


def found(
    settings: dict[str, str] | None = None, *, partitions: int = 50, replicas: int = 3, topic_id: str = "a"
) -> ExistingTopic:
    return ExistingTopic(topic_id, partitions, replicas, frozenset(), {**SUITABLE, **(settings or {})})


@pytest.mark.parametrize(
    ("brokers", "own", "requested", "replicas"),
    [
        (1, 1, None, 1),
        (3, 3, None, 3),
        (7, 3, None, 3),
        (3, None, None, 3),
        (3, -1, None, 3),
        (3, 1, 2, 2),
        (1, 3, 1, 1),
    ],
)
def test_the_replication_factor_is_that_of_the_brokers_offsets_topic_unless_requested(
    brokers: int, own: int | None, requested: int | None, replicas: int
) -> None:
    assert replicas_for("t", brokers, own, requested) == replicas


@pytest.mark.parametrize(("brokers", "own", "requested"), [(1, 3, None), (2, None, None), (1, 1, 2), (0, 1, None)])
def test_brokers_that_are_down_never_lower_the_replication_factor(brokers: int, own, requested: int | None) -> None:
    with pytest.raises(TooFewBrokers, match=f"replicas, but only {brokers} ") as refused:
        replicas_for("t", brokers, own, requested)

    assert for_command_line(refused.value.hint).startswith("start the other brokers, or use --replication-factor")


@pytest.mark.parametrize(
    ("replicas", "requested", "in_sync"), [(1, None, "1"), (2, None, "1"), (3, None, "2"), (5, None, "2"), (5, 3, "3")]
)
def test_a_new_topic_is_suitable_and_keeps_what_was_acknowledged(replicas: int, requested, in_sync: str) -> None:
    settings = settings_for(replicas, requested)
    assert settings == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "delete.retention.ms": "86400000",
        "segment.bytes": "104857600",
        "compression.type": "producer",
        "min.insync.replicas": in_sync,
        "unclean.leader.election.enable": "false",
    }
    state = examine("t", ExistingTopic("a", 50, replicas, frozenset(), settings), 50, "a")
    assert (state.partitions, state.replication_factor, state.min_insync_replicas) == (50, replicas, int(in_sync))
    assert bool(state.warnings) is (in_sync == "1")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "retention would"),
        *[({"cleanup.policy": p}, "retention would") for p in ("delete", "compact,delete", "delete, compact", "")],
        ({"cleanup.policy": "compact"}, "message.timestamp.type is CreateTime"),
        ({**SUITABLE, "min.insync.replicas": "4"}, "no commit can ever succeed"),
    ],
)  # fmt: skip
def test_a_topic_that_loses_or_refuses_commits_is_rejected(settings: dict[str, str], text: str) -> None:
    with pytest.raises(UnsuitableTopic, match=text) as refused:
        examine("t", ExistingTopic("a", 50, 3, frozenset(), settings), 50)
    if "retention" in text:  # compaction would delete most records of another application
        assert refused.value.hint.startswith("choose another topic; or, if this topic contains only committed offsets")


@pytest.mark.parametrize(
    ("settings", "replicas", "warning"),
    [
        ({"max.message.bytes": "20000"}, 3, "max.message.bytes is 20000"),
        ({"unclean.leader.election.enable": "true"}, 3, "can be lost"),
        ({"delete.retention.ms": "60000"}, 3, "would reappear"),
        ({"min.insync.replicas": "1"}, 3, "a single broker"),
        ({"min.insync.replicas": "1"}, 1, "one replica"),
    ],
)
def test_risky_settings_give_a_warning(settings: dict[str, str], replicas: int, warning: str) -> None:
    state = examine("t", found(settings, replicas=replicas), 50)

    assert [warning in text for text in state.warnings] == [True]


@pytest.mark.parametrize(
    ("replicas", "in_sync", "warnings"),
    [
        (3, "2", []),
        (5, "3", []),
        (1, "1", ["1 replicas, but the offsets topic has 3", "min.insync.replicas 1, but the offsets topic has 2"]),
        (3, "1", ["min.insync.replicas 1, but the offsets topic has 2"]),
    ],
)
def test_a_transaction_log_that_keeps_less_than_the_offsets_topic_is_reported(replicas, in_sync: str, warnings) -> None:
    transactions = ExistingTopic("b", 50, replicas, frozenset(), {"min.insync.replicas": in_sync})

    warned = durability_warnings(transactions, examine("t", found(), 50))

    assert [text.removeprefix("__transaction_state has ").split(":")[0] for text in warned] == warnings
    assert all(text.endswith(": if it loses records, two managers can get the same producer epoch") for text in warned)


@pytest.mark.parametrize(("limit", "batch"), [(1048588, 1_000_000), (20_000, 19_872), (10**9, 1_000_000), (0, 1_000)])
def test_batches_stay_below_the_topics_limit(limit: int, batch: int) -> None:
    assert examine("t", found({"max.message.bytes": str(limit)}), 50).max_message_bytes == batch


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_of_the_brokers_is_rejected_without_a_request(topic: str) -> None:
    with pytest.raises(UnsuitableTopic, match="internal topic of the brokers"):
        ensure_topic("127.0.0.1:1", {}, topic, timeout_s=1)


# --- requests --------------------------------------------------------------------------------------------------


LIST_OFFSETS, CREATE_TOPICS, DESCRIBE_CONFIGS = 2, 19, 32
SETTINGS = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1"}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({DESCRIBE_CONFIGS: settings_of({2: SETTINGS, 4: {}})}) as found:
        yield found


def settings_of(values: Mapping[int, Mapping[str, str]]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Answers DescribeConfigs with these settings for each resource type: topic (2) and broker (4)."""

    def answer(message: Mapping[str, Any]) -> Mapping[str, Any]:
        (resource,) = message["resources"]
        found = values[resource["resource_type"]]
        wanted = found if resource["configuration_keys"] is None else resource["configuration_keys"]
        rest = {"read_only": False, "is_sensitive": False, "synonyms": []}
        configs = [{"name": name, "value": value, **rest} for name, value in found.items()]
        result = {**resource, "error_code": 0, "error_message": None}
        return {"results": [{**result, "configs": [one for one in configs if one["name"] in wanted]}]}

    return answer


def creation(
    broker: FakeBroker, *codes: int, message: str | None = None
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Answers CreateTopics with these error codes, one after the other. The topic exists after 0 and after 36."""
    left = list(codes)

    def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
        (topic,) = request["topics"]
        code = left.pop(0)
        if code in (0, 36):
            broker.add_topic(topic["name"], topic["num_partitions"])
        return {"topics": [{"name": topic["name"], "error_code": code, "error_message": message}]}

    return answer


def ends(*offsets: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Answers ListOffsets with these offsets, one after the other; the last one remains."""
    left = list(offsets)

    def answer(message: Mapping[str, Any]) -> Mapping[str, Any]:
        offset = left.pop(0) if len(left) > 1 else left[0]
        found = {"error_code": 0, "timestamp": -1, "offset": offset}
        return {
            "topics": [
                {**topic, "partitions": [{**part, **found} for part in topic["partitions"]]}
                for topic in message["topics"]
            ]
        }

    return answer


@pytest.mark.parametrize("codes", [(0,), (36,), (41, -1, 7, 0), (-1, 36)])
def test_a_topic_is_created_while_the_controller_fails_over_and_by_several_managers(broker: FakeBroker, codes) -> None:
    broker.handlers[CREATE_TOPICS] = creation(broker, *codes)
    broker.handlers[DESCRIBE_CONFIGS] = settings_of({2: SETTINGS, 4: {"offsets.topic.replication.factor": "1"}})

    state = ensure_topic(broker.bootstrap, {}, "t", partitions=3)

    assert (state.partitions, state.replication_factor, state.min_insync_replicas, state.topic_id) == (3, 1, 1, "")
    sent = broker.requests(CREATE_TOPICS)
    assert len(sent) == len(codes)
    (topic,) = sent[0]["topics"]
    assert (topic["name"], topic["num_partitions"], topic["replication_factor"]) == ("t", 3, 1)
    assert {"name": "cleanup.policy", "value": "compact"} in topic["configs"]


def test_the_default_replication_factor_is_asked_again_and_only_if_it_is_needed(broker: FakeBroker) -> None:
    answer = settings_of({2: SETTINGS, 4: {"offsets.topic.replication.factor": "1"}})

    def defaults() -> int:
        return [one["resources"][0]["resource_type"] for one in broker.requests(DESCRIBE_CONFIGS)].count(4)

    broker.handlers[CREATE_TOPICS] = creation(broker, 0, 0)
    broker.handlers[DESCRIBE_CONFIGS] = lambda message: None if defaults() == 1 else answer(message)

    assert ensure_topic(broker.bootstrap, {}, "t", timeout_s=6).replication_factor == 1
    assert defaults() == 2
    ensure_topic(broker.bootstrap, {}, "u", replication_factor=1)
    assert defaults() == 2


@pytest.mark.parametrize(("code", "error"), [(44, ServerError), (29, NotAuthorized), (38, ServerError)])
def test_a_refused_creation_is_reported_at_once_with_the_brokers_reason(broker: FakeBroker, code: int, error) -> None:
    broker.handlers[CREATE_TOPICS] = creation(broker, code, message="names begin with x")

    with pytest.raises(error, match=r"creation of topic t: .*: names begin with x"):
        ensure_topic(broker.bootstrap, {}, "t", partitions=3, replication_factor=1)

    assert len(broker.requests(CREATE_TOPICS)) == 1


def test_a_topic_is_complete_when_every_partition_has_a_leader(broker: FakeBroker) -> None:
    broker.add_topic("t", 3, leader=-1)

    with pytest.raises(TimedOut, match=r"3 partitions have no leader after 0\.3 s"):
        ensure_topic(broker.bootstrap, {}, "t", partitions=3, timeout_s=0.3)
    assert broker.requests(CREATE_TOPICS) == []


def test_a_broker_that_has_just_started_does_not_count_as_one_without_the_topic(broker: FakeBroker) -> None:
    broker.add_topic("t", 3)
    known, broker.topics, broker.knows_brokers = broker.topics, {}, False

    def learn() -> None:
        broker.topics, broker.knows_brokers = known, True

    update = threading.Timer(0.1, learn)
    update.start()
    assert ensure_topic(broker.bootstrap, {}, "t", partitions=3).partitions == 3
    update.join()
    assert broker.requests(CREATE_TOPICS) == []


def test_another_broker_is_asked_if_one_keeps_returning_an_outdated_topic(broker: FakeBroker) -> None:
    broker.topics["t"] = {"error_code": 5, "name": "t", "topic_id": None, "partitions": []}
    with FakeBroker({DESCRIBE_CONFIGS: broker.handlers[DESCRIBE_CONFIGS]}) as other:
        other.add_topic("t", 3)
        bootstrap = f"{broker.bootstrap},{other.bootstrap}"
        assert ensure_topic(bootstrap, {}, "t", partitions=3, timeout_s=6).partitions == 3


def test_the_id_of_a_topic_has_kafkas_text_form(broker: FakeBroker) -> None:
    broker.add_topic("t", 3)
    broker.topics["t"]["topic_id"] = uuid.UUID("399f8223-a602-4213-9948-a8b9fffffffe")
    state = ensure_topic(broker.bootstrap, {}, "t", partitions=3)

    log = KafkaLog(broker.bootstrap, "t", 3)

    assert log.generation(60) == state.topic_id == "OZ-CI6YCQhOZSKi5_____g"
    log.close()
    del broker.topics["t"]
    with pytest.raises(UnsuitableTopic, match="it was deleted"):
        check_topic(broker.bootstrap, {}, state)


def test_brokers_before_2_2_are_asked_for_the_last_stable_offset(broker: FakeBroker) -> None:
    broker.add_topic("t", 1)
    broker.versions = {**VERSIONS, LIST_OFFSETS: (0, 4)}
    broker.handlers[LIST_OFFSETS] = ends(4)
    log = KafkaLog(broker.bootstrap, "t", 1)
    assert log.end_offsets([0], 600) == {0: 4}
    log.close()
    assert [message["isolation_level"] for message in broker.requests(LIST_OFFSETS)] == [1]


def test_a_broker_that_does_not_respond_is_asked_again_long_before_the_timeout(broker: FakeBroker) -> None:
    broker.add_topic("t", 3)
    answer = ends(4)
    received: list[Mapping[str, Any]] = []

    def respond_later(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
        received.append(message)
        return answer(message) if len(received) > 1 else None

    broker.handlers[LIST_OFFSETS] = respond_later
    log = KafkaLog(broker.bootstrap, "t", 3)
    with Stopwatch() as watch:
        assert log.start_offsets([0, 2], 600) == {0: 4, 2: 4}
    log.close()
    assert watch.seconds < 60


def test_a_closed_log_ends_the_calls_of_other_threads_and_rejects_later_ones(broker: FakeBroker) -> None:
    broker.add_topic("t", 1)
    broker.handlers[LIST_OFFSETS] = lambda _: None
    log = KafkaLog(broker.bootstrap, "t", 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.start_offsets, [0], 600)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        log.close()
        with pytest.raises(Unreachable, match="this client was closed"):
            waiting.result(90)
    with pytest.raises(Unreachable, match="this client was closed"):
        log.generation(600)
    log.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAuthorized),
        pytest.param(KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopicOrPartition, marks=pytest.mark.slow),
    ],
)
def test_an_error_that_a_retry_cannot_fix_ends_a_request(broker, code: int, error: type[OffsetMgrError]) -> None:
    broker.topics["t"] = {"error_code": code, "name": "t", "topic_id": None, "partitions": []}
    log = KafkaLog(broker.bootstrap, "t", 3)

    with Stopwatch() as watch, pytest.raises(error):
        log.end_offsets([0], 600)
    with pytest.raises(error):
        log.generation(600)
    log.close()
    assert watch.seconds < 60


# --- checks ----------------------------------------------------------------------------------------------------


COMMITTED: dict[str, list[EncodedRecord]] = {
    "avro": AvroRecordFormat().encode_commit("g", "t", [(0, 5, -1, "")], 1_700_000_000_000, None),
    "kafka": [(b"\0\x01\0\x01g\0\x01t\0\0\0\0", b"any value")],
}
"""A record of an offset in each format."""


def log_with(batches: Mapping[int, Sequence[EncodedRecord]]) -> MemoryLog:
    log = MemoryLog(8)
    for partition, records in batches.items():
        claimed(log, partition).append({partition: records}, 1)
    return log


@pytest.mark.parametrize(("written", "configured"), [("avro", "kafka"), ("kafka", "avro")])
def test_a_topic_with_records_of_the_other_format_is_rejected(written: str, configured: str) -> None:
    log = log_with({3: COMMITTED[written]})
    with pytest.raises(
        FormatMismatch, match=f"it has records of the format {written}, but this manager would write {configured}"
    ):
        check_format(log, configured, "offsets", 5)
    check_format(log, written, "offsets", 5)
    check_format(MemoryLog(8), configured, "offsets", 5)


@pytest.mark.parametrize("configured", ["avro", "kafka"])
@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"customer-17", "key b'customer-17'"),
        (b"", "no key"),
        (b"\x00\x00\x00\x07", "key b'\\x00\\x00\\x00\\x07'"),
        (b"O\x00" + b"x" * 20, "key b'O\\x00" + "x" * 18 + "'..."),
    ],
    ids=["text", "none", "number", "prefix of our keys"],
)
def test_a_topic_with_records_of_another_program_is_rejected_and_one_key_is_named(key, shown, configured: str) -> None:
    with pytest.raises(UnsuitableTopic) as refused:
        check_format(log_with({3: [(key, b"x")]}), configured, "customers", 5)

    why = f"topic customers: it has records that are not committed offsets (partition 3: {shown})"
    assert str(refused.value) == why
    assert for_command_line(refused.value.hint).startswith("choose another --offsets-topic")


@pytest.mark.parametrize("name", ["avro", "kafka"])
def test_a_foreign_record_with_offsets_does_not_keep_a_manager_from_starting(name: str) -> None:
    check_format(log_with({3: COMMITTED[name], 4: [(b"customer-17", b"x"), (b"", b"x")]}), name, "offsets", 5)


KNOWN = OffsetsTopicState("t", "first", 50, 3, 2, 1_000_000)


def monitored_ids(
    outcomes: Sequence[OffsetMgrError | None],
    note: Callable[[OffsetsTopicMonitor], None],
    starts: Sequence[OffsetMgrError | None] = (),
) -> list[str]:
    """Runs a monitor whose checks have these outcomes, and whose checks of the logs' starts have the outcomes
    ``starts``. ``note`` is called before each check and after the last one. Returns the topic ids that the monitor
    reported."""
    seen: list[str] = []

    async def run() -> None:
        left, left_starts = iter(outcomes), iter(starts)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def checked_starts() -> None:
            if (error := next(left_starts, None)) is not None:
                raise error

        def check(_known: OffsetsTopicState) -> None:
            note(monitor)
            outcome = next(left, ...)
            if outcome is ...:
                loop.call_soon_threadsafe(done.set)
            elif outcome is not None:
                raise outcome

        monitor = OffsetsTopicMonitor(KNOWN, check, seen.append, checked_starts, interval_s=0.001)
        monitor.start()
        await asyncio.wait_for(done.wait(), 90)
        await monitor.close()

    asyncio.run(run())
    return seen


UNEXPLAINED = ServerError("topic t", "the broker met an error that it does not explain")
UNCHECKED = f"the offsets topic could not be checked 12 times in succession: {UNEXPLAINED}"
GONE = "topic t: is gone"
FEW, MANY = [UNEXPLAINED] * (MAX_FAILED_CHECKS - 1), [UNEXPLAINED] * (MAX_FAILED_CHECKS + 1)


@pytest.mark.parametrize(
    ("outcomes", "alarms", "logged"),
    [
        # An unsuitable topic is an alarm until it is suitable again.
        (
            [None, TimedOut("topic", "no answer"), UnsuitableTopic("topic t", "is gone"), TimedOut("t"), None],
            [None, None, None, GONE, GONE, None],
            0,
        ),
        # A failed check is no alarm, and it is logged once.
        ([*FEW, None, UNEXPLAINED, None], [None] * (MAX_FAILED_CHECKS + 3), 2),
        # Many failed checks in succession are an alarm until one succeeds.
        (
            [*FEW, TimedOut("t"), UNEXPLAINED, TimedOut("t"), None, None],
            [*[None] * (MAX_FAILED_CHECKS + 1), UNCHECKED, UNCHECKED, None],
            1,
        ),
        # A failed check does not hide an earlier finding.
        ([UnsuitableTopic("topic t", "is gone"), *MANY, None], [None, *[GONE] * (MAX_FAILED_CHECKS + 2), None], 1),
    ],
)
def test_an_unsuitable_topic_and_many_failed_checks_are_an_alarm(outcomes, alarms, logged: int, caplog) -> None:
    seen: list[str | None] = []

    ids = monitored_ids(outcomes, lambda monitor: seen.append(monitor.alarm))

    assert seen[: len(alarms)] == alarms
    assert set(ids) == {"first"}
    unknown = "the check of the offsets topic failed; its state is unknown until a check succeeds"
    assert [record.message for record in caplog.records].count(unknown) == logged


def test_an_alarm_stays_until_it_is_known_whether_records_were_deleted() -> None:
    seen: list[str | None] = []
    unfit = UnsuitableTopic("topic t", "is gone")

    monitored_ids([unfit, None, None], lambda monitor: seen.append(monitor.alarm), [TimedOut("t"), TimedOut("t"), None])

    assert seen[:4] == [None, GONE, GONE, None]
