"""Reads what a shard group's shards have not seen yet. Blocks, and knows no threads: `runtime` says who runs it.

A shard belongs to one thread at a time. While it is being loaded it belongs to the one that runs `ShardLoader.run`, and
nobody else looks at it; so it can be filled here, however long that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from offsetmgr.manager.log.base import PartitionLog
from offsetmgr.manager.shard import Shard


class ShardLoader:
    """One reading of a shard group's partitions, from where their shards stand up to ``ends``: `plan`, then `run`.

    Its progress may be read by other threads.
    """

    def __init__(self, log: PartitionLog, shards: Mapping[int, Shard], stopped: Callable[[], bool]) -> None:
        self._log = log
        self._shards = shards
        self._stopped = stopped
        self._starts: Mapping[int, int] = {}
        self._ends: Mapping[int, int] = {}
        self.offsets_to_read = 0
        self.offsets_read = 0

    def plan(self, ends: Mapping[int, int], timeout: float) -> None:
        """Finds out what is to be read; ``timeout`` (seconds) is for asking where the log begins. Raises
        `OffsetMgrError`."""
        starts = {partition: shard.position for partition, shard in self._shards.items()}
        if any(position == 0 for position in starts.values()):
            found = self._log.start_offsets(sorted(starts), timeout)
            starts = {partition: max(position, found[partition]) for partition, position in starts.items()}
        self._starts, self._ends = starts, ends
        self.offsets_to_read = sum(max(0, end - starts[partition]) for partition, end in ends.items())

    def run(self) -> bool:
        """Reads and replays. False: it was stopped, and then the shards are as before. Raises `OffsetMgrError`; what
        was replayed by then stays."""
        behind = {partition: end for partition, end in self._ends.items() if end > self._starts[partition]}
        if behind and not self._read({partition: self._starts[partition] for partition in behind}, behind):
            return False
        for partition, shard in self._shards.items():
            shard.replay_newest({}, max(self._ends[partition], shard.position))
            shard.check_versions()
        return True

    def _read(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        newest: dict[int, dict[bytes, bytes | None]] = {partition: {} for partition in ends}
        reader = self._log.reader()
        try:
            reached = reader.load(starts, ends, newest, progress=self._advance, stopped=self._stopped)
        finally:
            reader.close()
        if any(reached[partition] < end for partition, end in ends.items()):
            return False
        for partition in sorted(ends):
            # One after the other, and each freed at once: a load needs little more memory than what it leaves.
            self._shards[partition].replay_newest(newest.pop(partition), reached[partition])
        return True

    def _advance(self, offsets: int) -> None:
        self.offsets_read += offsets


def truncated_partitions(shards: Iterable[Shard], ends: Mapping[int, int]) -> Sequence[int]:
    """The partitions whose log ends before where their shard stands: it was cut or recreated, so what the shard holds
    is not what is in the log."""
    return [shard.partition for shard in shards if shard.position > ends[shard.partition]]
