"""ZooKeeper's wire format: the answers of multi-reads and transactions, and broken answers.

tests/clients/test_zookeeper_session.py sends the requests to servers."""

import struct

import pytest
from kazoo.exceptions import UnimplementedError

from offsetmgr.core.errors import ServerError, Unreachable
from offsetmgr.zookeeper.client import jute, transactions
from offsetmgr.zookeeper.client.connection import Completion, KazooConnection
from offsetmgr.zookeeper.client.jute import NodeData, Op, ZookeeperError, ZookeeperProtocolError
from offsetmgr.zookeeper.client.session import ZookeeperSession

STAT = struct.pack("!qqqqiiiqiiq", 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
END = struct.pack("!iBi", -1, 1, -1)


def failed(code: int) -> bytes:
    """The result of an operation that failed."""
    return struct.pack("!iBii", -1, 0, code, code)


def listed(*names: str) -> bytes:
    """The result of getChildren."""
    raw = [name.encode() for name in names]
    vector = struct.pack("!i", len(raw)) + b"".join(struct.pack("!i", len(name)) + name for name in raw)
    return struct.pack("!iBi", Op.CHILDREN, 0, 0) + vector


@pytest.mark.parametrize("names", [["0"], ["0", "11"], ["größe", "1", "2"]])
def test_reads_that_are_encoded_in_bulk_equal_those_one_by_one(names: list[str]) -> None:
    parent = "/consumers/größe/offsets/orders".encode()
    raw = [name.encode() for name in names]
    operations = jute.read_operations(Op.GET, [jute.ustring(parent + b"/" + name) for name in raw])
    assert parent.join(jute.read_operations_below(Op.GET, len(parent), raw)) == operations


def test_data_stats_names_and_errors_of_a_multi_read() -> None:
    empty = struct.pack("!iBii", 4, 0, 0, -1) + STAT
    answer = b"head" + struct.pack("!iBii", 4, 0, 0, 2) + b"42" + STAT + failed(-101) + empty + END
    stat = (11, 13, 14, 15, 18, 20)
    assert jute.multi_node_data(answer, 4, 3) == [NodeData(b"42", *stat), ZookeeperError.NO_NODE, NodeData(b"", *stat)]

    answer = b"head" + listed("0", "größe") + listed("0", "größe") + failed(-102) + listed() + listed("0") + END
    one, other, hidden, none, shorter = jute.multi_name_vectors(answer, 4, 5)
    assert one is other  # equal lists are one object
    assert hidden == ZookeeperError.NO_AUTH
    assert [jute.names_in(v) for v in (one, none, shorter) if isinstance(v, bytes)] == [["0", "größe"], [], ["0"]]
    assert jute.multi_child_names(answer, 4, 5) == [["0", "größe"], ["0", "größe"], ZookeeperError.NO_AUTH, [], ["0"]]


def test_the_codes_of_a_committed_and_of_a_rejected_transaction() -> None:
    created = struct.pack("!iBi", 1, 0, 0) + b"\0\0\0\x02/a"
    rest = struct.pack("!iBi", 5, 0, 0) + STAT + struct.pack("!iBi", 2, 0, 0) + struct.pack("!iBi", 13, 0, 0)
    for answer, codes, first in (
        (created + rest, [0, 0, 0, 0], None),
        (b"".join(map(failed, (0, 0, -103, -2, -2))), [0, 0, -103, -2, -2], 2),
    ):
        assert jute.multi_codes(answer + END, 0, len(codes)) == codes
        assert transactions.failed_operation(codes) == first


def test_results_are_kept_if_the_session_ends_before_all_transactions_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([struct.pack("!iBi", Op.DELETE, 0, 0) + END] * 12)

    def send(_: KazooConnection, request: transactions.TransactionRequest, completion: Completion) -> None:
        answer = next(answers, None)
        if answer is None:
            raise Unreachable("ZooKeeper", "the session has been closed")
        request.serialize()
        completion.set((answer, 0))

    monkeypatch.setattr(KazooConnection, "ready", lambda *_: None)
    monkeypatch.setattr(KazooConnection, "send", send)
    found = ZookeeperSession("h1:2181").transactions([[transactions.Delete("/a", -1)]] * 15)
    assert [one.state for one in found] == [transactions.OperationState.COMMITTED] * 12 + [
        transactions.OperationState.NOT_SENT
    ] * 3
    assert {str(one.error) for one in found[12:]} == {"ZooKeeper: the session has been closed"}


def test_a_request_that_the_server_does_not_know_is_a_server_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KazooConnection, "ready", lambda *_: None)
    monkeypatch.setattr(
        KazooConnection, "send", lambda _, __, completion: completion.set_exception(UnimplementedError())
    )
    session = ZookeeperSession("h1:2181")
    with pytest.raises(ServerError) as read:
        session.begin_reads([transactions.BulkRead.of(transactions.BULK_DATA, [b"/a"])])()
    errors = [read.value, session.transaction([transactions.Delete("/a", -1)]).error]
    assert [type(error) for error in errors] == [ServerError, ServerError]  # the names of the types are recorded


DECODERS = [jute.multi_node_data, jute.multi_child_names, jute.multi_name_vectors, jute.multi_codes]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("answer", [b"", b"\0\0", struct.pack("!iBii", 99, 0, 0, 0) + STAT, listed("0")[:7]])
def test_an_answer_of_the_wrong_form_is_an_error(decode, answer: bytes) -> None:
    with pytest.raises(ZookeeperProtocolError):
        decode(answer, 0, 1)
    if decode is jute.multi_name_vectors:
        for broken in (b"", listed("0")[:7], struct.pack("!iBii", Op.GET, 0, 0, 0)):
            with pytest.raises(ZookeeperProtocolError):
                decode(listed("0") + broken, 0, 2)  # a cut or another result after the first
