"""Three replicated brokers 4.4.0 without ZooKeeper, whose leaders tests move and whose processes tests kill."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from manager_cluster import in_sync, restart
from processes import wait_for

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.sandbox import KraftBroker, ports

IDS: Final = (1, 2, 3)
SETTINGS: Final[Mapping[str, object]] = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 6,
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3_000,
    "auto.leader.rebalance.enable": "false",
}
_TIMEOUT_S: Final = 60.0
_PREFERRED: Final = 0


class ThreeBrokers:
    """Broker 1 is also the controller."""

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        controller_port = ports.free_port()
        config = {**SETTINGS, **settings}
        self._brokers = [
            KraftBroker(directory / "broker1", controller_port=controller_port, config=config),
            *(
                KraftBroker(
                    directory / f"broker{number}", port=port, config=config | _follower(number, port, controller_port)
                )
                for number, port in ((number, ports.free_port()) for number in IDS[1:])
            ),
        ]
        self._restarting: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self._brokers)

    def start(self) -> None:
        first, *others = self._brokers
        first.start()
        cluster_id = _properties(first.directory / "data" / "meta.properties")["cluster.id"]
        for number, broker in zip(IDS[1:], others, strict=True):
            # A broker with this file is formatted. A new format would give the broker its own cluster id.
            (broker.directory / "data").mkdir(parents=True)
            (broker.directory / "data" / "meta.properties").write_text(
                f"version=1\ncluster.id={cluster_id}\nnode.id={number}\ndirectory.id={_random_id()}\n"
            )
            broker.start()
        wait_for(lambda: in_sync(self.bootstrap, len(IDS)), "the brokers are in sync")

    def kill(self) -> None:
        for broker in self._brokers:
            broker.kill()

    def freeze(self, broker_id: int) -> None:
        self._brokers[broker_id - 1].freeze()

    def thaw(self, broker_id: int) -> None:
        self._brokers[broker_id - 1].thaw()

    def has_on_disk(self, broker_id: int, topic: str, content: bytes) -> bool:
        """Whether the first segment of partition 0 of a topic contains these bytes on a broker's disk."""
        segment = self._brokers[broker_id - 1].directory / "data" / f"{topic}-0" / f"{0:020}.log"
        return content in segment.read_bytes()

    @property
    def restarting(self) -> bool:
        """Whether a killed broker is starting."""
        return self._restarting is not None and self._restarting.is_alive()

    def restart_one(self, broker_id: int) -> bool:
        """Kills a broker and starts it again in another thread. At most one broker may be down, so the call does
        nothing and returns False until the broker killed before is in sync again."""
        if self.restarting or not in_sync(self.bootstrap, len(IDS)):
            return False
        broker = self._brokers[broker_id - 1]
        broker.kill()
        self._restarting = threading.Thread(target=restart, args=(broker,), daemon=True)
        self._restarting.start()
        return True

    def await_restart(self) -> None:
        if self._restarting is not None:
            self._restarting.join()
        wait_for(lambda: in_sync(self.bootstrap, len(IDS)), "the brokers are in sync")

    def move_leaders(self, topic: str, leaders: Mapping[int, int]) -> bool:
        """Makes these brokers the preferred leaders of the partitions, and elects the preferred leaders. A partition
        keeps its leader if its preferred leader is not in sync. Returns False if the brokers could not be asked."""
        with contextlib.suppress(OffsetMgrError):
            asyncio.run(self._move_leaders(topic, leaders))
            return True
        return False

    async def _move_leaders(self, topic: str, leaders: Mapping[int, int]) -> None:
        client = Client(self.bootstrap, Security.of({}))
        partitions = [
            {"partition_index": partition, "replicas": [leader, *(one for one in IDS if one != leader)]}
            for partition, leader in leaders.items()
        ]
        reassign = {"timeout": round(_TIMEOUT_S * 1000), "topics": [{"name": topic, "partitions": partitions}]}
        elect = {
            "election_type": _PREFERRED,
            "topic_partitions": [{"topic": topic, "partitions": list(leaders)}],
            "timeout": round(_TIMEOUT_S * 1000),
        }
        try:
            connection = await client.any_connection(asyncio.get_running_loop().time() + _TIMEOUT_S)
            answer = await connection.call(Request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, reassign), _TIMEOUT_S)
            assert not answer["error_code"], answer
            await connection.call(Request(ApiKey.ELECT_LEADERS, 2, elect), _TIMEOUT_S)
        finally:
            await client.close()


@contextlib.contextmanager
def three_kraft_brokers(directory: Path, settings: Mapping[str, object]) -> Iterator[ThreeBrokers]:
    brokers = ThreeBrokers(directory, settings)
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.kill()


def _follower(number: int, port: int, controller_port: int) -> dict[str, object]:
    return {
        "process.roles": "broker",
        "node.id": number,
        "controller.quorum.voters": f"1@{ports.HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{ports.HOST}:{port}",
    }


def _properties(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _random_id() -> str:
    """A random id in Kafka's form: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
