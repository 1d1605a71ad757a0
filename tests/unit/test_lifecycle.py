"""The states of a shard's life: every pair, allowed or refused."""

from __future__ import annotations

from itertools import product

import pytest

from offsetmgr.manager import lifecycle
from offsetmgr.manager.lifecycle import IllegalTransition, Lifecycle, State

ALLOWED = {
    (State.INITIAL, State.LOADING),
    (State.INITIAL, State.CLOSED),
    (State.LOADING, State.ACTIVE),
    (State.LOADING, State.FAILED),
    (State.LOADING, State.CLOSED),
    (State.ACTIVE, State.CLOSED),
    (State.FAILED, State.LOADING),
    (State.FAILED, State.CLOSED),
}


@pytest.mark.parametrize(("before", "after"), [*product(State, State)], ids=lambda state: state.value)
def test_every_pair(before: State, after: State) -> None:
    life = Lifecycle(before)
    if (before, after) in ALLOWED:
        assert life.to(after, "asked to") == Lifecycle(after, "asked to")
    else:
        with pytest.raises(IllegalTransition, match=f"{before.value} cannot become {after.value}"):
            life.to(after)
    assert life.state is before


def test_the_table_in_the_docs_is_the_one_that_holds() -> None:
    documented = set()
    for line in (lifecycle.__doc__ or "").splitlines():
        if line.startswith("`"):
            before, *after = [part.strip("`") for part in line.replace(",", " ").split() if part.startswith("`")]
            documented |= {(State[before], State[name]) for name in after}
    assert documented == ALLOWED


@pytest.mark.parametrize(
    ("state", "code"),
    [(State.INITIAL, 14), (State.LOADING, 14), (State.ACTIVE, 0), (State.CLOSED, 16), (State.FAILED, 15)],
)
def test_what_requests_are_told(state: State, code: int) -> None:
    assert Lifecycle(state).refusal == code
