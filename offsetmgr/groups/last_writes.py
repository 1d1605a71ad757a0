"""Reads the evidence that shows which of two stores was written last (`last_writer`). Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

from offsetmgr.core import TITLES
from offsetmgr.core.clock import Clock, SystemClock, duration
from offsetmgr.core.durations import utc_text
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.plurals import count_of

# Decides which of two stores was written last for a partition (data rule "larger is not newer"). Pure. The size of an
# offset proves nothing: after a rewind, the store that the group uses has the smaller offset.

CLOCK_MARGIN_MS: Final = 1_000
"""Two times decide only if they differ by more than this margin and the difference of the stores' clocks."""


class KnownWrite(NamedTuple):
    """The offset of a partition in one store, and the evidence about its last write.

    ``title`` names the store. ``written_ms`` is the time of the commit, in milliseconds since 1970 by the clock of the
    store's servers; None if it is unknown. ``changed`` is the change that was observed, as text; empty if none was
    observed. ``copied`` is the offset that the store held after the last copy between the two stores, according to a
    journal of offsetmgr; None if there is no such journal. ``copied_ms`` is the latest time of
    this copy; None if the copy kept a store that was ahead.
    """

    title: str
    offset: int
    written_ms: int | None = None
    changed: str = ""
    copied: int | None = None
    copied_ms: int | None = None


class LastWriter(NamedTuple):
    """The store that was written last, and the evidence as text. ``store`` is None if the evidence does not decide.
    ``is_unchanged`` tells whether both stores still hold what offsetmgr's last copy left there."""

    store: KnownWrite | None
    why: str
    is_unchanged: bool = False

    def is_offset(self, offset: int) -> bool:
        """Returns whether the store that holds ``offset`` was written last."""
        return self.store is not None and self.store.offset == offset


def last_writer(one: KnownWrite, other: KnownWrite, clocks_ms: int | None, unknown: str = "") -> LastWriter:
    """Returns the store that was written last, from two stores with different offsets.

    Evidence, the strongest first: a change that was observed; the offsets that the last copy left behind; the times of
    the commits. ``clocks_ms`` is the largest measured difference between the clocks of the two stores, None if it was
    not measured. ``unknown`` is the reason for which a time is unknown.
    """
    pair = (one, other)
    if changed := [write for write in pair if write.changed]:
        seen = " and ".join(f"{write.title} changed while it was watched ({write.changed})" for write in changed)
        if len(changed) == 1:
            (still,) = (write for write in pair if not write.changed)
            return LastWriter(changed[0], f"{seen}, and {still.title} stayed at {still.offset}")
        return LastWriter(
            max(pair, key=attrgetter("offset")), f"{seen}: members that commit to both use the larger offset"
        )
    if one.copied is not None and other.copied is not None:
        unchanged = [write for write in pair if write.offset == write.copied]
        again = [write for write in unchanged if _is_committed_again(write, clocks_ms or 0)]
        if len(unchanged) == 1:
            (newer,) = (write for write in pair if write.offset != write.copied)
            left = f"{unchanged[0].title} still holds the {unchanged[0].offset} of offsetmgr's last copy"
            if not again:
                return LastWriter(newer, f"{left}, and {newer.title} has changed since")
            since = f"{_time(unchanged[0])}, later than the copy, and {newer.title} has changed too"
            return LastWriter(None, f"{left}, but its last commit is of {since}")
        if unchanged and not again and one.copied_ms is not None:
            return LastWriter(None, "both still hold the offsets of offsetmgr's last copy", is_unchanged=True)
    if one.written_ms is None or other.written_ms is None:
        missing = next(write.title for write in pair if write.written_ms is None)
        return LastWriter(None, unknown or f"the time of the commit in {missing} is unknown")
    first, last = sorted(pair, key=_written_ms)
    times = f"{first.title} wrote {first.offset} at {_time(first)}, {last.title} wrote {last.offset} at {_time(last)}"
    if clocks_ms is None:
        return LastWriter(None, f"{times}, but the difference of their clocks could not be measured")
    clocks = f"their clocks differ by at most {duration(clocks_ms)}"
    if _written_ms(last) - _written_ms(first) <= clocks_ms + CLOCK_MARGIN_MS:
        return LastWriter(None, f"{times}, which is too close to decide: {clocks}, and offsetmgr adds 1 s")
    return LastWriter(last, f"{times}; {clocks}")


def skip_text(start: int, used: int) -> str:
    """Returns, as text, the messages that consumers at ``used`` skip if they start at the larger offset ``start``."""
    return f"{start}; a start there skips {count_of(start - used, 'message')} if the consumers are at {used}"


def _is_committed_again(write: KnownWrite, clocks_ms: int) -> bool:
    """Whether a store was written after the last copy, although it holds the offset of this copy."""
    if write.written_ms is None or write.copied_ms is None:
        return False
    return write.written_ms > write.copied_ms + clocks_ms + CLOCK_MARGIN_MS


def _written_ms(write: KnownWrite) -> int:
    return write.written_ms or 0


def _time(write: KnownWrite) -> str:
    return utc_text(_written_ms(write))


VIEW_LIMIT_S: Final = 10.0
"""The time for which a view reads the offsets topic, in seconds."""
_POLL_S: Final = 0.5


class LastCopy(NamedTuple):
    """The offsets that the last copy of a partition left in the two stores, and the latest time of the copy by the
    clocks of the stores; the time is None if the copy kept a target that was ahead."""

    offsets: tuple[int, int]
    at_ms: int | None = None


class GroupPair(NamedTuple):
    """The offsets of one group in two stores, under the name that it has in each. ``writers`` has the last writer of
    each partition for which both stores hold different offsets."""

    source: GroupOffsets
    target: GroupOffsets
    writers: Mapping[TopicPartition, LastWriter] = {}

    @property
    def sides(self) -> tuple[GroupOffsets, GroupOffsets]:
        return self.source, self.target

    def ahead(self, tp: TopicPartition) -> bool:
        """Returns whether the target has a larger offset than the source. Both must have one."""
        return self.target.offsets[tp].offset > self.source.offsets[tp].offset


@dataclass
class LastWrites:
    """Finds the last writers of groups in ``source`` and ``target``, which messages call ``titles``.

    ZooKeeper dates its offsets itself; for Kafka, the offsets topic is read, for at most ``limit_s`` seconds. If the
    evidence does not decide in a partition whose target is ahead, both stores are read again until a change is seen, at
    least once and for at most ``window_s``; not if it is None, or if only one thread may use a store. ``selects``
    limits the partitions. ``copied`` returns the last copies of a group's partitions, from its names in the two stores.
    ``own_write`` returns why the time of a commit is no evidence, from the side (0 or 1), the group and the time.
    """

    source: OffsetStore
    target: OffsetStore
    titles: tuple[str, str] = ("the source", "the target")
    window_s: float | None = None
    waiting: Callable[[float], None] = lambda _seconds: None
    selects: Callable[[TopicPartition], bool] = lambda _tp: True
    copied: Callable[[str, str], Mapping[TopicPartition, LastCopy]] = lambda _source, _target: {}
    own_write: Callable[[int, str, int], str] = lambda _side, _group, _at_ms: ""
    limit_s: float | None = None
    clock: Clock = field(default_factory=SystemClock)
    _problem: str = ""

    def __post_init__(self) -> None:
        self._stores = (self.source, self.target)
        named = tuple(TITLES.get(store.uri.partition(":")[0], "") for store in self._stores)
        if all(named) and named[0] != named[1]:
            self.titles = (named[0], named[1])

    def find(self, pairs: Iterable[GroupPair]) -> list[GroupPair]:
        """Returns the pairs in their order, with their last writers and, if the stores were read again, with the
        offsets that they hold now."""
        found = list(pairs)
        first = {n: pair for n, pair in enumerate(found) if any(self._differing(pair))}
        if not first:
            return found
        times = [self._commit_times(side, [pair.sides[side].name for pair in first.values()]) for side in (0, 1)]
        deadline = self.clock.monotonic() + (self.window_s or 0)
        for n, pair in first.items():
            found[n] = self._with_writers(pair, pair, times)
        again = self.window_s is not None and all(getattr(store, "parallel_calls", 1) > 1 for store in self._stores)
        while again and (undecided := [n for n in first if _is_undecided(found[n])]):
            # The source is read before the target. A group that cannot be read keeps its earlier offsets.
            read = self.read([(found[n].source.name, found[n].target.name) for n in undecided])
            for n, new in zip(undecided, read, strict=True):
                pair = found[n] if new.source.error or new.target.error else new
                found[n] = self._with_writers(first[n], pair, times)
            if (remaining_s := deadline - self.clock.monotonic()) <= 0:
                break
            self.waiting(remaining_s)
            self.clock.sleep(min(_POLL_S, remaining_s))
        return found

    def _differing(self, pair: GroupPair) -> Iterator[TopicPartition]:
        target = pair.target.offsets
        for tp, found in pair.source.offsets.items():
            if (there := target.get(tp)) is not None and there.offset != found.offset and self.selects(tp):
                yield tp

    def read(self, names: Sequence[tuple[str, str]]) -> list[GroupPair]:
        """Reads groups, each by its names in the two stores."""
        sources = {found.name: found for found in self.source.scan([name for name, _ in names])}
        targets = {found.name: found for found in self.target.scan([name for _, name in names])}
        return [GroupPair(sources[source], targets[target]) for source, target in names]

    def _with_writers(self, first: GroupPair, pair: GroupPair, times: Sequence[_CommitTimes]) -> GroupPair:
        """Returns the pair with its last writers. ``first`` has the offsets at the first read."""
        copied, writers = self.copied(pair.source.name, pair.target.name), {}
        for tp in self._differing(pair):
            writes, problem = [], self._problem
            for side in (0, 1):
                group, now = pair.sides[side].name, pair.sides[side].offsets[tp]
                before = first.sides[side].offsets.get(tp)
                changed = "" if before == now else f"{'no offset' if before is None else before.offset} -> {now.offset}"
                at = times[side].get((group, tp, now.offset), now.commit_timestamp)
                if at is not None and (why := self.own_write(side, group, at)):
                    at, problem = None, f"the time of the commit in {self.titles[side]} is no evidence: {why}"
                copy = copied.get(tp)
                left, copied_ms = (None, None) if copy is None else (copy.offsets[side], copy.at_ms)
                writes.append(KnownWrite(self.titles[side], now.offset, at, changed, left, copied_ms))
            dated = all(write.written_ms is not None for write in writes)
            writers[tp] = last_writer(writes[0], writes[1], self._clocks_ms if dated else None, problem)
        return pair._replace(writers=writers)

    def _commit_times(self, side: int, groups: list[str]) -> _CommitTimes:
        """Returns the times of the groups' commits in a Kafka store; empty if they cannot be read."""
        from offsetmgr.stores.kafka import KafkaStore

        store, found = self._stores[side], _CommitTimes()
        if isinstance(store, KafkaStore):
            try:
                saved = store.commit_times(groups, self.limit_s)
            except OffsetMgrError as error:
                self._problem = f"the times of the commits in {self.titles[side]} are unknown: {error}"
                return found
            for group in groups:
                commits = ((tp, one) for tp, one in saved.get(group, {}).items() if one is not None)
                found |= {(group, tp, one.offset): one.commit_timestamp for tp, one in commits}
            if not found:  # brokers hide a topic that the client may not describe
                self._problem = f"the times of the commits in {self.titles[side]} need READ on __consumer_offsets"
        return found

    @cached_property
    def _clocks_ms(self) -> int | None:
        """The largest difference between the clocks of ZooKeeper and of Kafka in milliseconds, as the registrations of
        the brokers show it or as measured now. None if it is unknown, or for other stores."""
        from offsetmgr.kafka.cluster import KafkaCluster
        from offsetmgr.stores.kafka import KafkaStore
        from offsetmgr.stores.zookeeper import ZookeeperStore
        from offsetmgr.zookeeper.client.server_checks import server_clock
        from offsetmgr.zookeeper.nodes.cluster_nodes import registration_delay_ms

        old = next((store.session for store in self._stores if isinstance(store, ZookeeperStore)), None)
        new = next((store.store_thread() for store in self._stores if isinstance(store, KafkaStore)), None)
        if old is None or new is None:
            return None
        with suppress(OffsetMgrError):
            if (registered := registration_delay_ms(old)) is not None:
                return registered
            kafka = KafkaCluster.with_thread(new).clock_difference(self.clock)
            zookeeper = server_clock(old.hosts.split(",")[0], old.config, self.clock)
            if kafka is not None and kafka.high is not None and zookeeper is not None and zookeeper.high is not None:
                return max(abs(zookeeper.low - kafka.high), abs(zookeeper.high - kafka.low))
        return None


_CommitTimes = dict[tuple[str, TopicPartition, int], int]
"""The times of commits by group, partition and offset."""


def _is_undecided(pair: GroupPair) -> bool:
    return any(writer.store is None and pair.ahead(tp) for tp, writer in pair.writers.items())
