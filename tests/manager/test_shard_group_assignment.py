"""The assignment of shard groups: examples, then properties against simple oracles."""

import contextlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import MalformedData, OffsetMgrError, UnknownVersion
from offsetmgr.manager.assignment import (
    FIRST_NODE_ID,
    Assignment,
    ManagerMetadata,
    NodeAddress,
    SharedConfig,
    assign,
    assign_members,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
    node_ids,
)
from offsetmgr.manager.group_secret import GroupSecret
from offsetmgr.manager.node.manager_node import shared_config

SHARD_GROUPS = 8
AGREED = SharedConfig("offsets", 50, SHARD_GROUPS, "avro", 1, 7 * 24 * 3_600_000, False)


def info(port: int, owned: dict[int, int] | None = None, parameters: SharedConfig = AGREED) -> ManagerMetadata:
    return ManagerMetadata("host", port, parameters, owned or {})


# --- examples -----------------------------------------------------------------------------------------


def test_a_new_manager_waits_for_revoked_shard_groups() -> None:
    alone = info(1, dict.fromkeys(range(SHARD_GROUPS), 1))
    both = assign(2, [("a", alone), ("b", info(2))])
    assert both.owners == dict.fromkeys(range(4), "a")
    assert both.waiting == dict.fromkeys(range(4, 8), "a")
    assert both.to_revoke("a") == {4, 5, 6, 7}
    assert both.shard_groups_of("b") == frozenset()

    after = assign(3, [("a", info(1, dict.fromkeys(range(4), 1))), ("b", info(2))])
    assert after.owners == dict.fromkeys(range(4), "a") | dict.fromkeys(range(4, 8), "b")
    assert after.waiting == {}


def test_a_shard_group_that_its_owner_does_not_know_yet_is_assigned_to_no_other_manager() -> None:
    """Its JoinGroup is old and arrived late. The manager continued and was assigned shard group 1 in the meantime."""
    given = {0: "late", 1: "late", 2: "b"}
    late = info(1, {0: 4})
    current = replace(info(2, {2: 5}), seen=5, seen_owners=given)
    found = assign(6, [("late", replace(late, seen=4)), ("b", current)])
    assert found.owners[0] == found.owners[1] == "late"


def test_a_shard_group_that_a_member_lost_after_its_assignment_is_free() -> None:
    given = {0: "a", 1: "a"}
    lost = replace(info(1, {0: 5}), seen=5, seen_owners=given)
    found = assign(6, [("a", lost), ("b", replace(info(2, dict.fromkeys(range(2, 8), 5)), seen=5, seen_owners=given))])
    assert found.owners[1] == "a"  # it has the fewest, so it is assigned the shard group again
    assert found.waiting == dict.fromkeys(found.waiting, "b")


# --- releases -----------------------------------------------------------------------------------------

BOTH = dict.fromkeys(range(4), "a") | dict.fromkeys(range(4, 8), "b")
"""The owners in the assignment of generation 5, in the tests of releases."""


def seen(port: int, owned: Iterable[int], *, generation: int = 5, **changed: Any) -> ManagerMetadata:
    """The metadata of a member that has received the assignment `BOTH`."""
    metadata = info(port, dict.fromkeys(owned, 5))
    return replace(metadata, seen=generation, seen_owners=BOTH, **changed)


OF_B = ("b", seen(2, range(4, 8)))


@pytest.mark.parametrize(
    ("generation", "members", "unreleased"),
    [
        # All are released in the first generation. Later, members that have seen no assignment know of no release.
        (1, [("a", info(1)), ("b", info(2))], []),
        (6, [("a", info(1)), ("b", info(2))], range(8)),
        # Shard groups of a member that is gone, that an owner no longer claims, and of a member that leaves.
        (6, [("a", seen(1, range(4)))], range(4, 8)),
        (6, [("a", seen(1, [0, 1])), OF_B], []),
        (6, [("a", seen(1, range(4))), ("b", seen(2, [], leaving=True))], []),
        # A member that is gone may have received any shard group in generation 6.
        (7, [("a", seen(1, [0, 1, 3])), OF_B], range(8)),
        # The metadata of a is older than the assignment to a and b, or is repeated by a member without the secret.
        (6, [("a", seen(1, range(4), generation=4)), OF_B], range(4)),
        (6, [("a", seen(1, range(8), generation=4))], range(8)),
        # A member waits for the lease of an earlier owner; the owner of 3 waits itself.
        (6, [("a", seen(1, [0, 1, 3], waiting_for=frozenset({2, 3}))), OF_B], [2]),
    ],
)
def test_shard_groups_that_are_not_released(generation: int, members, unreleased: Iterable[int]) -> None:
    found = assign(generation, members)
    assert found.unreleased == set(unreleased)
    assert set(found.owners) == set(range(8))
    assert (
        set(found.nodes) == {name for name, metadata in members if not metadata.leaving} >= set(found.owners.values())
    )


def test_if_all_members_leave_no_shard_group_has_an_owner() -> None:
    leaving = [("a", seen(1, [], leaving=True)), ("b", seen(2, [4], leaving=True))]
    found = assign(6, leaving)
    assert (found.owners, found.unreleased, found.nodes) == ({}, frozenset(), {})
    assert found.waiting == {4: "b"}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (
            {"partitions": 40, "record_format": "kafka"},
            "partitions is 40 here and 50 at the other managers; "
            "record format is 'kafka' here and 'avro' at the other managers",
        ),
        ({"retention_ms": 60_000}, "retention is 1 minutes here and 10080 minutes at the other managers"),
        ({"retention_ms": 1_500}, "retention is 1500 ms here and 10080 minutes at the other managers"),
        ({"relay": True}, "relay is on here and off at the other managers"),
    ],
)
def test_a_manager_with_other_parameters_gets_no_shard_groups_and_a_reason(parameters, why: str) -> None:
    other = info(1, parameters=replace_parameters(**parameters))
    found = assign(2, [("leader", other), ("b", info(2, {0: 1})), ("c", info(3, {1: 1}))])
    assert found.rejected == {"leader": why}
    assert found.shard_groups_of("leader") == frozenset()
    assert "leader" not in found.nodes


def test_the_settings_that_managers_compare_keep_their_bytes() -> None:
    """Otherwise the managers of two releases reject each other during a rolling upgrade."""
    settings = shared_config(ManagerSettings(retention_ms=604_800_000), "offsets", 50, relay=False)
    assert encode_metadata(info(9192, parameters=settings), 1) == (
        b'{"version":3,"host":"host","port":9192,"parameters":{"topic":"offsets","partitions":50,'
        b'"shard_groups":8,"record_format":"avro","protocol":2,"retention_ms":604800000,"relay":false},"owned":{},'
        b'"seen":-1,"seen_owners":{},"relay":{},"waiting_for":[],"leaving":false,"attempt":1}'
    )


@pytest.mark.parametrize("relay", [None, 1, "true"])
def test_a_relay_setting_that_is_not_a_boolean_is_malformed(relay: object) -> None:
    metadata = json.loads(encode_metadata(info(1), 1))
    metadata["parameters"]["relay"] = relay
    with pytest.raises(MalformedData, match=r"(its 'parameters.relay' is not true or false|has no 'parameters.relay')"):
        decode_metadata(json.dumps(metadata).encode())


def test_the_parameters_of_managers_with_shard_groups_win_even_against_a_majority() -> None:
    other = replace_parameters(topic="elsewhere")
    found = assign(2, [("a", info(1, {0: 1})), ("b", info(2, parameters=other)), ("c", info(3, parameters=other))])
    assert set(found.rejected) == {"b", "c"}
    assert found.shard_groups_of("a") == frozenset(range(SHARD_GROUPS))


def test_a_member_with_unreadable_metadata_is_excluded_and_the_others_continue() -> None:
    found = assign_members(2, [("a", encode_metadata(info(1), 1)), ("junk", b'{"version":7}')])
    assert decode_assignment(found["a"]).shard_groups_of("a") == frozenset(range(SHARD_GROUPS))
    assert decode_assignment(found["junk"]).rejected == {"junk": "metadata of a manager: is of version 7; known: 3"}
    alone = decode_assignment(assign_members(2, [("junk", b"{}")])["junk"])
    assert alone == Assignment(2, {}, {}, {}, {"junk": "metadata of a manager: has no 'version'"})


def test_members_with_long_ids_do_not_fill_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    secret = GroupSecret("managers", ["s" * 32])
    members = [(f"{'x' * 32_000}{n}", encode_metadata(info(n), 1)) for n in range(40)]
    for generation in range(3):
        found = assign_members(generation, members, secret)
    assert sum(map(len, found.values())) < 2 * 40 * 32_000
    assert max(map(len, secret.unproven)) < 300
    assert len(caplog.records) == len(secret.unproven) == 20


def test_the_alarm_about_a_member_without_the_secret_lasts_while_it_is_a_member() -> None:
    now = 0.0
    secret = GroupSecret("managers", ["s" * 32], required=False, clock=lambda: now)
    assign_members(1, [("old", encode_metadata(info(1), 1))], secret)
    now += 86_400
    assert len(secret.unproven) == 1
    secret.on_join()
    for seconds, alarms in ((599, 1), (2, 0)):
        now += seconds
        assert len(secret.unproven) == alarms


def test_node_ids_follow_from_addresses_and_differ_for_equal_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = node_ids([("a", 1), ("b", 2)])
    assert ids == node_ids([("b", 2), ("a", 1)])
    assert all(FIRST_NODE_ID <= n < 2**31 for n in ids.values()), "no broker has such an id"
    monkeypatch.setattr("offsetmgr.manager.assignment._NODE_IDS", 3)
    ids = node_ids([("a", port) for port in range(3)])
    assert set(ids.values()) == {FIRST_NODE_ID, FIRST_NODE_ID + 1, FIRST_NODE_ID + 2}
    assert ids == node_ids([("a", port) for port in (2, 0, 1)])


def test_two_members_at_one_address_are_one_node() -> None:
    """A manager that was killed and restarted while its former process is still a member."""
    found = assign(1, [("dead", info(1, {0: 1})), ("new", info(1))])
    assert found.nodes["dead"] == found.nodes["new"]


def replace_parameters(**changed: object) -> SharedConfig:
    return AGREED._replace(**changed)  # type: ignore[arg-type]


# --- properties ---------------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d", "e"]


@st.composite
def groups(draw: st.DrawFn) -> list[tuple[str, ManagerMetadata]]:
    """Members with any claims, also conflicting ones, some with different parameters."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    members = []
    for name in names:
        owned = draw(st.dictionaries(st.integers(0, SHARD_GROUPS + 1), st.integers(0, 5), max_size=SHARD_GROUPS))
        parameters = draw(st.sampled_from([AGREED, AGREED, AGREED, replace_parameters(topic="other")]))
        members.append((name, info(NAMES.index(name), owned, parameters)))
    return members


def holders_of_claims(members: list[tuple[str, ManagerMetadata]]) -> dict[int, str]:
    """The member whose claim wins for each shard group: the youngest claim, among equals the first by name."""
    found = {}
    for shard_group in range(SHARD_GROUPS):
        claims = [(-i.owned[shard_group], name) for name, i in members if shard_group in i.owned]
        if claims:
            found[shard_group] = min(claims)[1]
    return found


@given(groups(), st.randoms())
def test_the_order_of_members_does_not_matter(members: list[tuple[str, ManagerMetadata]], random: object) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assign(7, shuffled) == assign(7, members)


@given(groups())
def test_every_shard_group_is_owned_or_waits_and_no_claim_is_taken_away(members) -> None:
    found = assign(7, members)
    assert set(found.owners) | set(found.waiting) == set(range(SHARD_GROUPS))
    assert not set(found.owners) & set(found.waiting)
    claimed = holders_of_claims(members)
    assert {
        shard_group: owner for shard_group, owner in found.all_owners().items() if shard_group in claimed
    } == claimed
    assert not set(found.owners.values()) & set(found.rejected)


@given(groups(), st.integers(1, 7), st.sets(st.sampled_from(NAMES)), st.sets(st.integers(0, SHARD_GROUPS - 1)))
def test_an_owner_waits_unless_it_or_another_member_had_the_shard_group_in_the_previous_generation(
    members: list[tuple[str, ManagerMetadata]], newest: int, owners: set[str], awaited: set[int]
) -> None:
    seen_owners = dict(zip(range(SHARD_GROUPS), itertools.cycle(sorted(owners)), strict=False))
    members = [(m, replace(i, seen=newest, seen_owners=seen_owners)) for m, i in members]
    members[0] = (members[0][0], replace(members[0][1], waiting_for=frozenset(awaited)))
    found = assign(7, members)
    claimed = holders_of_claims(members)
    for shard_group in found.owners:
        released = seen_owners.get(shard_group) in dict(members) and shard_group not in awaited
        assert (shard_group in found.unreleased) == (newest != 6 or not (shard_group in claimed or released))


@given(groups())
def test_two_rebalances_balance_the_shard_groups_with_the_fewest_moves(members) -> None:
    first = assign(7, members)
    infos = dict(members)
    rejoined = [(m, replace(infos[m], owned=dict.fromkeys(first.shard_groups_of(m), 7))) for m in infos]
    second = assign(8, rejoined)
    assert second.waiting == {}
    assert second.rejected == first.rejected
    accepted = [m for m in infos if m not in first.rejected]
    sizes = [len(second.shard_groups_of(m)) for m in accepted]
    assert max(sizes) - min(sizes) <= 1
    assert all(second.owners[shard_group] == owner for shard_group, owner in first.owners.items())
    claimed = holders_of_claims(members)
    kept = sum(second.owners[shard_group] == owner for shard_group, owner in claimed.items())
    assert kept == most_that_can_stay(accepted, list(claimed.values()))


def most_that_can_stay(members: list[str], owners: list[str]) -> int:
    """Tries every choice of the members that own one shard group more than the others."""
    share, more = divmod(SHARD_GROUPS, len(members))
    return max(
        sum(min(owners.count(m), share + (m in rich)) for m in members)
        for rich in itertools.combinations(members, more)
    )


# --- formats ------------------------------------------------------------------------------------------

TEXTS = st.text(max_size=8)
NUMBERS = st.integers(-1, 2**31)
INFOS = st.builds(
    ManagerMetadata,
    TEXTS,
    NUMBERS,
    st.builds(SharedConfig, TEXTS, st.just(50), st.integers(1, 8), TEXTS, NUMBERS, NUMBERS, st.booleans()),
    st.dictionaries(st.integers(0, 20), NUMBERS),
    NUMBERS,
    st.dictionaries(st.integers(0, 20), TEXTS),
    st.frozensets(st.integers(0, 20)),
    st.booleans(),
)
ASSIGNMENTS = st.builds(
    Assignment,
    NUMBERS,
    st.dictionaries(TEXTS, st.builds(NodeAddress, NUMBERS, TEXTS, NUMBERS)),
    st.dictionaries(st.integers(0, 20), TEXTS),
    st.dictionaries(st.integers(0, 20), TEXTS),
    st.dictionaries(TEXTS, TEXTS),
    st.frozensets(st.integers(0, 20)),
)


@given(INFOS, ASSIGNMENTS)
def test_metadata_and_assignments_are_read_back(metadata: ManagerMetadata, assignment: Assignment) -> None:
    assert decode_metadata(encode_metadata(metadata, 3)) == metadata
    assert decode_assignment(encode_assignment(assignment)) == assignment


def test_each_join_sends_different_metadata() -> None:
    assert encode_metadata(info(1), 1) != encode_metadata(info(1), 2)


@pytest.mark.parametrize("decode", [decode_metadata, decode_assignment])
def test_an_unknown_version_is_named(decode: object) -> None:
    with pytest.raises(UnknownVersion, match="is of version 2; known: 3"):
        decode(b'{"version":2}')  # type: ignore[operator]


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"version":"1"}', b'{"version":true}', b"[" * 100_000])
@pytest.mark.parametrize("decode", [decode_metadata, decode_assignment])
def test_invalid_data_is_malformed(decode: object, data: bytes) -> None:
    with pytest.raises(MalformedData):
        decode(data)  # type: ignore[operator]


ENCODED = [encode_metadata(info(1, {0: 1}), 1), encode_assignment(assign(1, [("a", info(1)), ("b", info(2))]))]
FIELDS = "version host parameters owned seen_owners nodes waiting relay unreleased waiting_for leaving"


@given(
    st.sampled_from(ENCODED),
    st.lists(st.sampled_from(FIELDS.split())),
    st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda c: st.lists(c) | st.dictionaries(TEXTS, c)),
)
def test_damaged_data_raises_only_typed_errors(data: bytes, names: list[str], value: object) -> None:
    damaged = json.loads(data)
    for name in names:
        damaged[name] = value
    for decode in (decode_metadata, decode_assignment):
        with contextlib.suppress(OffsetMgrError):
            decode(json.dumps(damaged).encode())


def test_more_shard_groups_than_partitions_are_malformed() -> None:
    with pytest.raises(MalformedData, match="51 shard groups for 50 partitions"):
        decode_metadata(encode_metadata(info(1, parameters=replace_parameters(shard_groups=51)), 1))
