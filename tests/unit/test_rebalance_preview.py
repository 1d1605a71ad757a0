"""``zk rebalance --simulate`` without servers: snapshots of groups, predicted assignments, files, and output."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.cli.app import run
from offsetmgr.core.errors import AssignmentRefused, MalformedData, UnknownVersion, UsageError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors import Moves, ThreadId
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.rebalance_preview import changes
from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot
from offsetmgr.zookeeper.rebalance_preview.predict import (
    assignment,
    matching_strategies,
    partition_ranges,
    predict,
)
from offsetmgr.zookeeper.rebalance_preview.snapshot_file import decode, encode

A, B = "g_alpha-1700000000123-0000000a", "g_beta-1700000000456-0000000b"
ORDERS = Subscription.static({"orders": 1})


def owned(**threads: str) -> dict[TopicPartition, ThreadId | None]:
    """``alpha="orders:0,1"`` means that thread 0 of that member owns these partitions."""
    found: dict[TopicPartition, ThreadId | None] = {}
    for member, text in threads.items():
        topic, _, numbers = text.partition(":")
        found |= {TopicPartition(topic, int(n)): ThreadId({"a": A, "b": B}[member], 0) for n in numbers.split(",")}
    return found


def group(
    *members: str,
    partitions: int = 5,
    owners: Mapping[TopicPartition, ThreadId | None] | None = None,
    subscription: Subscription = ORDERS,
) -> GroupSnapshot:
    """Members that consume ``orders``, whose partitions broker 1 leads and broker 2 follows."""
    topics = {"orders": dict.fromkeys(range(partitions), (1, 2))}
    return GroupSnapshot("g", dict.fromkeys(members, subscription), topics, owners, frozenset({1, 2}))


def group_of_0_7(*members: str) -> GroupSnapshot:
    partitions: dict[int, tuple[int, ...]] = {
        BrokerPartition(broker, n): (broker,) for broker in (0, 10) for n in range(2)
    }
    return GroupSnapshot("g", dict.fromkeys(members, ORDERS), {"orders": partitions}, None, frozenset({0, 10}))


# --- predictions -------------------------------------------------------------------------------------


def test_a_second_member_takes_the_last_partitions_from_the_first() -> None:
    before = group(A, owners=owned(a="orders:0,1,2,3,4"))
    found = predict(before, changes.member_joins(before, B, ORDERS), "range")
    assert found.after == {**owned(a="orders:0,1,2", b="orders:3,4")}
    assert found.observed
    assert found.moves == Moves(kept=3, rethreaded=0, moved=2, gained=0, lost=0)


def test_a_member_that_leaves_loses_all_partitions_to_the_others() -> None:
    before = group(A, B, owners=owned(a="orders:0,1,2", b="orders:3,4"))
    found = predict(before, changes.member_leaves(before, B), "range")
    assert found.after == owned(a="orders:0,1,2,3,4")
    assert found.moves == Moves(kept=3, rethreaded=0, moved=2, gained=0, lost=0)


def test_unowned_partitions_are_gained_and_owned_partitions_without_a_subscription_are_lost() -> None:
    before = group(A, owners={**owned(a="orders:0,1"), TopicPartition("old", 0): ThreadId(A, 0)})
    assert predict(before, before, "range").moves == Moves(kept=2, rethreaded=0, moved=0, gained=3, lost=1)


def test_an_unreadable_owner_counts_as_another_thread() -> None:
    before = group(A, owners={**owned(a="orders:0,1,2,3"), TopicPartition("orders", 4): None})
    assert predict(before, before, "range").moves == Moves(kept=4, rethreaded=0, moved=1, gained=0, lost=0)


def test_without_owners_the_present_assignment_is_computed() -> None:
    before = group(A, B)
    found = predict(before, changes.member_leaves(before, A), "range")
    assert not found.observed
    assert found.before == owned(a="orders:0,1,2", b="orders:3,4")
    assert found.after == owned(b="orders:0,1,2,3,4")


def test_a_topic_that_grows_also_moves_neighbouring_partitions() -> None:
    before = group(A, B, partitions=4, owners=owned(a="orders:0,1", b="orders:2,3"))
    found = predict(before, changes.topic_grows(before, "orders", 6), "range")
    assert found.after == owned(a="orders:0,1,2", b="orders:3,4,5")
    assert found.moves == Moves(kept=3, rethreaded=0, moved=1, gained=2, lost=0)


def test_a_new_topic_is_consumed_if_a_pattern_selects_it() -> None:
    before = group(A, subscription=Subscription.white_list("orders.*"))
    after = changes.topic_grows(changes.topic_grows(before, "orders-eu", 1), "bills", 1)
    assert assignment(after, "range") == {**owned(a="orders:0,1,2,3,4"), **owned(a="orders-eu:0")}


def test_the_partitions_of_a_deleted_topic_are_lost() -> None:
    before = group(A, owners=owned(a="orders:0,1,2,3,4"))
    found = predict(before, changes.topic_is_deleted(before, "orders"), "range")
    assert found.moves == Moves(kept=0, rethreaded=0, moved=0, gained=0, lost=5)
    assert found.caveats == ("the partitions of topic orders are unknown",)


def test_a_broker_that_stops_moves_nothing_since_0_8() -> None:
    before = group(A, B, owners=owned(a="orders:0,1,2", b="orders:3,4"))
    after = changes.broker_leaves(before, 1)
    assert predict(before, after, "range").moves.changed == 0
    assert after.leaders == {TopicPartition("orders", n): 2 for n in range(5)}


def test_without_a_live_broker_the_members_do_not_rebalance() -> None:
    before = group(A, B, owners=owned(a="orders:0,1,2", b="orders:3,4"))
    after = changes.member_leaves(changes.broker_leaves(changes.broker_leaves(before, 1), 2), B)
    found = predict(before, after, "range")
    assert found.after == owned(a="orders:0,1,2")
    assert found.caveats == ("no broker is alive: the members do not rebalance",)


def test_in_0_7_a_brokers_partitions_come_and_go_with_it() -> None:
    before = group_of_0_7(A, B)
    assert {tp.partition: owner.member_id for tp, owner in assignment(before, "clustered").items()} == {
        BrokerPartition(0, 0): A,
        BrokerPartition(0, 1): A,
        BrokerPartition(10, 0): B,
        BrokerPartition(10, 1): B,
    }
    gone = assignment(changes.broker_leaves(before, 0), "clustered")
    assert [(str(tp.partition), owner.member_id) for tp, owner in gone.items()] == [("10-0", A), ("10-1", B)]
    grown = changes.topic_grows(changes.broker_joins(before, 2), "orders", 1, broker=2)
    assert [str(one) for one in grown.partitions["orders"]] == ["0-0", "0-1", "2-0", "10-0", "10-1"]


def test_an_unreadable_registration_blocks_the_assignment_until_its_member_leaves() -> None:
    broken = GroupSnapshot("g", {A: ORDERS, B: None}, {"orders": {0: ()}}, None, None)
    with pytest.raises(AssignmentRefused) as refused:
        assignment(broken, "range")
    assert refused.value.what == f"member {B}"
    assert assignment(changes.member_leaves(broken, "beta"), "range") == owned(a="orders:0")


def test_the_strategy_is_inferred_from_the_owners() -> None:
    dealt = {TopicPartition("orders", n): ThreadId(m, 0) for n, m in enumerate([A, B, A, B, A])}
    assert matching_strategies(group(A, B, owners=dealt)) == ["roundrobin"]
    assert matching_strategies(group(A, B, owners=owned(a="orders:0,1,2", b="orders:3,4"))) == ["range"]
    assert matching_strategies(group(A, owners=owned(a="orders:0,1,2,3,4"))) == ["range", "roundrobin"]
    assert matching_strategies(group(A, owners=owned(a="orders:0"))) == []
    assert matching_strategies(group(A)) == []


def test_ambiguities_of_round_robin_are_reported() -> None:
    topics = {name: {0: ()} for name in ("Aa", "BB")}
    both, one = Subscription.static({"Aa": 1, "BB": 1}), Subscription.static({"Aa": 1})
    snapshot = GroupSnapshot("g", {A: both, B: one}, topics, None, None)
    assert predict(snapshot, snapshot, "roundrobin").caveats == (
        "topics Aa and BB have partitions with equal hashes: members may swap them",
        f"members before Kafka 0.10.2 reject these subscriptions: {B} differ",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: changes.member_joins(g, A, ORDERS), f"member {A}: is already in the group"),
        (lambda g: changes.member_leaves(g, "gamma"), "member gamma: is not in group g"),
        (lambda g: changes.topic_is_deleted(g, "bills"), "topic bills: is not consumed by the group"),
        (lambda g: changes.broker_leaves(g, 3), "broker 3: is not among the live brokers"),
        (lambda g: changes.broker_joins(g, 2), "broker 2: is already alive"),
        (
            lambda g: changes.topic_grows(g, "orders", 6, broker=1),
            "topic orders: its partitions do not belong to a broker",
        ),
        (
            lambda g: changes.topic_grows(g, "orders", 4),
            "topic orders: has 5 partitions, and partitions cannot be removed from a topic "
            "(with 4 partitions, it would lose partition 4)",
        ),
    ],
)
def test_an_impossible_change_is_rejected(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(UsageError) as refused:
        change(group(A, B))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--join", "gamma:100000000"), "100,000,000 streams: at most 100,000 streams of all members can be simulated"),
        (("--grow", "orders=100000000"), "topic orders: would have 100,000,000 partitions"),
        (("--grow", "orders=150000", "--grow", "more=60000"), "all topics together 210,000, but at most 200,000"),
    ],
)
def test_a_number_beyond_any_cluster_is_rejected_before_the_simulation(
    options: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a number with too many zeros used up the machine's memory."""
    file = saved(tmp_path, group(A, B))
    out, err = printed(capsys, "--from-file", file, "--simulate", *options, code=2)
    assert out == ""
    assert why in err
    assert "hint: check the number" in err


def test_a_group_with_too_many_streams_is_rejected() -> None:
    half = Subscription.static({"orders": 50_000})
    whole = group(A, B, subscription=half)
    assert sum(whole.streams()[A].values()) == 50_000
    with pytest.raises(AssignmentRefused, match="1 of 100,001 or more streams in the group; at most 100,000"):
        changes.member_joins(whole, "g_gamma", ORDERS).streams()


def test_a_partition_of_0_7_needs_its_broker() -> None:
    with pytest.raises(UsageError) as refused:
        changes.topic_grows(group_of_0_7(A), "orders", 3)
    assert str(refused.value) == "topic orders: partitions of Kafka 0.7 belong to a broker"


def test_a_new_member_copies_the_most_common_subscription() -> None:
    two, three = Subscription.static({"orders": 2}), Subscription.static({"orders": 3})
    crowd = GroupSnapshot("g", {"g_a": two, "g_b": three, "g_c": two, "g_d": None}, {}, None, None)
    assert changes.most_common_subscription(crowd) == two
    assert changes.with_streams(two, 5) == Subscription.static({"orders": 5})
    differing = GroupSnapshot("g", {"g_a": two, "g_b": Subscription.white_list("orders")}, {}, None, None)
    with pytest.raises(UsageError, match="its members subscribe to different topics"):
        changes.most_common_subscription(differing)
    with pytest.raises(UsageError, match="has no member whose subscription a new member could copy"):
        changes.most_common_subscription(GroupSnapshot("g", {}, {}, None, None))


@pytest.mark.parametrize("name", [A, A.removeprefix("g_"), "alpha"])
def test_a_member_is_named_by_its_id_or_its_host(name: str) -> None:
    assert changes.member_named(group(A, B), name) == A


def test_a_host_with_two_members_is_ambiguous() -> None:
    twin = A.replace("0a", "0c")
    with pytest.raises(UsageError, match=f"member alpha: is a host with several members: {A}, {twin}"):
        changes.member_named(group(A, twin), "alpha")


def test_partitions_are_written_as_ranges() -> None:
    numbers = [0, 1, 2, 5, 7, 8]
    assert partition_ranges(TopicPartition("t", n) for n in reversed(numbers)) == "t:0-2,5,7-8"
    assert partition_ranges([TopicPartition("b", 3), TopicPartition("a", 0)]) == "a:0 b:3"
    assert partition_ranges(TopicPartition("t", BrokerPartition(1, n)) for n in range(3)) == "t:1-0,1-1,1-2"
    assert partition_ranges([]) == ""


# --- files --------------------------------------------------------------------------------------------

names = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/"), min_size=1, max_size=8)
numbers = st.integers(0, 60) | st.builds(BrokerPartition, st.integers(0, 12), st.integers(0, 12))
subscriptions = st.none() | st.builds(
    Subscription,
    st.sampled_from(["static", "white_list", "black_list"]),
    st.dictionaries(names, st.integers(0, 9), min_size=1, max_size=3),
)
threads = st.none() | st.builds(ThreadId, names, st.integers(0, 99))
snapshots = st.builds(
    GroupSnapshot,
    names,
    st.dictionaries(names, subscriptions, max_size=4),
    st.dictionaries(names, st.dictionaries(numbers, st.lists(st.integers(0, 9), max_size=3).map(tuple)), max_size=3),
    st.none() | st.dictionaries(st.builds(TopicPartition, names, numbers), threads, max_size=6),
    st.none() | st.frozensets(st.integers(0, 99)),
)


@given(snapshots)
def test_a_saved_snapshot_is_read_back(snapshot: GroupSnapshot) -> None:
    assert decode("f", encode(snapshot, 1700000000000)) == snapshot


@given(st.binary(max_size=60) | snapshots.map(lambda one: encode(one, 0)), st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_file_is_a_typed_error_or_another_snapshot(data: bytes, at: int, byte: int) -> None:
    damaged = data[:at] + bytes([byte]) + data[at + 1 :]
    try:
        assert isinstance(decode("f", damaged), GroupSnapshot)
    except (MalformedData, UnknownVersion, UsageError) as refused:
        assert refused.what.startswith(("file f", "group "))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([1], "is a list, but not the output of zk members --format json"),
        ({}, "is neither a group saved by zk rebalance nor the output of zk members --format json"),
        ({"group": 1}, "its 'group' is not a string"),
        ({"members": []}, "its 'members' is not an object"),
        ({"members": {"m": 1}}, "its 'members.m' is not an object"),
        ({"topics": {"t": {"x": []}}}, "its 'topics.t.x' is not named after a partition"),
        ({"topics": {"t": {"0": "x"}}}, "its 'topics.t.0' is not a list of numbers"),
        ({"owners": {"t": {"0": 1}}}, "its 'owners.t.0' is not a string"),
        ({"owners": {"t": {"0": "x"}}}, "its 'owners.t.0' is not CONSUMER-THREAD"),
        ({"brokers": [None]}, "its 'brokers' is not a list of numbers"),
    ],
)
def test_the_defect_of_a_file_is_reported(document: object, why: str) -> None:
    whole = {"format": "offsetmgr-group", "version": 1, "group": "g", "members": {}, "topics": {}, "owners": None}
    changed = {**whole, **document} if isinstance(document, dict) and document else document
    with pytest.raises(MalformedData) as refused:
        decode("f", json.dumps(changed).encode())
    assert refused.value.why == why


def test_an_unknown_version_of_a_file_is_named() -> None:
    with pytest.raises(UnknownVersion, match="file f: is of version 2; known: 1"):
        decode("f", b'{"format": "offsetmgr-group", "version": 2}')


LISTED = [
    {"group": "g", "member_id": A, "pattern": "static", "subscription": "orders=1"},
    {"group": "g", "member_id": B, "pattern": "white_list", "subscription": "(?=o)orders=2"},
    {"group": "h", "member_id": "h_x", "pattern": None, "subscription": None},
]


def test_the_output_of_zk_members_is_a_snapshot_without_topics_and_owners() -> None:
    found = decode("f", json.dumps(LISTED).encode(), "g")
    assert found == GroupSnapshot("g", {A: ORDERS, B: Subscription("white_list", {"(?=o)orders": 2})}, {}, None, None)
    with pytest.raises(UsageError, match="file f: has 2 groups"):
        decode("f", json.dumps(LISTED).encode())
    with pytest.raises(UsageError, match="group i: is not in f"):
        decode("f", json.dumps(LISTED).encode(), "i")


# --- the command --------------------------------------------------------------------------------------


def saved(directory: Path, snapshot: GroupSnapshot) -> str:
    path = directory / "group.json"
    path.write_bytes(encode(snapshot, 1700000000000))
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert run(["zk", "rebalance", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_table_shows_each_member_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path, group(A, B, owners=owned(a="orders:0,1,2", b="orders:3,4")))
    out, err = printed(capsys, "--from-file", file, "--simulate", "--join", "g_x:2", "--leave", "beta")
    titles = "MEMBER-ID CHANGE BEFORE AFTER KEPT GAINED REVOKED PARTITIONS-BEFORE PARTITIONS-AFTER"
    assert [line.split() for line in out.splitlines()] == [
        titles.split(" "),
        [A, "-", "3", "2", "2", "0", "1", "orders:0-2", "orders:0-1"],
        [B, "leaves", "2", "0", "0", "0", "2", "orders:3-4", "-"],
        ["g_x", "joins", "0", "3", "0", "3", "0", "-", "orders:2-4"],
    ]
    assert err == "strategy range (inferred from the owners); 5 partitions: 2 stay, 3 move to another member\n"


def test_json_of_partitions_lists_the_change_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path, group(A, B, partitions=2, owners=owned(a="orders:0")))
    out, err = printed(capsys, "--from-file", file, "--simulate", "--partitions", "--format", "json")
    assert json.loads(out) == [
        {"topic": "orders", "partition": 0, "before": f"{A}-0", "after": f"{A}-0", "change": "kept"},
        {"topic": "orders", "partition": 1, "before": None, "after": f"{B}-0", "change": "gained"},
    ]
    assert err == (
        "strategy range (the default; it cannot be inferred from the owners); 2 partitions: 1 stay, 1 had no owner\n"
    )


def test_a_new_members_id_is_generated_as_the_member_would_generate_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The id determines the member's position: two new members on one host follow those that already run there."""
    file = saved(tmp_path, group(A, owners=owned(a="orders:0,1,2,3,4")))
    started = time.time_ns() // 1_000_000
    out, _ = printed(
        capsys, "--from-file", file, "--simulate", "--join", "alpha", "--join", "alpha:1", "--format", "json"
    )
    rows: list[Mapping[str, object]] = json.loads(out)
    host, millis, end = str(rows[1]["member_id"]).split("-")
    second_host, second_millis, second_end = str(rows[2]["member_id"]).split("-")
    assert (host, end, second_host, second_end) == ("g_alpha", "00000000", "g_alpha", "00000001")
    assert started <= int(millis) <= int(second_millis) <= time.time_ns() // 1_000_000
    assert [row["partitions_after"] for row in rows] == ["orders:0-1", "orders:2-3", "orders:4"]


def test_owners_that_match_the_assignment_are_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path, group(A, B, owners=owned(a="orders:0,1,2", b="orders:3,4")))
    out, err = printed(capsys, "g", "--from-file", file, "--format", "csv")
    assert out.splitlines() == [
        "member_id,note,owned,due,right,missing,wrong,partitions_owned,partitions_due",
        f"{A},,3,3,3,0,0,orders:0-2,orders:0-2",
        f"{B},,2,2,2,0,0,orders:3-4,orders:3-4",
    ]
    assert err == "strategy range (inferred from the owners); 5 partitions: 5 owned as assigned\n"


def test_owners_that_differ_from_the_assignment_are_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = {**owned(a="orders:0,1,2,3"), TopicPartition("orders", 3): ThreadId("g_dead", 0)}
    file = saved(tmp_path, group(A, B, owners=owners))
    out, err = printed(capsys, "--group", "g", "--from-file", file, code=1)
    assert [line.split() for line in out.splitlines()[1:]] == [
        [A, "-", "3", "3", "3", "0", "0", "orders:0-2", "orders:0-2"],
        [B, "-", "0", "2", "0", "2", "0", "-", "orders:3-4"],
        ["g_dead", "is", "no", "live", "member", "1", "0", "0", "0", "1", "orders:3", "-"],
    ]
    assert err == (
        "strategy range (the default; it cannot be inferred from the owners); 5 partitions: 3 owned as assigned, "
        "1 owned by another member than assigned, 1 without an owner: no member consumes them\n"
    )


def test_a_snapshot_is_saved_only_to_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path, group(A, owners=owned(a="orders:0,1,2,3,4")))
    _, err = printed(capsys, "--from-file", file, "--save", file, code=1)
    assert err.splitlines() == [f"error: file {file}: exists already", "hint: choose another name"]


def test_a_list_of_members_needs_the_numbers_of_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "members.json"
    file.write_text(json.dumps(LISTED[:1]))
    out, err = printed(capsys, "--from-file", str(file), "--simulate", "--grow", "orders=3", "--format", "csv")
    assert out.splitlines()[1:] == [f"{A},,3,3,3,0,0,orders:0-2,orders:0-2"]
    assert err.splitlines()[0] == "before: computed, because the file contains no owners"
    sizes = ("--grow", "orders=3", "--grow", "orders=4")
    out, err = printed(
        capsys, "--from-file", str(file), "--simulate", *sizes, "--join", "g_x", "--topic", "orders", "--format", "csv"
    )
    assert out.splitlines()[1:] == [f"{A},,3,2,2,0,1,orders:0-2,orders:0-1", "g_x,joins,0,2,0,2,0,,orders:2-3"]
    assert err.endswith("4 partitions: 2 stay, 1 move to another member, 1 had no owner\n")
    _, err = printed(capsys, "--from-file", str(file), "--simulate", "--format", "csv")
    assert err.splitlines()[-1] == "the partitions of topic orders are unknown"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["g", "--join", "x"], "error: zk rebalance: changes can only be simulated"),
        (["g", "--group", "h"], "error: --group: both g and --group h are given"),
        (["h"], "error: group h: is not in FILE, which contains group g"),
        (["--simulate", "--like", "alpha"], "error: --like and --topic: are the subscription of members that join"),
        (["--simulate", "--join", "x:none"], "error: --join x:none: 'none' is no number"),
        (["--simulate", "--join", ":2"], "error: --join: no host is named"),
        (["--simulate", "--join", "x:0"], "error: 0 streams: a member needs at least one stream"),
        (["--simulate", "--grow", "orders"], "error: --grow orders: is not TOPIC=N"),
        (["--simulate", "--strategy", "sticky"], "error: strategy 'sticky': is unknown"),
    ],
)
def test_wrong_usage_is_reported(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, group(A, owners={}))
    _, found = printed(capsys, *arguments, "--from-file", file, code=2)
    assert found.splitlines()[0].replace(file, "FILE") == message
