"""An edit of a running group first waits until the group's rebalance is complete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from offsetmgr.core.errors import GroupActive
from offsetmgr.core.model import GroupDescription, GroupMember
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.groups.group_takeover import settled

MEMBER = GroupMember("member", "client", "host")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for a timer: its clock advances to the time of the timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> Any:
            self.now += timeout or 0
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


class SlowCoordinator:
    """Needs 0.15 s for each description of the group."""

    def __init__(self, state: str) -> None:
        self._described = GroupDescription("g", state, members=(MEMBER,))

    async def describe(self, groups: Sequence[str], deadline: float) -> dict[str, GroupDescription]:
        await asyncio.sleep(0.15)
        remaining(deadline)
        return {"g": self._described}


def wait(state: str) -> GroupDescription:
    async def run() -> GroupDescription:
        client: Any = SlowCoordinator(state)
        # The second description begins at 0.25 s.
        return await settled(client, "g", asyncio.get_running_loop().time() + 0.3)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())


@pytest.mark.parametrize("state", ["ASSIGNING", "RECONCILING"])
def test_a_group_that_a_stopped_static_member_keeps_rebalancing_is_returned_at_the_deadline(state: str) -> None:
    assert wait(state).state == state


def test_a_group_whose_rebalance_does_not_end_is_refused_with_its_state() -> None:
    with pytest.raises(GroupActive, match="its rebalance does not end: the state is PREPARING_REBALANCE"):
        wait("PREPARING_REBALANCE")
