"""Logs of batches of several producers, and their loads and follows with an audit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from offsetmgr.manager.log.base import LogRecord
from offsetmgr.manager.log.kafka.log_follower import PartitionFollow
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.log_load import PartitionLoad
from offsetmgr.records.claim import FENCE_KEY, Claim, encode_claim
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record

NOW = 1_700_000_000_000
PARTITION = 3
Pairs = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True)
class Written:
    """A batch of the log. ``claimed`` is None for a data batch, otherwise the producer ids that the claim lists."""

    id: int
    epoch: int
    records: Pairs = ()
    claimed: tuple[int, ...] | None = None
    fence: bool = False
    codec: int = 0
    gap: int = 0
    """The number of offsets before the batch without records."""

    def pairs(self) -> Pairs:
        if self.claimed is not None:
            return (encode_claim(Claim(f"{self.id}-{self.epoch}", "m", NOW, self.claimed)), *self.records)
        return ((FENCE_KEY, None),) if self.fence else self.records


def data(id: int, epoch: int, *keys: bytes, value: bytes = b"v") -> Written:
    return Written(id, epoch, tuple((key, value) for key in keys or (b"k",)))


def claim(id: int, epoch: int, *listed: int) -> Written:
    return Written(id, epoch, claimed=tuple(sorted({*listed, id})))


def encoded_claim(*listed: int) -> Pairs:
    return (encode_claim(Claim("token", "m", NOW, listed)),)


@dataclass
class Log:
    """An encoded log, with the offset of each batch."""

    chunks: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    @classmethod
    def of(cls, written: Sequence[Written]) -> Log:
        log = cls()
        for one in written:
            pairs = one.pairs()
            base = log.end + one.gap
            records = [Record(base + n, NOW, key, value, (), True) for n, (key, value) in enumerate(pairs)]
            last = base + max(len(pairs), 1) - 1
            producer = Producer(one.id, one.epoch, 0)
            log.chunks.append(batch(records, one.codec, base_offset=base, last_offset=last, producer=producer))
            log.starts.append(base)
            log.ends.append(last + 1)
        return log

    def read(self, offset: int, batches: int) -> bytes:
        """Returns complete batches from the one that contains ``offset`` on, as a broker does."""
        first = next((n for n, end in enumerate(self.ends) if end > offset), len(self.chunks))
        return b"".join(self.chunks[first : first + batches])


def load(
    log: Log,
    start: int = 0,
    end: int | None = None,
    history: LogHistory | None = None,
    *,
    log_start: int = 0,
    batches: int = 2,
    newest: dict[bytes, bytes | None] | None = None,
) -> tuple[dict[bytes, bytes | None], PartitionLoad]:
    newest = {} if newest is None else newest
    loading = PartitionLoad("offsets", PARTITION, start, newest, history or LogHistory("offsets"))
    loading.note_log_start(log_start)
    end = log.end if end is None else end
    while True:
        while loading.fetch_offset < end:
            loading.add(log.read(loading.fetch_offset, batches))
        if loading.finish():
            return newest, loading


def follow(
    log: Log, history: LogHistory | None = None, start: int = 0, *, log_start: int = 0, batches: int = 2,
    most: int = 1000, taken: list[LogRecord] | None = None,
) -> list[LogRecord]:  # fmt: skip
    """Returns all records that a reader returns before it waits at the end of the log."""
    following = PartitionFollow("offsets", PARTITION, start, history or LogHistory("offsets"))
    following.note_log_start(log_start)
    taken = [] if taken is None else taken
    while following.fetch_offset < log.end or following.buffered:
        following.add(log.read(following.fetch_offset, batches))
        taken += following.take(most)
    return taken


def alarms(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int, int, str]]:
    return [
        (found["offset"], found["producer_id"], found["producer_epoch"], found["why"])
        for found in (record.__dict__ for record in caplog.records)
        if found["levelno"] == logging.ERROR and found["partition"] == PARTITION
    ]
