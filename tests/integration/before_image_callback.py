"""A before-image sink that stores nothing: it passes each plan to a function before the executor writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from offsetmgr.core.offset_store import GroupEditResult
from offsetmgr.groups.edit_plan import GroupEditPlan


@dataclass
class BeforeImageCallback:
    on_intend: Callable[[GroupEditPlan], object] = lambda _plan: None

    def intend(self, batch: Iterable[GroupEditPlan]) -> None:
        for plan in batch:
            self.on_intend(plan)

    def record(self, planned: GroupEditPlan, result: GroupEditResult | None) -> GroupEditResult | None:
        return result

    def close(self) -> None:
        pass
