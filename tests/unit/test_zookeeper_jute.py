"""ZooKeeper's wire format: requests follow the protocol, and broken answers are errors."""

from __future__ import annotations

import struct

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE

from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.acl import OPEN, encode
from offsetmgr.zookeeper.client.bulk_requests import MAX_BYTES_PER_REQUEST, split_into_requests
from offsetmgr.zookeeper.client.jute import NodeData, Op, ZookeeperError, ZookeeperProtocolError
from offsetmgr.zookeeper.client.transactions import (
    Create,
    Delete,
    SetData,
    TransactionOperation,
    TransactionRequest,
    encode_operation,
    failed_operation,
)

OPEN_ACL = encode(OPEN)
STAT = struct.pack("!qqqqiiiqiiq", 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
END = struct.pack("!iBi", -1, 1, -1)


def test_a_transaction_is_encoded_as_by_kazoo() -> None:
    operations: list[TransactionOperation] = [Create("/a", b"x"), SetData("/b", b"12", 7), Delete("/ü", 0)]

    ours = jute.multi([encode_operation(operation, "/chroot") for operation in operations])

    theirs = kazoo.Transaction(
        [
            kazoo.Create("/chroot/a", b"x", OPEN_ACL_UNSAFE, 0),
            kazoo.SetData("/chroot/b", b"12", 7),
            kazoo.Delete("/chroot/ü", 0),
        ]
    ).serialize()
    assert ours == bytes(theirs)


def test_a_multi_read_names_each_path_under_a_header_of_its_own() -> None:
    assert jute.multi_read(Op.GET, [b"/a", b"/bc"]) == (
        struct.pack("!iBi", 4, 0, -1) + b"\0\0\0\x02/a\0" + struct.pack("!iBi", 4, 0, -1) + b"\0\0\0\x03/bc\0" + END
    )


def test_data_stat_and_errors_of_a_multi_read() -> None:
    answer = (
        b"head"
        + struct.pack("!iBii", 4, 0, 0, 2)
        + b"42"
        + STAT
        + struct.pack("!iBii", -1, 0, -101, -101)
        + struct.pack("!iBii", 4, 0, 0, -1)
        + STAT
        + END
    )

    assert jute.multi_node_data(answer, 4, 3) == [
        NodeData(b"42", 11, 13, 14, 15, 18, 20),
        ZookeeperError.NO_NODE,
        NodeData(b"", 11, 13, 14, 15, 18, 20),
    ]


def test_children_and_errors_of_a_multi_read() -> None:
    names = struct.pack("!i", 2) + b"\0\0\0\x01a" + b"\0\0\0\x02bc"
    answer = (
        struct.pack("!iBi", 8, 0, 0)
        + names
        + struct.pack("!iBii", -1, 0, -102, -102)
        + struct.pack("!iBii", 8, 0, 0, 0)
        + END
    )

    assert jute.multi_child_names(answer, 0, 3) == [["a", "bc"], ZookeeperError.NO_AUTH, []]


@pytest.mark.parametrize("decode", [jute.multi_node_data, jute.multi_child_names, jute.multi_codes])
@pytest.mark.parametrize("answer", [b"", b"\0\0", struct.pack("!iBii", 99, 0, 0, 0) + STAT])
def test_an_answer_of_the_wrong_form_is_an_error(decode, answer: bytes) -> None:
    with pytest.raises(ZookeeperProtocolError):
        decode(answer, 0, 1)


def test_the_codes_of_a_committed_transaction() -> None:
    answer = (
        struct.pack("!iBi", 1, 0, 0)
        + b"\0\0\0\x02/a"
        + struct.pack("!iBi", 5, 0, 0)
        + STAT
        + struct.pack("!iBi", 2, 0, 0)
        + struct.pack("!iBi", 13, 0, 0)
        + END
    )

    codes = jute.multi_codes(answer, 0, 4)

    assert codes == [0, 0, 0, 0]
    assert failed_operation(codes) is None


def test_the_failed_operation_of_a_rejected_transaction() -> None:
    codes = [0, 0, -103, -2, -2]
    answer = b"".join(struct.pack("!iBii", -1, 0, code, code) for code in codes) + END

    assert jute.multi_codes(answer, 0, 5) == codes
    assert failed_operation(codes) == 2


def test_a_transaction_cancelled_before_it_is_sent_has_no_operations() -> None:
    request = TransactionRequest([jute.create("/a", b"1", OPEN_ACL)])

    assert request.cancel() is True
    assert request.serialize() == END


def test_a_sent_transaction_cannot_be_cancelled() -> None:
    request = TransactionRequest([jute.create("/a", b"1", OPEN_ACL)])
    sent = request.serialize()

    assert request.cancel() is False
    assert sent == jute.create("/a", b"1", OPEN_ACL) + END


def test_requests_hold_500_paths_and_stay_below_the_servers_limit() -> None:
    short = [b"/p%d" % n for n in range(1201)]
    long = [b"/" + b"x" * 4000 + b"%d" % n for n in range(1000)]

    assert [len(chunk) for chunk in split_into_requests(short)] == [500, 500, 201]
    assert [path for chunk in split_into_requests(long) for path in chunk] == long
    assert max(sum(map(len, chunk)) for chunk in split_into_requests(long)) <= MAX_BYTES_PER_REQUEST
