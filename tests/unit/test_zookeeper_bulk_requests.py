"""Requests encoded in bulk equal those encoded one by one, and only a fully successful answer counts as success."""

from __future__ import annotations

import struct

import pytest

from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.bulk_requests import BulkGet, BulkVerify, MultiRead
from offsetmgr.zookeeper.client.jute import Op
from offsetmgr.zookeeper.client.transactions import BulkWrite, SetData, TransactionRequest, encode_operation

PATHS = ["/consumers/g/offsets/orders/0", "/consumers/größe/offsets/orders/11", "/c"]
RAW = [path.encode() for path in PATHS]
USTRINGS = [jute.ustring(raw) for raw in RAW]
STAT = struct.pack("!qqqqiiiqiiq", 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
DONE = struct.pack("!iBi", Op.SET, 0, -1) + STAT
END = struct.pack("!iBi", -1, 1, -1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_bulk_read_is_a_multi_read(count: int) -> None:
    bulk, single = BulkGet([jute.read_operations(Op.GET, USTRINGS[:count])], count), MultiRead(Op.GET, RAW[:count])

    assert (bulk.type, bulk.serialize()) == (single.type, single.serialize())


@pytest.mark.parametrize("names", [[b"0"], [b"0", b"11"], ["größe".encode(), b"1", b"2"]])
def test_children_are_read_by_joining_their_names_with_the_parents_path(names: list[bytes]) -> None:
    parent = "/consumers/größe/offsets/orders".encode()

    joined = parent.join(jute.read_operations_below(Op.GET, len(parent), names))

    assert joined == jute.read_operations(Op.GET, [jute.ustring(parent + b"/" + name) for name in names])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_bulk_write_is_a_transaction_of_sets(count: int) -> None:
    operations = [SetData(path, b"%d" % (10**n), n) for n, path in enumerate(PATHS[:count])]
    one_by_one = TransactionRequest([encode_operation(operation, "") for operation in operations])

    encoded = jute.encode_set_data_many(
        USTRINGS[:count], [op.data for op in operations], [op.version for op in operations]
    )
    bulk = BulkWrite(encoded, USTRINGS[:count])

    assert (bulk.type, bulk.serialize()) == (one_by_one.type, one_by_one.serialize())
    assert [jute.decode_ustring(path) for path in bulk.paths] == PATHS[:count]


def test_a_bulk_write_cancelled_before_it_is_sent_has_no_operations() -> None:
    bulk = BulkWrite(jute.encode_set_data_many(USTRINGS[:1], [b"1"], [0]), USTRINGS[:1])

    assert bulk.cancel() is True
    assert bulk.serialize() == END


def test_the_zxid_of_the_last_change_of_a_parents_children_is_decoded() -> None:
    def node(data: bytes, pzxid: int) -> bytes:
        stat = STAT[:-8] + struct.pack("!q", pzxid)
        return struct.pack("!iBi", Op.GET, 0, -1) + struct.pack("!i", len(data)) + data + stat

    nothing = struct.pack("!iBi", Op.GET, 0, -1) + struct.pack("!i", -1) + STAT
    missing = struct.pack("!iBii", -1, 0, -101, -101)
    answer = b"junk" + node(b"", 40) + missing + node(b"data", 2**40) + nothing + END

    assert jute.multi_children_zxids(answer, 4, 4) == [40, None, 2**40, 21]
    with pytest.raises(jute.ZookeeperProtocolError):
        jute.multi_children_zxids(answer[:-30], 4, 4)
    with pytest.raises(jute.ZookeeperProtocolError, match="type 8"):
        jute.multi_children_zxids(struct.pack("!iBi", Op.CHILDREN, 0, -1) + STAT, 0, 1)


def test_a_committed_transaction_is_distinguished_from_every_other_answer() -> None:
    refused = b"".join(struct.pack("!iBii", -1, 0, code, code) for code in (0, -103, -2)) + END
    deleted = struct.pack("!iBi", Op.DELETE, 0, -1) + STAT

    assert jute.is_committed(b"head" + DONE * 3 + END, 4, 3) is True
    assert jute.multi_codes(b"head" + DONE * 3 + END, 4, 3) == [0, 0, 0]
    assert jute.is_committed(b"head" + DONE * 2 + END, 4, 3) is False
    assert jute.is_committed(b"head" + DONE * 4 + END, 4, 3) is False
    assert jute.is_committed(b"head" + DONE * 3, 4, 3) is False
    assert jute.is_committed(b"head" + DONE * 2 + deleted + END, 4, 3) is False
    assert jute.is_committed(b"head" + refused, 4, 3) is False


def listed(*names: str) -> bytes:
    raw = [name.encode() for name in names]
    vector = struct.pack("!i", len(raw)) + b"".join(struct.pack("!i", len(name)) + name for name in raw)
    return struct.pack("!iBi", Op.CHILDREN, 0, 0) + vector


def missing(code: int = -101) -> bytes:
    return struct.pack("!iBii", -1, 0, code, code)


def test_names_are_returned_unchanged_and_equal_lists_are_one_object() -> None:
    answer = b"head" + listed("0", "größe") + listed("0", "größe") + missing() + listed() + listed("0") + END

    one, other, absent, none, shorter = jute.multi_name_vectors(answer, 4, 5)

    assert one is other
    assert absent == -101
    assert [jute.names_in(v) for v in (one, none, shorter) if isinstance(v, bytes)] == [["0", "größe"], [], ["0"]]
    assert jute.multi_child_names(answer, 4, 5) == [["0", "größe"], ["0", "größe"], -101, [], ["0"]]


@pytest.mark.parametrize("broken", [b"", listed("0")[:7], struct.pack("!iBii", Op.GET, 0, 0, 0)])
def test_an_answer_without_names_is_an_error(broken: bytes) -> None:
    with pytest.raises(jute.ZookeeperProtocolError):
        jute.multi_name_vectors(listed("0") + broken, 0, 2)


def node(data: bytes, mtime: int = 14, version: int = 15) -> bytes:
    stat = struct.pack("!qqqqiiiqiiq", 11, 12, 13, mtime, version, 16, 17, 18, len(data), 20, 21)
    return struct.pack("!iBii", Op.GET, 0, 0, len(data)) + data + stat


EXPECTED = ([b"7", b"123", b""], [14, 15, 16], [0, 1, 2])
AS_EXPECTED = [node(b"7", 14, 0), node(b"123", 15, 1), node(b"", 16, 2)]


def test_an_answer_with_the_expected_nodes_matches() -> None:
    assert jute.matches_expected(b"head" + b"".join(AS_EXPECTED) + END, 4, EXPECTED) is True


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(node(b"124", 15, 1), id="other data"),
        pytest.param(node(b"1234", 15, 1), id="longer data"),
        pytest.param(node(b"12", 15, 1), id="shorter data"),
        pytest.param(node(b"123", 16, 1), id="written at another time"),
        pytest.param(node(b"123", 15, 2), id="another version"),
        pytest.param(missing(), id="gone"),
        pytest.param(b"", id="no answer"),
        pytest.param(node(b"123", 15, 1) * 2, id="two answers"),
    ],
)
def test_an_answer_that_differs_at_one_node_does_not_match(second: bytes) -> None:
    first, _, third = AS_EXPECTED

    assert jute.matches_expected(b"head" + first + second + third + END, 4, EXPECTED) is False


@pytest.mark.parametrize("offset", [7, 8])
def test_a_verified_read_returns_its_zxid_and_the_nodes_only_if_one_differs(offset: int) -> None:
    response = struct.pack("!iqi", 3, 2**40, 0) + node(b"7", 14, 0) + END
    read = BulkVerify([], 1, ([b"%d" % offset], [14], [0]))

    zxid, nodes = read.decode(response, 16)

    assert zxid == 2**40
    assert nodes is None if offset == 7 else [getattr(one, "data", one) for one in nodes or ()] == [b"7"]


def test_an_answer_to_another_operation_does_not_match() -> None:
    written = struct.pack("!iBii", Op.SET, 0, 0, 1) + AS_EXPECTED[0][13:]

    assert jute.matches_expected(b"head" + written + END, 4, ([b"7"], [14], [0])) is False
    assert jute.matches_expected(b"head" + AS_EXPECTED[0] + END, 4, ([b"7"], [14], [0])) is True
