"""`PartitionFollow`: the reader waits at undecided batches, and returns records in parts."""

from __future__ import annotations

import pytest
from audited_logs import NOW, PARTITION, Log, alarms, claim, data

from offsetmgr.manager.log.kafka.claim_history import ClaimHistory
from offsetmgr.manager.log.kafka.partition_follow import PartitionFollow


def test_a_follower_waits_at_an_undecided_batch_until_it_finds_a_claim(caplog: pytest.LogCaptureFixture) -> None:
    log = Log.of([data(4, 0, b"a"), data(6, 0, b"b"), data(4, 1, b"c")])
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))
    following.add(log.read(0, 9))
    assert following.take(10) == []
    assert (following.position, following.fetch_offset) == (0, 3)

    log = Log.of([data(4, 0, b"a"), data(6, 0, b"b"), data(4, 1, b"c"), claim(4, 2), data(4, 2, b"d")])
    following.add(log.read(3, 9))
    assert following.fetch_offset == 0
    following.add(log.read(0, 9))

    assert [record.key for record in following.take(10)] == [b"a", b"c", b"d"]
    assert following.position == 5
    assert [offset for offset, *_ in alarms(caplog)] == [1]


def test_a_follower_returns_records_in_parts() -> None:
    history = ClaimHistory("offsets")
    log = Log.of([claim(5, 0), data(5, 0, b"a", b"b", b"c"), data(5, 0, b"d")])
    following = PartitionFollow("offsets", PARTITION, 0, history)
    following.add(log.read(0, 9))

    assert [record.key for record in following.take(2)] == [b"a", b"b"]
    assert (following.position, following.buffered) == (3, 2)
    assert [(record.offset, record.value, record.timestamp) for record in following.take(2)] == [
        (3, b"v", NOW),
        (4, b"v", NOW),
    ]
    assert (following.position, following.buffered) == (5, 0)
    assert history.audit(PARTITION, 5).is_owner(5, 0)
