"""The time limit of a changed shared group to own all partitions again, and the start of that time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

import shared_group
from members import AnyMember
from shared_group import SharedGroup
from zookeeper_history import GroupHistory

from offsetmgr.sandbox import ZooKeeperServer

FROZEN_AT, SESSION_END = 100_000, 104_000


class Frozen:
    """A member that registers again when it is woken."""

    registered: int | None = 7

    def freeze(self) -> None:
        self.registered = None

    def thaw(self) -> None:
        self.registered = 8


@pytest.fixture
def expire(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], SharedGroup]:
    """Expires a member; the other members own all partitions so many ms after the end of its session."""

    def run_expiry(taken_over_after_ms: int) -> SharedGroup:
        clock = [FROZEN_AT]
        group = SharedGroup(tmp_path, ZooKeeperServer(tmp_path, port=1), [], "g", "range")
        member = Frozen()
        group.members = [cast(AnyMember, member)]

        def is_balanced() -> bool:
            clock[0] = SESSION_END + taken_over_after_ms
            return True

        history = GroupHistory(session_ends={7: (SESSION_END, True)})
        monkeypatch.setattr(shared_group, "_now_ms", lambda: clock[0])
        monkeypatch.setattr(shared_group, "group_history", lambda *_: history)
        monkeypatch.setattr(group, "_registered", lambda one: one.registered)
        monkeypatch.setattr(group, "is_balanced", is_balanced)
        group.event("a member is frozen past its session", lambda: group.expire(cast(AnyMember, member)))
        return group

    return run_expiry


def test_a_take_over_counts_from_the_end_of_the_session(expire: Callable[[int], SharedGroup]) -> None:
    group = expire(99_900)

    assert group.took[0] == ("a frozen member's session has ended", 99.9)


def test_a_take_over_that_exceeds_its_limit_fails(expire: Callable[[int], SharedGroup]) -> None:
    with pytest.raises(AssertionError, match=r"100\.1 s until all partitions were owned"):
        expire(100_100)
