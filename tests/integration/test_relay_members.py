"""Who may commit through the relay: nobody who is no member of the group any more."""

from __future__ import annotations

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

from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.request_sender import send_request

pytest_plugins = ["relay_fixtures"]

pytestmark = pytest.mark.servers


def test_a_zombie_of_an_older_generation_is_refused(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        zombie = await joined(relay, unique)
        assert await zombie.commit(1) == 0
        other = await Member(relay, unique).open()
        joining = asyncio.ensure_future(other.join())
        while await zombie.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        assert await zombie.commit(2) == 0, "until the others have the next generation, it is a member like any"
        assert await zombie.leave() == 0  # its process is gone, for the coordinator; but it goes on
        assert await joining == 0
        assert await other.commit(3) == REBALANCING
        assert await other.sync() == 0
        assert await zombie.commit(99) == ILLEGAL_GENERATION
        assert await other.commit(3) == 0

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 3}


def test_who_is_no_member_is_refused_while_there_are_members(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        foreign_owner = await Member(relay, unique).open()
        assert await foreign_owner.commit(1) == 0, "no members yet"
        member = await joined(relay, unique)
        assert await foreign_owner.commit(99) == UNKNOWN_MEMBER
        foreign_owner.generation, foreign_owner.member_id = member.generation, "somebody"
        assert await foreign_owner.commit(99) == UNKNOWN_MEMBER
        foreign_owner.generation, foreign_owner.member_id = member.generation + 1, member.member_id
        assert await foreign_owner.commit(99) == ILLEGAL_GENERATION
        foreign_owner.generation, foreign_owner.member_id = -1, ""
        assert await member.commit(2) == 0
        await member.leave()
        assert await foreign_owner.commit(3) == 0, "no members any more"
        assert await member.commit(99) in (UNKNOWN_MEMBER, ILLEGAL_GENERATION)

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 3}


def test_a_static_member_that_was_replaced_is_fenced(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        old = await joined(relay, unique, "instance")
        assert await old.commit(1) == 0
        new = await Member(relay, unique, "instance").open()
        assert (await new.join(), await new.sync()) == (0, 0)
        assert new.member_id != old.member_id
        assert await old.commit(99) == FENCED
        assert await new.commit(2) == 0

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 2}


def test_a_new_owner_knows_no_client_and_asks_the_real_coordinator(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        zombie = await joined(relay, unique)
        other = await Member(relay, unique).open()
        joining = asyncio.ensure_future(other.join())
        while await zombie.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        await zombie.leave()
        assert (await joining, await other.sync()) == (0, 0)
        relay.kept.epoch += 1  # as if another manager had been the owner until now
        before = asked()
        refused, accepted = await asyncio.gather(zombie.commit(99), other.commit(1))
        assert (refused in (UNKNOWN_MEMBER, ILLEGAL_GENERATION), accepted) == (True, 0)
        assert asked() > before
        before = asked()
        assert [await other.commit(n) for n in range(2, 20)] == [0] * 18
        assert asked() == before, "what was just proved is not asked again"

    def asked() -> float:
        return relay.guarded.metrics()["relay_member_requests_total"]

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 19}


def test_no_generation_is_given_out_before_the_commits_of_the_one_before_have_ended(
    relay: RunningRelay, unique: str
) -> None:
    async def story() -> None:
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
            assert not done, "the real coordinator has answered, and we hold the answer back"
            assert await beating.commit(99) == ILLEGAL_GENERATION
        finally:
            relay.kept.resume_commits.set()
            relay.kept.resume_commits = None
        assert (await slow, await joining) == (0, 0)
        assert again.generation == first.generation + 1

    relay.run(story())
    assert committed(relay, unique) == {("t", 0): 5}


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        pytest.param(NOT_COORDINATOR, 0, id="another's now"),
        pytest.param(0, 1, id="another's, and ours again"),
        pytest.param(14, 0, id="being loaded, whoever's it is"),
    ],
)
def test_a_join_answered_after_ownership_was_lost_gives_no_generation(
    relay: RunningRelay, unique: str, code: int, taken: int
) -> None:
    async def story() -> None:
        first = await joined(relay, unique)
        second = await Member(relay, unique).open()
        joining = asyncio.ensure_future(second.join())
        while await first.heartbeat() != REBALANCING:
            await asyncio.sleep(0.01)
        relay.kept.epoch += taken
        relay.kept.code = code
        async with asyncio.timeout(20):
            direct = await BrokerConnection.open(Address.parse(relay.real), Security(), 10)
            members = [{"member_id": first.member_id, "group_instance_id": None}]
            await send_request(direct, LEAVE, 3, {"group_id": unique, "members": members}, 10)
            await direct.close()
            assert await joining == NOT_COORDINATOR
        assert second.generation == -1

    try:
        relay.run(story())
    finally:
        relay.kept.code = 0


def test_commits_keep_their_order_while_their_member_is_being_proved(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        member = await joined(relay, unique)
        for _ in range(10):
            relay.kept.epoch += 1
            answers = await asyncio.gather(*(member.commit(n) for n in range(20)))
            assert answers == [0] * 20
            made = [row for request in relay.kept.requests for _, rows in request.topics for row in rows]
            assert [row[1] for row in made[-20:]] == list(range(20))

    relay.run(story())


def test_who_lets_offsets_expire_is_reported_which_groups_have_members(relay: RunningRelay, unique: str) -> None:
    async def story() -> None:
        member = await joined(relay, unique)
        groups = [unique, f"{unique}-none"]
        assert await relay.relay.members(groups) == {unique: True, f"{unique}-none": False}
        await member.leave()
        assert (await relay.relay.members([unique])) == {unique: False}

    relay.run(story())
