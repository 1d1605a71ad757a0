"""Rolling bounces of a real old group: three 0.10.2.2 members under load; half of the partitions have no traffic."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import Output, command
from old_consumers import LONG_SESSION, Fleet, old_member
from processes import wait_for
from steady_load import Load

from offsetmgr import TopicPartition, open_store
from offsetmgr.core.model import Committed
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.zookeeper.client.session import ZookeeperSession

PARTITIONS = 8
BUSY = (0, 2, 4, 6)
IDLE = (1, 3, 5, 7)
AUTO_COMMIT_MS = 300

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


def busy(bootstrap: str, topic: str) -> Load:
    """The idle partitions get ten messages each before the load begins."""
    load = Load(bootstrap, topic, [*BUSY, *BUSY], 0.2)
    for partition in IDLE:
        load.send(partition, 10)
    return load


def three_members(directory: Path, zookeeper: str, group: str, topic: str) -> Fleet:
    options = {"auto_commit_interval_ms": AUTO_COMMIT_MS, "extra": LONG_SESSION}
    members = [old_member(directory / f"member-{n}", zookeeper, group, topic, **options) for n in range(3)]
    return Fleet(directory, members)


def test_a_group_goes_through_all_four_safe_changes_and_no_message_is_lost_or_repeated(
    kafka: KafkaBroker, make_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    topic, group = make_topic(f"t-{unique}", PARTITIONS), f"g-{unique}"
    began = time.monotonic()
    servers = ("--zookeeper", kafka.zookeeper, "--bootstrap-server", kafka.bootstrap)
    rules = ("--accept-idle", "--quiet", "1.5")
    book = tmp_path / "book.json"

    def log(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} {text}\n")

    def runbook(name: str, *arguments: object, code: int = 0) -> Output:
        window = ("--window", "40", "--poll", "0.15")
        return command("runbook", name, "--group", group, *window, *servers, *arguments, code=code)

    with (
        busy(kafka.bootstrap, topic) as load,
        three_members(tmp_path, kafka.zookeeper, group, topic) as fleet,
        ZookeeperSession(kafka.zookeeper) as session,
        open_store(f"zookeeper://{kafka.zookeeper}") as zookeeper,
        open_store(f"kafka://{kafka.bootstrap}") as store,
    ):

        def owners() -> dict[int, str]:
            root = f"/consumers/{group}/owners/{topic}"
            nodes = {int(name): session.get(f"{root}/{name}") for name in session.children(root) or ()}
            return {partition: node.data.decode() for partition, node in nodes.items() if node is not None}

        def bounce(to: str, *more: object, code: int = 0) -> Output:
            return runbook("bounce", "--to-phase", to, "--command", fleet.command, *rules, *more, code=code)

        def change(to: str) -> Any:
            before = {m.member_id for m in fleet.members}
            state = tmp_path / f"{len(fleet.restarted)}-{to}.json"
            log(bounce(to, "--state", state, "--execute", "--yes").stderr)
            assert set(fleet.restarted[-3:]) == before
            (done,) = json.loads(state.read_text())["bounces"]
            assert [step["status"] for step in done["steps"]] == ["passed"] * 3
            return done

        wait_for(lambda: len(owners()) == PARTITIONS and len(fleet.seen()) > 200, "the group consumes")
        # The gate rejects the direct change, and the runbook leads through dual.
        refused = bounce("kafka", "--state", tmp_path / "direct.json", "--execute", "--yes", code=1).stderr
        assert "zookeeper -> kafka directly" in refused and "Kafka has no offset" in refused
        runbook("write", "--to", "kafka", "-o", book)
        (written,) = json.loads(book.read_text())["runbooks"]
        assert [step["settings"] for step in written["steps"] if step["settings"]] == [
            ["offsets.storage=kafka", "dual.commit.enabled=true"],
            ["offsets.storage=kafka", "dual.commit.enabled=false"],
        ]
        # One observation cannot show that a partition is idle.
        given = runbook("write", "--to", "kafka", "--from", "zookeeper", "-o", tmp_path / "given.json").stderr
        assert [line for line in given.splitlines() if "warning" in line and "traffic" in line] == []

        planned = bounce("dual").stdout
        places = [planned.index(f"{name} dual") for name in sorted(m.member_id for m in fleet.members)]
        assert places == sorted(places)
        assert fleet.restarted == []

        change("dual")
        runbook("check", "--phase", "dual", "--baseline", book, *rules)
        change("kafka")
        # Only Kafka gets these commits: ZooKeeper falls behind on a partition that is idle afterwards.
        load.send(1, 5)
        idle = TopicPartition(topic, 1)
        wait_for(lambda: _offset(store.fetch(group)[idle]) == 15, "the five are committed")
        assert _offset(zookeeper.fetch(group)[idle]) == 10
        refused = bounce("zookeeper", "--state", tmp_path / "back.json", "--execute", "--yes", code=1).stderr
        assert "kafka -> zookeeper directly" in refused and "repeated" in refused

        back = change("dual")
        assert [(c["before"], c["after"], c["outcome"]) for c in back["copies"] if c["partition"] == 1] == [
            (10, 15, "written")
        ]
        assert _offset(zookeeper.fetch(group)[idle]) == 15
        change("zookeeper")
        assert len(fleet.restarted) == 12
        log("all four changes done")
        assert [n for n, times in fleet.seen().items() if times > 1] == []

        # One member is killed. It repeats at most the messages that it had consumed since its last commit.
        victim = fleet.members[0]
        victim.freeze()
        owned = [TopicPartition(topic, n) for n, owner in owners().items() if owner.startswith(victim.member_id)]
        committed = zookeeper.fetch(group, owned)
        uncommitted = {
            (m.partition, m.offset)
            for m in victim.messages()
            if (tp := TopicPartition(topic, m.partition)) in owned and m.offset >= _offset(committed[tp])
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
