"""`SimpleConsumer` under faults, and with an offset manager as the coordinator.

Leaders move, brokers stop, freeze and return, coordinators load or are the wrong one, and groups have members.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import confluent_kafka as ck
import pytest
from backend_listeners import ManagerListener
from confluent_kafka.admin import AdminClient
from memory_listener import MemoryBackend, MemoryListener
from processes import create_topic, produce, wait_for
from stopwatch import Stopwatch

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer import EARLIEST, LATEST, SimpleConsumer
from offsetmgr.core import errors
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.kafka import KafkaStore


def consumer(bootstrap: str, seconds: float = 30, **options: str) -> SimpleConsumer:
    config = ConnectionConfig(timeout_ms=round(seconds * 1000))
    return SimpleConsumer(bootstrap, config=config, **options)  # type: ignore[arg-type]


# --- two brokers for this module ------------------------------------------------------------------


class Pair(NamedTuple):
    """Two brokers. Both have a replica of ``moving``. Each partition in ``alone`` has a replica on one of them only."""

    brokers: list[KafkaBroker]
    moving: TopicPartition
    alone: list[TopicPartition]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)


def leader_of(bootstrap: str, topic: str) -> int:
    """The broker that leads the topic's only partition. Waits until the queried broker knows a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    leader = -1

    def known() -> bool:
        nonlocal leader
        partition = admin.list_topics(topic, timeout=60).topics[topic].partitions.get(0)
        leader = -1 if partition is None else int(partition.leader)
        return leader >= 0

    wait_for(known, f"{topic} has a leader")
    return leader


@pytest.fixture(scope="module")
def pair(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    chroot = f"{zookeeper.connect}/{directory.name}-{os.getpid()}"
    settings: dict[str, object] = {
        "offsets.topic.num.partitions": 2,
        "offsets.topic.replication.factor": 1,
        "auto.leader.rebalance.enable": "false",
    }
    brokers = [
        KafkaBroker(directory / str(number), zookeeper=chroot, broker_id=number, config=settings) for number in range(2)
    ]
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda broker: broker.start(), brokers))
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        names: dict[int, str] = {}
        for number in range(20):  # the controller chooses the broker
            name = create_topic(bootstrap, f"alone-{number}", 1)
            names.setdefault(leader_of(bootstrap, name), name)
            if len(names) == 2:
                break
        moving = create_topic(bootstrap, "moving", 1, replicas=2)
        for name in (*names.values(), moving):
            produce(bootstrap, name, [b"one", b"two", b"three"])
            for broker in brokers:  # the brokers learn of a new topic at different times
                leader_of(broker.bootstrap, name)
        yield Pair(brokers, TopicPartition(moving, 0), [TopicPartition(names[n], 0) for n in range(2)])
    finally:
        for broker in brokers:
            broker.stop()


def values(fetched: object) -> list[bytes | None]:
    return [record.value for record in fetched.records]  # type: ignore[attr-defined]


def reads(ours: SimpleConsumer, tp: TopicPartition) -> list[bytes | None]:
    """The values in the partition, or none if the fetch times out."""
    try:
        return values(ours.fetch({tp: 0})[tp])
    except errors.TimedOut:
        return []


def reads_on(ours: SimpleConsumer, offsets: dict[TopicPartition, int], end: int) -> dict[TopicPartition, object]:
    """Fetches until all high watermarks are ``end``. A broker that has just become the leader may still return the high
    watermark that it stored last, or 0 if it was killed before it stored one."""
    got: dict[TopicPartition, object] = {}

    def complete() -> bool:
        got.update(ours.fetch(offsets))
        return all(fetched.high_watermark == end for fetched in got.values())  # type: ignore[attr-defined]

    wait_for(complete, f"the high watermarks are {end}")
    return got


@pytest.mark.servers
@pytest.mark.matrix
def test_a_fetch_follows_a_moved_leader_and_reads_other_partitions_meanwhile(pair: Pair) -> None:
    leader = leader_of(pair.bootstrap, pair.moving.topic)
    other = pair.alone[1 - leader]
    with consumer(pair.bootstrap) as ours:
        assert values(ours.fetch({pair.moving: 1})[pair.moving]) == [b"two", b"three"]
        pair.brokers[leader].stop()
        try:
            got = reads_on(ours, {pair.moving: 1, other: 2}, 3)

            assert values(got[pair.moving]) == [b"two", b"three"]
            assert values(got[other]) == [b"three"]
            assert leader_of(pair.brokers[1 - leader].bootstrap, pair.moving.topic) == 1 - leader
            assert ours.get_offsets_before([pair.moving], LATEST) == {pair.moving: (3,)}
        finally:
            pair.brokers[leader].start()


@pytest.mark.servers
@pytest.mark.matrix
def test_a_stopped_broker_is_reported_and_a_waiting_fetch_completes_once_it_is_back(pair: Pair) -> None:
    up, down = pair.alone
    groups = [f"g{number}" for number in range(8)]
    with consumer(pair.bootstrap) as ours:
        for number, group in enumerate(groups):
            ours.commit_offsets(group, {up: OffsetAndMetadata(number)})
        pair.brokers[1].kill()
        try:
            with consumer(pair.bootstrap, 5) as hasty, pytest.raises(errors.PartialFailure) as caught:
                hasty.fetch({up: 0, down: 0})
            assert values(caught.value.successes[up]) == [b"one", b"two", b"three"]
            assert [type(e).retriable for e in caught.value.failures.values()] == [True]

            with ThreadPoolExecutor(10) as pool:
                fetching = pool.submit(ours.fetch, {up: 0, down: 0})
                reading = [pool.submit(ours.fetch_offsets, group, [up]) for group in groups]
                committing = pool.submit(ours.commit_offsets, "late", {down: OffsetAndMetadata(2)})
                assert not fetching.done()
                pair.brokers[1].start()
                assert fetching.result(90).keys() == {up, down}
                assert values(reads_on(ours, {down: 0}, 3)[down]) == [b"one", b"two", b"three"]
                # Some groups' coordinators never stopped, and the others load the committed offsets.
                assert [read.result(90)[up] for read in reading] == [Committed(n) for n in range(8)]
                committing.result(90)
            assert ours.fetch_offsets("late") == {down: Committed(2)}
        finally:
            if not pair.brokers[1].running():
                pair.brokers[1].start()


@pytest.mark.servers
@pytest.mark.matrix
def test_a_frozen_broker_causes_a_timeout_and_partitions_of_the_other_broker_are_read(pair: Pair) -> None:
    up, frozen = pair.alone
    # All timeouts together are shorter than the session after which the controller considers the broker dead.
    with consumer(pair.bootstrap, 1.5) as ours, consumer(pair.brokers[1].bootstrap, 0.5) as alone:
        wait_for(
            lambda: reads(ours, frozen) == reads(alone, frozen) == [b"one", b"two", b"three"], "both are connected"
        )
        pair.brokers[1].freeze()
        try:
            with Stopwatch() as watch, pytest.raises(errors.PartialFailure) as caught:
                ours.fetch({up: 2, frozen: 0})
            for call in (
                lambda: alone.fetch({frozen: 0}),
                lambda: alone.get_offsets_before([frozen], EARLIEST),
                lambda: alone.fetch_offsets("g"),
            ):
                with pytest.raises(errors.TimedOut):
                    call()
        finally:
            pair.brokers[1].thaw()
    assert {tp: type(e) for tp, e in caught.value.failures.items()} == {frozen: errors.TimedOut}
    assert values(caught.value.successes[up]) == [b"three"]
    assert watch.seconds < 15
    wait_for(lambda: leader_of(pair.bootstrap, frozen.topic) == 1, "the thawed broker leads again")


# --- waiting for messages -------------------------------------------------------------------------


@pytest.mark.servers
def test_a_fetch_waits_for_bytes_and_others_are_served_meanwhile(kafka, make_topic, unique) -> None:
    tp = TopicPartition(make_topic(unique), 0)
    with consumer(kafka.bootstrap) as ours, ThreadPoolExecutor(1) as pool:
        assert ours.fetch({tp: 0}, max_wait_ms=50, min_bytes=1)[tp].records == ()
        waiting = pool.submit(ours.fetch, {tp: 0}, max_wait_ms=20_000, min_bytes=1)
        assert ours.get_offsets_before([tp], LATEST) == {tp: (0,)}
        assert not waiting.done()

        produce(kafka.bootstrap, unique, [b"at last"])

        assert values(waiting.result(90)[tp]) == [b"at last"]


@pytest.mark.servers
def test_transactions_leave_gaps_and_aborted_messages_are_read_as_by_old_consumers(kafka, make_topic, unique) -> None:
    tp = TopicPartition(make_topic(unique), 0)
    producer = ck.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique})
    producer.init_transactions(30)
    for value, end in ((b"kept", producer.commit_transaction), (b"aborted", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(unique, value)
        producer.flush(10)
        end(30)

    with consumer(kafka.bootstrap) as ours:
        # The broker writes the end marker after it has answered the producer.
        wait_for(lambda: ours.get_offsets_before([tp], LATEST) == {tp: (4,)}, "the second transaction has ended")

        got = ours.fetch({tp: 0})[tp]

        assert [(r.offset, r.value) for r in got.records] == [(0, b"kept"), (2, b"aborted")]
        assert (got.next_offset, got.high_watermark) == (4, 4)
        # The end marker of a transaction is not a message, and a fetch continues after it.
        marker = ours.fetch({tp: 3})[tp]
        assert (marker.records, marker.next_offset) == ((), 4)


@pytest.mark.servers
def test_brokers_from_4_0_on_return_one_offset_and_reject_a_request_for_more(kraft, make_topic, unique) -> None:
    tp = TopicPartition(make_topic(unique, bootstrap=kraft.bootstrap), 0)
    produce(kraft.bootstrap, unique, [b"one", b"two"])
    with consumer(kraft.bootstrap) as ours:
        assert values(ours.fetch({tp: 1})[tp]) == [b"two"]
        assert ours.get_offsets_before([tp], LATEST) == {tp: (2,)}
        assert ours.get_offsets_before([tp], EARLIEST) == {tp: (0,)}
        for when, most in ((LATEST, 2), (EARLIEST, 2), (1_700_000_000_000, 1)):
            with pytest.raises(errors.UnsupportedOperation) as caught:
                ours.get_offsets_before([tp], when, most)
            assert caught.value.why.endswith("does not list segments: Kafka 4.0 removed that (ListOffsets version 0)")
        assert ours.fetch({tp: 9}, out_of_range="earliest")[tp].fetch_offset == 0


# --- coordinators ---------------------------------------------------------------------------------


@pytest.mark.servers
def test_offsets_go_to_an_offset_manager_and_not_to_the_brokers(kafka, make_topic, unique) -> None:
    tp, uncommitted = TopicPartition(make_topic(unique), 0), TopicPartition(unique, 1)
    with (
        ManagerListener(kafka.bootstrap, f"{unique}-offsets") as manager,
        consumer(kafka.bootstrap, offset_managers=manager.bootstrap) as ours,
        consumer(kafka.bootstrap) as brokers,
    ):
        at = ours.find_coordinator(unique)
        assert str(at) == manager.bootstrap

        ours.commit_offsets(unique, {tp: OffsetAndMetadata(5, "found")})
        assert brokers.fetch_offsets(unique, [tp], coordinator=at) == {tp: Committed(5, "found")}
        brokers.commit_offsets(unique, {tp: OffsetAndMetadata(6, "named")}, coordinator=manager.bootstrap)

        assert ours.fetch_offsets(unique, [tp, uncommitted]) == {tp: Committed(6, "named"), uncommitted: ABSENT}
        assert brokers.fetch_offsets(unique, [tp]) == {tp: ABSENT}
        assert ours.fetch({tp: 0})[tp].high_watermark == 0
    with KafkaStore(kafka.bootstrap) as store:
        assert dict(store.fetch(unique)) == {}


@pytest.mark.servers
def test_a_group_with_members_rejects_commits_of_other_clients(kafka, make_topic, unique) -> None:
    tp = TopicPartition(make_topic(unique), 0)
    member = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique, "log_level": 0})
    try:
        member.subscribe([unique])
        wait_for(lambda: member.poll(0.1) is None and bool(member.assignment()), "the member is assigned")
        with consumer(kafka.bootstrap) as ours:
            with pytest.raises(errors.GroupActive) as caught:
                ours.commit_offsets(unique, {tp: OffsetAndMetadata(1)})
            assert caught.value.hint == "while a group has members, only they may commit; stop the members first"
            assert ours.fetch_offsets(unique, [tp]) == {tp: ABSENT}
    finally:
        member.close()


def test_requests_wait_for_a_loading_coordinator() -> None:
    tp = TopicPartition("t", 0)
    backend = MemoryBackend()
    backend.offsets["g"] = {"t": {0: (42, -1, "")}}
    backend.errors["g"] = 14
    with MemoryListener(backend) as listening, consumer(listening.bootstrap) as ours, ThreadPoolExecutor(2) as pool:
        fetching = pool.submit(ours.fetch_offsets, "g", [tp])
        named = pool.submit(ours.commit_offsets, "g", {tp: OffsetAndMetadata(43)}, coordinator=listening.bootstrap)
        with pytest.raises(TimeoutError):
            fetching.result(0.2)
        assert not named.done()
        backend.errors.clear()
        named.result(90)
        assert fetching.result(90)[tp] in (Committed(42), Committed(43))
        assert ours.fetch_offsets("g") == {tp: Committed(43)}


def test_a_coordinator_is_retried_until_the_timeout_and_a_named_one_never_replaced_by_another() -> None:
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}
    wrong, right = MemoryBackend(), MemoryBackend()
    wrong.errors = {"g": 16, "loading": 14}
    with MemoryListener(wrong) as named, MemoryListener(right) as known:
        with consumer(known.bootstrap, 2) as ours, pytest.raises(errors.NotCoordinator):
            ours.commit_offsets("g", offsets, coordinator=named.bootstrap)
        assert (wrong.commits >= 2, right.commits) == (True, 0)
        with consumer(named.bootstrap, 2) as hasty:
            with pytest.raises(errors.CoordinatorLoadInProgress):
                hasty.fetch_offsets("loading", list(offsets))
            with pytest.raises(errors.CoordinatorLoadInProgress):
                hasty.commit_offsets("loading", offsets)


def test_closing_ends_the_calls_of_other_threads() -> None:
    backend = MemoryBackend()
    backend.errors["g"] = 14
    with MemoryListener(backend) as listening, ThreadPoolExecutor(1) as pool:
        ours = consumer(listening.bootstrap)
        waiting = pool.submit(ours.fetch_offsets, "g")
        with pytest.raises(TimeoutError):
            waiting.result(0.2)

        ours.close()

        with pytest.raises(errors.Unreachable, match="this client was closed"):
            waiting.result(90)


def test_a_partial_commit_reports_the_committed_and_the_rejected_partitions() -> None:
    good, bad = TopicPartition("t", 0), TopicPartition("t", 1)
    backend = MemoryBackend()
    backend.partition_errors["t", 1] = 12
    with MemoryListener(backend) as listening, consumer(listening.bootstrap) as ours:
        with pytest.raises(errors.PartialFailure) as caught:
            ours.commit_offsets("g", {good: OffsetAndMetadata(7), bad: OffsetAndMetadata(8, "x")})

        assert caught.value.successes == {good: OffsetAndMetadata(7)}
        assert {tp: error.name for tp, error in caught.value.failures.items()} == {bad: "OFFSET_METADATA_TOO_LARGE"}
        assert ours.fetch_offsets("g") == {good: Committed(7)}


# --- no server ------------------------------------------------------------------------------------


def test_a_dead_server_is_unreachable_at_once() -> None:
    with Stopwatch() as watch, consumer("127.0.0.1:1", 300) as ours:
        for call in (
            lambda: ours.fetch({TopicPartition("t", 0): 0}),
            lambda: ours.get_offsets_before([TopicPartition("t", 0)], LATEST),
            lambda: ours.find_coordinator("g"),
            lambda: ours.fetch_offsets("g"),
            lambda: ours.commit_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(1)}, coordinator="127.0.0.1:1"),
        ):
            with pytest.raises(errors.Unreachable):
                call()
    assert watch.seconds < 60


def test_invalid_calls_are_rejected_and_empty_calls_send_no_request() -> None:
    ours = consumer("127.0.0.1:1")
    tp = TopicPartition("t", 0)

    assert (ours.fetch({}), ours.get_offsets_before([], LATEST), ours.fetch_offsets("g", [])) == ({}, {}, {})
    ours.commit_offsets("g", {})
    for wrong in (
        lambda: ours.fetch({tp: 0}, max_bytes=0),
        lambda: ours.fetch({tp: 0}, max_wait_ms=-1),
        lambda: ours.fetch({tp: 0}, out_of_range="smallest"),  # type: ignore[arg-type]
        lambda: ours.get_offsets_before([tp], LATEST, 0),
        lambda: SimpleConsumer("h:9092", out_of_range="none"),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.UsageError):
            wrong()
    ours.close()
    ours.close()
    with pytest.raises(errors.UsageError, match="closed"):
        ours.fetch({tp: 0})
