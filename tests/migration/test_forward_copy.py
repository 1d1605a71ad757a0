"""Copies of idle partitions from Kafka to ZooKeeper while a consumer commits, over a store in memory."""

from pathlib import Path
from typing import Any

import pytest
from committed_offsets import offsets_of
from in_process import rows

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.errors import Conflict
from offsetmgr.core.model import Committed
from offsetmgr.groups.last_writes import KnownWrite, LastWriter
from offsetmgr.migration.apply import behind, copy_forward
from offsetmgr.migration.observation import GroupHistory, Observation, PartitionOwner
from offsetmgr.testing.memory import MemoryStore

GROUP = "g"
EQUAL, BEHIND, NONE, AHEAD = (TopicPartition("t", n) for n in range(4))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return MemoryStore()


def history(store: MemoryStore, group: str, *unowned: TopicPartition) -> GroupHistory:
    """The group's offsets in ZooKeeper, and offset 50 of every partition in Kafka. A member owns all partitions but
    ``unowned``."""
    store.commit(group, {EQUAL: OffsetAndMetadata(50), BEHIND: OffsetAndMetadata(20), AHEAD: OffsetAndMetadata(60)})
    everything = (EQUAL, BEHIND, NONE, AHEAD)
    found = store.fetch(group, everything)
    owners = {tp: PartitionOwner("member", 1) for tp in everything if tp not in unowned}
    in_kafka = dict.fromkeys(everything, Committed(50, "m", 4))
    return GroupHistory([Observation(group, 1, {}, owners, everything, found, in_kafka, {})])


def test_only_partitions_behind_are_copied_and_before_images_are_recorded_first(store: MemoryStore) -> None:
    changes = behind(history(store, GROUP))
    recorded: list[Any] = []

    def record(copies: list[Any]) -> None:
        recorded.append(([(c.partition, c.before, c.after, c.outcome) for c in copies], offsets_of(store, GROUP)))

    done = copy_forward(store, GROUP, changes, record=record)
    assert recorded == [([(1, 20, 50, "intended"), (2, None, 50, "intended")], {0: 50, 1: 20, 3: 60})]
    assert [(c.partition, c.outcome) for c in done] == [(1, "written"), (2, "written")]
    assert offsets_of(store, GROUP) == {0: 50, 1: 50, 2: 50, 3: 60}
    assert store.data[GROUP][NONE].value() == OffsetAndMetadata(50, "m", 4)
    (logged,) = rows("edits", "list")
    assert (logged["operation"], logged["group"], logged["written"]) == ("runbook bounce copy", GROUP, 2)
    (details,) = rows("edits", "show", logged["id"])
    with open_store(f"file:{details['files']}") as image:
        assert image.fetch(GROUP) == {BEHIND: Committed(20)}


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
def test_kafkas_larger_offset_is_copied_only_if_it_is_known_to_be_newer(store, unowned, last, copied):
    writers = {BEHIND: LastWriter(None if last is None else KnownWrite("a store", last), "")}
    changes = behind(history(store, GROUP, *unowned), writers)
    assert (BEHIND in changes) is copied
    assert NONE in changes


def test_a_concurrent_commit_is_never_lowered(store: MemoryStore) -> None:
    changes = behind(history(store, GROUP))
    store.commit(GROUP, {BEHIND: OffsetAndMetadata(70), NONE: OffsetAndMetadata(50)})
    done = copy_forward(store, GROUP, changes, record=lambda copies: None)
    assert [(c.partition, c.outcome) for c in done] == [(1, "caught-up"), (2, "caught-up")]
    assert offsets_of(store, GROUP) == {0: 50, 1: 70, 2: 50, 3: 60}


def test_a_partition_that_moved_and_is_still_behind_is_an_error(store: MemoryStore) -> None:
    changes = behind(history(store, GROUP))
    store.commit(GROUP, {BEHIND: OffsetAndMetadata(30)})
    with pytest.raises(Conflict):
        copy_forward(store, GROUP, changes, record=lambda _: None)
    assert offsets_of(store, GROUP) == {0: 50, 1: 30, 2: 50, 3: 60}
