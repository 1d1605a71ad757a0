"""Writes logs of an offsets topic to the disk, for the tests of commands that read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from damaged_log import command

from offsetmgr.core.model import TopicPartition
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


class Reported(NamedTuple):
    """The notes and the errors of a command, without hints."""

    notes: list[str]
    errors: list[str]


def read_rows(*dirs: Path, options: Sequence[str] = ()) -> tuple[list[dict[str, Any]], Reported]:
    """The rows that ``log offsets`` prints, and its notes and errors."""
    done = command("log", "offsets", *dirs, "--format", "json", "--processes", "1", *options)
    lines = done.err.splitlines()
    notes = [line for line in lines if not line.startswith(("error: ", "hint: ", "reading MiB"))]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    assert done.code == bool(errors), done.err
    return done.rows, Reported(notes, errors)


def read(*dirs: Path, options: Sequence[str] = ()) -> tuple[dict[str, int], Reported]:
    """Each group's offset in partition 0 of orders, and the notes and errors."""
    rows, reported = read_rows(*dirs, options=options)
    found = {row["group"]: row["offset"] for row in rows if row["topic"] == "orders" and row["partition"] == 0}
    assert len(found) == len(rows), "every group is returned once"
    return found, reported


def group_of(partition: int, partitions: int, prefix: str = "g") -> str:
    """Returns a group that belongs to this partition of a topic with this number of partitions."""
    return next(name for n in range(10_000) if shard_for(name := f"{prefix}{n}", partitions) == partition)
