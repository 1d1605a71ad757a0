"""The lease on a simulated clock: it ends before the coordinator can have removed the member."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.manager.lease import OwnershipLease, boottime

SESSION, REBALANCE = 10.0, 30.0
"""The lease lasts 8 s from the last confirmed request, and 24 s from the last one outside a rebalance."""


@dataclass
class Now:
    seconds: float = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def begun(now: Now) -> OwnershipLease:
    lease = OwnershipLease(SESSION, REBALANCE, now)
    lease.begin(now.seconds)
    return lease


def test_a_lease_is_not_valid_before_the_first_generation() -> None:
    now = Now()
    lease = OwnershipLease(SESSION, REBALANCE, now)
    assert not lease.valid()
    assert not lease.extend(now.seconds, stable=True)
    assert not lease.valid()
    assert lease.remaining() == 0.0


def test_a_lease_lasts_four_fifths_of_the_session_timeout_from_the_request() -> None:
    now = Now()
    lease = begun(now)
    now.seconds += 7.9
    assert lease.valid()
    now.seconds += 0.1
    assert not lease.valid()


def test_a_heartbeat_counts_from_its_request_not_from_its_response() -> None:
    now = Now()
    lease = begun(now)
    sent = now.seconds + 1
    now.seconds += 5
    assert lease.extend(sent, stable=True)
    assert lease.remaining() == 4.0


def test_responses_out_of_order_do_not_shorten_the_lease() -> None:
    now = Now()
    lease = begun(now)
    now.seconds += 3
    lease.extend(now.seconds, stable=True)
    lease.extend(now.seconds - 2, stable=True)
    assert lease.remaining() == 8.0


def test_heartbeats_during_a_rebalance_extend_the_lease_only_within_the_rebalance_timeout() -> None:
    now = Now()
    lease = begun(now)
    for _ in range(22):
        now.seconds += 1
        assert lease.extend(now.seconds, stable=False)
    assert lease.remaining() == 2.0  # 24 s from the last request outside a rebalance
    now.seconds += 1.5
    assert lease.extend(now.seconds, stable=True)
    assert lease.remaining() == 8.0


def test_only_a_new_generation_renews_an_expired_lease_and_no_heartbeat() -> None:
    now = Now()
    lease = begun(now)
    now.seconds += 8
    assert not lease.extend(now.seconds - 0.1, stable=True)
    assert not lease.valid()
    lease.begin(now.seconds)
    assert lease.remaining() == 8.0


def test_a_generation_whose_sync_request_was_sent_before_a_freeze_starts_no_lease() -> None:
    now = Now()
    lease = OwnershipLease(SESSION, REBALANCE, now)
    sent = now.seconds
    now.seconds += 60
    lease.begin(sent)
    assert not lease.valid()


def test_a_slow_sync_does_not_shorten_a_lease_that_heartbeats_extended() -> None:
    now = Now()
    lease = begun(now)
    sent = now.seconds
    now.seconds += 6
    lease.extend(now.seconds, stable=False)
    lease.begin(sent)
    assert lease.remaining() == 8.0


def test_an_ended_lease_cannot_be_extended() -> None:
    now = Now()
    lease = begun(now)
    lease.end()
    assert not lease.valid()
    assert not lease.extend(now.seconds, stable=True)
    assert not lease.valid()


@given(st.lists(st.tuples(st.floats(0, 12), st.floats(0, 12), st.booleans())))
def test_a_lease_never_lasts_longer_than_the_confirmed_requests_allow(steps: list[tuple[float, float, bool]]) -> None:
    now = Now()
    lease = begun(now)
    confirmed = stable_at = now.seconds
    for pause, age, stable in steps:
        now.seconds += pause
        sent = now.seconds - age
        if lease.extend(sent, stable=stable):
            confirmed = max(confirmed, sent)
            stable_at = max(stable_at, sent) if stable else stable_at
        assert lease.remaining() <= max(min(confirmed + 8, stable_at + 24) - now.seconds, 0) + 1e-6


def test_boottime_never_goes_back() -> None:
    assert boottime() <= boottime()
