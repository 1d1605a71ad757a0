"""Reruns: a range of past periods again, in smaller periods, in a separate run or instead of the live run.

*Separate*: its own run under ``ROOT/reruns/NAME``, with its own members, independent of the live one. *Instead*: the
live run itself goes back. Its open period is abandoned (the history records it), and the next one that opens is the
rerun's first. Numbers continue, so an old report cannot be confused with a new one. Members see the next period begin
earlier than the last, and go back to its offsets.

At its end, a time or the present, a rerun ends by itself or adopts another schedule, usually the live one's. The leader
at that time decides (`leader_decision.after`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from offsetmgr.core.errors import Conflict, UsageError
from offsetmgr.period.leader_decision import Advance
from offsetmgr.period.records import ClosedPeriod, OpenNode, PartitionsNode, Rerun
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView

FOLDER: Final = "reruns"
BY: Final = "period rerun"


def rerun_root(root: str, name: str) -> str:
    """Raises `UsageError` for a name that cannot be a node's."""
    if not name or "/" in name or name in (".", ".."):
        raise UsageError(f"rerun {name!r}", "cannot be the name of a node")
    return f"{root}/{FOLDER}/{name}"


def check(first_ms: int, length_ms: int, rerun: Rerun, live: OpenNode) -> PeriodSchedule:
    """The rerun's schedule. Raises `UsageError` if it cannot end as required, or its periods are not smaller ones of
    the past."""
    schedule = PeriodSchedule(first_ms, length_ms)
    if length_ms > live.schedule.length_ms:
        why = f"are longer than the live run's, of {live.schedule.length_ms} ms"
        raise UsageError(f"periods of {length_ms} ms", why, "a rerun has smaller ones, or the same")
    if first_ms >= live.schedule.period(live.number).start_ms:
        raise UsageError(f"a rerun from {first_ms}", "is not in the past: that period is open, or in the future")
    if rerun.until_ms is not None and rerun.until_ms < schedule.period(0).end_ms:
        raise UsageError(f"a rerun until {rerun.until_ms}", "ends before its first period does")
    if rerun.until_ms is not None and (rerun.until_ms - first_ms) % length_ms:
        why = f"is not a whole number of periods of {length_ms} ms after {first_ms}"
        raise UsageError(f"a rerun until {rerun.until_ms}", why)
    if rerun.then is not None and (rerun.then.first_ms - first_ms) % math.gcd(length_ms, rerun.then.length_ms):
        raise UsageError(
            f"periods of {length_ms} ms from {first_ms}",
            f"never end where one of {rerun.then.length_ms} ms begins, so that the rerun could not take those on",
        )
    return schedule


def following(live: OpenNode) -> PeriodSchedule:
    """The times of the live run's schedule, for a rerun to adopt."""
    return PeriodSchedule(live.schedule.first_ms, live.schedule.length_ms)


def _of(view: BarrierView) -> tuple[OpenNode, PartitionsNode]:
    if view.seen.open_ is None or view.seen.partitions is None or view.seen.barrier() is None:
        raise Conflict("the live run", "has not opened a period yet, or is just turning to the next")
    return view.seen.open_, view.seen.partitions


def require_new(nodes: BarrierStateStore) -> None:
    """Raises `Conflict` if a rerun of this name has already begun."""
    if nodes.read().seen.open_ is not None:
        raise Conflict(f"rerun {nodes.root}", "has begun already", "give this one another name")


def require_no_rerun(root: str, live: OpenNode) -> None:
    """Raises `Conflict` if the run itself is in a rerun."""
    if live.rerun is not None:
        raise Conflict(f"run {root}", "is in a rerun already", "wait for its end, or start a separate rerun")


def begin_beside(
    nodes: BarrierStateStore, live: BarrierView, schedule: PeriodSchedule, rerun: Rerun, now_ms: int
) -> None:
    """Opens the rerun's first period, with the live run's partitions. Raises `Conflict` if it has already begun."""
    _, partitions = _of(live)
    nodes.prepare()
    first = OpenNode(schedule, 0, BY, 0, now_ms, rerun=rerun)
    if not nodes.begin(first, PartitionsNode(0, partitions.partitions)):
        raise Conflict(f"rerun {nodes.root}", "has begun already", "give this one another name")


def begin_instead(
    nodes: BarrierStateStore, live: BarrierView, schedule: PeriodSchedule, rerun: Rerun, why: str, now_ms: int
) -> Advance:
    """Abandons the open period and opens the rerun's first. Raises `Conflict` if the live run has just advanced."""
    open_, partitions = _of(live)
    require_no_rerun(nodes.root, open_)
    number = open_.number + 1
    again = OpenNode(replace(schedule, base=number), number, BY, open_.epoch, now_ms, rerun=rerun)
    given_up = ClosedPeriod(
        open_.schedule.period(open_.number), open_.opened_ms, now_ms, BY, open_.epoch, {}, abandoned=why
    )
    turn = Advance(again, PartitionsNode(number, partitions.partitions), given_up)
    if not nodes.turn(turn, live):
        raise Conflict(f"run {nodes.root}", "has just turned to another period", "ask again")
    return turn
