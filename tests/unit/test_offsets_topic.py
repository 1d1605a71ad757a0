"""The settings of a new offsets topic, and the check of an existing one, without brokers."""

from __future__ import annotations

import pytest

from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.manager.log.topic import (
    ExistingTopic,
    PartitionCountChanged,
    TooFewBrokers,
    TopicRecreated,
    UnsuitableTopic,
    durability_warnings,
    examine,
    replicas_for,
    settings_for,
)

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
def test_brokers_that_are_down_never_lower_the_replication_factor(
    brokers: int, own: int | None, requested: int | None
) -> None:
    with pytest.raises(TooFewBrokers, match=f"replicas, but only {brokers} ") as refused:
        replicas_for("t", brokers, own, requested)

    assert refused.value.hint.startswith("start the other brokers, or use --replication-factor")


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_the_default_of_min_insync_replicas(replicas: int, in_sync: str) -> None:
    assert settings_for(replicas)["min.insync.replicas"] == in_sync


def test_a_new_topic_is_compacted_in_small_segments_and_keeps_what_was_acknowledged() -> None:
    assert settings_for(3) == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "delete.retention.ms": "86400000",
        "segment.bytes": "104857600",
        "compression.type": "producer",
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
    }


def test_requested_in_sync_replicas_have_precedence() -> None:
    assert settings_for(5, 3)["min.insync.replicas"] == "3"


def test_a_topic_created_by_offsetmgr_is_suitable_without_a_warning() -> None:
    state = examine("t", ExistingTopic("a", 50, 3, frozenset(), settings_for(3)), 50, "a")

    assert (state.partitions, state.replication_factor, state.min_insync_replicas) == (50, 3, 2)
    assert state.warnings == ()


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact", ""])
def test_a_topic_with_retention_is_rejected(policy: str) -> None:
    with pytest.raises(UnsuitableTopic, match="retention would delete") as refused:
        examine("t", found({"cleanup.policy": policy}), 50)
    # Compaction would delete most records of another application.
    assert refused.value.hint.startswith("choose another topic; or, if this topic contains only committed offsets")


def test_a_topic_whose_policy_is_unknown_is_rejected() -> None:
    with pytest.raises(UnsuitableTopic):
        examine("t", ExistingTopic("a", 50, 3, frozenset(), {}), 50)


@pytest.mark.parametrize("settings", [{"message.timestamp.type": "CreateTime"}, {}])
def test_a_topic_with_the_timestamps_of_managers_is_rejected_with_the_command_that_fixes_it(
    settings: dict[str, str],
) -> None:
    with pytest.raises(UnsuitableTopic, match=r"message\.timestamp\.type is CreateTime") as rejected:
        examine("t", ExistingTopic("a", 50, 3, frozenset(), {"cleanup.policy": "compact", **settings}), 50)
    assert "--entity-name t --add-config message.timestamp.type=LogAppendTime" in rejected.value.hint


@pytest.mark.parametrize("partitions", [49, 51, 100])
def test_another_number_of_partitions_is_rejected(partitions: int) -> None:
    with pytest.raises(PartitionCountChanged, match=f"{partitions} partitions, but this manager expects 50"):
        examine("t", found(partitions=partitions), 50)


def test_a_recreated_topic_is_rejected_and_its_id_is_reported() -> None:
    with pytest.raises(TopicRecreated, match="recreated") as caught:
        examine("t", found(topic_id="b"), 50, "a")
    assert caught.value.topic_id == "b"


def test_more_required_replicas_than_the_topic_has_are_rejected() -> None:
    with pytest.raises(UnsuitableTopic, match="no commit can ever succeed"):
        examine("t", found({"min.insync.replicas": "4"}), 50)


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
def test_a_transaction_log_that_keeps_less_than_the_offsets_topic_is_reported(
    replicas: int, in_sync: str, warnings: list[str]
) -> None:
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
