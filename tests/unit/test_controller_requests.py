"""Requests to a controller: their checks before they are sent, and the end of their work. No I/O."""

from __future__ import annotations

import json

import pytest

from offsetmgr.core.errors import (
    ControllerRequestRefused,
    CorruptData,
    MalformedData,
    NotAuthorized,
    UnknownTopicOrPartition,
    UnknownVersion,
    UsageError,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.admin import deletion, election, reassignment
from offsetmgr.zookeeper.admin.admin_reader import live_brokers
from offsetmgr.zookeeper.admin.state import AdminState, AdminTopicState, AssignedPartition
from offsetmgr.zookeeper.client.jute import NodeData

P0, P1, P2 = (TopicPartition("orders", n) for n in range(3))


def cluster(*partitions: AssignedPartition, **changes: object) -> AdminState:
    """Brokers 0, 1 and 2, of which 0 is the controller, and the topic "orders" of these partitions."""
    topic = AdminTopicState(dict(enumerate(partitions)), version=4, czxid=77)
    state = {
        "controller": 0,
        "kraft": False,
        "brokers": {0: 0, 1: 0, 2: 0},
        "topics": {"orders": topic},
        **changes,
    }
    return AdminState(**state)  # type: ignore[arg-type]


def partition(
    *replicas: int, leader: int | None = None, isr: tuple[int, ...] = (), **more: object
) -> AssignedPartition:
    return AssignedPartition(replicas, leader, isr or replicas, **more)  # type: ignore[arg-type]


def test_only_a_readable_ephemeral_broker_node_counts_as_alive() -> None:
    """A foreign node below ``/brokers/ids`` would get replicas that no broker stores."""
    text = b'{"version":1,"host":"h","port":9092}'

    def node(data: bytes, *, version: int = 0, session: int = 0x1F) -> NodeData:
        return NodeData(data, 1, 0, 0, version, session)

    names = ["0", "1", "2", "3", "4", "x", "5"]
    nodes = [
        node(text, version=3),
        node(text, session=0),
        node(b""),
        node(b'{"version":4}'),
        None,
        node(text),
        node(b"h-1700000000000:h:9092"),
    ]

    assert live_brokers(names, nodes) == {0: 3, 5: 0}
    with pytest.raises(NotAuthorized):
        live_brokers(["0"], [NotAuthorized("ZooKeeper node /brokers/ids/0")])


# --- election -------------------------------------------------------------------------------------


def test_an_election_is_needed_only_if_the_preferred_replica_does_not_lead() -> None:
    state = cluster(partition(1, 2, leader=1), partition(2, 1, leader=1))

    leads, needed = election.plan_election(state, [P1, P0, P1])

    assert leads == election.ElectionStep(P0, 1, 1, needed=False)
    assert needed == election.ElectionStep(P1, 1, 2, needed=True)


def test_an_election_of_a_dead_or_out_of_sync_replica_is_rejected() -> None:
    state = cluster(partition(3, 1, leader=1), partition(2, 1, leader=1, isr=(1,)), brokers={0: 0, 1: 0, 2: 0})

    dead, behind, missing = election.plan_election(state, [P0, P1, P2])

    assert str(dead.rejected) == "partition orders-0: its preferred leader, broker 3, is not alive"
    assert str(behind.rejected) == "partition orders-1: its preferred leader, broker 2, is not in sync (in sync: 1)"
    assert isinstance(missing.rejected, UnknownTopicOrPartition)


def test_requests_are_rejected_during_an_election_and_without_a_zookeeper_controller() -> None:
    state = cluster(partition(2, 1, leader=1), election=True)

    with pytest.raises(ControllerRequestRefused, match="/admin/preferred_replica_election exists"):
        election.plan_election(state, [P0])
    for changes, why in (
        ({"controller": None}, "/controller does not exist"),
        ({"kraft": True}, "is a KRaft controller"),
    ):
        for plan in (
            lambda s: election.plan_election(s, [P0]),
            lambda s: reassignment.plan_reassignment(s, {P0: (1, 2)}),
            lambda s: deletion.plan_deletion(s, ["orders"], enabled=None),
        ):
            with pytest.raises(ControllerRequestRefused, match=why):
                plan(cluster(partition(2, 1), **changes))


def test_the_node_of_an_election_has_kafkas_format() -> None:
    assert json.loads(election.encode_election([P0, P2])) == {
        "version": 1,
        "partitions": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 2}],
    }


def test_an_election_is_over_when_its_node_is_gone_whichever_broker_leads() -> None:
    requested = {P0: 1, P1: 2}
    partitions = (partition(1, 2, leader=1), partition(2, 1, leader=1))

    under_way = election.progress_of(cluster(*partitions, election=True), requested)
    over = election.progress_of(cluster(*partitions), requested)

    assert (under_way.done, under_way.ended) == (1, False)
    assert (over.done, over.ended, over.open) == (1, True, {"orders-1": "broker 1 leads it, not broker 2"})


# --- reassignment ---------------------------------------------------------------------------------


def test_a_reassignment_names_the_added_and_the_removed_brokers() -> None:
    state = cluster(partition(0, 1), partition(1, 2), partition(2, 0))

    move, same, order = reassignment.plan_reassignment(state, {P0: (1, 2), P1: (1, 2), P2: (0, 2)})

    assert (move.before, move.after, move.adding, move.removing) == ((0, 1), (1, 2), (2,), (0,))
    assert (same.changes, same.rejected) == (False, None)
    assert (order.changes, order.adding, order.removing) == (True, (), ())


@pytest.mark.parametrize(
    ("replicas", "changes", "why"),
    [
        ((1, 3), {}, "broker 3 is not alive (alive: 0,1,2)"),
        ((4, 3), {}, "broker 3,4 are not alive (alive: 0,1,2)"),
        ((1, 1), {}, "the replicas 1,1 name a broker twice"),
        ((), {}, "no replicas are named"),
        ((1,), {}, "it has 2 replicas and would have 1"),
        ((1, 2), {"deletions": frozenset({"orders"})}, "topic orders is being deleted"),
    ],
)
def test_a_reassignment_that_would_never_end_is_rejected(
    replicas: tuple[int, ...], changes: dict[str, object], why: str
) -> None:
    (step,) = reassignment.plan_reassignment(cluster(partition(0, 1), **changes), {P0: replicas})

    assert isinstance(step.rejected, ControllerRequestRefused)
    assert step.rejected.why == why


def test_another_replication_factor_needs_its_flag() -> None:
    (step,) = reassignment.plan_reassignment(cluster(partition(0, 1)), {P0: (1,)}, allow_replication_change=True)

    assert (step.rejected, step.removing) == (None, (0,))


def test_missing_and_moving_partitions_and_a_second_request_are_rejected() -> None:
    state = cluster(partition(0, 1, 2, adding=(2,), removing=(0,)))

    moving, missing, elsewhere = reassignment.plan_reassignment(
        state, {P0: (1, 2, 0), P1: (1, 2), TopicPartition("other", 0): (1,)}
    )

    assert moving.rejected is not None and moving.rejected.why == "it is already being reassigned"
    assert str(missing.rejected) == "partition orders-1: topic orders has no partition 1"
    assert isinstance(elsewhere.rejected, UnknownTopicOrPartition)
    with pytest.raises(ControllerRequestRefused, match="reassign_partitions holds 1 partition") as under_way:
        reassignment.plan_reassignment(cluster(partition(0, 1), reassignment=frozenset({P0})), {P0: (1, 2)})
    cancelled = "--reassignment-json-file FILE --cancel --preserve-throttles"
    assert cancelled in under_way.value.hint and cancelled in moving.rejected.hint
    with pytest.raises(UsageError, match="no partition is named"):
        reassignment.plan_reassignment(state, {})


def test_partitions_of_an_unreadable_topic_are_rejected_with_its_error() -> None:
    broken = CorruptData("ZooKeeper node /brokers/topics/orders", "is not JSON")

    (step,) = reassignment.plan_reassignment(cluster(topics={"orders": broken}), {P0: (1, 2)})

    assert step.rejected is broken


def test_a_reassignment_waits_for_out_of_sync_replicas_and_ends_when_nothing_moves() -> None:
    requested = {P0: (1, 2), P1: (2, 1)}
    moving = partition(1, 2, 0, leader=0, isr=(0, 1), adding=(2,), removing=(0,))
    dead = {0: 0, 1: 0}

    behind = reassignment.progress_of(cluster(moving, partition(2, 1), reassignment=frozenset({P0})), requested)
    stuck = reassignment.progress_of(cluster(moving, partition(2, 1), brokers=dead), requested)
    abandoned = reassignment.progress_of(cluster(partition(0, 1), partition(2, 1)), requested)
    done = reassignment.progress_of(cluster(partition(1, 2), partition(2, 1)), requested)

    assert (behind.done, behind.ended, behind.open) == (1, False, {"orders-0": "broker 2 is not in sync yet"})
    assert (stuck.ended, stuck.open) == (False, {"orders-0": "broker 2 is not alive"})
    assert (abandoned.ended, abandoned.open) == (
        True,
        {"orders-0": "its replicas are 0,1, and the controller does not change them"},
    )
    assert (done.done, done.ended, done.open) == (2, True, {})


def test_an_unknown_version_of_the_file_is_named() -> None:
    with pytest.raises(UnknownVersion, match=r"file moves\.json: is of version 2; known: 1"):
        reassignment.decode_reassignment("file moves.json", b'{"version":2,"partitions":[]}')


def test_the_reassignment_file_has_kafkas_format_and_is_read_as_written() -> None:
    assignment = {P0: (1, 2), P2: (0,)}

    assert reassignment.decode_reassignment("f", reassignment.encode_reassignment(assignment)) == assignment
    named_dirs = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]}'
    assert reassignment.decode_reassignment("f", named_dirs) == {TopicPartition("t", 0): (1, 2)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("[]", "is JSON, but not an object"),
        ("{}", "has no 'version'"),
        ('{"version":1}', "its 'partitions' is not a list of objects"),
        ('{"version":1,"partitions":[7]}', "its 'partitions' is not a list of objects"),
        (
            '{"version":1,"partitions":[{"topic":"t","partition":0}]}',
            "[0].replicas' is not a list",
        ),
        (
            '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":["1"]}]}',
            "[0].replicas' is not a list",
        ),
        (
            '{"version":1,"partitions":[{"topic":"t","partition":-1,"replicas":[1]}]}',
            "[0].partition' is not a number",
        ),
        (
            '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["/d"]}]}',
            "names log_dirs",
        ),
        (
            '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]},'
            '{"topic":"t","partition":0,"replicas":[2]}]}',
            "contains partition t-0 twice",
        ),
    ],
)
def test_a_broken_file_is_named_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(MalformedData) as raised:
        reassignment.decode_reassignment("file moves.json", text.encode())

    assert str(raised.value).startswith("file moves.json")
    assert why in str(raised.value)


def test_a_request_larger_than_a_znode_is_rejected() -> None:
    many = {TopicPartition("orders", n): (1, 2, 3) for n in range(20_000)}

    with pytest.raises(UsageError, match="has 1,108,918 bytes"):
        reassignment.encode_reassignment(many)


# --- deletion -------------------------------------------------------------------------------------


def test_a_deletion_names_its_size_and_the_condition_it_waits_for() -> None:
    (plain,) = deletion.plan_deletion(cluster(partition(0, 1), partition(1, 2)), ["orders"], enabled=True)
    (dead,) = deletion.plan_deletion(cluster(partition(0, 5), partition(4, 5)), ["orders"], enabled=None)
    (moving,) = deletion.plan_deletion(cluster(partition(0, 1, adding=(1,))), ["orders"], enabled=True)

    assert plain == deletion.DeletionStep("orders", 2, 4)
    assert dead.waits_for == "broker 4,5, not alive, which holds replicas"
    assert moving.waits_for == "the reassignment of its partitions"


def test_deletions_that_the_controller_would_drop_are_rejected() -> None:
    with pytest.raises(ControllerRequestRefused, match=r"delete\.topic\.enable is false on the controller, broker 0"):
        deletion.plan_deletion(cluster(partition(0)), ["orders"], enabled=False)
    under_way = cluster(partition(0), deletions=frozenset({"orders"}))
    internal = cluster(topics={"__consumer_offsets": AdminTopicState({0: partition(0)}, 0, 5)})

    (again,) = deletion.plan_deletion(under_way, ["orders"], enabled=None)
    (offsets,) = deletion.plan_deletion(internal, ["__consumer_offsets"], enabled=None)
    (missing,) = deletion.plan_deletion(under_way, ["other"], enabled=None)

    assert again.rejected is not None and "/admin/delete_topics/orders exists" in again.rejected.why
    assert offsets.rejected is not None and offsets.rejected.why == "brokers do not work without it"
    assert isinstance(missing.rejected, UnknownTopicOrPartition)


def test_a_deletion_is_done_when_the_topic_is_gone_or_recreated() -> None:
    under_way = cluster(partition(0, 5), deletions=frozenset({"orders"}))

    waits = deletion.progress_of(under_way, {"orders": 77})
    gone = deletion.progress_of(cluster(topics={}), {"orders": 77})
    recreated = deletion.progress_of(cluster(partition(0)), {"orders": 76})
    dropped = deletion.progress_of(cluster(partition(0)), {"orders": 77})

    assert (waits.ended, waits.open) == (False, {"orders": "waits for broker 5, not alive, which holds replicas"})
    assert (gone.done, gone.ended, recreated.done, recreated.ended) == (1, True, 1, True)
    assert dropped.ended
    assert dropped.open == {
        "orders": "the controller has removed the request without deleting the topic; check its delete.topic.enable"
    }
