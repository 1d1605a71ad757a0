"""Reads committed offsets from the directories of a stopped Kafka cluster, in parallel, and merges the groups.

Only `RecoveredOffsets.write_file` writes: a snapshot. Notes and errors go to a `RecoveryRun`. An error affects
only one directory or one partition. The other directories and partitions are still read (data rule "absent is not
zero").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core import __version__
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import Conflict, GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.core.model import Committed, TopicPartition, is_deleted
from offsetmgr.core.offset_store import GroupOffsets, OffsetSource
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.manager.expiration import expires_at
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import OffsetValue
from offsetmgr.records.json_values import CONSUMER_OFFSETS
from offsetmgr.segments.broker_lock import Use, detect_broker, require_unused_parent
from offsetmgr.segments.committed_offsets import Activity, SavedGroup, SavedOffset
from offsetmgr.segments.offsets_partition import LogEnd, SavedPartition, log_end, read_decisions, read_partition
from offsetmgr.segments.parallel import map_directories
from offsetmgr.segments.partition import has_partition_dir_name, named_partitions, partition_of, segments_in
from offsetmgr.segments.transaction_state import TOPIC as TRANSACTIONS
from offsetmgr.snapshots.base import SnapshotHeader, SnapshotReport
from offsetmgr.snapshots.registry import by_name, format_name
from offsetmgr.stores.cross_cluster_check import with_origin
from offsetmgr.stores.snapshot import write_snapshot

# Reads each partition from its most advanced replica among the directories of several brokers. A stopped cluster has
# no partition leaders. As in leader elections (KIP-101), this module selects the replica with the latest leader
# epoch. If several replicas have the latest epoch, the module selects the replica with the longest log. If one of the
# given replicas was in sync, the selected replica has every acknowledged record. The selected replica may also have
# records that were never acknowledged.

Result = TypeVar("Result")

_BYTES_PER_PROCESS: Final = 16 * 1024 * 1024
"""One more process is started for each block of this size that has to be read. A process reads one block in about a
quarter of a second."""


class RecoveryRun(NamedTuple):
    """How one recovery reads and reports. ``note`` receives information that is not an error, for example about a
    truncated tail or the selected replica; ``error`` the error of a directory, a group or a key; ``on_progress`` from
    time to time the number of bytes read and the total. At most ``processes`` processes read."""

    note: Callable[[str], None]
    error: Callable[[OffsetMgrError], None]
    on_progress: Callable[[int, int], None]
    processes: int


def read_most_advanced_replicas(
    replicas: Mapping[int, Sequence[Path]],
    read: Callable[[Path, Callable[[int], None]], Result],
    topic: str,
    run: RecoveryRun,
) -> Iterator[tuple[int, Result | OffsetMgrError]]:
    """Reads each partition from its most advanced replica. If a replica cannot be read, reports the error and reads the
    next best replica."""
    ranked = _ranked(replicas, topic, run)
    total = sum(_size(directories[0]) for directories in ranked.values())

    def report_bytes(done: int) -> None:
        run.on_progress(done, max(total, done))

    processes = min(run.processes, 1 + total // _BYTES_PER_PROCESS)
    while ranked:
        number_of = {directories[0]: number for number, directories in ranked.items()}
        remaining: dict[int, list[Path]] = {}
        for directory, result in map_directories(read, list(number_of), processes, report_bytes):
            number = number_of[directory]
            if isinstance(result, OffsetMgrError) and len(ranked[number]) > 1:
                run.error(result)
                remaining[number] = ranked[number][1:]
                run.note(f"{topic}-{number}: {remaining[number][0]} is read instead; it may lack the latest commits")
            else:
                yield number, result
        ranked = remaining


def _ranked(replicas: Mapping[int, Sequence[Path]], topic: str, run: RecoveryRun) -> dict[int, list[Path]]:
    """Returns the replicas of each partition, best first: by the latest leader epoch, then by the length of the log."""
    ranked = {number: list(replicas[number]) for number in sorted(replicas)}
    replicated = [directory for directories in ranked.values() if len(directories) > 1 for directory in directories]
    if not replicated:
        return ranked
    ends = dict(map_directories(log_end, replicated, run.processes))
    for number, directories in ranked.items():
        if len(directories) == 1:
            continue
        readable = [
            (end, directory) for directory in directories if not isinstance(end := ends[directory], OffsetMgrError)
        ]
        readable.sort(key=lambda pair: pair[0], reverse=True)
        unreadable = {directory: end for directory in directories if isinstance(end := ends[directory], OffsetMgrError)}
        ranked[number] = [*(directory for _, directory in readable), *unreadable]
        names = [f"{directory} ({_describe_end(end)})" for end, directory in readable]
        names += [f"{directory} (not readable)" for directory in unreadable]
        run.note(f"{topic}-{number}: the replica {names[0]} is used, not {', '.join(names[1:])}")
        if readable:  # if no replica is readable, the later read of each replica reports its error
            for directory, error in unreadable.items():
                why = f"the end of the log in {directory} is unknown; the result may lack the latest commits: {error}"
                run.error(OffsetMgrError(f"{topic}-{number}", why, error.hint))
    return ranked


def _describe_end(end: LogEnd) -> str:
    if not end.offset:
        return "no valid record"
    epoch = f", leader epoch {end.leader_epoch}" if end.leader_epoch >= 0 else ""
    return f"up to offset {end.offset}{epoch}"


def _size(directory: Path) -> int:
    try:
        return sum(segment.size for segment in segments_in(directory))
    except OffsetMgrError:
        return 0  # the read reports the error


# Finds the directories of an offsets topic on the disks of a stopped Kafka cluster, and detects missing partitions.


@dataclass(slots=True)
class TopicDirectories(OffsetSource):
    """The partition directories of an offsets topic on the disks of all brokers, by partition number."""

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
        """The log directories as the URI of a source of offsets."""
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


def report_problems(sources: TopicDirectories, run: RecoveryRun) -> None:
    """Reports the problems that are known before the logs are read: directories that a running broker uses, directories
    without partitions, and missing partitions."""
    for log_dir in sources.log_dirs:
        found = detect_broker(log_dir)
        if found.use is Use.RUNNING:
            run.note(f"warning: {log_dir}: {found}: the result may lack offsets that the broker writes from now on")
    for directory in sources.empty:
        hint = "check that its disk is mounted; if it is, leave this directory out"
        run.error(OffsetMgrError(f"directory {directory}", "holds no partition of any topic", hint))
    missing = sources.missing
    if missing and sources.named:  # the caller named directories of single partitions
        run.note(
            f"{sources.topic}: partitions {missing} are not among the given directories, so their groups are missing"
        )
    elif missing:
        why = f"there is no directory of its partitions {missing}: their groups are missing"
        hint = "name all log dirs (log.dirs) of all brokers"
        run.error(OffsetMgrError(f"topic {sources.topic}", why, hint))


_DEFAULT_PARTITIONS: Final = 50
"""The default number of partitions of ``__consumer_offsets`` (``offsets.topic.num.partitions`` of the broker)."""
_SHOWN: Final = 5
"""The maximum number of groups that a message names."""


class Expiry(NamedTuple):
    """The rule that leaves out expired offsets. An offset has expired if a broker would delete it in an expiration
    check at the time ``at`` (ms since 1970).

    ``retention_ms`` is ``offsets.retention.minutes`` in milliseconds.
    """

    at: int
    retention_ms: int

    def has_expired(self, tp: TopicPartition, saved: SavedOffset, activity: Activity | None) -> bool:
        """Returns whether an offset has expired (KIP-211, GroupMetadata.removeExpiredOffsets)."""
        if activity is not None and activity.format == AvroRecordFormat.name:
            value = OffsetValue(saved.offset, None, "", saved.commit_timestamp, saved.expire_timestamp)
            kept_ms, age_ms = self.retention_ms, ManagerSettings.max_activity_age_ms
            return expires_at(value, activity.since_ms, kept_ms, age_ms) <= self.at
        base = saved.commit_timestamp
        if activity is not None and activity.members:
            if activity.subscribed is None or tp.topic in activity.subscribed:
                return False
        elif activity is not None and activity.protocol_type and activity.since_ms is not None:
            base = activity.since_ms
        expires_at_ms = base + self.retention_ms if saved.expire_timestamp is None else saved.expire_timestamp
        return expires_at_ms <= self.at


def saved_groups(sources: TopicDirectories, run: RecoveryRun, expiry: Expiry | None) -> Iterator[SavedGroup]:
    """Yields every group that has offsets, partition by partition. Within a partition, the groups are sorted by name.

    If the number of partitions was raised, a group may be in several partitions. In this case the function uses the
    offsets in the partition that the group's coordinator reads. Memory grows with the offsets of the partitions that
    are being read, and with the names of all groups.
    """
    report_problems(sources, run)
    decisions = _decisions(sources, run)
    work = _GroupLocations(sources, run)
    for result in _partitions(sources, decisions, run):
        if isinstance(result, int):
            work.failed.add(result)
            continue
        _report(result, run)
        for group in result.decoded.groups:
            if work.is_in_coordinator_partition(result.partition.partition, group):
                yield from _unexpired(group, expiry, run)
    for group in work.misplaced_groups():
        yield from _unexpired(group, expiry, run)


def group_offsets(saved: SavedGroup) -> GroupOffsets:
    """Returns the group in the form that stores and snapshots use, without the offsets that offsetmgr marked as
    deleted."""
    new = tuple.__new__  # skips the argument handling of named tuples
    offsets = {
        tp: new(Committed, (*one[:4], None)) for tp, one in saved.offsets.items() if not is_deleted(one[0], one[1])
    }
    return GroupOffsets(saved.name, offsets, saved.errors)


def _unexpired(group: SavedGroup, expiry: Expiry | None, run: RecoveryRun) -> Iterator[SavedGroup]:
    if expiry is None:
        yield group
        return
    if group.activity_error is not None:
        why = f"whether its offsets have expired is unknown, so all are kept: {group.activity_error}"
        run.error(OffsetMgrError(f"group {group.name!r}", why, group.activity_error.hint))
        yield group
        return
    unexpired = {tp: saved for tp, saved in group.offsets.items() if not expiry.has_expired(tp, saved, group.activity)}
    if unexpired or group.errors:
        yield SavedGroup(group.name, unexpired, group.errors, group.activity, group.activity_error)


def _decisions(sources: TopicDirectories, run: RecoveryRun) -> dict[TopicPartition, dict[int, bool]]:
    """Returns the known outcomes of transactions. For each partition, the result maps the id of a producer to True if
    the producer's transaction was committed, and otherwise to False."""
    found: dict[TopicPartition, dict[int, bool]] = defaultdict(dict)
    for number, result in read_most_advanced_replicas(sources.transactions, read_decisions, TRANSACTIONS, run):
        if isinstance(result, OffsetMgrError):
            run.error(result)
            continue
        decisions, errors = result
        for error in errors:
            run.error(OffsetMgrError(f"{TRANSACTIONS}-{number}", str(error)))
        for decision in decisions:
            found[decision.partition][decision.producer] = decision.committed
    return found


def _partitions(
    sources: TopicDirectories, decisions: Mapping[TopicPartition, dict[int, bool]], run: RecoveryRun
) -> Iterator[SavedPartition | int]:
    """Yields the content of every readable partition, and the number of every unreadable partition."""
    # A transaction may span several partitions, so ``decisions`` contains its outcome once for each partition, by
    # producer id.
    producers = {tp.partition: found for tp, found in decisions.items() if tp.topic == sources.topic}
    read = partial(read_partition, decided=producers)
    unknown_starts: set[str] = set()

    for number, result in read_most_advanced_replicas(sources.partitions, read, sources.topic, run):
        if isinstance(result, OffsetMgrError):
            run.error(result)
            yield number
        else:
            if result.unknown_start is not None and (text := str(result.unknown_start)) not in unknown_starts:
                unknown_starts.add(text)
                run.note(f"{text}: assuming that each log begins with its first segment, as brokers do")
            yield result


def _report(found: SavedPartition, run: RecoveryRun) -> None:
    """Reports a truncated tail, open transactions, skipped keys and errors of a partition."""
    name = found.partition
    if found.ignored_tail is not None:
        run.note(f"{name}: truncated as by a broker's recovery: {found.ignored_tail}")
    if found.pending:
        run.note(
            f"{name}: offsetmgr leaves out {count_of(found.pending, 'offset')} of "
            f"{count_of(found.transactions, 'open transaction')}: whether they were committed is not known"
        )
    if found.decided_transactions:
        run.note(
            f"{name}: offsetmgr takes the outcome of {count_of(found.decided_transactions, 'transaction')} "
            f"from {TRANSACTIONS}"
        )
    if found.keyless:
        run.note(f"{name}: offsetmgr skips {count_of(found.keyless, 'record')} without a key")
    for error in (*found.decoded.unknown(), *found.decoded.errors):
        run.error(OffsetMgrError(str(name), str(error)))


class _GroupLocations:
    """Selects the partition from which the offsets of a group are used, if several partitions contain the group."""

    def __init__(self, sources: TopicDirectories, run: RecoveryRun) -> None:
        self._count = max(sources.partitions) + 1 if sources.complete else None
        self._topic = sources.topic
        self._run = run
        self._seen: dict[str, int] = {}
        self._misplaced: dict[str, tuple[int, SavedGroup]] = {}
        self.failed: set[int] = set()

    def is_in_coordinator_partition(self, partition: int, group: SavedGroup) -> bool:
        """Returns True if the group's offsets in this partition are used. If the group's coordinator reads another
        partition, the method keeps the group for `misplaced_groups`."""
        name = group.name
        if self._count is not None and shard_for(name, self._count) != partition:
            known = self._misplaced.get(name)
            if known is None or _latest(known[1]) < _latest(group):
                self._misplaced[name] = (partition, group)
            return False
        before = self._seen.setdefault(name, partition)
        if before == partition:
            return True
        self._run.error(
            Conflict(
                f"group {name!r}",
                f"is in {self._topic}-{before}, which is used, and in {self._topic}-{partition}",
                "name all partitions of the topic, so that their number is known",
            )
        )
        return False

    def misplaced_groups(self) -> Iterator[SavedGroup]:
        """Yields the groups for which no offsets were found in the partition that their coordinator reads, with the
        offsets from another partition. Call this method after all partitions have been read."""
        stale, only_misplaced = 0, list[str]()
        for name, (partition, group) in sorted(self._misplaced.items()):
            if name in self._seen:
                stale += 1
            elif self._count is not None and (coordinator_partition := shard_for(name, self._count)) in self.failed:
                self._run.error(
                    OffsetMgrError(
                        f"group {name!r}",
                        f"it belongs to {self._topic}-{coordinator_partition}, which cannot be read; its offsets in "
                        f"{self._topic}-{partition} may be old, so they are left out",
                    )
                )
            else:
                only_misplaced.append(name)
                yield group
        if only_misplaced:
            self._run.note(
                f"offsetmgr uses {count_of(len(only_misplaced), 'group')} from partitions that their coordinator does "
                f"not read ({self._topic} has {self._count} partitions): {list_of(only_misplaced, _SHOWN)}"
            )
        if stale:
            self._run.note(
                f"offsetmgr ignores older offsets of {count_of(stale, 'group')} in other partitions, from before the "
                "number of partitions was raised"
            )


def _latest(group: SavedGroup) -> int:
    return max((saved.commit_timestamp for saved in group.offsets.values()), default=-1)


class _NothingFound(OffsetMgrError):
    """Raised if there are no offsets to write, so that `RecoveredOffsets.write_file` neither creates an empty file nor
    replaces an existing file."""


@dataclass
class RecoveredOffsets:
    """The selected offsets of an offsets topic on disk. ``run`` also receives the errors of selected groups and
    offsets. ``expiry`` leaves out expired offsets."""

    sources: TopicDirectories
    run: RecoveryRun
    selection: GroupSelection
    topics: TopicSelection
    expiry: Expiry | None
    seen: set[str] = field(default_factory=set)
    """The groups with selected offsets or errors."""
    _failed: bool = False
    _left_out: set[str] = field(default_factory=set)

    @property
    def _where(self) -> str:
        return ", ".join(map(str, self.sources.log_dirs))

    def error(self, error: OffsetMgrError) -> None:
        """Reports the error at once, so that the user sees it before the prompt."""
        self._failed = True
        self.run.error(error)

    def groups(self) -> Iterator[SavedGroup]:
        """Yields the selected groups with their selected offsets and errors. Also reports the errors."""
        selected, run = self.topics.matches, self.run._replace(error=self.error)
        for whole in saved_groups(self.sources, run, self.expiry):
            if not self.selection.matches(whole.name):
                self._left_out.add(whole.name)
                continue
            offsets = {tp: one for tp, one in whole.offsets.items() if selected(tp)}
            group = replace(whole, offsets=offsets, errors={tp: e for tp, e in whole.errors.items() if selected(tp)})
            for tp, error in group.errors.items():
                self.error(OffsetMgrError(f"group {group.name}, {tp}", str(error), error.hint))
            if group.offsets or group.errors:
                self.seen.add(group.name)
                yield group

    def offsets(self, *, errors: bool) -> Iterator[GroupOffsets]:
        """Yields the groups in the form that stores accept. If ``errors`` is false, the errors of unreadable offsets
        are reported but are not in the result."""
        for group in self.groups():
            if errors or group.offsets:
                found = group_offsets(group)
                yield found if errors else replace(found, errors={})

    def write_file(self, address: str, options: Mapping[str, str], *, overwrite: bool) -> SnapshotReport | None:
        """Writes a snapshot, as ``offsets export`` does. ``options`` are those of the file's URI. The snapshot includes
        read errors if the format of the file supports errors. Returns None, and reports the error, if there are no
        offsets."""
        name, group = format_name(address, options.get("format")), options.get("group")
        source = ",".join(str(path.absolute()) for path in self.sources.log_dirs)
        origin = self.sources.log_origin()
        header = SnapshotHeader.new(f"log:{source}", "kafka", origin.cluster_id, f"offsetmgr {__version__}")
        header = with_origin(header, origin, {})
        keeps = by_name(name, group).lossless

        def found() -> Iterator[GroupOffsets]:
            yield from self.offsets(errors=keeps)
            if not self.seen:
                raise _NothingFound("file", "there is nothing to write")

        try:
            with require_unused_parent(Path(address), Advice("name another file with {to}")):
                return write_snapshot(
                    address, header, found(), format=name, group=group, overwrite=overwrite, keep_errors=keeps
                )
        except _NothingFound:
            self.report_empty(f"file {address} was not written")
            return None

    def finish(self, kind: str) -> None:
        """Reports each group that is selected or excluded by name if it has no committed offsets. Also reports if the
        whole result is empty. ``kind`` is that of the target, or empty if there is none."""
        groups = self.selection
        for what, names in (
            ("group", groups.names - self.seen),
            ("excluded group", groups.excluded_names - self._left_out),
        ):
            for name in sorted(names):
                self.error(GroupNotFound(f"{what} {name!r}", f"has no committed offsets in {self._where}"))
        count = len(self.sources.partitions)
        whole = self.sources.topic == CONSUMER_OFFSETS and not self.sources.named
        if kind and whole and count != _DEFAULT_PARTITIONS:
            self.run.note(
                f"{CONSUMER_OFFSETS}: {count_of(count, 'partition')} read; the default is {_DEFAULT_PARTITIONS}"
            )
        if not self.seen and kind not in ("", "file"):
            self.report_empty("nothing was written")
        elif not self.seen and not self._failed:
            self.run.note(f"no committed offsets in {self._where}")

    def report_empty(self, what: str) -> None:
        """Reports that no offsets were found."""
        hint = Advice("are these the right disks, {offsets_topic}, {group} and {topic}?")
        self.error(OffsetMgrError(what, f"none of the selected offsets can be read in {self._where}", hint))
