"""Groups of real clients that a test moves from one cluster to another under load, and the oracle that counts lost and
repeated records by the logs of both clusters."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from committed_offsets import committed
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Position
from processes import Commands, until
from record_oracle import Log, Oracle
from running_consumers import Deliveries, JavaMember, Member, RdkafkaMember

PARTITIONS: Final = 2


class Place(NamedTuple):
    """A topic in a cluster."""

    cluster: str
    bootstrap: str
    topic: str

    @property
    def uri(self) -> str:
        return f"kafka://{self.bootstrap}"

    def committed(self, group: str) -> dict[int, int]:
        return committed(self.uri, group)

    def ends(self) -> dict[int, int]:
        with self._reader() as reader:
            return {p: self._end(reader, p) for p in range(PARTITIONS)}

    def newest_numbers(self) -> list[int]:
        """The number of the last record of each partition; -1 if there is none."""
        found = []
        with self._reader() as reader:
            for partition in range(PARTITIONS):
                end = self._end(reader, partition)
                reader.assign([Position(self.topic, partition, end - 1)] if end else [])
                message = reader.poll(10) if end else None
                value = None if message is None else message.value()
                found.append(-1 if value is None else int(value.split()[-1]))
        return found

    def _end(self, reader: Consumer, partition: int) -> int:
        """The end of a partition. A broker that was killed has no leaders for a moment after its start."""
        ends = list[int]()

        def found() -> bool:
            with suppress(KafkaException):
                ends.append(reader.get_watermark_offsets(Position(self.topic, partition), 60)[1])
            return bool(ends)

        until(found, 60)
        return ends[0]

    @contextmanager
    def _reader(self) -> Iterator[Consumer]:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "oracle", "enable.auto.commit": False}
        reader = Consumer({**settings, "log_level": 0})
        yield reader
        reader.close()


Ends = Mapping[Place, Mapping[int, int]]
"""The ends of the logs of places, by partition."""


class Kind(NamedTuple):
    """The clients of a group. ``at_b`` are settings that they have only in the cluster B."""

    member: type[Member]
    config: Mapping[str, Any] = {}
    members: int = 1
    at_b: Mapping[str, Any] = {}


JAVA: Final = {"leave": "true", "metadata.max.age.ms": 5000, "fetch.max.wait.ms": 100}
KINDS: Final = {
    "java-3.9": Kind(JavaMember, {**JAVA, "release": "kafka-3.9"}),
    "java-4.4-classic": Kind(JavaMember, JAVA),
    # Kafka 3.9 with ZooKeeper has only the classic protocol.
    "java-4.4-consumer": Kind(JavaMember, JAVA, at_b={"group.protocol": "consumer"}),
    "librdkafka": Kind(RdkafkaMember, {"batch": 50}, members=2),
}
"""The kinds of clients, by name. Each commits after each batch that it has processed."""


@dataclass
class Stint:
    """The time in which a group consumes at one place. ``ends`` are the ends of the logs of all places when its
    positions there were found, and ``stopped_at`` its positions afterward."""

    place: Place
    ends: Ends
    deliveries: Deliveries = field(default_factory=Deliveries)
    members: list[Member] = field(default_factory=list)
    stopped_at: dict[int, int] = field(default_factory=dict)

    def offsets(self, partition: int) -> list[int]:
        """The offsets of the records that it processed. A consumer may process a record again after a broker was
        killed before the commit."""
        return sorted({one.offset for one in self.deliveries.found if one.partition == partition})

    def moves_on(self) -> bool:
        """Whether the consumers have received records of every partition."""
        return {one.partition for one in self.deliveries.found} == set(range(PARTITIONS))


class MovingGroup:
    """A group, and all the places at which it has consumed."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.stints: list[Stint] = []
        self.ends: Ends = {}

    def start(self, place: Place) -> None:
        kind, stint = KINDS[self.kind], Stint(place, self.ends)
        config = {**kind.config, **(kind.at_b if place.cluster == "B" else {})}
        for number in range(kind.members):
            name = f"{self.kind}-{place.cluster}-{number}"
            stint.members.append(
                kind.member(
                    place.bootstrap, self.name, place.topic, stint.deliveries, name=name, commit="sync", **config
                )
            )
        self.stints.append(stint)

    def stop(self) -> None:
        """Stops the consumers: each commits its last batch, and leaves the group."""
        stint = self.stints[-1]
        for one in stint.members:
            one.stop()
        stint.members.clear()
        stint.stopped_at = stint.place.committed(self.name)

    def reached(self, ends: Mapping[int, int]) -> bool:
        found = self.stints[-1].place.committed(self.name)
        return all(found.get(partition, 0) >= end for partition, end in ends.items())


class MovingGroups:
    """The groups of all kinds, which move together."""

    def __init__(self, prefix: str) -> None:
        self.all = [MovingGroup(f"{prefix}{kind}", kind) for kind in KINDS]

    def start(self, place: Place) -> None:
        for one in self.all:
            one.start(place)

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.all)) as threads:
            list(threads.map(MovingGroup.stop, self.all))

    def await_records(self) -> None:
        """Waits until each group has received records of every partition at its place."""
        until(lambda: all(one.stints[-1].moves_on() for one in self.all))

    def await_ends(self) -> None:
        """Waits until each group has processed all records that are at its place now."""
        ends = self.all[0].stints[-1].place.ends()
        until(lambda: all(one.reached(ends) for one in self.all), 60)


class NumberedLoad:
    """Writes numbered records to all partitions of a topic, first in one cluster, then in another. No record is stored
    twice, because the producer is idempotent."""

    def __init__(self, records_per_s: int) -> None:
        self.sent = 0
        """The number of records of each partition."""
        self._pause_s = 0.05
        self._at_once = round(records_per_s * self._pause_s)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, place: Place) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": place.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        # A broker that was killed does not know its topics for a moment after its start.
        producer = Producer({**settings, "topic.metadata.propagation.max.ms": 600_000, "log_level": 0})
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(producer, place.topic), daemon=True)
        self._thread.start()

    def _run(self, producer: Producer, topic: str) -> None:
        while not self._stop.wait(self._pause_s):
            self._send(producer, topic, self._at_once)
        assert producer.flush(60) == 0

    def _send(self, producer: Producer, topic: str, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"record %d" % number, partition=partition)
        self.sent += count
        producer.poll(0)

    def end(self) -> None:
        """Stops the load after the broker has acknowledged all records."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(90)
            assert not self._thread.is_alive()
            self._thread = None


class Count(NamedTuple):
    """The records that a move of a group lost and repeated. ``held_twice`` are the records that the group received
    again because they lie in the log after its position a second time."""

    kind: str
    direction: str
    lost: list[str]
    repeated: list[str]
    held_twice: list[str]


class Step(IntEnum):
    """Steps of a cutover: of the groups, and of their topic."""

    WRITTEN = 4
    MOVING = 6
    COPIED = 8
    REPLICATOR_STOPPED = 9
    PRODUCING = 10


class Operator:
    """A person who moves groups from one place to another: runs ``migrate cutover`` again and again, and, if it
    ``kills``, kills each run that has passed a further step, at a random moment shortly after it."""

    def __init__(
        self,
        directory: Path,
        groups: Sequence[MovingGroup],
        source: Place,
        target: Place,
        *options: str,
        kills: bool = True,
    ) -> None:
        self._groups, self._sides, self._is_killer = groups, (source, target), kills
        self.state = directory / f"{source.cluster}-{target.cluster}.json"
        self._options = list(options)
        self._commands = Commands(directory)
        self._random = random.Random(self.state.name)
        self._passed = set[str]()
        self._plans: dict[str, str] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.kills = 0
        self.looks: list[Mapping[str, Any]] = []
        """The output of the runs that were not killed: the step and the obstacle of each group and topic."""
        self.failures: list[str] = []
        """The errors of runs that could not do their work: a broker was away."""

    def __enter__(self) -> Operator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(60)

    def say(self, option: str) -> None:
        """Adds an option to the further runs."""
        self._options.append(option)

    def await_groups(self, step: Step) -> None:
        """Waits until all groups have passed the step."""
        self._await("groups", [one.name for one in self._groups], step)

    def await_topic(self, step: Step) -> None:
        """Waits until the topic has passed the step."""
        self._await("topics", [self._sides[0].topic], step)

    def await_obstacle(self, name: str, text: str) -> None:
        """Waits until a run says that this holds up a group or topic."""
        self._until(lambda: any(text in (one["held_up_by"] or "") for one in self.looks if one["name"] == name))

    def undo(self) -> None:
        """Takes all groups back, instead of the further runs."""
        self.__exit__()
        done = self._commands.run(*self._arguments(), "--undo")
        assert done.stdout.count("taken back") == len(self._groups), done.stdout + done.stderr

    def move_all(
        self,
        stop_groups: Callable[[], object],
        start_groups: Callable[[], object],
        stop_producers: Callable[[], object],
        replace_replicator: Callable[[], object],
        start_producers: Callable[[], object],
    ) -> None:
        """Moves the groups and the producers of their topic, in the order of the runbook."""
        stop_groups()
        self.await_groups(Step.WRITTEN)
        start_groups()
        self.await_groups(Step.MOVING)
        stop_producers()
        self.await_topic(Step.COPIED)
        replace_replicator()
        self.say("--replicator-stopped")
        self.await_topic(Step.REPLICATOR_STOPPED)
        start_producers()
        self.await_topic(Step.PRODUCING)

    def _await(self, kind: str, names: Sequence[str], step: Step) -> None:
        def passed() -> bool:
            found = {name: one for name, one in self._saved().get(kind, {}).items() if name in names}
            known = all(one.get("plan", "") == self._plans.get(name, "") for name, one in found.items())
            return known and len(found) == len(names) and min(one["step"] for one in found.values()) >= step

        self._until(passed)

    def _until(self, condition: Callable[[], bool]) -> None:
        try:
            until(lambda: condition() or not self._thread.is_alive(), 240)
        finally:
            assert condition(), (self.failures[-3:], self.looks[-6:])

    def _saved(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.state.read_text()) if self.state.exists() else {}
        return found

    def _arguments(self) -> list[str]:
        source, target = self._sides
        where = ("--from", source.uri, "--to", target.uri, "--state", str(self.state))
        names = (word for group in self._groups for word in ("--group", group.name))
        return ["migrate", "cutover", *names, *where, "--execute", "--yes"]

    def _run(self) -> None:
        while not self._end.is_set():
            often = ("--interval", "0.5", "--wait", "3", "--format", "json")
            process = self._commands.start(*self._arguments(), *often, *self._options)
            while process.poll() is None:
                if (self._is_further() and self._is_killer) or self._end.is_set():
                    time.sleep(self._random.choice([0, 0.02, 0.2]))
                    process.kill()
                    self.kills += not self._end.is_set()
                time.sleep(0.01)
            out, err = process.communicate()
            assert "Traceback" not in err, err
            if process.returncode in (0, 1) and out:
                self.looks += json.loads(out)
            elif process.returncode != -signal.SIGKILL:
                self.failures.append(err)

    def _is_further(self) -> bool:
        """Whether the run has written a plan or a journal or passed a step, as no run before it has. Records the ends
        of the logs as soon as a group has a plan."""
        saved = self._saved()
        plans = {name: one["plan"] for name, one in saved.get("groups", {}).items()}
        for group in self._groups:
            if (plan := plans.get(group.name, "")) != self._plans.get(group.name, ""):
                group.ends = {one: one.ends() for one in self._sides}
                self._plans[group.name] = plan
        files = {one.suffix for one in self.state.parent.glob(f"{self.state.stem}-*")}
        steps = {f"{kind} {one['step']}" for kind in ("groups", "topics") for one in saved.get(kind, {}).values()}
        is_further = not files | steps <= self._passed
        self._passed |= files | steps
        return is_further


class Verdicts:
    """The oracle. It reads the logs of all places to their ends, so nothing writes any more."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._logs = {
            (one, partition): Log.read(one.bootstrap, one.topic, partition)
            for one in places
            for partition in range(PARTITIONS)
        }

    def counts(self, group: MovingGroup) -> Iterator[Count]:
        """Counts for the first stint of a group, which must begin at the logs' starts, and for each move after it."""
        received: list[set[int]] = [set() for _ in range(PARTITIONS)]
        starts = dict.fromkeys(range(PARTITIONS), 0)
        for number, stint in enumerate(group.stints):
            before = group.stints[number - 1].place.cluster + "->" if number else ""
            count = Count(group.kind, f"{before}{stint.place.cluster}", [], [], [])
            for partition, start in starts.items():
                self._count(stint, partition, start, received[partition], count)
            yield count
            if number + 1 < len(group.stints):
                starts = self._right(stint, group.stints[number + 1])

    def _count(self, stint: Stint, partition: int, start: int, received: set[int], count: Count) -> None:
        """Counts for a partition in a stint that must begin at ``start``. Adds to the numbers that were received."""
        got, records = set(stint.offsets(partition)), self._records(stint.place, partition)
        (b,) = (place for place, number in self._logs if (place.cluster, number) == ("B", partition))
        copies = Counter(self._records(b, partition).values())
        for at, number in records.items():
            name = f"record {number} (offset {at} of {stint.place.topic}-{partition} in {stint.place.cluster})"
            if at not in got:
                if start <= at < stint.stopped_at[partition]:
                    count.lost.append(name)
            elif number in received:
                (count.held_twice if at >= start and copies[number] > 1 else count.repeated).append(name)
            else:
                received.add(number)

    def _records(self, place: Place, partition: int) -> dict[int, int]:
        """The numbers of the records of a log, by offset."""
        log = self._logs[place, partition]
        return dict(zip(log.offsets, log.numbers, strict=True))

    def _right(self, source: Stint, target: Stint) -> dict[int, int]:
        """The right positions at the target, by the logs as they were when the group started there."""

        def log_of(place: Place, partition: int) -> Log:
            return self._logs[place, partition].before(target.ends[place][partition])

        return {
            partition: Oracle(log_of(source.place, partition), log_of(target.place, partition)).right(at)
            for partition, at in source.stopped_at.items()
        }

    def missing(self, group: MovingGroup, sent: int) -> list[str]:
        """The records that a group has received at no place, of the first ``sent`` ones of each partition."""
        received = set[tuple[int, int]]()
        for stint in group.stints:
            for partition in range(PARTITIONS):
                records = self._records(stint.place, partition)
                received.update((partition, records[at]) for at in stint.offsets(partition))
        every = [(partition, number) for partition in range(PARTITIONS) for number in range(sent)]
        return [f"record {one[1]} of partition {one[0]}" for one in every if one not in received]
