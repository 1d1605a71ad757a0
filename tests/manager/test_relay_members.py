"""Only current members of a group may commit through the relay."""

import asyncio

import pytest
from relay_clients import (
    FENCED,
    ILLEGAL_GENERATION,
    LEAVE,
    NOT_COORDINATOR,
    REBALANCING,
    UNKNOWN_MEMBER,
    Member,
    committed,
    joined,
)
from running_relay import RunningRelay

from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address, Request

pytestmark = pytest.mark.servers


def test_a_commit_of_a_member_of_an_older_generation_is_rejected(relay: RunningRelay, unique: str) -> None:
    async def scenario() -> None:
        zombie = await joined(relay, unique)
        assert await zombie.commit(1) == 0
        other = await Member(relay, unique).open()
        joining = asyncio.ensure_future(other.join())
        while await zombie.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        assert await zombie.commit(2) == 0, "it remains a member until the next generation begins"
        assert await zombie.leave() == 0  # the coordinator considers the member gone, but its process continues
        assert await joining == 0
        assert await other.commit(3) == REBALANCING
        assert await other.sync() == 0
        assert await zombie.commit(99) == ILLEGAL_GENERATION
        assert await other.commit(3) == 0

    relay.run(scenario())
    assert committed(relay, unique) == {("t", 0): 3}


def test_a_commit_of_a_non_member_is_rejected_while_the_group_has_members(relay: RunningRelay, unique: str) -> None:
    async def scenario() -> None:
        foreign_owner = await Member(relay, unique).open()
        assert await foreign_owner.commit(1) == 0, "the group has no members yet"
        member = await joined(relay, unique)
        assert await foreign_owner.commit(99) == UNKNOWN_MEMBER
        foreign_owner.generation, foreign_owner.member_id = member.generation, "unknown-member"
        assert await foreign_owner.commit(99) == UNKNOWN_MEMBER
        foreign_owner.generation, foreign_owner.member_id = member.generation + 1, member.member_id
        assert await foreign_owner.commit(99) == ILLEGAL_GENERATION
        foreign_owner.generation, foreign_owner.member_id = -1, ""
        assert await member.commit(2) == 0
        await member.leave()
        assert await foreign_owner.commit(3) == 0, "the group has no members any more"
        assert await member.commit(99) in (UNKNOWN_MEMBER, ILLEGAL_GENERATION)

    relay.run(scenario())
    assert committed(relay, unique) == {("t", 0): 3}


def test_a_static_member_that_was_replaced_is_fenced(relay: RunningRelay, unique: str) -> None:
    async def scenario() -> None:
        old = await joined(relay, unique, "instance")
        assert await old.commit(1) == 0
        new = await Member(relay, unique, "instance").open()
        assert (await new.join(), await new.sync()) == (0, 0)
        assert new.member_id != old.member_id
        assert await old.commit(99) == FENCED
        assert await new.commit(2) == 0

    relay.run(scenario())
    assert committed(relay, unique) == {("t", 0): 2}


def test_a_new_owner_verifies_members_with_the_real_coordinator(relay: RunningRelay, unique: str) -> None:
    async def scenario() -> None:
        zombie = await joined(relay, unique)
        other = await Member(relay, unique).open()
        joining = asyncio.ensure_future(other.join())
        while await zombie.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        await zombie.leave()
        assert (await joining, await other.sync()) == (0, 0)
        relay.kept.epoch += 1  # as if another manager had been the owner until now
        before = member_requests()
        refused, accepted = await asyncio.gather(zombie.commit(99), other.commit(1))
        assert (refused in (UNKNOWN_MEMBER, ILLEGAL_GENERATION), accepted) == (True, 0)
        assert member_requests() > before
        before = member_requests()
        assert [await other.commit(n) for n in range(2, 20)] == [0] * 18
        assert member_requests() == before, "a recent proof of membership is reused"

    def member_requests() -> float:
        return relay.guarded.metrics()["relay_member_requests_total"]

    relay.run(scenario())
    assert committed(relay, unique) == {("t", 0): 19}


def test_a_new_generation_begins_only_after_the_commits_of_the_previous_one_have_ended(relay, unique) -> None:
    async def scenario() -> None:
        first = await joined(relay, unique)
        relay.kept.resume_commits = asyncio.Event()
        try:
            slow = asyncio.ensure_future(first.commit(5))
            while not any(request.group == unique for request in relay.kept.requests):
                await asyncio.sleep(0.01)
            again = await Member(relay, unique).open()
            again.member_id = first.member_id
            joining = asyncio.ensure_future(again.join())  # the leader joins again: a new generation at once
            beating = await Member(relay, unique).open()
            beating.member_id, beating.generation = first.member_id, first.generation
            while await beating.heartbeat() != ILLEGAL_GENERATION:
                await asyncio.sleep(0.01)
            done, _ = await asyncio.wait([joining], timeout=0.2)
            assert not done, "the relay delays the response of the real coordinator"
            assert await beating.commit(99) == ILLEGAL_GENERATION
        finally:
            relay.kept.resume_commits.set()
            relay.kept.resume_commits = None
        assert (await slow, await joining) == (0, 0)
        assert again.generation == first.generation + 1

    relay.run(scenario())
    assert committed(relay, unique) == {("t", 0): 5}


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        pytest.param(NOT_COORDINATOR, 0, id="another manager owns it"),
        pytest.param(0, 1, id="ownership was lost and regained"),
        pytest.param(14, 0, id="the shard is loading"),
    ],
)
def test_a_join_answered_after_ownership_was_lost_returns_no_generation(relay, unique, code: int, taken: int) -> None:
    async def scenario() -> None:
        first = await joined(relay, unique)
        second = await Member(relay, unique).open()
        joining = asyncio.ensure_future(second.join())
        while await first.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        relay.kept.epoch += taken
        relay.kept.code = code
        async with asyncio.timeout(90):
            direct = await BrokerConnection.open(Address.parse(relay.real), Security(), 60)
            members = [{"member_id": first.member_id, "group_instance_id": None}]
            await direct.call(Request(LEAVE, 3, {"group_id": unique, "members": members}), 60)
            await direct.close()
            assert await joining == NOT_COORDINATOR
        assert second.generation == -1

    try:
        relay.run(scenario())
    finally:
        relay.kept.code = 0


def test_commits_keep_their_order_while_their_membership_is_verified(relay: RunningRelay, unique: str) -> None:
    async def scenario() -> None:
        member = await joined(relay, unique)
        for _ in range(10):
            relay.kept.epoch += 1
            answers = await asyncio.gather(*(member.commit(n) for n in range(20)))
            assert answers == [0] * 20
            made = [row for request in relay.kept.requests for _, rows in request.topics for row in rows]
            assert [row[1] for row in made[-20:]] == list(range(20))

    relay.run(scenario())


def test_the_relay_reports_which_groups_have_members_for_the_expiration_of_offsets(relay, unique) -> None:
    async def scenario() -> None:
        member = await joined(relay, unique)
        groups = [unique, f"{unique}-none"]
        assert await relay.relay.members(groups) == {unique: True, f"{unique}-none": False}
        await member.leave()
        assert (await relay.relay.members([unique])) == {unique: False}

    relay.run(scenario())
