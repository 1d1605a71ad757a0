"""``zk elect|reassign|delete-topic`` on nodes that a test writes as brokers do: the checks before a request, races, and
the end of the controller's work. test_controller_requests_on_brokers.py has the requests that controllers execute."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from in_process import command
from kazoo.security import make_digest_acl
from planted_tree import Planted, only

from offsetmgr.app.zk import ControllerRequest
from offsetmgr.core.errors import ControllerRequestRefused
from offsetmgr.zookeeper.admin.plan import DeletionStep, RequestPlan, RequestProgress
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import TransactionResult

BROKER = '{"version":1,"host":"h","port":9092}'
EXECUTE = ("--execute", "--yes", "--wait", "0")
ELECTION, MOVES = "/admin/preferred_replica_election", "/admin/reassign_partitions"
ORDERS, DELETION = "/brokers/topics/orders", "/admin/delete_topics/orders"
STATE = f"{ORDERS}/partitions/0/state"


class Partition(NamedTuple):
    """``leader`` is the first of the replicas by default; ``isr`` has all of them."""

    replicas: Sequence[int]
    leader: int | None = None
    isr: Sequence[int] = ()
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def state(self) -> str:
        leader = self.replicas[0] if self.leader is None else self.leader
        fields = {"version": 1, "leader": leader, "leader_epoch": 0, "controller_epoch": 1}
        return json.dumps(fields | {"isr": list(self.isr or self.replicas)})


def assignment(partitions: Sequence[Partition]) -> str:
    node: dict[str, Any] = {"version": 2, "partitions": {str(n): p.replicas for n, p in enumerate(partitions)}}
    for name in ("adding", "removing"):
        node[f"{name}_replicas"] = {str(n): getattr(p, name) for n, p in enumerate(partitions) if getattr(p, name)}
    return json.dumps(node)


def topic(tree: Planted, name: str, *partitions: Partition) -> None:
    tree.node(f"/brokers/topics/{name}", assignment(partitions))
    for number, partition in enumerate(partitions):
        tree.node(f"/brokers/topics/{name}/partitions/{number}/state", partition.state)


Changes = Sequence[tuple[str, str | None]]
"""Nodes with their new data; None if the node is deleted."""


def change(tree: Planted, nodes: Changes) -> None:
    for path, data in nodes:
        if data is None:
            tree.delete(path)
        elif tree.data(path) is None:
            tree.node(path, data)
        else:
            tree.client.set(tree.path + path, data.encode())


@pytest.fixture
def cluster(planted: Planted) -> Planted:
    """The brokers 0, 1 and 2, of which 0 is the controller."""
    planted.node("/controller", '{"version":1,"brokerid":0,"timestamp":"1"}', live=True)
    for broker in range(3):
        planted.node(f"/brokers/ids/{broker}", BROKER, live=True)
    planted.node("/admin/delete_topics")
    planted.node("/brokers/topics")
    return planted


@pytest.fixture
def moves(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """Writes a file of a reassignment. Returns the arguments of the command."""

    def write(*partitions: tuple[str, int, Sequence[int]]) -> tuple[str, ...]:
        listed = [{"topic": name, "partition": number, "replicas": to} for name, number, to in partitions]
        (tmp_path / "moves.json").write_text(json.dumps({"version": 1, "partitions": listed}))
        return ("reassign", "--reassignment-json-file", str(tmp_path / "moves.json"))

    return write


@pytest.fixture
def around(cluster: Planted, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes nodes just before a command writes its request, and just after, as other clients and controllers do."""

    def patch(before: Changes = (), after: Changes = ()) -> None:
        send = ZookeeperSession.transaction

        def transaction(session: ZookeeperSession, operations: Any) -> TransactionResult:
            change(cluster, before)
            result = send(session, operations)
            change(cluster, after)
            return result

        monkeypatch.setattr(ZookeeperSession, "transaction", transaction)

    return patch


@pytest.mark.servers
def test_only_a_readable_ephemeral_broker_node_counts_as_alive(planted: Planted, moves: Any) -> None:
    """A foreign node below ``/brokers/ids`` would get replicas that no broker stores."""
    planted.node("/controller", "0", live=True)
    topic(planted, "orders", Partition((0, 5)))
    planted.node("/brokers/ids/0", BROKER, live=True)
    planted.node("/brokers/ids/1", BROKER)
    planted.node("/brokers/ids/2", live=True)
    planted.node("/brokers/ids/3", '{"version":4}', live=True)
    planted.node("/brokers/ids/x", BROKER, live=True)
    planted.node("/brokers/ids/5", "h-1700000000000:h:9092", live=True)
    reassign = moves(("orders", 0, (1, 7)))
    (row,) = planted.rows(*reassign, code=1)
    assert row["note"] == "refused: broker 1,7 are not alive (alive: 0,5)"
    planted.node("/brokers/ids/4", BROKER, acl=[make_digest_acl("owner", "secret", all=True)])
    assert "/brokers/ids/4: its ACL does not allow this (NO_AUTH)" in planted.zk(*reassign, code=1)[1]
    planted.client.add_auth("digest", "owner:secret")  # so that the fixture can delete the node


@pytest.mark.servers
@pytest.mark.parametrize(
    ("controller", "why"),
    [
        (None, "/controller does not exist, so no controller would process the request"),
        ('{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":5}', "is a KRaft controller"),
    ],
)
def test_requests_are_refused_without_a_controller_that_reads_them(cluster, moves, controller, why: str) -> None:
    cluster.delete("/controller")
    if controller is not None:
        cluster.node("/controller", controller, live=True)
    topic(cluster, "orders", Partition((2, 1)))
    for words in (("elect", "--all-topics"), moves(("orders", 0, (1, 2))), ("delete-topic", "--topic", "orders")):
        assert why in cluster.zk(*words, *EXECUTE, code=1)[1]
    assert cluster.client.get_children(f"{cluster.path}/admin") == ["delete_topics"]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("path", "why"),
    [
        (MOVES, "exists already: another request is running"),
        (ORDERS, "changed meanwhile"),
        ("/brokers/ids/2", "changed meanwhile"),
    ],
)
def test_a_request_is_refused_if_the_state_changed_since_the_check(cluster, moves, around, path: str, why: str) -> None:
    topic(cluster, "orders", Partition((0, 1)))
    around(before=[(path, "")])
    _, err = cluster.zk(*moves(("orders", 0, (1, 2))), *EXECUTE, code=1)
    assert f"{path} {why}; nothing was written" in err
    assert cluster.data(MOVES) in (None, b"")


@pytest.mark.servers
def test_an_election_is_needed_only_if_a_live_preferred_replica_in_sync_does_not_lead(cluster: Planted) -> None:
    topic(
        cluster,
        "orders",
        Partition((1, 2), leader=1),
        Partition((2, 1), leader=1),
        Partition((3, 1), leader=1),
        Partition((2, 1), leader=1, isr=(1,)),
    )
    topic(cluster, "old", Partition((2, 1), leader=1))
    cluster.node("/admin/delete_topics/old")
    rows = cluster.rows("elect", "--all-topics", code=1)
    assert only(rows, "topic", "partition", "leader", "preferred", "note") == [
        ("old", 0, 1, 2, "refused: topic old is being deleted"),
        ("orders", 0, 1, 1, "is the leader already"),
        ("orders", 1, 1, 2, None),
        ("orders", 2, 1, 3, "refused: its preferred leader, broker 3, is not alive"),
        ("orders", 3, 1, 2, "refused: its preferred leader, broker 2, is not in sync (in sync: 1)"),
    ]
    assert cluster.data(ELECTION) is None


@pytest.mark.servers
def test_an_unreadable_topic_is_refused_and_the_other_leaders_are_requested_in_kafkas_format(cluster: Planted) -> None:
    cluster.node("/brokers/topics/bad", '{"version":99,"partitions":{"0":[0]}}')
    topic(cluster, "good", Partition((0, 1), leader=1), Partition((0, 1)), Partition((2, 1), leader=1))
    alone = cluster.zk("elect", "--topic", "bad", code=1)[1]
    rows = cluster.rows("elect", "--topic", "bad", "--topic", "go*", "--topic", "good:0", code=1)
    _, done = cluster.zk("elect", "--all-topics", *EXECUTE, code=1)
    running = cluster.zk("elect", "--all-topics", code=1)[1]
    assert "error: ZooKeeper node /brokers/topics/bad: is of version 99" in alone
    assert only(rows, "topic", "partition", "leader", "preferred") == [
        ("bad", None, None, None),
        ("good", 0, 1, 0),
        ("good", 1, 0, 0),
        ("good", 2, 1, 2),
    ]
    assert rows[0]["note"].startswith("refused: is of version 99")
    assert json.loads(cluster.data(ELECTION) or b"") == {
        "version": 1,
        "partitions": [{"topic": "good", "partition": 0}, {"topic": "good", "partition": 2}],
    }
    assert "error: ZooKeeper node /brokers/topics/bad: is of version 99" in done
    assert "open: good-0: broker 1 leads it, not broker 0" in done
    assert f"another is running: {ELECTION} exists" in running


@pytest.mark.servers
def test_an_election_is_over_when_its_node_is_gone_whichever_broker_leads(cluster: Planted, around: Any) -> None:
    topic(cluster, "orders", Partition((0, 1), leader=1), Partition((2, 1), leader=1))
    around(after=[(STATE, Partition((0, 1)).state), (ELECTION, None)])
    rows = cluster.rows("elect", "--topic", "orders", *EXECUTE, code=1)
    assert only(rows, "outcome", "note") == [("done", None), ("failed", "broker 1 leads it, not broker 2")]


@pytest.mark.servers
def test_an_election_needs_topics(cluster: Planted) -> None:
    assert "both --topic and --all-topics are given" in cluster.zk("elect", "--all-topics", "--topic", "a", code=2)[1]
    assert "no topic of" in cluster.zk("elect", "--all-topics", code=1)[1]


@pytest.mark.servers
def test_a_reassignment_names_the_added_and_the_removed_brokers(cluster: Planted, moves: Any) -> None:
    topic(cluster, "orders", Partition((0, 1)), Partition((1, 2)), Partition((2, 0)))
    rows = cluster.rows(*moves(*(("orders", number, to) for number, to in enumerate(((1, 2), (1, 2), (0, 2))))))
    (fewer,) = cluster.rows(*moves(("orders", 0, (1,))), "--allow-replication-change")
    assert (fewer["removing"], fewer["note"]) == ("0", None)
    assert only(rows, "before", "after", "adding", "removing", "note") == [
        ("0,1", "1,2", "2", "0", None),
        ("1,2", "1,2", None, None, "has these replicas already"),
        ("2,0", "0,2", None, None, "another preferred leader"),
    ]


REFUSED: list[tuple[str, Partition | None, Sequence[int], str]] = [
    ("orders", Partition((0, 1)), (1, 3), "broker 3 is not alive (alive: 0,1,2)"),
    ("orders", Partition((0, 1)), (4, 3), "broker 3,4 are not alive (alive: 0,1,2)"),
    ("orders", Partition((0, 1)), (1, 1), "the replicas 1,1 name a broker twice"),
    ("orders", Partition((0, 1)), (), "no replicas are named"),
    ("orders", Partition((0, 1)), (1,), "it has 2 replicas and would have 1"),
    ("orders", Partition((0, 1, 2), adding=(2,), removing=(0,)), (1, 2, 0), "it is already being reassigned"),
    ("orders", Partition((2, 0)), (0, 2), "another part is refused"),
    ("orders", None, (1, 2), "topic orders has no partition 7"),
]


@pytest.mark.servers
def test_reassignments_that_would_never_end_are_refused(cluster: Planted, moves: Any) -> None:
    topic(cluster, "orders", *(partition for _, partition, _, _ in REFUSED if partition is not None))
    topic(cluster, "gone", Partition((0, 1)))
    cluster.node("/admin/delete_topics/gone")
    cluster.node("/brokers/topics/torn", "{")
    wanted = [(name, number, to) for number, (name, _, to, _) in enumerate(REFUSED)]
    others = [(name, 0, (1, 2)) for name in ("gone", "other", "torn")]
    rows = cluster.rows(*moves(*wanted, *others), *EXECUTE, code=1)
    _, err = cluster.zk(*moves(*wanted, *others), code=1)
    assert {row["outcome"] for row in rows if row["note"] != "another part is refused"} == {"refused"}
    assert [row["after"] for row in rows if row["outcome"] == "not done"] == ["0,2"]
    by_topic = {row["topic"]: row["note"] for row in rows}
    assert [row["note"] for row in rows if row["topic"] == "orders"] == [why for _, _, _, why in REFUSED]
    assert (by_topic["gone"], by_topic["other"]) == ("topic gone is being deleted", "there is no /brokers/topics/other")
    assert by_topic["torn"].startswith("is not JSON")
    assert "cancel it: kafka-reassign-partitions.sh" in err
    assert "--reassignment-json-file FILE --cancel --preserve-throttles" in err
    assert cluster.data(MOVES) is None


@pytest.mark.servers
def test_a_second_reassignment_an_empty_one_and_one_larger_than_a_znode_are_rejected(cluster, moves) -> None:
    name, count = "x" * 249, 3200
    cluster.node(f"/brokers/topics/{name}", json.dumps({"version": 1, "partitions": {n: [0, 1] for n in range(count)}}))
    request = moves(*((name, n, (1, 2)) for n in range(count)))
    _, large = cluster.zk(*request, *EXECUTE, "--format", "json", code=2)
    empty = cluster.zk(*moves(), code=2)[1]
    cluster.node(MOVES, json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}))
    _, second = cluster.zk(*moves((name, 0, (1, 2))), code=1)
    assert "bytes, but the maximum is 921,600" in large
    assert "no partition is named" in empty
    assert "reassign_partitions holds 1 partition" in second
    assert "--reassignment-json-file FILE --cancel --preserve-throttles" in second


MOVING = Partition((1, 2, 0), leader=0, isr=(0, 1), adding=(2,), removing=(0,))
ADDED = [(ORDERS, assignment([MOVING])), (STATE, MOVING.state)]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("controller", "outcome", "note"),
    [
        (ADDED, "open", "broker 2 is not in sync yet"),
        ([*ADDED, ("/brokers/ids/2", None)], "open", "broker 2 is not alive"),
        ([(MOVES, None)], "failed", "its replicas are 0,1, and the controller does not change them"),
        ([(ORDERS, assignment([Partition((1, 2))])), (MOVES, None)], "done", None),
    ],
)
def test_a_reassignment_waits_for_replicas_and_ends_when_nothing_moves(
    cluster: Planted, moves: Any, around: Any, controller: Changes, outcome: str, note: str | None
) -> None:
    topic(cluster, "orders", Partition((0, 1)))
    around(after=controller)
    (row,) = cluster.rows(*moves(("orders", 0, (1, 2))), *EXECUTE, code=0 if outcome == "done" else 1)
    assert (row["outcome"], row["note"]) == (outcome, note)


ENTRY = '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]%s}%s]}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("[]", "is JSON, but not an object"),
        ("{}", "has no 'version'"),
        ('{"version":2,"partitions":[]}', "is of version 2; known: 1"),
        ('{"version":1}', "its 'partitions' is not a list of objects"),
        ('{"version":1,"partitions":[7]}', "its 'partitions' is not a list of objects"),
        ('{"version":1,"partitions":[{"topic":"t","partition":0}]}', "[0].replicas' is not a list"),
        (ENTRY.replace("[1]", '["1"]') % ("", ""), "[0].replicas' is not a list"),
        (ENTRY.replace(":0", ":-1") % ("", ""), "[0].partition' is not a number"),
        (ENTRY % (',"log_dirs":["/d"]', ""), "names log_dirs"),
        (ENTRY % ("", ',{"topic":"t","partition":0,"replicas":[2]}'), "contains partition t-0 twice"),
    ],
)
def test_a_broken_file_is_named_with_the_reason(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "moves.json"
    file.write_text(text)
    err = command("zk", "reassign", "--reassignment-json-file", file, "--zookeeper", "h:1", code=1).stderr
    assert err.startswith(f"error: file {file}: ")
    assert why in err


DEAD = "wait for broker {}, not alive, which holds replicas"


@pytest.mark.servers
@pytest.mark.parametrize(
    ("name", "partitions", "row"),
    [
        ("orders", [Partition((0, 1)), Partition((1, 2))], (2, 4, None)),
        ("orders", [Partition((0, 5)), Partition((4, 5))], (2, 4, f"will {DEAD.format('4,5')}")),
        ("orders", [Partition((0, 1), adding=(1,))], (1, 2, "will wait for the reassignment of its partitions")),
        ("gone", [Partition((0,))], (1, 1, "refused: its deletion is under way: /admin/delete_topics/gone exists")),
        ("__consumer_offsets", [Partition((0,))], (1, 1, "refused: brokers do not work without it")),
        ("missing", [], (None, None, "refused: there is no /brokers/topics/missing")),
    ],
)
def test_a_deletion_names_its_size_and_what_it_waits_for_or_is_refused(cluster, name: str, partitions, row) -> None:
    if partitions:
        topic(cluster, name, *partitions)
    cluster.node("/admin/delete_topics/gone")
    rows = cluster.rows("delete-topic", "--topic", name, code=1 if str(row[-1]).startswith("refused") else 0)
    assert only(rows, "topic", "partitions", "replicas", "note") == [(name, *row)]


DELETED: Changes = [(ORDERS, None), (DELETION, None)]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("controller", "outcome", "note"),
    [
        ((), "open", DEAD.format(5).replace("wait", "waits", 1)),
        ([(ORDERS, assignment([Partition((0, 1))]))], "open", "the controller is deleting it"),
        (DELETED, "done", None),
        ([*DELETED, (ORDERS, assignment([Partition((0,))]))], "done", None),
        (
            [(DELETION, None)],
            "failed",
            "the controller has removed the request without deleting the topic; check its delete.topic.enable",
        ),
    ],
)
def test_a_deletion_is_done_when_the_topic_is_gone_or_recreated(cluster, around, controller, outcome, note) -> None:
    topic(cluster, "orders", Partition((0, 5)))
    around(after=controller)
    (row,) = cluster.rows("delete-topic", "--topic", "orders", *EXECUTE, code=0 if outcome == "done" else 1)
    assert (row["outcome"], row["note"]) == (outcome, note)


def test_a_program_submits_no_request_of_which_a_part_is_refused() -> None:
    refused = DeletionStep("internal", rejected=ControllerRequestRefused("topic internal", "brokers need it"))
    plan, submitted = RequestPlan([refused, DeletionStep("orders")]), []
    request = ControllerRequest("zk delete-topic", MagicMock(), MagicMock(), plan, submitted.append)
    outcomes = request.execute(wait_s=0)
    assert submitted == []
    assert {name: outcome.state for name, outcome in outcomes.items()} == {"internal": "refused", "orders": "not done"}
    assert plan.outcome(plan.steps[1], RequestProgress(0, {}, ended=True)).state == "not done"
