"""The states of a shard group at its owner, and the transitions between them.

==========  ====================================================  ============================
state       meaning                                               may become
==========  ====================================================  ============================
`INITIAL`   assigned; not claimed yet                             `LOADING`, `CLOSED`
`LOADING`   claims the shard group, reads the log to its end      `ACTIVE`, `FAILED`, `CLOSED`
`ACTIVE`    serves                                                `CLOSED`
`FAILED`    cannot serve; the reason is known                     `LOADING`, `CLOSED`
`CLOSED`    revoked, fenced or shut down; final state             none
==========  ====================================================  ============================

Only `LOADING` leads to `ACTIVE`, so an owner serves only after it has claimed the shard group and then read the log to
its end. After an append with an unknown outcome, the owner claims the shard group again and reads the rest of the log,
but the state stays `ACTIVE`. During this time the owner serves the acknowledged offsets from memory, and new commits
wait (`offsetmgr.manager.runtime.shard_group` gives the reason). When the shard group is assigned to the same process
again, a new lifecycle starts with `INITIAL`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from offsetmgr.core.errors import ErrorCode, OffsetMgrError


class IllegalTransition(OffsetMgrError):
    """The caller requested a transition that is not allowed. This is a defect of the caller."""


class ShardState(Enum):
    """The states, as described in the module's docstring."""

    INITIAL = "initial"
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"
    FAILED = "failed"

    def transition_to(self, state: ShardState) -> ShardState:
        """Returns ``state``. Raises `IllegalTransition` if this state may not become ``state``."""
        if state not in TRANSITIONS[self]:
            raise IllegalTransition("shard group", f"{self.value} cannot become {state.value}")
        return state

    @property
    def error_code(self) -> int:
        """The error code for requests in this state; 0 if requests are served. The code is always retriable (data rule
        "current or retriable")."""
        return _ERROR_CODES[self]


TRANSITIONS: Final[Mapping[ShardState, frozenset[ShardState]]] = {
    ShardState.INITIAL: frozenset({ShardState.LOADING, ShardState.CLOSED}),
    ShardState.LOADING: frozenset({ShardState.ACTIVE, ShardState.FAILED, ShardState.CLOSED}),
    ShardState.ACTIVE: frozenset({ShardState.CLOSED}),
    ShardState.FAILED: frozenset({ShardState.LOADING, ShardState.CLOSED}),
    ShardState.CLOSED: frozenset(),
}

_ERROR_CODES: Final[Mapping[ShardState, int]] = {
    ShardState.INITIAL: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.ACTIVE: ErrorCode.NONE,
    ShardState.CLOSED: ErrorCode.NOT_COORDINATOR,
    ShardState.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
