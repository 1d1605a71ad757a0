"""Kafka's ``kafka-consumer-groups --reset-offsets`` and offsetmgr edit a group at the same time: no edit is partial."""

import itertools
from collections.abc import Iterator

import pytest
from processes import create_topic, fill
from repeated import repeated

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.sandbox import KafkaBroker, java_tool
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

PARTITIONS = 8
TOOLS_OFFSET = 5
OURS = (10, 11, 12)
TOOL_RUNS = 5


@pytest.fixture
def store(kafka: KafkaBroker) -> Iterator[KafkaStore]:
    with KafkaStore(kafka.bootstrap, ConnectionConfig(timeout_ms=20_000)) as found:
        yield found


@pytest.fixture
def topic(kafka: KafkaBroker, unique: str) -> str:
    """Twenty messages in each partition."""
    create_topic(kafka.bootstrap, unique, PARTITIONS)
    fill(kafka.bootstrap, unique, *[20] * PARTITIONS)
    return unique


def at(topic: str, offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(topic, p): OffsetAndMetadata(offset) for p in range(PARTITIONS)}


def state(store: KafkaStore, group: str) -> tuple[int, ...]:
    """All offsets of the group, from one OffsetFetch."""
    return tuple(c.offset for _, c in sorted(store.fetch(group).items()) if isinstance(c, Committed))


def reset_with_kafkas_tool(bootstrap: str, group: str) -> tuple[bool, str]:
    """Runs Kafka's tool. Returns whether it reports that it has reset the offsets, and its output."""
    where = ["--bootstrap-server", bootstrap, "--group", group, "--timeout", "30000"]
    done = java_tool(
        "kafka-3.9",
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        [*where, "--reset-offsets", "--to-offset", str(TOOLS_OFFSET), "--all-topics", "--execute"],
    )
    output = done.stdout + done.stderr
    return "NEW-OFFSET" in done.stdout and "Error" not in output, output


@pytest.mark.filterwarnings("ignore:record_property is incompatible")
def test_a_group_edited_by_kafkas_tool_and_offsetmgr_has_offsets_of_one_edit(kafka, store, topic, record_property):
    """The test checks after each run of the tool, after each edit, and continuously in between."""
    store.commit(topic, at(topic, OURS[0]))
    whole = {(offset,) * PARTITIONS for offset in (TOOLS_OFFSET, *OURS)}
    targets = itertools.cycle(OURS[1:] + OURS[:1])
    partial: list[object] = []
    written = refused = 0

    def edit() -> None:
        nonlocal written, refused
        changes = {tp: Change(after, allow_rewind=True) for tp, after in at(topic, next(targets)).items()}
        (result,) = ours.edit([GroupEdit(topic, changes)])
        if result.failures:
            refused += 1
        else:
            written += 1
            # The before-images under the lock come from one edit, too.
            values_before = {o.before.offset for o in result.outcomes.values() if isinstance(o.before, Committed)}
            if len(values_before) != 1 or not result.atomic:
                partial.append(result)
        watch(ours)

    def watch(by: KafkaStore) -> None:
        if (now := state(by, topic)) not in whole:
            partial.append(now)

    runs = []
    config = ConnectionConfig(timeout_ms=20_000)
    with (
        KafkaStore(kafka.bootstrap, config) as ours,
        KafkaStore(kafka.bootstrap, config) as theirs,
        repeated(edit, lambda: watch(theirs)),
    ):
        for _ in range(TOOL_RUNS):
            runs.append(reset_with_kafkas_tool(kafka.bootstrap, topic))
            assert state(store, topic) in whole

    record_property("tool accepted", sum(accepted for accepted, _ in runs))
    record_property("tool refused", sum(not accepted for accepted, _ in runs))
    record_property("edits written", written)
    record_property("edits refused", refused)
    assert partial == []
    assert written > 0
    rejections = [output for accepted, output in runs if not accepted]
    assert all("inactive" in output or "UnknownMemberId" in output for output in rejections), rejections
