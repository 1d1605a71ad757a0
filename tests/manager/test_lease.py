"""The lease on a simulated clock: it ends before the next owner may claim."""

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from offsetmgr.manager.lease import LEASE_DURATION_S, MARGIN, MAX_LEASE_S, TAKEOVER_WAIT_S, OwnershipLease


@dataclass
class Now:
    seconds: float = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def begun(now: Now) -> OwnershipLease:
    lease = OwnershipLease(now)
    lease.extend(now.seconds)
    return lease


def test_a_lease_is_not_valid_before_the_first_proof_or_after_its_end() -> None:
    ended = begun(Now())
    ended.end()
    for lease in (OwnershipLease(Now()), ended):
        assert (lease.valid(), lease.remaining()) == (False, 0.0)


def test_no_lease_lasts_longer_than_a_second_and_a_half_on_the_clock_of_another_machine() -> None:
    """The slowest clock that the margin allows shows `MARGIN` seconds while another clock shows one."""
    assert MAX_LEASE_S * MARGIN >= LEASE_DURATION_S
    assert min(1.5, TAKEOVER_WAIT_S) >= MAX_LEASE_S


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3))))
@example([(LEASE_DURATION_S, 60.0), (60.0, LEASE_DURATION_S), (0.0, 0.2)])
def test_a_lease_never_lasts_longer_than_the_proofs_allow(steps: list[tuple[float, float]]) -> None:
    now = Now()
    lease = begun(now)
    proven = now.seconds
    for pause, age in steps:
        now.seconds += pause
        lease.extend(now.seconds - age)
        proven = max(proven, now.seconds - age)
        assert abs(lease.remaining() - max(proven + LEASE_DURATION_S - now.seconds, 0)) < 1e-6
        assert lease.valid() == (lease.remaining() > 0)


@given(st.floats(MARGIN, 1), st.floats(MARGIN, 1), st.floats(0, 1e6))
def test_the_lease_of_a_removed_member_ends_before_its_successor_claims(member_rate, successor_rate, proven_at) -> None:
    """The successor sends its SyncGroup after the coordinator has processed the last proof of the removed member."""
    lease = OwnershipLease(lambda: claim_at * member_rate)
    lease.extend(proven_at * member_rate)
    claim_at = proven_at + TAKEOVER_WAIT_S / successor_rate + 1e-6
    assert not lease.valid()
