"""An oracle that knows which record of a log is the copy of which record of another log: each record's value ends with
a number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Position


class Log(NamedTuple):
    """All records of a partition: the offsets, and the numbers in the values; -1 for other records."""

    offsets: Sequence[int]
    numbers: Sequence[int]
    end: int

    @classmethod
    def read(cls, bootstrap: str, topic: str, partition: int = 0) -> Log:
        settings = {"bootstrap.servers": bootstrap, "group.id": "oracle", "enable.auto.commit": False}
        consumer = Consumer({**settings, "isolation.level": "read_uncommitted"})
        end = consumer.get_watermark_offsets(Position(topic, partition), 60)[1]
        consumer.assign([Position(topic, partition, OFFSET_BEGINNING)])
        offsets, numbers = list[int](), list[int]()
        while consumer.position([Position(topic, partition)])[0].offset < end:
            for one in consumer.consume(10_000, 0.2):
                value, offset = one.value(), one.offset()
                assert value is not None and offset is not None
                offsets.append(offset)
                numbers.append(int(value.split()[-1]))
        consumer.close()
        return cls(offsets, numbers, end)

    def before(self, end: int) -> Log:
        """The log as it was when it had this end."""
        kept = bisect_left(self.offsets, end)
        return Log(self.offsets[:kept], self.numbers[:kept], end)

    def number_at(self, offset: int) -> int | None:
        return next((number for at, number in zip(self.offsets, self.numbers, strict=True) if at >= offset), None)


class Oracle:
    """Finds, by the numbers, the last offset of the target from which each record follows that the source still
    delivers and the target holds."""

    def __init__(self, a: Log, b: Log, aborted: Collection[int] = ()) -> None:
        self.a, self.b, self._aborted = a, b, aborted
        self._last = dict(zip(b.numbers, b.offsets, strict=True))

    def following(self, position: int) -> Iterator[int]:
        """The offsets of the last copies of the records that a consumer gets from this position of the source."""
        for at, number in zip(self.a.offsets, self.a.numbers, strict=True):
            if at >= position and number in self._last and number not in self._aborted:
                yield self._last[number]

    def right(self, position: int) -> int:
        return min(self.following(position), default=self.b.end)

    def difference(self, position: int, offset: int) -> tuple[int, int]:
        """How many records a group gets again, and how many it skips, if it resumes at this offset of the target."""
        right = self.right(position)
        return sum(offset <= at < right for at in self.b.offsets), sum(at < offset for at in self.following(position))
