"""An edit of a running group first waits until the group's rebalance is complete, and is refused for some groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from offsetmgr.core.errors import GroupActive, TimedOut, UnsupportedOperation
from offsetmgr.core.model import GroupDescription, GroupMember
from offsetmgr.kafka.groups.group_inspection import check_supported
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
        if asyncio.get_running_loop().time() >= deadline:
            raise TimedOut("group g")
        return {"g": self._described}


def wait(state: str) -> GroupDescription:
    async def run() -> GroupDescription:
        client: Any = SlowCoordinator(state)
        # The second description begins at 0.25 s.
        return await settled(client, "g", asyncio.get_running_loop().time() + 0.3)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())


def test_a_group_that_a_stopped_static_member_keeps_rebalancing_is_returned_at_the_deadline() -> None:
    for state in ("ASSIGNING", "RECONCILING"):
        assert wait(state).state == state
    with pytest.raises(GroupActive, match="its rebalance does not end: the state is PREPARING_REBALANCE"):
        wait("PREPARING_REBALANCE")


@pytest.mark.parametrize(
    ("protocol_type", "assignor", "reason"),
    [
        ("connect", "sessioned", "are no consumers but a Kafka Connect cluster"),
        ("sr", "v0", "are no consumers but a Schema Registry cluster"),
        ("other", "x", "are no consumers but other applications"),
        ("consumer", "stream", "are Kafka Streams applications, which keep state"),
    ],
)
def test_members_that_are_no_plain_consumers_are_named(protocol_type: str, assignor: str, reason: str) -> None:
    leave_group = {13: (0, 5)}
    with pytest.raises(UnsupportedOperation, match=reason) as raised:
        check_supported(GroupDescription("shop", "STABLE", protocol_type, assignor), leave_group)
    assert raised.value.hint.startswith("stop ")
