"""Resets of share groups."""

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from conftest import MakeTopic
from in_process import command, rows
from processes import fill, until
from test_kinds_of_groups import program

from offsetmgr import OffsetAdmin, ToEarliest, ToLatest
from offsetmgr.core.errors import Conflict, GroupActive
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.errors import checked
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.sandbox import KraftBroker, java_tool

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SHARE_GROUP_HEARTBEAT = 76
TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


@contextmanager
def share_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """A member of a share group that subscribes to the topic and fetches nothing. Leaves the group at the end."""
    thread = ClientThread(Client(bootstrap, Security.of({})), 60)
    member = {"group_id": group, "member_id": str(uuid.uuid4()), "subscribed_topic_names": [topic], "rack_id": None}

    async def heartbeat(deadline: float, epoch: int) -> None:
        async def ask(address: Address) -> None:
            request = Request(SHARE_GROUP_HEARTBEAT, 1, {**member, "member_epoch": epoch})
            checked(await thread.client.call(address, request, deadline), group)

        await thread.client.for_group(group, ask, deadline)

    thread.run(partial(heartbeat, epoch=0))
    yield
    thread.run(partial(heartbeat, epoch=-1))
    thread.close()


@contextmanager
def consumed(kraft: KraftBroker, group: str, directory: Path) -> Iterator[None]:
    """A running consumer that has acknowledged all records of the topic of the group's name."""
    arguments = ["--bootstrap-server", kraft.bootstrap, "--topic", group, "--group", group]
    with program("org.apache.kafka.tools.consumer.ConsoleShareConsumer", arguments, directory / "share.log"):
        until(lambda: starts(kraft.bootstrap, group, "lag") == {0: 0, 1: 0}, 120)
        yield


@pytest.fixture
def topic(kraft: KraftBroker, unique: str, make_topic: MakeTopic) -> str:
    make_topic(unique, 2, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, unique, 100, 50)
    return unique


@pytest.fixture
def group(kraft: KraftBroker, topic: str) -> str:
    """A share group of the topic's name without members and start offsets."""
    with share_member(kraft.bootstrap, topic, topic):
        pass
    return topic


def starts(bootstrap: str, group: str, field: str = "offset") -> dict[int, int | None]:
    """The start offsets, or the lag, that `groups describe` shows, by partition."""
    found = rows("groups", "describe", group, "--bootstrap-server", bootstrap)
    return {one["partition"]: one[field] for one in found if one["partition"] is not None}


def by_tool(bootstrap: str, *arguments: str) -> dict[int, int]:
    """The last number of each partition's line that Kafka's tool prints."""
    done = java_tool("kafka-4.4", TOOL, ["--bootstrap-server", bootstrap, *arguments])
    return {int(p): int(at) for p, at in re.findall(r"^\S+ +\S+ +(\d+) +(\d+)", done.stdout, re.MULTILINE)}


def test_a_reset_of_a_group_that_has_consumed_and_its_undo(kraft: KraftBroker, group: str, tmp_path: Path) -> None:
    servers = ["--bootstrap-server", kraft.bootstrap]
    reset = ["offsets", "reset", group, "--topic", group, *servers, "--execute", "--yes"]
    command(*reset, "--to-earliest")
    with consumed(kraft, group, tmp_path):
        refused = command(*reset, "--to-latest", code=1).stderr
        assert "STABLE with 1 member: console-share-consumer" in refused
        assert "--running moves" not in refused
        assert "only while they have no members" in command(*reset, "--to-latest", "--running", code=1).stderr
    before = starts(kraft.bootstrap, group)
    done = command(*reset, "--to-offset", "20", "--wait-empty", "60").stderr
    assert by_tool(kraft.bootstrap, "--describe", "--group", group) == {0: 20, 1: 20}
    assert "consumers receive them again; an undo restores the start offset only" in done
    assert "not atomic: read and compared just before the write" in done
    operation = rows("edits", "list", "--group", group)[-1]
    assert (operation["operation"], operation["written"]) == ("offsets reset", 2)
    undone = command("edits", "undo", operation["id"], "--execute", "--yes", "--allow-rewind").stderr
    assert "an undo restores the start offset only" in undone
    assert starts(kraft.bootstrap, group) == before
    assert rows("edits", "list", "--group", group)[-2]["undone_by"]


def test_the_consumers_go_on_after_a_reset(kraft: KraftBroker, group: str, tmp_path: Path) -> None:
    servers = ["--bootstrap-server", kraft.bootstrap]
    reset = ["offsets", "reset", group, "--topic", group, *servers]
    execute = ["--execute", "--yes", "--wait-empty", "60"]
    command(*reset, "--to-offset", "40", *execute)
    command(*reset, "--to-earliest", "--plan", tmp_path / "plan")
    command(*reset, "--to-offset", "30", *execute)
    operation = rows("edits", "list", "--group", group)[-1]
    with consumed(kraft, group, tmp_path):
        pass
    assert starts(kraft.bootstrap, group) == {0: 30, 1: 30}  # the acknowledgements are behind the start offset
    refused = command("offsets", "import", tmp_path / "plan", *servers, *execute, code=1)
    assert "has changed since the plan was made: 100 now, and 40 in the plan" in "".join(refused)
    refused = command("edits", "undo", operation["id"], "--execute", "--yes", code=1)
    assert "has changed since: 100 now, the edit wrote 30; the undo repeats 60 messages" in "".join(refused)
    notes = {to: [one["note"] for one in rows(*reset, *to.split())] for to in ("--to-current", "--to-offset 60")}
    assert notes["--to-current"] == ["repeats 70 acknowledged records", "repeats 20 acknowledged records"]
    assert notes["--to-offset 60"] == ["repeats at least 40 acknowledged records", "clamped from 60 to the log's end"]
    command(*reset, "--to-current", *execute)
    assert starts(kraft.bootstrap, group, "lag") == {0: 70, 1: 20}
    again = command(*reset, "--to-current").stderr
    assert "acknowledged" not in again


def test_a_plan_holds_while_producers_write(kraft: KraftBroker, group: str, tmp_path: Path) -> None:
    servers, plan = ["--bootstrap-server", kraft.bootstrap], tmp_path / "plan"
    reset = ["offsets", "reset", group, "--topic", group, *servers, "--wait-empty", "60"]
    command(*reset, "--to-offset", "40", "--execute", "--yes")
    with consumed(kraft, group, tmp_path):
        pass
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [fill(kraft.bootstrap, group, 50, 50) for _ in iter(stop.is_set, True)])
        try:
            command(*reset, "--to-offset", "45", "--plan", plan)
            refused = command("offsets", "import", plan, *servers, "--unchecked", code=2).stderr
            command("offsets", "import", plan, *servers, "--execute", "--yes")
        finally:
            stop.set()
        writing.result()
    assert "--unchecked: cannot be used with the plan" in refused
    assert starts(kraft.bootstrap, group) == {0: 45, 1: 45}


def test_a_reset_of_share_groups_and_others_is_refused(kraft: KraftBroker, zookeeper, group: str, tmp_path) -> None:
    servers = ["--topic", group, "--bootstrap-server", kraft.bootstrap]
    others = [f"a-{group}", f"z-{group}"]
    saved = tmp_path / "images.avro"
    command("offsets", "reset", group, *servers[2:], "--topic", f"{group}:0", "--to-latest", "--plan", saved)
    elsewhere = command("offsets", "import", saved, "--store", f"file:{tmp_path}/store.avro", code=2).stderr
    assert f"hold start offsets of share groups of Kafka\nhint: add --store kafka://{kraft.bootstrap}" in elsewhere
    for other in others:
        reset = ["offsets", "reset", group, other, *servers, "--to-latest"]
        assert f"group '{other}': does not exist" in command(*reset, code=1).stderr
        set_at = ["--topic", f"{group}:0", *servers[2:], "--to-offset", "3"]
        command("offsets", "set", other, *set_at, "--new-group", "--execute", "--yes")
        refused = command(*reset, code=2).stderr
        assert f"group '{group}' is a share group, and group '{other}' is not" in refused
    missing = command("offsets", "lag", group, "--topic", f"{group}:9", *servers[2:], code=1)
    assert "does not exist on the broker" in missing.stderr
    assert [row["partition"] for row in rows("offsets", "lag", group, *servers)] == [0, 1]
    (located,) = rows("groups", "where", group, *servers[2:])
    assert [located["stores"]["kafka"][name] for name in ("error", "members_error")] == [None, None]
    unmatched = command("offsets", "lag", "--group", f"{group}*", *servers[2:], code=1).stderr
    assert f"only groups without committed offsets match, such as '{group}'" in unmatched
    assert "--type: Shares is not a type" in command("groups", "list", "--type", "Shares", *servers[2:], code=2).stderr
    listed = command("groups", "list", others[0], "--type", "share", *servers[2:]).stderr
    assert "no selected groups of type share in" in listed
    with OffsetAdmin(f"kafka://{kraft.bootstrap}") as admin:
        assert group in [one.name for one in admin.list_groups(types="share")]
    old = [*servers, "--zookeeper", zookeeper.connect]
    for line in (["offsets", "lag", group], ["offsets", "reset", group, "--to-latest"]):
        hint = f"it is in kafka://{kraft.bootstrap}: add --store kafka://{kraft.bootstrap}"
        assert hint in command(*line, *old, code=1).stderr
    none = command("offsets", "reset", group, *servers[2:], "--all-topics", "--to-latest", code=1)
    assert "it has no start offset in these topics" in "".join(none)


def test_the_undo_of_the_first_start_offset_removes_it(kraft: KraftBroker, group: str) -> None:
    with OffsetAdmin(f"kafka://{kraft.bootstrap}") as admin:
        report = admin.plan_reset(group, ToLatest(), topics=f"{group}:0").execute()
        assert starts(kraft.bootstrap, group)[0] == 100
        assert admin.plan_undo(report.before_images[0]).execute().written == 1
    assert starts(kraft.bootstrap, group)[0] is None


@pytest.mark.parametrize("to", ["--to-latest", "--to-offset 70", "--to-datetime 2000-01-01T00:00:00.000"])
def test_plans_equal_those_of_kafkas_tool(kraft: KraftBroker, group: str, to: str) -> None:
    found = rows("offsets", "reset", group, "--topic", group, *to.split(), "--bootstrap-server", kraft.bootstrap)
    plan = {one["partition"]: one["new_offset"] for one in found}
    select = ["--reset-offsets", "--group", group, "--topic", group, "--dry-run"]
    assert plan == by_tool(kraft.bootstrap, *select, *to.split())


def test_a_member_that_joins_after_the_plan(kraft: KraftBroker, group: str) -> None:
    with OffsetAdmin(f"kafka://{kraft.bootstrap}") as admin:
        planned = admin.plan_reset(group, ToEarliest(), topics=group)
        with share_member(kraft.bootstrap, group, group):
            report = planned.execute(raise_on_failure=False)
    assert [type(error) for error in report.failed[group].values()] == [GroupActive] * 2
    assert set(starts(kraft.bootstrap, group).values()) <= {None}


def test_another_reset_after_the_plan(kraft: KraftBroker, group: str) -> None:
    with OffsetAdmin(f"kafka://{kraft.bootstrap}") as admin:
        planned = admin.plan_reset(group, ToEarliest(), topics=group)
        reset = ["--reset-offsets", "--group", group, "--topic", f"{group}:1", "--to-latest", "--execute"]
        assert by_tool(kraft.bootstrap, *reset) == {1: 50}
        report = planned.execute(raise_on_failure=False)
    assert [type(error) for error in report.failed[group].values()] == [Conflict] * 2
    assert starts(kraft.bootstrap, group)[1] == 50


def test_brokers_of_4_1_cannot_reset(start_kraft: Callable[[str], KraftBroker], unique, make_topic: MakeTopic) -> None:
    bootstrap = start_kraft("4.1.1").bootstrap
    enable = ["--bootstrap-server", bootstrap, "upgrade", "--feature", "share.version=1"]
    java_tool("kafka-4.1", "org.apache.kafka.tools.FeatureCommand", enable)
    make_topic(unique, 1, bootstrap=bootstrap)
    with share_member(bootstrap, unique, unique):
        reset = ["offsets", "reset", unique, "--topic", unique, "--to-latest", "--bootstrap-server", bootstrap]
        refused = command(*reset, code=1).stderr
    assert 'Kafka 4.1 lacks the capability "resets share groups", which came with Kafka 4.2' in refused
