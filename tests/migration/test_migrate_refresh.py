"""``offsetmgr migrate apply --refresh`` commits copied offsets again, so that Kafka keeps them.

With OFFSETMGR_SOAK a test waits for a real expiration, which takes 90 seconds.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import confluent_kafka as ck
import pytest
from committed_offsets import offsets_of
from offsets_topic import commit_records
from processes import fill, own_environment, run_command, wait_for

from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))


def commits(bootstrap: str, group: str) -> list[int]:
    """Every commit of the group that the offsets topic still contains."""
    return [one.value.offset for one in commit_records(bootstrap) if one.key.group == group]


class Commands:
    """Runs ``offsetmgr migrate`` in a test's directory."""

    def __init__(self, directory: Path, zk: str, kafka: str) -> None:
        self.directory, self.zk, self.kafka = directory, zk, kafka

    def run(self, *arguments: str, code: int = 0) -> str:
        """Runs a command. Returns its stderr."""
        environ = own_environment(self.directory)
        return run_command("migrate", *arguments, code=code, environ=environ, cwd=self.directory).stderr

    def out(self, *arguments: str) -> str:
        """Runs a command. Returns its stdout."""
        return run_command("migrate", *arguments, environ=own_environment(self.directory), cwd=self.directory).stdout

    def migrate(self, pattern: str) -> None:
        self.run("plan", "--from", self.zk, "--to", self.kafka, "--group", pattern, "-o", "plan.json")
        self.run("apply", "plan.json", "--yes")


def commit(store: OffsetStore, group: str, topic: str, offset: int) -> None:
    store.commit(group, {TopicPartition(topic, 0): OffsetAndMetadata(offset)})


@pytest.fixture
def commands(zookeeper: ZooKeeperServer, kafka: KafkaBroker, tmp_path: Path) -> Commands:
    return Commands(tmp_path, f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{kafka.bootstrap}")


@pytest.fixture
def topic(make_topic: Callable[..., str], kafka: KafkaBroker, unique: str) -> str:
    name = make_topic(unique, 1)
    fill(kafka.bootstrap, name, 100)
    return name


@pytest.fixture
def stores(commands: Commands) -> Iterator[tuple[OffsetStore, OffsetStore]]:
    with open_store(commands.zk) as zk, open_store(commands.kafka) as kafka:
        yield zk, kafka


def test_a_second_apply_writes_nothing_and_refresh_commits_the_offsets_again(commands, stores, kafka, topic, unique):
    zk, store = stores
    commit(zk, unique, topic, 10)
    commands.run("plan", "--from", commands.zk, "--to", commands.kafka, "--group", unique, "-o", "plan.json")
    assert "was not applied yet" in commands.run("apply", "plan.json", "--refresh", "--yes", code=1)
    commands.run("apply", "plan.json", "--yes")
    commands.run("apply", "plan.json", "--yes")
    assert commits(kafka.bootstrap, unique) == [10]
    stderr = commands.run("apply", "plan.json", "--refresh", "--yes")
    assert "1 group renewed" in stderr
    assert commits(kafka.bootstrap, unique) == [10, 10]
    assert offsets_of(store, unique) == {0: 10}
    commands.run("finalize", "plan.json", "--yes")
    commands.run("apply", "plan.json", "--refresh", "--yes")
    assert commits(kafka.bootstrap, unique) == [10, 10, 10]


def test_a_plan_shows_no_expiry_date_for_offsets_already_in_the_target(commands, stores, topic, unique):
    zk, _ = stores
    commit(zk, unique, topic, 10)
    commands.migrate(unique)
    stderr = commands.run("plan", "--from", commands.zk, "--to", commands.kafka, "--group", unique, "-o", "again.json")
    assert "expire about" not in stderr
    assert "expiry  unknown for 1 offset already in the target" in stderr


def test_groups_in_use_need_no_refresh_and_groups_that_are_gone_are_named(commands, stores, kafka, topic, unique):
    zk, store = stores
    for name in ("used", "gone", "idle"):
        commit(zk, f"{unique}-{name}", topic, 10)
    commands.migrate(f"{unique}-*")
    store.delete(f"{unique}-gone")
    with suppress(GroupNotFound):  # the broker may have removed the empty group already
        store.delete_group(f"{unique}-gone")
    member = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"{unique}-used"})
    member.subscribe([topic])
    try:
        wait_for(lambda: member.poll(0.1) is None and member.assignment(), "the consumer has joined")
        stderr = commands.run("apply", "plan.json", "--refresh", "--yes", code=1)
        assert member.assignment()
    finally:
        member.close()
    assert "1 group renewed" in stderr
    assert "1 group in use" in stderr
    assert f"{unique}-gone: its offsets are gone: they were deleted or have expired" in stderr


def test_the_date_at_which_copied_offsets_expire_is_said_until_a_consumer_joins(commands, stores, kafka, topic, unique):
    zk, _ = stores
    idle, used = f"{unique}-idle", f"{unique}-used"
    for name in (idle, used):
        commit(zk, name, topic, 10)
    commands.migrate(f"{unique}-*")
    both = ["--zookeeper", commands.zk.removeprefix("zookeeper://"), "--bootstrap-server", kafka.bootstrap]
    told = re.compile(
        r"warning: the copied offsets of (\d) groups? expire from (2\d\d\d-\d\d-\d\d \d\d:\d\d) UTC on,"
        r" unless a consumer commits them again; to renew them: (offsetmgr migrate apply \S*plan.json --refresh)\n"
    )

    def expiry(text: str) -> tuple[str, str, str]:
        found = told.search(text)
        assert found is not None, text
        return found[1], found[2], found[3]

    count, first, command = expiry(commands.run("status", "plan.json"))
    assert (count, command) == ("2", "offsetmgr migrate apply plan.json --refresh")
    assert abs(datetime.fromisoformat(f"{first}+00:00") - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=30)
    assert expiry(commands.run("finalize", "plan.json", "--yes", "--window", "1"))[:2] == ("2", first)
    rows = {row["group"]: row for row in json.loads(commands.out("status", "plan.json", "--format", "json"))}
    assert rows[idle]["next"] == command
    assert datetime.fromtimestamp(rows[idle]["expires"] / 1000, UTC).strftime("%Y-%m-%d %H:%M") == first
    for page in ("html", "markdown"):
        assert command in commands.out("status", "plan.json", "--format", page).replace("\\", "")
    environ = own_environment(commands.directory)
    where = run_command("groups", "where", idle, *both, environ=environ, cwd=commands.directory)
    assert expiry(where.stderr)[:2] == ("1", first)
    assert "plan.json --refresh" in where.stdout
    member = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": used})
    member.subscribe([topic])
    try:
        wait_for(lambda: member.poll(0.1) is None and member.assignment(), "the consumer has joined")
        assert expiry(commands.run("status", "plan.json", "--window", "1"))[0] == "1"
        assert expiry(commands.run("finalize", "plan.json", idle, used, "--yes", "--window", "1"))[0] == "1"
    finally:
        member.close()
    commands.run("apply", "plan.json", "--refresh", "--yes")
    assert expiry(commands.run("status", "plan.json"))[1] >= first


def test_offsets_in_zookeeper_need_no_refresh(commands, stores, topic, unique):
    _, store = stores
    commit(store, unique, topic, 10)
    commands.run("plan", "--from", commands.kafka, "--to", commands.zk, "--group", unique, "-o", "back.json")
    commands.run("apply", "back.json", "--yes")
    assert "do not expire" in commands.run("apply", "back.json", "--refresh", "--yes", code=2)


if SOAK:

    def test_refreshed_offsets_outlive_the_retention(zookeeper, make_topic, unique, tmp_path) -> None:
        short = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1000}
        with KafkaBroker(tmp_path / "kafka", zookeeper=f"{zookeeper.connect}/{unique}", config=short) as server:
            topic = make_topic(unique, 1, bootstrap=server.bootstrap)
            commands = Commands(tmp_path, f"zookeeper://{zookeeper.connect}/{unique}", f"kafka://{server.bootstrap}")
            with open_store(commands.zk) as zk, open_store(commands.kafka) as store:
                for name in ("kept", "control"):
                    commit(zk, f"{unique}-{name}", topic, 0)
                commands.migrate(f"{unique}-*")
                sides = ("--from", commands.zk, "--to", commands.kafka)
                commands.run("plan", *sides, "--group", f"{unique}-kept", "-o", "kept.json")
                commands.run("apply", "kept.json", "--yes")
                deadline = time.monotonic() + 200
                while offsets_of(store, f"{unique}-control"):
                    assert time.monotonic() < deadline, "offsets without a refresh expire"
                    commands.run("apply", "kept.json", "--refresh", "--yes")
                assert offsets_of(store, f"{unique}-kept") == {0: 0}
