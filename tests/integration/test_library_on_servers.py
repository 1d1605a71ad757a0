"""`OffsetAdmin` and `Migration` on servers: undo, other clusters, interruptions, and two processes with one plan."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from same_cluster import join_cluster

from offsetmgr import (
    CommitMode,
    Committed,
    ConnectionConfig,
    KafkaCluster,
    Migration,
    MigrationConfig,
    OffsetAdmin,
    PlanOptions,
    ToEarliest,
    TopicPartition,
    errors,
    open_store,
)
from offsetmgr.period import PeriodCoordinator, PeriodSchedule
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import OperationState, SetData

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
def servers(
    unique: str,
    tmp_path: Path,
    kafka: KafkaBroker,
    zookeeper: ZooKeeperServer,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Servers]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    topic = make_topic(f"orders-{unique}", 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(5):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
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


def test_an_edit_of_a_dual_store_is_undone_in_both_stores(servers: Servers) -> None:
    commit(servers.kafka, servers, 5)
    commit(servers.zookeeper, servers, 3)
    config = ConnectionConfig(stores={"both": {"primary": servers.kafka, "secondary": servers.zookeeper}})
    with OffsetAdmin("dual:both", config=config) as admin:
        report = admin.plan_set(servers.group, {servers.tp: 1}).execute()
        assert (servers.offset(servers.kafka), servers.offset(servers.zookeeper)) == (1, 1)
        assert [admin.plan_undo(path).execute().written for path in report.before_images] == [1, 1]
    assert (servers.offset(servers.kafka), servers.offset(servers.zookeeper)) == (5, 3)


def test_the_lag_is_unknown_if_nothing_shows_which_store_was_written_last(servers: Servers) -> None:
    commit(servers.zookeeper, servers, 1)
    commit(servers.kafka, servers, 4)
    with OffsetAdmin(servers.zookeeper, bootstrap_server=servers.brokers) as admin:
        (found,) = admin.lag(servers.group, servers.tp)
        assert [(row.lag, row.note) for row in found.rows] == [(None, "maybe older than Kafka's 4")]


def test_brokers_of_another_cluster_give_no_lag_and_no_reset(servers: Servers) -> None:
    commit(servers.zookeeper, servers, 1)
    connect = servers.zookeeper.removeprefix("zookeeper://")
    with ZookeeperSession(connect) as session:
        other = b'{"version":"1","id":"AAAAAAAAAAAAAAAAAAAAAA"}'
        assert session.transaction([SetData("/cluster/id", other, 0)]).state is OperationState.COMMITTED
    with OffsetAdmin(servers.zookeeper, bootstrap_server=servers.brokers) as admin:
        for call in (lambda: list(admin.lag()), lambda: admin.plan_reset("*", ToEarliest())):
            with pytest.raises(errors.OtherCluster):
                call()
    with OffsetAdmin(servers.zookeeper) as admin:
        (found,) = admin.lag()
        assert [row.lag for row in found.rows] == [None]


def test_a_group_with_members_is_a_problem_of_the_plan(servers: Servers) -> None:
    commit(servers.kafka, servers, 3)
    consumer = Consumer({"bootstrap.servers": servers.brokers, "group.id": servers.group, "enable.auto.commit": False})
    consumer.subscribe([servers.topic])
    while not consumer.assignment():
        consumer.poll(0.2)
    with OffsetAdmin(servers.kafka) as admin:
        plan = admin.plan_reset(servers.group, ToEarliest())
        assert isinstance(plan.problems[servers.group], errors.GroupActive)
        report = plan.execute()
        assert (report.written, report.rejected, report.ok) == (0, 1, False)
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


def test_servers_that_do_not_answer_are_unreachable_within_the_timeout() -> None:
    quick = ConnectionConfig(timeout_ms=1_000)
    for uri in ("kafka://127.0.0.1:1", "zookeeper://127.0.0.1:1"):
        with OffsetAdmin(uri, config=quick) as admin:
            for call in (admin.groups, lambda: list(admin.lag("shop")), lambda: admin.plan_delete("shop")):
                with pytest.raises(errors.Unreachable):
                    call()


def test_a_check_of_a_phase_opens_its_connections_once(servers: Servers) -> None:
    commit(servers.zookeeper, servers, 1)
    with OffsetAdmin(servers.zookeeper, bootstrap_server=servers.brokers) as admin:
        reports = [admin.check_phase(servers.group, CommitMode.KAFKA) for _ in range(2)]
        assert [report.passed for report in reports] == [False, False]
        view = admin._view
        admin.check_phase(servers.group, CommitMode.KAFKA)
        assert admin._view is view


# --- migrations ------------------------------------------------------------------------------------


@pytest.fixture
def migration(servers: Servers, tmp_path: Path) -> Iterator[Migration]:
    commit(servers.zookeeper, servers, 3)
    options = PlanOptions(groups=(servers.group,))
    with Migration.plan(servers.zookeeper, servers.kafka, tmp_path / "shop.plan", options) as planned:
        yield planned


def test_a_second_process_cannot_execute_the_same_plan(migration: Migration, servers: Servers, tmp_path: Path) -> None:
    program = (
        f"from offsetmgr import Migration, errors\ntry: Migration({str(tmp_path / 'shop.plan')!r}).apply()\n"
        "except errors.JournalError as error: print('refused:', error)"
    )

    def stop() -> bool:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout.startswith("refused: "), done
        return False

    assert migration.apply(stop=stop).written == 1
    assert servers.offset(servers.kafka) == 3


def test_an_apply_that_is_interrupted_is_continued(migration: Migration, servers: Servers, tmp_path: Path) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migration.apply(stop=interrupt)
    with Migration(tmp_path / "shop.plan") as again:
        assert again.apply().written == 1
        assert again.apply().skipped == 1
        assert again.rollback().ok
    assert servers.offset(servers.kafka) is None


def test_a_rollback_reports_offsets_that_the_journal_does_not_record(
    migration: Migration, servers: Servers, tmp_path: Path
) -> None:
    """A journal that lost its end looks like one of an apply that was stopped: only the target shows the difference."""
    second = f"{servers.group}-2"
    commit(servers.zookeeper, servers, 2, second)
    options = PlanOptions(groups=(servers.group, second))
    path = tmp_path / "two.plan"
    with Migration.plan(servers.zookeeper, servers.kafka, path, options) as both:
        assert both.apply().written == 2
        journal = path.with_name("two.plan.journal")
        lines = journal.read_bytes().splitlines(keepends=True)
        end = next(at for at, line in enumerate(lines) if second.encode() in line)
        journal.write_bytes(b"".join(lines[:end]))
        report = both.rollback()
    assert not report.ok
    assert report.differing == 1
    assert (report.differences[0].group, report.differences[0].now) == (second, 2)


def test_after_the_cutover_a_reverse_plan_copies_the_present_offsets_back(
    migration: Migration, servers: Servers, tmp_path: Path
) -> None:
    assert migration.apply().ok
    commit(servers.kafka, servers, 5)
    assert migration.finalize(window_s=1).verified == 1
    with pytest.raises(errors.GateRefused):
        migration.rollback()
    with migration.plan_reverse(tmp_path / "back.plan") as back:
        assert back.apply().written == 1
    assert servers.offset(servers.zookeeper) == 5


def test_a_closed_migration_is_a_usage_error(migration: Migration) -> None:
    migration.close()
    migration.close()
    for call in (migration.apply, migration.verify, migration.rollback, migration.finalize):
        with pytest.raises(errors.UsageError, match="was closed"):
            call()


def test_a_file_is_migrated_only_where_the_target_is_behind(servers: Servers, tmp_path: Path) -> None:
    commit(servers.kafka, servers, 3)
    with OffsetAdmin(servers.kafka) as admin:
        admin.write_snapshot(tmp_path / "saved.avro", servers.group)
    commit(servers.kafka, servers, 4)
    config = MigrationConfig(both=ConnectionConfig(timeout_ms=20_000))
    source = f"file:{tmp_path / 'saved.avro'}"
    with Migration.plan(source, servers.kafka, tmp_path / "file.plan", config=config) as planned:
        assert (planned.summary.writes, planned.summary.refused) == (0, 1)


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
