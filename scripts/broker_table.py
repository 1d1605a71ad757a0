"""The implementation of `scripts/broker_table`: tries each capability on a real broker of each release."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import AuthenticationFailed, OffsetMgrError, PartialFailure, UnsupportedOperation, value_of
from offsetmgr.core.model import Committed, GroupDescription, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.releases import CAPABILITIES, Capability
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, create_topic
from offsetmgr.sandbox.broker import BROKER_JARS, DEFAULT_VERSION, NEWEST_VERSION
from offsetmgr.segments.committed_offsets import SavedOffset
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.offsets_topic import KafkaOffsetsTopic
from offsetmgr.stores.share_groups import ShareGroupStore

FILE: Final = Path(__file__).parents[1] / "docs" / "reference" / "brokers.md"
BEGIN, END = "<!-- scripts/broker_table -->\n", "<!-- end -->\n"
TP: Final = TopicPartition("tried", 0)
_ADDRESS: Final = re.compile(r"(broker )?127\.0\.0\.1:\d+(: )?")


class CapabilityMissing(Exception):
    """The broker lacks the capability, and offsetmgr does something else instead."""


@dataclass
class Broker:
    """A broker of one release with a topic of one partition, and offsetmgr's connections to it."""

    bootstrap: str
    store: KafkaStore
    cluster: KafkaCluster

    def commit(self, group: str, offset: int = 5, epoch: int | None = None) -> None:
        self.store.commit(group, {TP: OffsetAndMetadata(offset, leader_epoch=epoch)})

    def held(self, group: str) -> Committed | None:
        found = self.store.fetch(group).get(TP)
        return found if isinstance(found, Committed) else None

    # --- one method for each capability: it raises an error unless the capability works ---------------

    def reads_committed_offsets(self) -> None:
        self.commit("read")
        assert isinstance(self.store.fetch("read", [TP])[TP], Committed)

    def commits_offsets(self) -> None:
        self.commit("committed")

    def reads_all_offsets_of_a_group(self) -> None:
        self.commit("all")
        assert self.held("all") is not None
        self._unless(releases.READS_ALL_OFFSETS)

    def describes_members(self) -> None:
        self.commit("described")
        found = self.cluster.describe_groups(["described"])["described"]
        assert isinstance(found, GroupDescription)
        assert (found.state == "UNKNOWN") == (not releases.DESCRIBES_MEMBERS.supported_by(self._versions()))
        self._unless(releases.DESCRIBES_MEMBERS)

    def holds_the_group_lock(self) -> None:
        (result,) = self.store.edit([GroupEdit("locked", {TP: Change(OffsetAndMetadata(7))})])
        assert not result.failures
        assert result.atomic == releases.HOLDS_LOCK.supported_by(self._versions())
        self._unless(releases.HOLDS_LOCK)

    def lists_groups(self) -> None:
        self.commit("listed")
        assert "listed" in set(self.store.groups())
        self._unless(releases.LISTS_GROUPS)

    def finds_offsets_by_time(self) -> None:
        found = self.cluster.offsets_for_time([TP], 1)[TP]
        if isinstance(found, OffsetMgrError):
            raise found

    def reports_the_cluster_id(self) -> None:
        assert bool(self.cluster.cluster_id()) == releases.REPORTS_CLUSTER_ID.supported_by(self._versions())
        self._unless(releases.REPORTS_CLUSTER_ID)

    def reports_its_configuration(self) -> None:
        value = self.cluster.broker_setting(self.cluster.describe_brokers()[0].id, "offsets.retention.minutes")
        assert (value is not None) == releases.REPORTS_CONFIGURATION.supported_by(self._versions())
        self._unless(releases.REPORTS_CONFIGURATION)

    def fences_writers(self) -> None:
        """Starts an offset manager, which needs to fence writers; offsetmgr rejects older brokers."""
        serve = [sys.executable, "-m", "offsetmgr", "manager", "serve", "--bootstrap-server", self.bootstrap]
        serve += ["--listen", "127.0.0.1:0", "--partitions", "1", "--replication-factor", "1"]
        with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "serving" in line:
                    process.terminate()
                    process.communicate(timeout=30)
                    return
                if line.startswith("error: "):
                    raise CapabilityMissing("refused: " + line.removeprefix("error: ").strip())
        raise AssertionError("the manager ended without an error message")

    def accepts_sasl_logins(self) -> None:
        """Sends a SASL login to a port without SASL, which the broker rejects. Before 0.10.0 offsetmgr sends none."""
        login = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
        config = ConnectionConfig(kafka={**login, "sasl.username": "u", "sasl.password": "p"}, timeout_ms=5_000)
        with KafkaStore(self.bootstrap, config) as store:
            try:
                list(store.groups())
            except AuthenticationFailed:
                return
        raise AssertionError("a port without SASL accepted a login")

    def deletes_groups(self) -> None:
        self.commit("deleted")
        self.store.delete_group("deleted")
        assert self.held("deleted") is None
        self._unless(releases.DELETES_GROUPS)

    def in_the_log(self, group: str) -> SavedOffset | None:
        """The offset in the offsets topic, which may also contain deleted ones."""
        opened = self.store.store_thread().client.offsets_topic
        topic = opened() if opened is not None else None
        assert isinstance(topic, KafkaOffsetsTopic)
        return self.store.store_thread().run(topic.read).get(group, {}).get(TP)

    def keeps_the_offsets_of_groups_with_members(self) -> None:
        """Brokers 0.9 to 2.0 store an expiry time with each offset. Broker 0.8.2 stores none, but it has no members."""
        self.commit("kept")
        saved = self.in_the_log("kept")
        assert saved is not None
        if releases.HOLDS_LOCK.supported_by(self._versions()):
            assert (saved.expire_timestamp is None) == releases.KEEPS_ACTIVE_OFFSETS.supported_by(self._versions())
        self._unless(releases.KEEPS_ACTIVE_OFFSETS)

    def keeps_leader_epochs(self) -> None:
        self.commit("epoch", epoch=0)
        held = self.held("epoch")
        assert held is not None
        assert (held.leader_epoch == 0) == releases.KEEPS_EPOCHS.supported_by(self._versions())
        self._unless(releases.KEEPS_EPOCHS)

    def supports_static_membership(self) -> None:
        if releases.HOLDS_LOCK.supported_by(self._versions()):
            ((_, first),) = self.store.lock_many(["held"], holder="me")
            if releases.STATIC_MEMBERSHIP.supported_by(self._versions()):
                ((_, second),) = self.store.lock_many(["held"], holder="me")
                assert value_of(second).replaced
                self.store.release_locks([value_of(second)])
            self.store.release_locks([value_of(first)])
        self._unless(releases.STATIC_MEMBERSHIP)

    def deletes_single_offsets(self) -> None:
        self.commit("erased")
        self.store.delete("erased", [TP])
        assert self.held("erased") is None
        assert (self.in_the_log("erased") is None) == releases.DELETES_OFFSETS.supported_by(self._versions())
        self._unless(releases.DELETES_OFFSETS)

    def reports_open_transactions(self) -> None:
        if releases.has_transactions(self._versions()):
            settings = {"bootstrap.servers": self.bootstrap, "log_level": 0}
            producer = Producer({**settings, "transactional.id": "tried"})
            producer.init_transactions(30)
            producer.begin_transaction()
            consumer = Consumer({**settings, "group.id": "pending"})
            where = [KafkaPartition(TP.topic, TP.partition, 3)]
            producer.send_offsets_to_transaction(where, consumer.consumer_group_metadata(), 30)
            consumer.close()
            unreadable: object = None
            try:
                self.store.fetch("pending", [TP])
            except PartialFailure as failure:
                unreadable = failure
            producer.abort_transaction(30)
            assert (unreadable is not None) == releases.REPORTS_TRANSACTIONS.supported_by(self._versions())
        else:
            raise CapabilityMissing("there are no transactions")
        self._unless(releases.REPORTS_TRANSACTIONS)

    def reports_topic_ids(self) -> None:
        assert bool(self.store.topic_ids([TP.topic])) == releases.REPORTS_TOPIC_IDS.supported_by(self._versions())
        self._unless(releases.REPORTS_TOPIC_IDS)

    def describes_share_groups(self) -> None:
        """Joins a share group with a heartbeat and leaves it again, so that it exists."""
        thread, member = (
            self.store.store_thread(),
            {"member_id": "m", "rack_id": None, "subscribed_topic_names": ["tried"]},
        )

        async def heartbeat(deadline: float, epoch: int) -> None:
            message = {"group_id": "shared", **member, "member_epoch": epoch}
            await thread.client.for_group(
                "shared", lambda at: thread.client.call(at, Request(76, 1, message), deadline), deadline
            )

        if releases.DESCRIBES_SHARE_GROUPS.supported_by(self._versions()):
            for epoch in (0, -1):
                thread.run(partial(heartbeat, epoch=epoch))
            assert isinstance(self.cluster.describe_groups(["shared"], every_kind=True)["shared"], GroupDescription)
        self._unless(releases.DESCRIBES_SHARE_GROUPS)

    def resets_share_groups(self) -> None:
        with ShareGroupStore(self.bootstrap) as store:
            (result,) = store.edit([GroupEdit("shared", {TP: Change(OffsetAndMetadata(0))})])
        for error in result.failures.values():
            raise CapabilityMissing("refused") if isinstance(error, UnsupportedOperation) else error

    def _versions(self) -> releases.Versions:
        versions = self.cluster.describe_brokers()[0].versions
        assert versions is not None
        return versions

    def _unless(self, capability: Capability) -> None:
        """Raises `CapabilityMissing` if the attempt worked only because offsetmgr replaces the capability."""
        if not capability.supported_by(self._versions()):
            raise CapabilityMissing(capability.without)


def method_of(capability: Capability, broker: Broker) -> Callable[[], None]:
    """The method that tries a capability. Its name is that of the capability."""
    found: Callable[[], None] = getattr(broker, capability.name.lower().replace("'", "").replace(" ", "_"))
    return found


def tried(broker: Broker) -> dict[str, str]:
    """Tries every capability. Returns the results by the capabilities' names."""
    found = {}
    for capability in CAPABILITIES:
        try:
            method_of(capability, broker)()
            found[capability.name] = "works"
        except CapabilityMissing as missing:
            found[capability.name] = _ADDRESS.sub("", str(missing))
        except OffsetMgrError as error:
            found[capability.name] = f"refused: {_ADDRESS.sub('', str(error))}"
    return found


def broker_of(release: str, directory: Path, zookeeper: str) -> KafkaBroker | KraftBroker:
    config = {"offsets.topic.num.partitions": 4}
    if release in BROKER_JARS:
        return KafkaBroker(directory, zookeeper=zookeeper, version=release, config=config)
    return KraftBroker(directory, version=release, config=config)


def table() -> str:
    columns: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as directory, ZooKeeperServer(Path(directory) / "zookeeper") as zookeeper:
        for release in (*BROKER_JARS, NEWEST_VERSION):
            where = f"{zookeeper.connect}/{release}"
            with broker_of(release, Path(directory) / release, where) as broker:
                print(f"trying Kafka {release}", file=sys.stderr)
                tool = release if release in BROKER_JARS else DEFAULT_VERSION
                create_topic(TP.topic, 1, zookeeper=where, bootstrap=broker.bootstrap, version=tool)
                settings = ConnectionConfig(timeout_ms=20_000)
                with (
                    KafkaStore(broker.bootstrap, settings) as store,
                    KafkaCluster(broker.bootstrap, settings) as cluster,
                ):
                    while not isinstance(cluster.log_ranges([TP])[TP], LogRange):
                        time.sleep(0.1)
                    columns[release] = tried(Broker(broker.bootstrap, store, cluster))
    lines = [f"| capability | since | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for capability in CAPABILITIES:
        cells = " | ".join(column[capability.name] for column in columns.values())
        lines.append(f"| {capability.name} | {capability.since} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    text = FILE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    found = "\n" + table() + "\n"
    if "--check" in sys.argv[1:]:
        if found != old:
            print(f"{FILE.name} is out of date; run scripts/broker_table:\n{found}", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(f"{before}{BEGIN}{found}{END}{after}", encoding="utf-8")
    print(f"wrote {FILE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
