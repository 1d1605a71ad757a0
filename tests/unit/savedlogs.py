"""Writes logs of an offsets topic to the disk, for the tests of commands that read them."""

from __future__ import annotations

from pathlib import Path

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.groups.disk_layout import find_topic_directories
from offsetmgr.groups.disk_recovery import saved_groups
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.records.kafka import KafkaRecordFormat
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record

KAFKA = KafkaRecordFormat()
NOON = 1_700_000_000_000
HOUR_MS = 60 * 60 * 1000
ORDERS = TopicPartition("orders", 0)
ENDED = Producer(7, 0, 0, transactional=True)


def entry(
    at: int, group: str, offset: int | None, *, partition: int = 0, epoch: int = 0, producer: Producer | None = None
) -> bytes:
    """Returns the log's record at offset ``at``: a commit, or a deletion if ``offset`` is None."""
    key, value = KAFKA.encode_commit(group, "orders", [(partition, offset or 0, -1, "")], NOON, None)[0]
    records = [Record(at, NOON, key, None if offset is None else value)]
    return batch(records, leader_epoch=epoch, producer=producer)


def write(directory: Path, *segments: tuple[int, bytes]) -> Path:
    directory.mkdir(parents=True)
    for base, data in segments:
        (directory / f"{base:020}.log").write_bytes(data)
    return directory


class RecordedEvents:
    """Records the notes and errors of a read."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.errors: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def error(self, error: OffsetMgrError) -> None:
        self.errors.append(str(error))

    def on_progress(self, done: int, total: int) -> None:
        assert 0 < done <= total


def read(*dirs: Path, processes: int = 1) -> tuple[dict[str, int], RecordedEvents]:
    """Returns each group's offset in partition 0 of orders, and the recorded events."""
    events = RecordedEvents()
    groups = list(saved_groups(find_topic_directories(dirs), events, processes=processes))
    assert len({group.group for group in groups}) == len(groups), "every group is returned once"
    return {group.group: group.offsets[ORDERS].offset for group in groups}, events


def group_of(partition: int, partitions: int, prefix: str = "g") -> str:
    """Returns a group that belongs to this partition of a topic with this number of partitions."""
    return next(name for n in range(10_000) if shard_for(name := f"{prefix}{n}", partitions) == partition)
