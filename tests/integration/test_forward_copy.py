"""Copies of idle partitions from Kafka to a real ZooKeeper while a consumer commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetmgr.core.errors import Conflict
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.groups.before_images import load_images
from offsetmgr.groups.last_writer import KnownWrite, LastWriter
from offsetmgr.groups.operation_log import OperationLog
from offsetmgr.migration.bounce_checkpoint import OffsetCopy
from offsetmgr.migration.forward_copy import behind, copy_forward
from offsetmgr.migration.observation import Observation, PartitionOwner
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers

EQUAL, BEHIND, NONE, AHEAD = (TopicPartition("t", n) for n in range(4))


@pytest.fixture
def store(zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
    with ZookeeperStore(zookeeper.connect) as store:
        yield store


def history(store: ZookeeperStore, group: str, *unowned: TopicPartition) -> GroupHistory:
    """The group's offsets in ZooKeeper, and offset 50 of every partition in Kafka. A member owns all partitions but
    ``unowned``."""
    store.commit(group, {EQUAL: OffsetAndMetadata(50), BEHIND: OffsetAndMetadata(20), AHEAD: OffsetAndMetadata(60)})
    everything = (EQUAL, BEHIND, NONE, AHEAD)
    found = store.fetch(group, everything)
    owners = {tp: PartitionOwner("member", 1) for tp in everything if tp not in unowned}
    in_kafka = dict.fromkeys(everything, Committed(50))
    return GroupHistory([Observation(group, 1, {}, owners, everything, found, in_kafka, {})])


def offsets(store: ZookeeperStore, group: str) -> dict[int, int]:
    return {tp.partition: o.offset for tp, o in store.fetch(group).items() if isinstance(o, Committed)}


def test_only_partitions_behind_are_copied_and_before_images_are_recorded_first(
    store: ZookeeperStore, unique: str
) -> None:
    changes = behind(history(store, unique))
    recorded: list[tuple[list[OffsetCopy], dict[int, int]]] = []

    def record(copies: list[OffsetCopy]) -> None:
        recorded.append(
            ([OffsetCopy(c.topic, c.partition, c.before, c.after, c.outcome) for c in copies], offsets(store, unique))
        )

    done = copy_forward(store, unique, changes, record=record)

    assert recorded == [
        ([OffsetCopy("t", 1, 20, 50, "intended"), OffsetCopy("t", 2, None, 50, "intended")], {0: 50, 1: 20, 3: 60})
    ]
    assert [(c.partition, c.outcome) for c in done] == [(1, "written"), (2, "written")]
    assert offsets(store, unique) == {0: 50, 1: 50, 2: 50, 3: 60}
    logged = OperationLog().operations()[-1]
    assert (logged.start.name, logged.start.groups, logged.written) == ("runbook bounce copy", (unique,), 2)
    (image,) = load_images(Path(logged.start.files[0]))
    assert {tp.partition: value.offset for tp, value in image.before.items()} == {1: 20}


@pytest.mark.parametrize(
    ("unowned", "last", "copied"),
    [
        ((), None, True),  # a dual member that owns the partition uses the larger offset
        ((), 20, False),
        ((), 50, True),
        ((BEHIND,), None, False),
        ((BEHIND,), 20, False),
        ((BEHIND,), 50, True),
    ],
)
def test_kafkas_larger_offset_is_copied_only_if_it_is_known_to_be_newer(
    store: ZookeeperStore, unique: str, unowned: tuple[TopicPartition, ...], last: int | None, copied: bool
) -> None:
    writers = {BEHIND: LastWriter(None if last is None else KnownWrite("a store", last), "")}
    changes = behind(history(store, unique, *unowned), writers)
    assert (BEHIND in changes) is copied
    assert NONE in changes


def test_a_concurrent_commit_is_never_lowered(store: ZookeeperStore, unique: str) -> None:
    changes = behind(history(store, unique))
    store.commit(unique, {BEHIND: OffsetAndMetadata(70), NONE: OffsetAndMetadata(50)})

    done = copy_forward(store, unique, changes, record=lambda copies: None)

    assert [(c.partition, c.outcome) for c in done] == [(1, "caught-up"), (2, "caught-up")]
    assert offsets(store, unique) == {0: 50, 1: 70, 2: 50, 3: 60}


def test_a_partition_that_moved_and_is_still_behind_is_an_error(store: ZookeeperStore, unique: str) -> None:
    changes = behind(history(store, unique))
    store.commit(unique, {BEHIND: OffsetAndMetadata(30)})

    with pytest.raises(Conflict):
        copy_forward(store, unique, changes, record=lambda copies: None)

    assert offsets(store, unique) == {0: 50, 1: 30, 2: 50, 3: 60}
