"""Reruns: the members process past event time again, usually in shorter periods, in a separate run or in the live run.

A *separate* rerun is a run of its own under ``ROOT/reruns/NAME``. It has its own members and is independent of the live
run. A rerun *in the live run* abandons the open period, and the history records this period as abandoned. The next
period that opens is the first period of the rerun. The numbers of the periods continue, so that an old report cannot be
mistaken for a new one. Each member receives a period that begins earlier than the abandoned period, and must go back to
the offsets of this earlier period.

A rerun ends at a given time or at the present. After the rerun, the run ends or adopts another schedule, usually the
schedule of the live run. `leader_decision.after` decides when the rerun ends.
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

RERUNS_DIRECTORY: Final = "reruns"
RERUN_LEADER: Final = "period rerun"


def rerun_root(root: str, name: str) -> str:
    """Returns the root of a separate rerun. Raises `UsageError` if ``name`` cannot be the name of a node."""
    if not name or "/" in name or name in (".", ".."):
        raise UsageError(f"rerun {name!r}", "cannot be the name of a node")
    return f"{root}/{RERUNS_DIRECTORY}/{name}"


def rerun_schedule(first_ms: int, length_ms: int, rerun: Rerun, live: OpenNode) -> PeriodSchedule:
    """Returns the schedule of a rerun. Raises `UsageError` in four cases: the periods of the rerun are longer than the
    periods of the live run; the rerun does not begin before the open period; no period of the rerun ends at the rerun's
    end time; or no period of the rerun ends at a time at which a period of the following schedule begins."""
    schedule = PeriodSchedule(first_ms, length_ms)
    if length_ms > live.schedule.length_ms:
        why = f"are longer than the live run's periods of {live.schedule.length_ms} ms"
        raise UsageError(f"periods of {length_ms} ms", why, "a rerun's periods must have the same length or be shorter")
    if first_ms >= live.schedule.period(live.number).start_ms:
        raise UsageError(f"a rerun from {first_ms}", "does not begin in the past: it must begin before the open period")
    if rerun.until_ms is not None and rerun.until_ms < schedule.period(0).end_ms:
        raise UsageError(f"a rerun until {rerun.until_ms}", "ends before the end of its first period")
    if rerun.until_ms is not None and (rerun.until_ms - first_ms) % length_ms:
        why = f"is not a whole number of periods of {length_ms} ms after {first_ms}"
        raise UsageError(f"a rerun until {rerun.until_ms}", why)
    if rerun.then is not None and (rerun.then.first_ms - first_ms) % math.gcd(length_ms, rerun.then.length_ms):
        raise UsageError(
            f"periods of {length_ms} ms from {first_ms}",
            f"never end where a period of {rerun.then.length_ms} ms begins, so the run could not adopt that schedule",
        )
    return schedule


def live_schedule(live: OpenNode) -> PeriodSchedule:
    """Returns the schedule of the live run, which a rerun can adopt at its end."""
    return PeriodSchedule(live.schedule.first_ms, live.schedule.length_ms)


def _open_nodes(view: BarrierView) -> tuple[OpenNode, PartitionsNode]:
    if view.seen.open_ is None or view.seen.partitions is None or view.seen.barrier() is None:
        raise Conflict("the live run", "has not opened a period yet, or is just advancing to the next one")
    return view.seen.open_, view.seen.partitions


def require_new(nodes: BarrierStateStore) -> None:
    """Raises `Conflict` if a rerun of this name has already begun."""
    if nodes.read().seen.open_ is not None:
        raise Conflict(f"rerun {nodes.root}", "has begun already", "give this one another name")


def require_no_rerun(root: str, live: OpenNode) -> None:
    """Raises `Conflict` if the live run is in a rerun."""
    if live.rerun is not None:
        raise Conflict(f"run {root}", "is in a rerun already", "wait for its end, or start a separate rerun")


def begin_separate(
    nodes: BarrierStateStore, live: BarrierView, schedule: PeriodSchedule, rerun: Rerun, now_ms: int
) -> None:
    """Opens the first period of a separate rerun, with the live run's partitions. Raises `Conflict` if the rerun has
    already begun."""
    _, partitions = _open_nodes(live)
    nodes.prepare()
    first = OpenNode(schedule, 0, RERUN_LEADER, 0, now_ms, rerun=rerun)
    if not nodes.begin_run(first, PartitionsNode(0, partitions.partitions)):
        raise Conflict(f"rerun {nodes.root}", "has begun already", "give this one another name")


def begin_in_live_run(
    nodes: BarrierStateStore, live: BarrierView, schedule: PeriodSchedule, rerun: Rerun, why: str, now_ms: int
) -> Advance:
    """Abandons the live run's open period and opens the rerun's first period; ``why`` is recorded in the history.
    Returns the advance that was written. Raises `Conflict` if the live run has just advanced."""
    open_, partitions = _open_nodes(live)
    require_no_rerun(nodes.root, open_)
    number = open_.number + 1
    reopened = OpenNode(replace(schedule, base=number), number, RERUN_LEADER, open_.epoch, now_ms, rerun=rerun)
    abandoned_period = ClosedPeriod(
        open_.schedule.period(open_.number), open_.opened_ms, now_ms, RERUN_LEADER, open_.epoch, {}, abandoned=why
    )
    advance = Advance(reopened, PartitionsNode(number, partitions.partitions), abandoned_period)
    if not nodes.write_advance(advance, live):
        raise Conflict(f"run {nodes.root}", "has just advanced to another period", "try again")
    return advance
