"""Requests encoded in bulk are those encoded one by one; an answer that says less than "all done" is told from it."""

from __future__ import annotations

import struct

import pytest

from offsetmgr.zookeeper import jute
from offsetmgr.zookeeper.jute import Op
from offsetmgr.zookeeper.multiread import BulkRead, MultiRead
from offsetmgr.zookeeper.transactions import BulkWrite, SetData, TransactionRequest, encoded

PATHS = ["/consumers/g/offsets/orders/0", "/consumers/größe/offsets/orders/11", "/c"]
RAW = [path.encode() for path in PATHS]
USTRINGS = [jute.ustring(raw) for raw in RAW]
STAT = struct.pack("!qqqqiiiqiiq", 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
DONE = struct.pack("!iBi", Op.SET, 0, -1) + STAT
END = struct.pack("!iBi", -1, 1, -1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_bulk_read_is_a_multi_read(count: int) -> None:
    bulk, single = BulkRead(USTRINGS[:count]), MultiRead(Op.GET, RAW[:count])

    assert (bulk.type, bulk.serialize()) == (single.type, single.serialize())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_bulk_write_is_a_transaction_of_sets(count: int) -> None:
    operations = [SetData(path, b"%d" % (10**n), n) for n, path in enumerate(PATHS[:count])]
    one_by_one = TransactionRequest([encoded(operation, "") for operation in operations])
    values = zip(USTRINGS, operations, strict=False)

    bulk = BulkWrite([jute.set_data_at(path, op.data, op.version) for path, op in values], USTRINGS[:count])

    assert (bulk.type, bulk.serialize()) == (one_by_one.type, one_by_one.serialize())
    assert [jute.path_of(path) for path in bulk.paths] == PATHS[:count]


def test_a_bulk_write_taken_back_in_time_is_sent_without_its_operations() -> None:
    bulk = BulkWrite([jute.set_data_at(USTRINGS[0], b"1", 0)], USTRINGS[:1])

    assert bulk.cancel() is True
    assert bulk.serialize() == END


def test_all_done_is_told_from_everything_else() -> None:
    refused = b"".join(struct.pack("!iBii", -1, 0, code, code) for code in (0, -103, -2)) + END
    deleted = struct.pack("!iBi", Op.DELETE, 0, -1) + STAT

    assert jute.all_set(b"head" + DONE * 3 + END, 4, 3) is True
    assert jute.multi_codes(b"head" + DONE * 3 + END, 4, 3) == [0, 0, 0]
    assert jute.all_set(b"head" + DONE * 2 + END, 4, 3) is False
    assert jute.all_set(b"head" + DONE * 4 + END, 4, 3) is False
    assert jute.all_set(b"head" + DONE * 3, 4, 3) is False
    assert jute.all_set(b"head" + DONE * 2 + deleted + END, 4, 3) is False
    assert jute.all_set(b"head" + refused, 4, 3) is False
