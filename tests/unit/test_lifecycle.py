"""The states of a shard: every transition, allowed or rejected."""

from __future__ import annotations

from itertools import product

import pytest

from offsetmgr.manager import lifecycle
from offsetmgr.manager.lifecycle import IllegalTransition, Lifecycle, ShardState

ALLOWED = {
    (ShardState.INITIAL, ShardState.LOADING),
    (ShardState.INITIAL, ShardState.CLOSED),
    (ShardState.LOADING, ShardState.ACTIVE),
    (ShardState.LOADING, ShardState.FAILED),
    (ShardState.LOADING, ShardState.CLOSED),
    (ShardState.ACTIVE, ShardState.CLOSED),
    (ShardState.FAILED, ShardState.LOADING),
    (ShardState.FAILED, ShardState.CLOSED),
}


@pytest.mark.parametrize(("before", "after"), [*product(ShardState, ShardState)], ids=lambda state: state.value)
def test_only_the_allowed_transitions_succeed(before: ShardState, after: ShardState) -> None:
    life = Lifecycle(before)
    if (before, after) in ALLOWED:
        assert life.transition_to(after, "reason") == Lifecycle(after, "reason")
    else:
        with pytest.raises(IllegalTransition, match=f"{before.value} cannot become {after.value}"):
            life.transition_to(after)
    assert life.state is before


def test_the_documented_transitions_are_the_allowed_ones() -> None:
    documented = set()
    for line in (lifecycle.__doc__ or "").splitlines():
        if line.startswith("`"):
            before, *after = [part.strip("`") for part in line.replace(",", " ").split() if part.startswith("`")]
            documented |= {(ShardState[before], ShardState[name]) for name in after}
    assert documented == ALLOWED


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ShardState.INITIAL, 14),
        (ShardState.LOADING, 14),
        (ShardState.ACTIVE, 0),
        (ShardState.CLOSED, 16),
        (ShardState.FAILED, 15),
    ],
)
def test_requests_get_the_error_code_of_the_state(state: ShardState, code: int) -> None:
    assert Lifecycle(state).error_code == code
