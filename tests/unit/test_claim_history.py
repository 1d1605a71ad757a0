"""`ClaimHistory`: the audit of a later load knows the claims and the invalid keys that earlier readers read."""

from __future__ import annotations

import pytest
from audited_logs import Log, alarms, claim, data, follow, load

from offsetmgr.manager.log.kafka.claim_history import ClaimHistory


def test_a_second_load_knows_the_claim_before_its_start(caplog: pytest.LogCaptureFixture) -> None:
    history = ClaimHistory("offsets")
    log = Log.of([claim(5, 1, 4), data(5, 1, b"a"), data(5, 1, b"b"), data(5, 0, b"c"), data(6, 0, b"d")])
    load(log, 0, 2, history, batches=1)

    newest, loading = load(log, 2, None, history)

    assert newest == {b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"c", b"d"}
    assert loading.audit.state.claim is not None
    assert loading.audit.state.producer_ids == {4, 5}
    load(log, 0, None, history)
    assert [offset for offset, *_ in alarms(caplog)] == [3, 4], "each batch is logged once"


def test_a_load_after_a_gap_in_the_knowledge_accepts_later_epochs_of_the_owner() -> None:
    """The owner refreshed its claim, and its process did not read the claim."""
    history = ClaimHistory("offsets")
    log = Log.of([
        claim(5, 1, 4), claim(5, 2, 4), data(5, 2, b"a"), data(5, 0, b"b"), data(4, 9, b"c"), data(6, 0, b"d"),
        data(5, 1, b"e"),
    ])  # fmt: skip
    load(log, 0, 1, history, batches=1)

    newest, loading = load(log, 2, None, history)

    assert newest == {b"a": b"v", b"e": b"v"}
    assert loading.audit.state.invalid_keys == {b"b", b"c", b"d"}


def test_invalid_keys_are_known_to_the_next_load() -> None:
    history = ClaimHistory("offsets")
    log = Log.of([claim(5, 1), data(5, 0, b"a", b"b"), data(5, 1, b"c"), data(5, 1, b"b")])
    follow(Log(log.chunks[:2], log.starts[:2], log.ends[:2]), history)

    _, loading = load(log, 3, None, history)

    assert loading.audit.state.invalid_keys == {b"a"}


def test_a_recreated_topic_has_no_known_claims() -> None:
    history = ClaimHistory("offsets")
    load(Log.of([claim(5, 1), data(5, 0, b"a")]), history=history)
    history.forget()

    newest, _ = load(Log.of([claim(6, 0), data(6, 0, b"a")]), history=history)

    assert newest == {b"a": b"v"}
