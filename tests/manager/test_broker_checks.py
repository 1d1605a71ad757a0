"""The checks of real brokers at the start of a manager: their settings, and the rights of the manager's principal."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from processes import Commands, wait_for
from release_fixtures import ReleaseCluster
from secured_broker import Secured, documented_acls

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import NotAuthorized
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.manager.log.kafka.broker_checks import check_brokers
from offsetmgr.manager.log.topic import FenceSettings, UnsuitableBroker
from offsetmgr.manager.offset_manager import OffsetManager
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer

pytestmark = pytest.mark.servers


def check(bootstrap: str, properties: dict[str, str] | None = None, **options: float) -> FenceSettings:
    async def run() -> FenceSettings:
        client = Client(bootstrap, Security.of(properties or {}))
        try:
            return await check_brokers(client, asyncio.get_running_loop().time() + 120, **options)
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.parametrize(("broker", "number"), [("kafka", 0), ("kraft", 1)])
def test_brokers_with_default_settings_are_accepted(request: pytest.FixtureRequest, broker: str, number: int) -> None:
    found: KafkaBroker | KraftBroker = request.getfixturevalue(broker)

    assert check(found.bootstrap) == FenceSettings(3_600, 86_400, 600, (f"{number} ({found.bootstrap})",))


@pytest.mark.matrix
def test_2_8_is_accepted_and_one_setting_rules_both_expirations(start_release: Callable[[str], ReleaseCluster]) -> None:
    bootstrap = start_release("2.8.2").bootstrap
    assert check(bootstrap) == FenceSettings(3_600, 7 * 24 * 60 * 60, 600, (f"0 ({bootstrap})",))


# --- other settings -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that drops producer ids after 2 s and closes idle connections after 1 s. The setting with the prefix of
    the listener has no effect."""
    config = {
        "producer.id.expiration.ms": 2_000,
        "connections.max.idle.ms": 1_000,
        "listener.name.plaintext.connections.max.idle.ms": -1,
        "failed.authentication.delay.ms": 10,
    }
    directory = tmp_path_factory.mktemp("forgetful")
    with KafkaBroker(directory, zookeeper=f"{zookeeper.connect}/{directory.name}", config=config) as broker:
        yield broker


def test_a_manager_does_not_start_if_a_broker_drops_producer_ids_too_early(forgetful, tmp_path, unique) -> None:
    serve = ("manager", "serve", "--bootstrap-server", forgetful.bootstrap, "--listen", "127.0.0.1:0")
    done = Commands(tmp_path).run(*serve, "--offsets-topic", unique, code=1)

    assert f"error: broker 0 ({forgetful.bootstrap}): its producer.id.expiration.ms is 2000, but" in done.stderr
    assert "--entity-default --add-config producer.id.expiration.ms=86400000" in done.stderr
    assert unique not in AdminClient({"bootstrap.servers": forgetful.bootstrap}).list_topics(timeout=60).topics


def test_a_changed_expiration_is_checked_without_a_restart_of_the_broker(forgetful: KafkaBroker) -> None:
    assert check(forgetful.bootstrap, min_expiration_s=2) == FenceSettings(0.5, 2, 1, (f"0 ({forgetful.bootstrap})",))
    with pytest.raises(UnsuitableBroker, match=r"producer\.id\.expiration\.ms is 2000"):
        check(forgetful.bootstrap)

    change_expiration(forgetful.bootstrap, AlterConfigOpType.SET, "600000")
    try:
        wait_for(lambda: check(forgetful.bootstrap, min_expiration_s=2).expiration_s == 600, "the setting has changed")
        assert check(forgetful.bootstrap).refresh_interval_s == 150
    finally:
        change_expiration(forgetful.bootstrap, AlterConfigOpType.DELETE, None)
    wait_for(lambda: check(forgetful.bootstrap, min_expiration_s=2).expiration_s == 2, "the setting has changed")


def change_expiration(bootstrap: str, operation: AlterConfigOpType, value: str | None) -> None:
    """Changes the setting while the broker runs."""
    entry = ConfigEntry("producer.id.expiration.ms", value, incremental_operation=operation)
    resource: Any = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(90)


def test_the_start_is_logged_with_everything_that_was_checked(kafka: KafkaBroker, unique: str, caplog) -> None:
    caplog.set_level("INFO", "offsetmgr")
    with OffsetManager(kafka.bootstrap, topic=unique, partitions=1):
        pass

    (logged,) = (one for one in caplog.records if one.getMessage() == "checked the offsets topic and the brokers")
    found = {name: value for name, value in vars(logged).items() if name in CHECKED}
    assert found == CHECKED | {"topic": unique, "brokers": f"0 ({kafka.bootstrap})"}


CHECKED: Final = {
    "topic": "",
    "cleanup_policy": "compact",
    "timestamps": "LogAppendTime",
    "replicas": 1,
    "min_insync_replicas": 1,
    "brokers": "",
    "expiration_s": 86_400,
    "max_idle_s": 600,
    "refresh_interval_s": 3_600,
}


def test_every_listed_broker_is_checked_and_a_killed_one_until_the_cluster_removes_it(zookeeper, tmp_path, unique):
    where = f"{zookeeper.connect}/{unique}"
    first = KafkaBroker(tmp_path / "1", zookeeper=where, broker_id=1)
    second = KafkaBroker(
        tmp_path / "2", zookeeper=where, broker_id=2, config={"transactional.id.expiration.ms": 3_600_000}
    )
    with first, second:
        found = check(first.bootstrap)
        assert found.brokers == (f"1 ({first.bootstrap})", f"2 ({second.bootstrap})")
        assert (found.expiration_s, found.refresh_interval_s) == (3_600, 900)
        second.kill()
        assert check(first.bootstrap) == FenceSettings(3_600, 86_400, 600, (f"1 ({first.bootstrap})",))


# --- rights ---------------------------------------------------------------------------------------


def test_the_documented_rights_are_enough_and_the_cluster_right_is_needed(secured: Secured) -> None:
    acls = documented_acls("secure-an-offset-manager")
    cluster = [acl for acl in acls if acl.restype == ResourceType.BROKER]
    config = ConnectionConfig(kafka=secured.properties, timeout_ms=300_000)
    orders = {TopicPartition("orders", 0): OffsetAndMetadata(3)}
    manager = OffsetManager(secured.bootstrap, config, partitions=1)
    secured.grant(acls)
    try:
        with manager:
            manager.commit("shop", orders)

        secured.revoke(cluster)
        started = time.monotonic()
        with pytest.raises(NotAuthorized) as rejected, manager:
            pass
        assert str(rejected.value).startswith(f"settings of broker {secured.bootstrap}: not authorized to read them")
        assert rejected.value.hint.endswith("--operation DescribeConfigs --cluster")
        assert time.monotonic() - started < 150
    finally:
        secured.revoke(acls)
