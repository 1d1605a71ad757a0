"""Finds the directories of an offsets topic on the disks of a stopped Kafka cluster, and detects missing partitions.

`disk_recovery` reads the directories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.groups.replica_choice import RecoveryListener
from offsetmgr.segments.broker_lock import Use, detect_broker
from offsetmgr.segments.partition import has_partition_dir_name, named_partitions, partition_of, segments_in
from offsetmgr.segments.transaction_state import TOPIC as TRANSACTIONS

CONSUMER_OFFSETS: Final = "__consumer_offsets"


@dataclass(slots=True)
class TopicDirectories:
    """The partition directories of an offsets topic on the disks of all brokers, by partition number."""

    has_topic_creation_times: ClassVar[bool] = False

    topic: str
    partitions: dict[int, list[Path]] = field(default_factory=dict)
    transactions: dict[int, list[Path]] = field(default_factory=dict)
    log_dirs: list[Path] = field(default_factory=list)
    named: bool = False
    """Whether the caller named directories of single partitions. In this case a missing partition is not an error."""
    empty: list[Path] = field(default_factory=list)
    """Log directories without any partition, for example the mount point of a disk that is not mounted."""

    @property
    def complete(self) -> bool:
        """Whether every partition from 0 to the largest partition number is present. If a partition is missing, the
        number of partitions of the topic counts as unknown."""
        return len(self.partitions) == max(self.partitions) + 1

    @property
    def missing(self) -> str:
        """The partition numbers below the largest one for which there is no directory, as text, for example ``3, 7,
        10-18``."""
        numbers = [-1, *sorted(self.partitions)]
        gaps = [(before + 1, after - 1) for before, after in pairwise(numbers) if after - before > 1]
        return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in gaps)

    @property
    def uri(self) -> str:
        """The log directories as the URI of a source of offsets. With the following methods, the directories implement
        `offsetmgr.stores.cross_cluster_check.OriginStore`."""
        return f"log:{','.join(map(str, self.log_dirs))}"

    def log_origin(self) -> LogOrigin:
        """Returns an origin with the cluster id from the ``meta.properties`` files of the log directories. If none of
        these files contains a cluster id, returns an unnamed origin."""
        for log_dir in self.log_dirs:
            try:
                lines = (log_dir / "meta.properties").read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                continue  # the cluster id is optional
            for name, _, value in (line.partition("=") for line in lines):
                if name.strip() == "cluster.id" and value.strip():
                    return LogOrigin(value.strip(), "cluster.id in meta.properties")
        return replace(UNNAMED, how="no meta.properties in the log dirs names a cluster id")

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:  # noqa: ARG002
        """Returns an empty mapping, because offsetmgr does not read topic ids from log directories."""
        return {}

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:  # noqa: ARG002
        """Returns an empty mapping, because log directories do not contain the creation times of topics."""
        return {}


def find_topic_directories(directories: Sequence[Path], topic: str = CONSUMER_OFFSETS) -> TopicDirectories:
    """Returns the partition directories of ``topic``. Each of ``directories`` is a broker's log directory, or the
    directory of a single partition. If all of ``directories`` are partition directories of the same topic, that topic
    is used instead of ``topic``.

    A directory is used once, even if several paths lead to it. Raises `UsageError` if no partition is found, or if the
    partition directories belong to several topics. Also raises `FileFailure` and `UnsupportedOperation`.
    """
    sources = TopicDirectories(topic)
    single: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    known: set[Path] = set()

    def add(found: dict[int, list[Path]], number: int, directory: Path) -> None:
        """Adds a directory, unless it was already added under another path."""
        real = directory.resolve()
        if real not in known:
            known.add(real)
            found.setdefault(number, []).append(directory)

    for directory in dict.fromkeys(directories):
        has_segments = bool(segments_in(directory))
        log_dir = directory
        if partitions := [] if has_segments else named_partitions(directory):
            of_topic = {TRANSACTIONS: sources.transactions, sources.topic: sources.partitions}
            for name, found in partitions:
                if name.topic in of_topic:
                    add(of_topic[name.topic], name.partition, found)
        elif has_segments or (has_partition_dir_name(directory) and partition_of(directory).topic == sources.topic):
            name = partition_of(directory)
            log_dir = directory.absolute().parent
            single[name.topic].append((name.partition, directory))
        else:
            sources.empty.append(directory)
        if log_dir not in sources.log_dirs:
            sources.log_dirs.append(log_dir)
    for number, path in single.pop(TRANSACTIONS, []):
        add(sources.transactions, number, path)
    for named, paths in single.items():
        if (sources.partitions or len(single) > 1) and named != sources.topic:
            why = f"is of topic {named}, other directories are of topic {sources.topic}"
            raise UsageError(f"directory {paths[0][1]}", why)
        sources.topic, sources.named = named, True
        for number, path in paths:
            add(sources.partitions, number, path)
    if not sources.partitions:
        where = ", ".join(map(str, directories))
        hint = f"name a directory that contains {sources.topic}-0 or the like, or the directory of a partition"
        raise UsageError(where, f"holds no directory of topic {sources.topic}", hint)
    return sources


def report_problems(sources: TopicDirectories, listener: RecoveryListener) -> None:
    """Reports the problems that are known before the logs are read: directories that a running broker uses, directories
    without partitions, and missing partitions."""
    for log_dir in sources.log_dirs:
        found = detect_broker(log_dir)
        if found.use is Use.RUNNING:
            listener.note(
                f"warning: {log_dir}: {found}: the result may lack offsets that the broker writes from now on"
            )
    for error in missing_directories(sources):
        listener.error(error)
    if sources.named and (missing := sources.missing):
        listener.note(
            f"{sources.topic}: partitions {missing} are not among the given directories, so their groups are missing"
        )


def missing_directories(sources: TopicDirectories) -> list[OffsetMgrError]:
    """Returns one error for each log directory without partitions, and one error for all missing partitions below the
    largest partition number.

    If the caller named directories of single partitions, missing partitions are not an error.
    """
    found = [
        OffsetMgrError(
            f"directory {directory}",
            "holds no partition of any topic",
            "check that its disk is mounted; if it is, leave this directory out",
        )
        for directory in sources.empty
    ]
    if not sources.named and (missing := sources.missing):
        why = f"there is no directory of its partitions {missing}: their groups are missing"
        found.append(OffsetMgrError(f"topic {sources.topic}", why, "name all log dirs (log.dirs) of all brokers"))
    return found
