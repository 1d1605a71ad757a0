"""A later plan between two stores in memory takes no write of offsetmgr for a commit of a consumer: it knows the copies
and the rollbacks of this machine's operation log."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from in_process import command
from one_migration import ORDERS, Migration

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import Committed
from offsetmgr.groups.operation_log import OperationLog, OperationStart
from offsetmgr.migration.apply import behind, read_writers
from offsetmgr.migration.copied_offsets import CopiedOffsets
from offsetmgr.migration.observation import GroupHistory, Observation
from offsetmgr.testing.memory import MemoryStore

HOUR_MS = 3_600_000
NUMBERS = itertools.count()


def hold(migration: Migration, group: str, source: Committed, target: Committed) -> None:
    migration.source.data[group], migration.target.data[group] = {ORDERS[0]: source}, {ORDERS[0]: target}


def steps(migration: Migration) -> dict[str, Any]:
    """The step of each group in a new plan."""
    plan = replace(migration, name=f"later-{next(NUMBERS)}.json").plan()
    return {group.name: step for group in plan.groups() for step in group.steps}


def test_a_refresh_that_did_not_renew_a_group_is_no_copy_of_it(migration: Migration) -> None:
    """A commit between the copy and the refresh is a commit after the copy."""
    now = SystemClock().now_ms()
    for group in ("renewed", "left"):
        hold(migration, group, Committed(10), Committed(1))
    migration.plan()
    migration.apply()
    with patch.object(SystemClock, "now_ms", lambda _: now + HOUR_MS):
        migration.append({"kind": "refreshed", "groups": 1, "not_renewed": ["left"]})
    for group in ("renewed", "left"):
        hold(migration, group, Committed(10, commit_timestamp=now + HOUR_MS // 2), Committed(15))
    found = steps(migration)
    assert {group: step.action.value for group, step in found.items()} == {
        "renewed": "keep-newer",
        "left": "refuse-rewind",
    }
    assert "still holds the 10 of offsetmgr's last copy, and the target has changed since" in found["renewed"].note
    assert "later than the copy, and the target has changed too" in found["left"].note


def test_the_time_of_a_commit_that_may_be_offsetmgrs_own_is_no_evidence(migration: Migration) -> None:
    now = SystemClock().now_ms()
    hold(migration, "g", Committed(10), Committed(1))
    migration.plan()
    migration.apply()

    def why(source_ms: int, target_ms: int | None, group: str = "g") -> str:
        """Why a later plan does not know the last writer of a group that both stores changed at these times."""
        migration.source.data.clear()
        migration.target.data.clear()
        hold(migration, group, Committed(12, commit_timestamp=source_ms), Committed(15, commit_timestamp=target_ms))
        return steps(migration)[group].note

    both = "but the difference of their clocks could not be measured"
    assert both in why(now, now)  # the journal shows which offsets were copied
    moved = migration.path.rename(migration.directory / "moved.json")
    own = "the time of the commit in the target is no evidence: offsetmgr "
    assert f"{own}wrote it then, or a consumer (operation " in why(now, now)
    assert "whose plan cannot be read: " in why(now, now)
    moved.rename(migration.path)
    hold(migration, "g", Committed(12), Committed(10))
    assert migration.rollback().ok
    assert f"{own}restored an older offset then (operation " in why(now, now)
    assert "(the time of the commit in the target is unknown)" in why(now, None)  # the source's time is evidence
    assert both in why(now, now, "h")
    assert both in why(now, now - HOUR_MS)
    with (migration.directory / "state" / "offsetmgr" / "operations.jsonl").open("a") as log:
        log.write("no record\n")
    unread = "the time of the commit in the source is no evidence: offsetmgr may have written it: its operation log"
    assert f"{unread} cannot be read" in why(now - HOUR_MS, None, "h")


class StoreAt(MemoryStore):
    """A store whose id is its URI."""

    @property
    def uri(self) -> str:
        return self.id


@pytest.mark.parametrize("uri", ["kafka://kafka1:9092", "kafka://localhost:9092", "kafka://kafka2:9092,kafka1:9092"])
def test_an_own_write_counts_although_the_operation_log_names_the_store_by_other_addresses(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with OperationLog().recorded(OperationStart("migrate rollback", (uri,), ("g",), 1, 1)):
        pass

    def restored(source: str, target: str) -> list[bool]:
        copies = CopiedOffsets(StoreAt(source), StoreAt(target))
        return [bool(copies.own_write(side, "g", SystemClock().now_ms())) for side in (0, 1)]

    assert restored("zookeeper://zk1:2181?layout=0.8", "kafka://kafka1:9092") == [False, True]
    assert restored(uri, "kafka://dr:9092") == [True, False]


@pytest.mark.parametrize("own", ["", "migrate rollback", "migrate apply --refresh"])
def test_an_offset_that_offsetmgr_wrote_itself_is_no_evidence(migration: Migration, own: str) -> None:
    """Without such a write, the times show that the 90 of the target is newer than the 40 of the source."""
    other, now = replace(migration, name="other.json"), SystemClock().now_ms()
    hold(migration, "h", Committed(1), Committed(1))
    other.plan()
    migration.start([90])
    (migration.directory / "state" / "offsetmgr" / "operations.jsonl").unlink()
    old, new = Committed(40, commit_timestamp=now - 60_000), Committed(90, commit_timestamp=now)
    hold(migration, "g", old, new)
    sides = ("--from", "memory:source", "--to", "memory:target", "--all-groups")
    with migration.stores(), patch("offsetmgr.groups.last_writes.LastWrites._clocks_ms", 0):
        if own:
            with OperationLog().recorded(OperationStart(own, ("memory:target",), ("g",), 1, 1, (str(migration.path),))):
                pass
        for words in (("mirror", *sides, "--once", "--yes"), ("verify", other.path)):
            shown = command("migrate", *words, code=int(bool(own))).stdout
            assert ("keeps 90; a start there skips 50" in shown) is bool(own)
        history = GroupHistory([Observation("g", now, {}, {}, (ORDERS[0],), {ORDERS[0]: old}, {ORDERS[0]: new}, {})])
        view: Any = SimpleNamespace(zookeeper=migration.source, kafka=migration.target)
        assert bool(behind(history, read_writers(view, history))) is not bool(own)
