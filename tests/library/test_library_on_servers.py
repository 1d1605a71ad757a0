"""`OffsetAdmin` and `Migration` on servers: undo, other clusters, interruptions, and two processes with one plan."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer
from processes import fill
from same_cluster import join_cluster

from offsetmgr import (
    Committed,
    KafkaCluster,
    Migration,
    OffsetAdmin,
    PlanOptions,
    ToEarliest,
    TopicPartition,
    errors,
    open_store,
)
from offsetmgr.period import PeriodCoordinator, PeriodSchedule
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers


class Servers(NamedTuple):
    """The stores of one test: a ZooKeeper chroot of the broker's cluster, the broker, and a topic with 5 records."""

    zookeeper: str
    kafka: str
    brokers: str
    topic: str
    group: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def offset(self, uri: str, group: str = "") -> int | None:
        with open_store(uri) as store:
            found = store.fetch(group or self.group, [self.tp])[self.tp]
            return found.offset if isinstance(found, Committed) else None


@pytest.fixture
def servers(unique, tmp_path, kafka: KafkaBroker, zookeeper, make_topic, monkeypatch) -> Iterator[Servers]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    topic = make_topic(f"orders-{unique}", 1)
    fill(kafka.bootstrap, topic, 5)
    chroot = f"{zookeeper.connect}/{unique}"
    join_cluster(chroot, kafka.bootstrap)
    yield Servers(f"zookeeper://{chroot}", f"kafka://{kafka.bootstrap}", kafka.bootstrap, topic, f"shop-{unique}")


def commit(uri: str, servers: Servers, offset: int, group: str = "") -> None:
    with OffsetAdmin(uri) as admin:
        assert admin.plan_set(group or servers.group, {servers.tp: offset}, create=True).execute().ok


def test_a_copy_to_another_store_is_undone_there(servers: Servers) -> None:
    commit(servers.kafka, servers, 3)
    with OffsetAdmin(servers.kafka) as admin:
        plan = admin.plan_copy(servers.group, servers.group, to=servers.zookeeper)
        assert plan.comparison.startswith("the same on both sides")
        (path,) = plan.execute().before_images
        assert servers.offset(servers.zookeeper) == 3
        assert admin.plan_undo(path).execute().written == 1
    assert servers.offset(servers.zookeeper) is None
    assert servers.offset(servers.kafka) == 3
    with OffsetAdmin(servers.kafka) as admin, pytest.raises(errors.UsageError, match="was made in zookeeper:"):
        admin.plan_undo(path)


def test_a_group_with_members_is_a_problem_of_the_plan(servers: Servers) -> None:
    commit(servers.kafka, servers, 3)
    consumer = Consumer({"bootstrap.servers": servers.brokers, "group.id": servers.group, "enable.auto.commit": False})
    consumer.subscribe([servers.topic])
    while not consumer.assignment():
        consumer.poll(0.2)
    with OffsetAdmin(servers.kafka) as admin:
        plan = admin.plan_reset(servers.group, ToEarliest())
        assert isinstance(plan.problems[servers.group], errors.GroupActive)
        with pytest.raises(errors.GroupsFailed) as refused:
            plan.execute()
        assert (refused.value.report.written, refused.value.report.rejected) == (0, 1)
        (described,) = admin.describe(servers.group)
        assert [row.owner is not None for row in described.partitions] == [True]
    consumer.close()


def test_an_edit_that_is_interrupted_leaves_no_lock_behind(servers: Servers) -> None:
    other = TopicPartition(servers.topic, 1)
    with OffsetAdmin(servers.kafka) as admin:
        plan = admin.plan_set(servers.group, {servers.tp: 3, other: 3}, create=True)

        def interrupt(_path: Path) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            plan.execute(on_durable=interrupt)
        assert plan.report is not None
        assert plan.report.before_images
        assert admin.plan_set(servers.group, {servers.tp: 2}, create=True).execute().written == 1


# --- migrations ------------------------------------------------------------------------------------


def test_a_closed_migration_is_a_usage_error(servers: Servers, tmp_path: Path) -> None:
    commit(servers.zookeeper, servers, 3)
    options = PlanOptions(groups=(servers.group,))
    with Migration.plan(servers.zookeeper, servers.kafka, tmp_path / "shop.plan", options) as migration:
        migration.close()
    for call in (migration.apply, migration.verify, migration.rollback, migration.finalize):
        with pytest.raises(errors.UsageError, match="was closed"):
            call()


# --- threads (docs/reference/api.md) ---------------------------------------------------------------


def test_several_threads_use_one_cluster(servers: Servers) -> None:
    with KafkaCluster(servers.brokers) as cluster, ThreadPoolExecutor(8) as pool:
        ranges = list(pool.map(lambda _: cluster.log_ranges([servers.tp])[servers.tp], range(40)))
        assert set(ranges) == {(0, 5)}


def test_several_admins_work_at_the_same_time_in_threads_of_an_asynchronous_program(servers: Servers) -> None:
    def edit(number: int) -> bool:
        with OffsetAdmin(servers.kafka) as admin:
            return admin.plan_set(f"{servers.group}-{number}", {servers.tp: number}, create=True).execute().ok

    async def program() -> list[bool]:
        return await asyncio.gather(*(asyncio.to_thread(edit, number) for number in range(6)))

    assert asyncio.run(program()) == [True] * 6
    assert [servers.offset(servers.kafka, f"{servers.group}-{number}") for number in range(6)] == list(range(6))


def test_several_threads_use_one_period_coordinator(servers: Servers) -> None:
    partitions = [TopicPartition(servers.topic, number) for number in range(4)]
    connect = servers.zookeeper.removeprefix("zookeeper://")
    schedule = PeriodSchedule(first_ms=0, length_ms=1_000)
    member = PeriodCoordinator(connect, "/periods", "worker", schedule, lambda: partitions, owned=partitions)
    with member, ThreadPoolExecutor(4) as pool:

        def work(tp: TopicPartition) -> list[int]:
            numbers = []
            for number in range(5):
                assert member.check_limit(number * 1_000, tp)
                member.finished([tp], number)
                numbers.append(member.wait(number, timeout_s=90).number)
            return numbers

        assert list(pool.map(work, partitions)) == [[1, 2, 3, 4, 5]] * 4
