"""The coordinator of transactional ids, as far as it handles InitProducerId. No transaction is ever begun.

Source: kafka.coordinator.transaction (TransactionCoordinator, TransactionMetadata), KIP-360.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.client.producers import ProducerEpoch

_NONE: Final = -1
LAST_EPOCH: Final = 32_766
"""The largest epoch that a coordinator returns. It is `Short.MaxValue - 1`."""


class InitializedProducer(NamedTuple):
    code: int
    id: int = _NONE
    epoch: int = _NONE


@dataclass
class TransactionalId:
    id: int
    epoch: int = _NONE
    last_epoch: int = _NONE
    """The epoch before the last conditional increment. A retry of this increment presents this epoch."""
    previous_id: int = _NONE
    updated: float = 0.0


class TransactionCoordinator:
    """The states of all transactional ids. Every broker has the same states."""

    def __init__(self, first_id: int) -> None:
        self.states: dict[str, TransactionalId] = {}
        self._next_id = first_id

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def init_producer_id(self, name: str, expected: ProducerEpoch | None, now: float) -> InitializedProducer:
        """Returns the answer of InitProducerId version 3, which has the code 47 in place of PRODUCER_FENCED."""
        state = self.states.get(name)
        if state is None:
            state = self.states[name] = TransactionalId(self.new_id())
        if expected is not None and not self._may_present(state, expected):
            return InitializedProducer(ErrorCode.INVALID_PRODUCER_EPOCH)
        if state.epoch >= LAST_EPOCH and (expected is None or expected.epoch == state.epoch):
            state.last_epoch = _NONE if expected is None else state.epoch
            state.previous_id, state.id, state.epoch = state.id, self.new_id(), 0
        elif expected is None:
            state.epoch, state.last_epoch, state.previous_id = state.epoch + 1, _NONE, state.id
        elif state.epoch in (_NONE, expected.epoch):
            state.epoch, state.last_epoch, state.previous_id = state.epoch + 1, state.epoch, state.id
        elif expected.epoch == state.last_epoch:
            state.previous_id = state.id
        else:
            return InitializedProducer(ErrorCode.INVALID_PRODUCER_EPOCH)
        state.updated = now
        return InitializedProducer(ErrorCode.NONE, state.id, state.epoch)

    @staticmethod
    def _may_present(state: TransactionalId, expected: ProducerEpoch) -> bool:
        return (
            state.epoch == _NONE
            or expected.id == state.id
            or (expected.id == state.previous_id and expected.epoch >= LAST_EPOCH)
        )

    def expire(self, now: float, expiration_s: float) -> None:
        """Forgets the transactional ids that no InitProducerId has used for ``expiration_s`` seconds."""
        self.states = {name: state for name, state in self.states.items() if now - state.updated < expiration_s}

    def copy_states(self) -> dict[str, TransactionalId]:
        """Returns the present states, for a coordinator that loses its newest states later."""
        return {name: replace(state) for name, state in self.states.items()}
