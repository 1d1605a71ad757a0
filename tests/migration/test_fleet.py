"""A fleet of forty groups moves from ZooKeeper to Kafka in three waves. Six groups have real old consumers under load.

Two groups are stuck on purpose: the restart command fails for the member of a live group, and the plan refuses three
partitions of an idle group. No other group is held up. After every step, `migrate status` and the page agree with the
offsets that librdkafka and kazoo read; at the end, so does Kafka's own tool. Every message is consumed exactly once.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Set as AbstractSet
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from kazoo.exceptions import NoNodeError
from kazoo_client import connected
from old_consumers import LONG_SESSION, Fleet, old_member
from processes import Commands, wait_for
from steady_load import Load

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer, java_tool
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(1_500)]

GROUPS, LIVE, WAVES, PARTITIONS = 40, 6, 3, 2
RECORDS = 50
BEYOND = RECORDS + 1_000
AUTO_COMMIT_MS = 300
COMMAND_TIMEOUT_S = 600
WATCH_S = "8"
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

Offsets = dict[str, dict[tuple[str, int], int]]


class StuckFleet(Fleet):
    """Old consumers of several groups. The restart of a member of a group in ``stuck`` fails, and leaves it alone."""

    def __init__(self, directory: Path, members: list[OldConsumer]) -> None:
        super().__init__(directory, members)
        self.stuck: set[str] = set()

    def __enter__(self) -> StuckFleet:
        super().__enter__()
        return self

    def restart(self, member_id: str, phase: str) -> None:
        if self.member(member_id).group in self.stuck:
            raise RuntimeError(f"{member_id} is stuck on purpose")
        super().restart(member_id, phase)

    def seen_of(self, group: str) -> Counter[tuple[int, int]]:
        """How often each message number of each partition was consumed by the group."""
        members = [member for member in self.members if member.group == group]
        return Counter((m.partition, int(m.value or b"-1")) for each in members for m in each.messages())


class World:
    """The servers, the plan of the fleet, and the checks of its state."""

    def __init__(self, zookeeper: ZooKeeperServer, kafka: KafkaBroker, directory: Path, names: list[str]) -> None:
        self.zookeeper, self.kafka, self.directory, self.names = zookeeper, kafka, directory, names
        self.commands = Commands(directory)
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self.wave_of = {name: number % WAVES + 1 for number, name in enumerate(names)}
        self.live = names[:LIVE]
        self.expected = dict.fromkeys(names, "planned")
        self.since = time.monotonic()

    def log(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self.since:6.1f} {text}\n")

    def run(self, *arguments: str, code: int = 0) -> str:
        """Runs a command of offsetmgr; returns its stdout followed by its stderr."""
        self.log(" ".join(arguments))
        with self.commands.start(*arguments) as process:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return out + err

    def wave(self, number: int) -> list[str]:
        return [name for name in self.names if self.wave_of[name] == number]

    def in_zookeeper(self) -> Offsets:
        """The offsets under ``/consumers``, read by another client."""
        found: Offsets = {}
        with connected(self.zookeeper.connect) as client:
            for name in self.names:
                root = f"/kafka/consumers/{name}/offsets"
                offsets = found.setdefault(name, {})
                try:
                    for topic in client.get_children(root):
                        for partition in client.get_children(f"{root}/{topic}"):
                            value, _ = client.get(f"{root}/{topic}/{partition}")
                            offsets[topic, int(partition)] = int(value)
                except NoNodeError:
                    continue
        return found

    def in_kafka(self) -> Offsets:
        """The committed offsets, read by another client."""
        asked = [(name, ConsumerGroupTopicPartitions(name)) for name in self.names]
        futures = {name: self.admin.list_consumer_group_offsets([one])[name] for name, one in asked}
        return {
            name: {(p.topic, p.partition): p.offset for p in future.result(60).topic_partitions if p.offset >= 0}
            for name, future in futures.items()
        }

    def printed_by_kafkas_tool(self) -> Offsets:
        arguments = ["--bootstrap-server", self.kafka.bootstrap, "--timeout", "60000"]
        done = java_tool("kafka-3.9", TOOL, [*arguments, "--describe", "--all-groups", "--offsets"])
        found: Offsets = {name: {} for name in self.names}
        for line in done.stdout.splitlines():
            cells = line.split()
            if len(cells) > 3 and cells[0] in found and cells[3].isdigit():
                found[cells[0]][cells[1], int(cells[2])] = int(cells[3])
        return found

    def check(self, blocked: AbstractSet[str] = frozenset()) -> None:
        """Checks `migrate status --window` and both pages against the expected states and against both stores."""
        rows: list[dict[str, Any]] = []

        def seen() -> bool:
            """Whether all running groups committed in the window. On a busy machine they can stand still that long."""
            rows[:] = self.rows("--window", WATCH_S)
            known = {row["group"]: row["known"] for row in rows}
            return all(known[name] == "seen" for name in self.live if self.expected[name] != "finalized")

        wait_for(seen, "a commit of every group in the window")
        assert {row["group"]: row["state"] for row in rows} == self.expected
        assert {row["group"] for row in rows if row["blocked_by"]} == blocked
        self._compare_with_stores({row["group"]: row for row in rows})
        # Without the servers, the plan and its journal tell the same.
        assert {row["group"]: row["state"] for row in self.rows()} == self.expected
        self._check_pages()

    def rows(self, *options: str) -> list[dict[str, Any]]:
        with self.commands.start("migrate", "status", "fleet.json", "--format", "json", *options) as process:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == 0, err
        rows: list[dict[str, Any]] = json.loads(out)
        return rows

    def _compare_with_stores(self, rows: dict[str, dict[str, Any]]) -> None:
        before = self.in_zookeeper(), self.in_kafka()
        same = {"planned": "zookeeper", "applied": "zookeeper", "finalized": "kafka"}
        phases = {name: same.get(self.expected[name], self.expected[name]) for name in self.live}
        moves = {(True, False): "zookeeper", (True, True): "dual", (False, True): "kafka"}
        deadline = time.monotonic() + 120
        while True:
            time.sleep(4 * AUTO_COMMIT_MS / 1000)  # the pause between two looks
            after = self.in_zookeeper(), self.in_kafka()
            moved = {n: moves.get((before[0][n] != after[0][n], before[1][n] != after[1][n])) for n in self.live}
            if moved == phases or time.monotonic() > deadline:
                break
        assert moved == phases
        for name in self.names:
            state = self.expected[name]
            zookeeper, kafka = after[0][name], after[1][name]
            if name not in self.live:
                copied = {tp: offset for tp, offset in zookeeper.items() if offset <= RECORDS}
                assert kafka == ({} if state == "planned" else copied), (name, state)
                continue
            if state != "finalized":
                assert (rows[name]["known"], name, rows[name]["evidence"]) == ("seen", name, rows[name]["evidence"])

    def _check_pages(self) -> None:
        self.run("migrate", "status", "fleet.json", "--format", "html", "-o", "fleet.html")
        self.run("migrate", "status", "fleet.json", "--format", "markdown", "-o", "fleet.md")
        html = (self.directory / "fleet.html").read_text()
        markdown = (self.directory / "fleet.md").read_text()
        found: dict[str, str] = {}
        for wave in range(1, WAVES + 1):
            part = html.partition(f"<h2>Wave {wave}</h2>")[2].partition("<h2>")[0]
            for row in part.split("<tr>")[2:]:
                cells = [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row.split("</td>")]
                assert self.wave_of[cells[0]] == wave
                found[cells[0]] = cells[2]
        assert found == self.expected
        for name, state in self.expected.items():
            assert re.search(rf"\| `{re.escape(name)}` +\| owner-{self.wave_of[name]} +\| {state} +\|", markdown), name


@pytest.fixture
def world(zookeeper, kafka, make_topic, unique, tmp_path):
    names = [f"f{unique[-8:]}-{number:02d}" for number in range(GROUPS)]
    world = World(zookeeper, kafka, tmp_path, names)
    idle = make_topic(f"idle-{unique[-8:]}", 4)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition in range(4):
        for _ in range(RECORDS):
            producer.produce(idle, b"x", partition=partition)
    assert producer.flush(30) == 0
    with ZookeeperStore(kafka.zookeeper) as store:
        for number, name in enumerate(names[LIVE:]):
            offsets = {TopicPartition(idle, p): OffsetAndMetadata(number + p) for p in range(4)}
            store.commit(name, offsets)
        refused = {TopicPartition(idle, p): OffsetAndMetadata(BEYOND) for p in range(3)}
        store.commit(names[-1], refused)
    waves = "".join(f"{name},{world.wave_of[name]},owner-{world.wave_of[name]}\n" for name in names)
    (tmp_path / "waves.csv").write_text("group,wave,owner\n" + waves)
    yield world


def test_a_fleet_moves_in_three_waves_and_two_stuck_groups_hold_up_no_other(world, kafka, make_topic, unique, tmp_path):
    topic = make_topic(f"busy-{unique[-8:]}", PARTITIONS)
    options = {"auto_commit_interval_ms": AUTO_COMMIT_MS, "extra": LONG_SESSION}
    members = [
        old_member(tmp_path / f"m{number}", kafka.zookeeper, name, topic, **options)
        for number, name in enumerate(world.live)
    ]
    with Load(kafka.bootstrap, topic, range(PARTITIONS), 0.25) as load, StuckFleet(tmp_path, members) as fleet:
        stuck, refused = world.live[1], world.names[-1]
        fleet.stuck = {stuck}
        wait_for(lambda: all(len(fleet.seen_of(name)) > 50 for name in world.live), "all groups consume")
        plan = ("migrate", "plan", "--waves", "waves.csv", "-o", "fleet.json")
        world.run(*plan, "--from", f"zookeeper://{kafka.zookeeper}", "--to", f"kafka://{kafka.bootstrap}")
        world.check({refused})
        for wave in range(1, WAVES + 1):
            move_wave(world, fleet, wave, stuck, refused)
        # The two groups are unblocked. Their remaining steps are those of the other groups.
        fleet.stuck.clear()
        bounce(world, fleet, "dual", "--group", stuck)
        world.expected[stuck] = "dual"
        world.check({refused})
        bounce(world, fleet, "kafka", "--group", stuck)
        world.expected[stuck] = "kafka"
        assert "1 group, " in world.run("migrate", "finalize", "fleet.json", stuck, "--yes", "--window", "30")
        finalize = ("migrate", "finalize", "fleet.json", "--yes", "--wave", str(world.wave_of[refused]))
        assert "3 left out because the plan refused them" in world.run(*finalize, "--accept-refused")
        world.expected |= dict.fromkeys((stuck, refused), "finalized")
        world.check()
        load.end()
        total = load.sent.total()
        wait_for(lambda: all(fleet.seen_of(name).total() >= total for name in world.live), "all groups consume all")
        for name in world.live:
            expected = Counter({(p, n): 1 for p in range(PARTITIONS) for n in range(load.sent[p])})
            assert fleet.seen_of(name) == expected, name
    assert world.printed_by_kafkas_tool() == world.in_kafka()


def bounce(world: World, fleet: StuckFleet, phase: str, *groups: str, code: int = 0) -> str:
    options = ("--window", "60", "--poll", "0.2", "--execute", "--yes")
    where = ("runbook", "bounce", "--plan", "fleet.json", *groups)
    return world.run(*where, "--to-phase", phase, "--command", fleet.command, *options, code=code)


def move_wave(world: World, fleet: StuckFleet, wave: int, stuck: str, refused: str) -> None:
    """Moves the groups of one wave, and checks after each step that the other waves are as they were."""
    groups = world.wave(wave)
    has_stuck, has_refused = stuck in groups, refused in groups
    blocked = {refused} | ({stuck} if world.wave_of[stuck] < wave else set())
    world.run("migrate", "apply", "fleet.json", "--wave", str(wave), "--yes", code=int(has_refused))
    world.expected |= dict.fromkeys(groups, "applied")
    world.check(blocked)
    books = world.run(
        *("runbook", "write", "--plan", "fleet.json", "--wave", str(wave), "--to", "kafka", "--poll", "0.2"),
        *("-o", f"wave-{wave}.json", "-o", f"wave-{wave}.md"),
    )
    assert f"wrote wave-{wave}.json" in books
    live = [name for name in world.live if name in groups]
    markdown = (world.directory / f"wave-{wave}.md").read_text()
    assert all(f"## Group {name}: zookeeper -> kafka" in markdown for name in live)
    baseline = ("--wave", str(wave), "--baseline", f"wave-{wave}.json")
    bounce(world, fleet, "dual", *baseline, code=int(has_stuck))
    moved = [name for name in live if name != stuck]
    world.expected |= dict.fromkeys(moved, "dual")
    blocked |= {stuck} if has_stuck else set()
    world.check(blocked)
    bounce(world, fleet, "kafka", *(word for name in moved for word in ("--group", name)))
    world.expected |= dict.fromkeys(moved, "kafka")
    world.check(blocked)
    # The member of the stuck group commits to ZooKeeper alone, and three partitions of another group are refused.
    held = {stuck, refused} & set(groups)
    options = ("--wave", str(wave), "--window", "30")
    output = world.run("migrate", "finalize", "fleet.json", "--yes", *options, code=int(bool(held)))
    assert f"finalized: {len(groups) - len(held)} groups" in output
    world.expected |= dict.fromkeys(set(groups) - held, "finalized")
    world.check(blocked)
