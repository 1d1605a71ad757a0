"""Commands on in-memory stores: own writes are no evidence, and a group that cannot be read stops no other one."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from one_migration import ORDERS, LockableMemoryStore, commit

from offsetmgr.api.connections import Connections
from offsetmgr.api.endpoints import SourceAndTarget
from offsetmgr.cli.app import run
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import BrokerPartition, Committed, GroupDescription, TopicPartition
from offsetmgr.groups.last_writes import LastWrites
from offsetmgr.groups.operation_log import OperationLog, OperationStart
from offsetmgr.migration.forward_copy import behind, read_writers
from offsetmgr.migration.observation import Observation
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.plan_file import write_plan

pytest_plugins = ["migration_fixtures"]

T0 = ORDERS[0]
SIDES = ["--from", "memory:source", "--to", "memory:target", "--all-groups"]
UNREAD = Unreachable("group bad", "it cannot be read")


@pytest.mark.parametrize("own", ["", "migrate rollback", "migrate apply --refresh"])
def test_an_offset_that_offsetmgr_wrote_itself_is_no_evidence(opened, monkeypatch, capsys, own):
    """Without such a write, the times show that the 90 of the target is newer than the 40 of the source."""
    monkeypatch.setattr(LastWrites, "_clocks_ms", 0)
    commit(opened.source, "g", 90)
    other, now = opened.directory / "other.json", SystemClock().now_ms()
    write_plan(other, opened.plan().header, [])
    opened.apply()
    if own:
        with OperationLog().recorded(OperationStart(own, (opened.target.uri,), ("g",), 1, 1, (str(opened.path),))):
            pass
    old, new = Committed(40, commit_timestamp=now - 60_000), Committed(90, commit_timestamp=now)
    opened.source.data["g"][T0], opened.target.data["g"][T0] = old, new
    for words in (["mirror", *SIDES, "--once", "--yes"], ["verify", str(other)]):
        assert run(["migrate", *words]) == bool(own)
        assert ("keeps 90; a start there skips 50" in capsys.readouterr().out) is bool(own)
    history = GroupHistory([Observation("g", now, {}, {}, (T0,), {T0: old}, {T0: new}, {})])
    view: Any = SimpleNamespace(zookeeper=opened.source, kafka=opened.target)
    assert bool(behind(history, read_writers(view, history))) is not bool(own)


def test_a_refresh_renews_the_other_groups(opened, monkeypatch, capsys):
    opened.target = target = LockableMemoryStore("target", unlockable={"locked": UNREAD})
    for name in (names := ("first", "members", "locked", "offsets", "last")):
        commit(opened.source, name, 5)
    opened.plan()
    opened.apply()
    for name in names:
        commit(target, name, 6)
    target.broken["offsets"] = UNREAD
    monkeypatch.setattr(target, "topic_creation_times", lambda topics: dict.fromkeys(topics, 2**62))
    monkeypatch.setattr(SourceAndTarget, "legacy_members", lambda _: nullcontext(lambda _: {"members": UNREAD}))
    assert run(["migrate", "apply", str(opened.path), "--refresh", "--yes"]) == 1
    assert (target.refreshed, "NOT renewed: 3" in capsys.readouterr().err) == ({"first": {T0}, "last": {T0}}, True)


def test_a_draft_of_a_partition_map_has_the_partitions_of_the_other_groups(opened, capsys):
    first, second = (TopicPartition("events", BrokerPartition(0, number)) for number in range(2))
    opened.source.data = {name: {tp: Committed(100) for tp in (first, second)} for name in ("a", "b", "c")}
    opened.source.broken = {"b": UNREAD, ("c", second): UNREAD}
    path = opened.directory / "map.json"
    assert run(["migrate", "plan", *SIDES, "--draft-partition-map", str(path)]) == 1
    assert str(UNREAD) in capsys.readouterr().err
    events = json.loads(path.read_text())["topics"]["events"]
    assert [events[name]["seen"]["groups"] for name in ("0-0", "0-1")] == [2, 1]


def test_a_group_that_cannot_be_described_does_not_hold_up_the_edit_of_the_others(opened, monkeypatch):
    described = {"bad": UNREAD, "good": GroupDescription("good", "EMPTY")}
    monkeypatch.setattr(Connections, "group_describer", lambda *_, **__: lambda _groups: described)
    for name in described:
        commit(opened.target, name, 5)
    words = ["--all-groups", "--all-topics", "--wait-empty", "60", "--store", "memory:target", "--execute", "--yes"]
    assert run(["offsets", "delete", *words]) == 1
    assert opened.target_offsets() == {"bad": {T0: 5}}
