"""The prompt of an edit with --running, and the marks of an edit in the description of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from offsetmgr.cli.running_edit import notice
from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.core.model import EDIT_CLIENT_ID, GroupDescription, GroupMember
from offsetmgr.core.running_store import RunningGroup
from offsetmgr.kafka.groups.group_inspection import check_supported, inspect_group
from offsetmgr.kafka.protocol.releases import KAFKA_0_9


def test_the_pause_follows_from_the_heartbeat_interval_of_the_group() -> None:
    lines = notice({"classic": RunningGroup(2), "new": RunningGroup(3, True, 10.0), "idle": RunningGroup(0)}, 30.0)
    assert "  - group classic: the edited partitions pause for about 5 s, the others for up to 4 s" in lines[2]
    assert (
        lines[3]
        == "  - group new: all partitions pause for about 11 s, up to 33 s (the group's heartbeat interval is 10 s)"
    )
    assert not any("idle" in line for line in lines)


def test_several_groups_are_counted() -> None:
    lines = notice(
        {"a": RunningGroup(1, True, 5.0), "b": RunningGroup(1, True, 8.0), "c": RunningGroup(1, True, 5.0)}, 30.0
    )
    assert "  - a and 2 other groups: all partitions pause for about 9 s, up to 27 s" in lines[2]


def test_the_longest_pause_is_the_wait_for_a_member_of_up_to_three_edits() -> None:
    lines = notice({"classic": RunningGroup(2)}, 12.0)
    assert "  - while a consumer is processing records, the other consumers wait for its next poll: up to 12 s" in lines
    assert "  - if a consumer overwrites the new offsets, the edit and its pause are repeated, at most twice" in lines


def test_a_member_with_the_client_id_of_edits_locks_the_group() -> None:
    consumer, edit = GroupMember("consumer-1", "app"), GroupMember("m-1", EDIT_CLIENT_ID)
    edited = GroupDescription("shop", "STABLE", "consumer", "range", members=(consumer, edit))
    assert edited.edited_by == edit
    assert edited.lock_ends_s == 47
    running = GroupDescription("shop", "STABLE", "consumer", "range", members=(consumer,))
    assert running.edited_by is None
    assert running.lock_ends_s == 0


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
    described = GroupDescription("shop", "STABLE", protocol_type, assignor)
    leaves = {13: (0, 5)}
    with pytest.raises(UnsupportedOperation, match=reason) as raised:
        check_supported(described, leaves)
    assert raised.value.hint.startswith("stop ")


def test_a_group_in_which_no_consumer_has_joined_is_refused_without_a_guess() -> None:
    class Cluster:
        """A client, a node and a connection: a cluster with a group that has commits."""

        async def describe(self, groups: Sequence[str], _deadline: float) -> dict[str, GroupDescription]:
            return {group: GroupDescription(group, "EMPTY", "", "") for group in groups}

        async def coordinator(self, _group: str, _deadline: float) -> str:
            return "h1:9092"

        def node(self, _address: str) -> Cluster:
            return self

        async def connection(self, _deadline: float) -> Cluster:
            return self

    client: Any = Cluster()
    with pytest.raises(UnsupportedOperation) as raised:
        asyncio.run(inspect_group(client, "shop", 0.0))
    assert "has commits, but the coordinator knows no members: its consumers have never joined, or use assign()" in str(
        raised.value
    )


def test_a_release_that_cannot_remove_members_is_named() -> None:
    described = GroupDescription("shop", "STABLE", "consumer", "range")
    with pytest.raises(UnsupportedOperation, match=r"its coordinator is of Kafka 0\.9"):
        check_supported(described, KAFKA_0_9)
