"""The decision whether another manager's process is dead, from the results of connections to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.manager.peer_liveness import REFUSAL_INTERVAL_S, REFUSALS, ConnectionAttempt, PeerLiveness

ACCEPTED, REFUSED, UNDECIDED = ConnectionAttempt.ACCEPTED, ConnectionAttempt.REFUSED, ConnectionAttempt.UNDECIDED
CLOSED, BROKEN = "closed by the peer", "ended for another reason"


def dead_after(events: list[ConnectionAttempt | str], interval_s: float = REFUSAL_INTERVAL_S) -> bool:
    liveness = PeerLiveness()
    now = 1_000.0
    for event in events:
        if isinstance(event, ConnectionAttempt):
            liveness.on_attempt(event, now)
            now += interval_s
        else:
            liveness.on_closed(by_peer=event == CLOSED)
    return liveness.dead(now - interval_s)


@pytest.mark.parametrize(
    ("events", "dead"),
    [
        ([], False),
        ([ACCEPTED], False),
        ([ACCEPTED, CLOSED], False),
        ([ACCEPTED, CLOSED, REFUSED, REFUSED], False),
        ([ACCEPTED, CLOSED, REFUSED, REFUSED, REFUSED], True),
        ([ACCEPTED, CLOSED, REFUSED, REFUSED, REFUSED, REFUSED], True),
        # Connections have been refused from the start.
        ([REFUSED] * 5, False),
        ([UNDECIDED, REFUSED, REFUSED, REFUSED], False),
        # The connection is open, although new connections are refused.
        ([ACCEPTED, REFUSED, REFUSED, REFUSED], False),
        # The connection ended because the host is unreachable.
        ([ACCEPTED, BROKEN, REFUSED, REFUSED, REFUSED], False),
        # An attempt timed out, as it does if the process is frozen or the network is cut.
        ([ACCEPTED, CLOSED, UNDECIDED, UNDECIDED, UNDECIDED, UNDECIDED], False),
        ([ACCEPTED, CLOSED, REFUSED, REFUSED, UNDECIDED, REFUSED, REFUSED], False),
        ([ACCEPTED, CLOSED, UNDECIDED, REFUSED, REFUSED, REFUSED], True),
        # The peer listens again: it was restarted, or it closes idle connections.
        ([ACCEPTED, CLOSED, REFUSED, REFUSED, ACCEPTED, REFUSED], False),
        ([ACCEPTED, CLOSED, ACCEPTED, CLOSED, ACCEPTED, CLOSED], False),
        ([ACCEPTED, CLOSED, ACCEPTED, CLOSED, REFUSED, REFUSED, REFUSED], True),
    ],
)
def test_a_peer_is_dead_after_it_closed_its_connection_and_refused_several(
    events: list[ConnectionAttempt | str], dead: bool
) -> None:
    assert dead_after(events) is dead


def test_refusals_in_one_instant_prove_nothing() -> None:
    assert not dead_after([ACCEPTED, CLOSED, *[REFUSED] * 10], interval_s=0.001)


@given(st.lists(st.sampled_from([ACCEPTED, REFUSED, UNDECIDED, CLOSED, BROKEN])))
def test_a_peer_is_dead_only_if_the_newest_events_prove_it(events: list[ConnectionAttempt | str]) -> None:
    """The oracle reads the events backwards: refusals, before them undecided attempts, before those the closure."""
    backwards = events[::-1]
    refusals = next((n for n, event in enumerate(backwards) if event is not REFUSED), len(backwards))
    before = [event for event in backwards[refusals:] if event not in (REFUSED, UNDECIDED)]
    assert dead_after(events) == (refusals >= REFUSALS and before[:1] == [CLOSED])
