"""Rolling bounces of a real old group: three 0.10.2.2 members under load; half of the partitions have no traffic."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from old_consumers import Fleet
from processes import wait_for

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import GateRefused
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.migration.bounce import bounce
from offsetmgr.migration.bounce_plan import BounceOutcome, BounceResult, BounceSpec, plan_bounce
from offsetmgr.migration.evidence import EvidenceThresholds
from offsetmgr.migration.group_observer import GroupView, ObservationWindow, ZookeeperRegistry
from offsetmgr.migration.runbook import check_phase, write_runbook
from offsetmgr.sandbox import KafkaBroker, OldConsumer
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore

PARTITIONS = 8
BUSY = (0, 2, 4, 6)
IDLE = (1, 3, 5, 7)
AUTO_COMMIT_MS = 300
RULES = EvidenceThresholds(accept_idle=True, quiet_ms=1_500)
WINDOW = ObservationWindow(duration_s=40, poll_s=0.15)

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


class Load:
    """A steady producer of numbered messages to the busy partitions. Tests can also send single messages."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
        self._lock = threading.Lock()
        self._sent: Counter[int] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def send(self, partition: int, count: int = 1) -> None:
        with self._lock:
            for _ in range(count):
                number = self._sent[partition]
                self._producer.produce(self.topic, key=str(partition), value=str(number), partition=partition)
                self._sent[partition] += 1
        self._producer.poll(0)

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            for partition in BUSY:
                self.send(partition, 2)

    def __enter__(self) -> Load:
        for partition in IDLE:
            self.send(partition, 10)
        self._producer.flush(30)
        self._thread.start()
        return self

    def end(self) -> Counter[int]:
        """Stops the load and returns the number of messages of each partition."""
        self._stop.set()
        self._thread.join(90)
        assert self._producer.flush(30) == 0
        return self._sent

    def __exit__(self, *_: object) -> None:
        self.end()


def three_members(directory: Path, zookeeper: str, group: str, topic: str) -> Fleet:
    members = [
        OldConsumer(
            directory / f"member-{n}",
            zookeeper=zookeeper,
            group=group,
            topic=topic,
            auto_commit_interval_ms=AUTO_COMMIT_MS,
            extra={"zookeeper.session.timeout.ms": 60_000},  # a session that expires on a busy machine repeats messages
        )
        for n in range(3)
    ]
    return Fleet(directory, members)


@pytest.fixture
def view(kafka: KafkaBroker) -> Iterator[GroupView]:
    with (
        ZookeeperStore(kafka.zookeeper) as zookeeper,
        KafkaStore(kafka.bootstrap) as store,
        KafkaCluster(kafka.bootstrap) as cluster,
    ):
        yield GroupView(ZookeeperRegistry(zookeeper.session), zookeeper, store, cluster)


def test_a_group_goes_through_all_four_safe_changes_and_no_message_is_lost_or_repeated(
    kafka: KafkaBroker, view: GroupView, make_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    topic, group = make_topic(f"t-{unique}", PARTITIONS), f"g-{unique}"
    began = time.monotonic()

    def log(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} {text}\n")

    with Load(kafka.bootstrap, topic) as load, three_members(tmp_path, kafka.zookeeper, group, topic) as fleet:

        def spec(to: CommitMode, start: CommitMode | None = None) -> BounceSpec:
            return BounceSpec(group, to, fleet.command, start=start, rules=RULES, window=WINDOW)

        def change(to: CommitMode) -> BounceResult:
            before = {m.member_id for m in fleet.members}
            result = bounce(view, spec(to), tmp_path / f"{len(fleet.restarted)}-{to.value}.json", progress=log)
            assert (result.why, result.outcome) == ("", BounceOutcome.DONE)
            assert set(fleet.restarted[-3:]) == before
            assert result.report is not None and result.report.passed
            return result

        wait_for(
            lambda: len(view.observe(group).owners) == PARTITIONS and len(fleet.seen()) > 200, "the group consumes"
        )
        # The gate rejects the direct change, and the runbook leads through dual.
        with pytest.raises(GateRefused, match=r"zookeeper -> kafka directly.*Kafka has no offset"):
            bounce(view, spec(CommitMode.KAFKA), tmp_path / "direct.json", progress=log)
        book = write_runbook(view, group, CommitMode.KAFKA, window=WINDOW)
        assert [str(change) for change in book.changes] == ["zookeeper -> dual", "dual -> kafka"]
        assert fleet.restarted == []
        # One observation cannot show that a partition is idle.
        given = write_runbook(view, group, CommitMode.KAFKA, start=CommitMode.ZOOKEEPER, window=WINDOW)
        assert [warning for warning in given.warnings if "traffic" in str(warning)] == []

        planned = plan_bounce(view, spec(CommitMode.DUAL))
        assert [s.member for s in planned.steps] == sorted(m.member_id for m in fleet.members)
        assert fleet.restarted == []

        change(CommitMode.DUAL)
        passed = check_phase(view, group, CommitMode.DUAL, baseline=book.baseline, rules=RULES, window=WINDOW)
        assert passed.passed
        change(CommitMode.KAFKA)
        # Only Kafka gets these commits: ZooKeeper falls behind on a partition that is idle afterwards.
        load.send(1, 5)
        idle = TopicPartition(topic, 1)
        wait_for(lambda: _offset(view.kafka.fetch(group)[idle]) == 15, "the five are committed")
        assert _offset(view.zookeeper.fetch(group)[idle]) == 10
        with pytest.raises(GateRefused, match=r"kafka -> zookeeper directly.*repeated"):
            bounce(view, spec(CommitMode.ZOOKEEPER), tmp_path / "direct-back.json", progress=log)

        back = change(CommitMode.DUAL)
        assert [(c.partition, c.before, c.after, c.outcome) for c in back.copies if c.partition == 1] == [
            (1, 10, 15, "written")
        ]
        assert _offset(view.zookeeper.fetch(group)[idle]) == 15
        change(CommitMode.ZOOKEEPER)
        assert len(fleet.restarted) == 12
        log("all four changes done")
        assert [n for n, times in fleet.seen().items() if times > 1] == []

        # One member is killed. It repeats at most the messages that it had consumed since its last commit.
        victim = fleet.members[0]
        victim.freeze()
        owned = view.observe(group).owned_by(victim.member_id)
        committed = view.zookeeper.fetch(group, owned)
        consumed = [m for m in victim.messages() if TopicPartition(topic, m.partition) in owned]
        uncommitted = {
            (m.partition, m.offset)
            for m in consumed
            if m.offset >= _offset(committed[TopicPartition(topic, m.partition)])
        }
        victim.kill()
        victim.start()

        sent = load.end()
        everything = {(p, n) for p, count in sent.items() for n in range(count)}
        wait_for(lambda: everything <= set(fleet.seen()), "every message is consumed")
        repeated = {message for message, times in fleet.seen().items() if times > 1}
        log(f"{len(everything)} messages, {len(uncommitted)} uncommitted at the kill, {len(repeated)} repeated")
        assert repeated <= uncommitted
        assert set(fleet.seen()) == everything


def _offset(found: object) -> int:
    assert isinstance(found, Committed), found
    return found.offset
