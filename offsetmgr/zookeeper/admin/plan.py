"""`RequestPlan`: the steps of a controller request, their progress and their outcomes. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.admin.state import AdminState


@dataclass(frozen=True, slots=True)
class RequestStep(ABC):
    """One topic or partition of a request. ``rejected`` is the reason why the controller would not execute the step,
    or None."""

    topic: str
    partition: int | None = None
    rejected: OffsetMgrError | None = None

    @property
    def name(self) -> str:
        """The topic, or ``TOPIC-PARTITION``."""
        return self.topic if self.partition is None else str(self.tp)

    @property
    def tp(self) -> TopicPartition:
        assert self.partition is not None  # a step of a whole topic does not use it
        return TopicPartition(self.topic, self.partition)

    @property
    def needed(self) -> bool:
        """Whether the topic or partition does not have the requested state yet."""
        return True

    @property
    def note(self) -> str:
        """A fact for the user; may be empty."""
        return ""

    @abstractmethod
    def is_under_way(self, state: AdminState) -> bool:
        """Whether the controller works on the submitted step."""

    @abstractmethod
    def open_reason(self, state: AdminState) -> str:
        """Returns the reason why the submitted step is not done; an empty text if it is done."""


class RequestProgress(NamedTuple):
    """The controller's progress with a request of ``total`` steps.

    ``open`` maps the name of each step that is not done to the reason why it is not done.
    """

    total: int
    open: Mapping[str, str]
    ended: bool
    """Whether the controller has stopped working on the request. If True, the steps in ``open`` have failed."""

    @property
    def done(self) -> int:
        return self.total - len(self.open)


class StepOutcome(NamedTuple):
    """The outcome of a step: done, failed, open (the controller continues), unknown, refused, unchanged or "not done"
    (another step is refused)."""

    state: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The steps of a request. If ``all_or_nothing`` is true, one rejected step rejects the whole request."""

    steps: Sequence[RequestStep]
    all_or_nothing: bool = True

    @property
    def rejections(self) -> list[OffsetMgrError]:
        """The reasons why steps are rejected."""
        return [step.rejected for step in self.steps if step.rejected is not None]

    @property
    def todo(self) -> list[RequestStep]:
        """The steps to submit."""
        if self.all_or_nothing and self.rejections:
            return []
        return [step for step in self.steps if step.needed and step.rejected is None]

    def untouched(self, step: RequestStep) -> StepOutcome:
        """Returns the outcome of a step that is not submitted."""
        if step.rejected is not None:
            return StepOutcome("refused", step.rejected.why or step.rejected.what)
        return (
            StepOutcome("not done", "another part is refused") if step.needed else StepOutcome("unchanged", step.note)
        )

    def outcome(self, step: RequestStep, seen: RequestProgress | None) -> StepOutcome:
        """Returns the outcome of a step after the submission. ``seen`` is the last progress; None if it could not be
        read."""
        if not step.needed or step.rejected is not None or (self.all_or_nothing and self.rejections):
            return self.untouched(step)
        if seen is None:
            return StepOutcome("unknown", "the state of the request could not be read")
        if step.name not in seen.open:
            return StepOutcome("done")
        return StepOutcome("failed" if seen.ended else "open", seen.open[step.name])


def progress_of(state: AdminState, steps: Sequence[RequestStep]) -> RequestProgress:
    """Returns the progress of submitted steps. A step whose topic cannot be read is open."""
    waiting: dict[str, str] = {}
    under_way = False
    for step in steps:
        try:
            under_way |= step.is_under_way(state)
            why = step.open_reason(state)
        except OffsetMgrError as error:
            why = str(error)
        if why:
            waiting[step.name] = why
    return RequestProgress(len(steps), waiting, ended=not under_way)
