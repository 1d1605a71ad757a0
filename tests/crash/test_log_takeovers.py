"""Processes take a shard group of the manager's log over from one another, while the owner before them is frozen,
killed, cut off, or appending.

No acknowledged record is lost, no offset is acknowledged to two owners, no batch of an old owner follows the claim of a
new one, and every owner has read, when it has claimed, everything that was acknowledged before. `takeover_checker`
checks the events of all owners against the raw log, which a reader follows from the first record on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from raw_log import LARGEST_EPOCH
from release_environment import CURRENT_RELEASES
from takeover_checker import Report
from takeovers import SHARD_GROUP, Takeovers
from three_kraft_brokers import IDS, three_kraft_brokers

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.client.producers import INIT_PRODUCER_ID_VERSION, init_producer_ids
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.manager.log.base import partitions_of
from offsetmgr.manager.log.kafka import transactional_id_prefix
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.sandbox.broker import DEFAULT_VERSION

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
ROUNDS = int(os.environ.get("OFFSETMGR_TAKEOVERS") or (1000 if SOAK else 8))
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
PARTITIONS = 24
"""A shard group has three partitions."""
FORGETFUL_S = 6.0
"""A time without claims after which the transaction coordinator has forgotten the transactional ids, so that the next
claim gets another producer id."""
EPOCHS_LEFT = 30
"""The number of epochs that are left for the first producer ids when a soak begins."""
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": 1 << 20,
    "segment.ms": 500,
    "min.cleanable.dirty.ratio": 0.001,
    # The log cleaner leaves a record alone for this time, in which the raw reader reads it.
    "min.compaction.lag.ms": 4000,
    "max.compaction.lag.ms": 4000,
    "delete.retention.ms": 1000,
}
BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 1000,
    "transactional.id.expiration.ms": 4_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "connections.max.idle.ms": 30_000,
}

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(3600 if SOAK else 900)]


def create_topic(bootstrap: str, name: str, replicas: int) -> None:
    settings = {key: str(value) for key, value in TOPIC_SETTINGS.items()}
    settings["min.insync.replicas"] = str(min(replicas, 2))
    topic = NewTopic(name, PARTITIONS, replicas, config=settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic], operation_timeout=30)[name].result(60)


@contextlib.contextmanager
def own_broker(release: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """A broker whose log cleaner and transaction coordinator are quick."""
    broker: KafkaBroker | KraftBroker
    if release == DEFAULT_VERSION:
        zookeeper = request.getfixturevalue("zookeeper")
        chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
        broker = KafkaBroker(directory / "broker", zookeeper=chroot, config=BROKER_SETTINGS)
    else:
        broker = KraftBroker(directory / "broker", config=BROKER_SETTINGS, version=release)
    with broker:
        yield broker.bootstrap


@pytest.fixture(params=CURRENT_RELEASES)
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if SOAK:
        with own_broker(request.param, request, tmp_path) as own:
            yield own
    else:
        yield request.getfixturevalue("kafka" if request.param == DEFAULT_VERSION else "kraft").bootstrap


def exhaust_epochs(bootstrap: str, topic: str) -> None:
    """Requests epochs for the transactional ids of the shard group until few are left. After the last epoch the
    coordinator returns another producer id."""

    async def exhaust() -> None:
        client = Client(bootstrap, Security.of({}))
        try:
            deadline = asyncio.get_running_loop().time() + 120
            names = [f"{transactional_id_prefix(topic)}{p}" for p in partitions_of(SHARD_GROUP, PARTITIONS)]
            await init_producer_ids(client, dict.fromkeys(names), deadline)  # until the coordinator has started
            connection = await client.any_connection(deadline)
            await asyncio.gather(*(request_epochs(connection, name) for name in names))
        finally:
            await client.close()

    asyncio.run(exhaust())


async def request_epochs(connection: BrokerConnection, name: str) -> None:
    message = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    epoch = -1
    while epoch < LARGEST_EPOCH - EPOCHS_LEFT:
        answer = await connection.call(Request(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, message), 60)
        assert not answer["error_code"], answer
        epoch = answer["producer_epoch"]


def test_no_take_over_loses_or_doubles_an_acknowledged_record(bootstrap: str, tmp_path: Path, unique: str) -> None:
    create_topic(bootstrap, unique, 1)
    if SOAK:
        exhaust_epochs(bootstrap, unique)

    with Takeovers(tmp_path, bootstrap, unique, PARTITIONS, SEED) as takeovers:

        def before_round(number: int, dice: random.Random) -> None:
            if SOAK and number % 50 == 49:
                takeovers.pause(FORGETFUL_S)

        takeovers.run(ROUNDS, before_round)
        report = takeovers.finish()
        stored = report_run(takeovers, report)
    assert not report.violations, "\n".join(report.violations[:9])
    assert not takeovers.false_alarms
    assert report.takeovers >= 0.5 * ROUNDS
    if SOAK:
        assert stored < 0.5 * takeovers.records
        assert takeovers.producer_ids > 1 + ROUNDS // 100, "epochs ran out, and transactional ids were forgotten"


@pytest.mark.soak
def test_no_take_over_loses_a_record_while_leaders_change_and_brokers_die(tmp_path: Path, unique: str) -> None:
    with three_kraft_brokers(tmp_path, BROKER_SETTINGS) as brokers:
        create_topic(brokers.bootstrap, unique, 3)
        moved, killed = 0, 0

        def before_round(number: int, dice: random.Random) -> None:
            nonlocal moved, killed
            if number % 5 == 4 and not brokers.restarting:
                leaders = {p: dice.choice(IDS) for p in partitions_of(SHARD_GROUP, PARTITIONS)}
                moved += brokers.move_leaders(unique, leaders)
            if number % 20 == 19:
                killed += brokers.restart_one(dice.choice(IDS))

        with Takeovers(tmp_path, brokers.bootstrap, unique, PARTITIONS, SEED) as takeovers:
            takeovers.run(ROUNDS, before_round)
            brokers.await_restart()
            report = takeovers.finish()
            stored = report_run(takeovers, report)
            sys.stdout.write(f"leaders moved {moved} times, {killed} brokers killed\n")
    assert not report.violations, "\n".join(report.violations[:9])
    assert not takeovers.false_alarms
    assert report.takeovers >= 0.5 * ROUNDS
    assert stored < 0.5 * takeovers.records
    assert moved and killed


def report_run(takeovers: Takeovers, report: Report) -> int:
    """Prints what happened. Returns the number of records that the log cleaner has left."""
    stored = sum(len(records) for records in takeovers.stored_records().values())
    sys.stdout.write(f"\nseed {SEED}: {report}\ndisturbances of owners: {dict(takeovers.disturbances)}\n")
    sys.stdout.write(f"{stored} of {takeovers.records} records left after compaction, ")
    sys.stdout.write(f"{takeovers.producer_ids} producer ids of a partition\n")
    return stored
