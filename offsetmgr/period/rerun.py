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
from dataclasses import dataclass, replace
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.durations import utc_text
from offsetmgr.core.errors import Conflict, UsageError
from offsetmgr.period.leader_decision import Advance
from offsetmgr.period.records import ClosedPeriod, OpenNode, PartitionsNode, Rerun
from offsetmgr.period.schedule import PeriodSchedule, RerunOptions
from offsetmgr.period.state_nodes import NO_NODES, BarrierStateStore, BarrierView
from offsetmgr.zookeeper.client.session import ZookeeperSession

_LEADER: Final = "period rerun"


@dataclass(frozen=True, slots=True)
class RerunPlan:
    """A rerun that can begin under ``root``. ``abandoned`` is the number of the live run's open period, which a rerun
    in the live run abandons; None for a separate rerun. ``live`` are the nodes of the live run."""

    root: str
    schedule: PeriodSchedule
    rerun: Rerun
    abandoned: int | None
    live: BarrierView

    def __str__(self) -> str:
        end = "the present" if self.rerun.until_ms is None else utc_text(self.rerun.until_ms)
        periods = f"periods of {self.schedule.length_ms / 1000:,.1f} s"
        return f"rerun from {utc_text(self.schedule.first_ms)} to {end} in {periods}"


def plan_rerun(session: ZookeeperSession, root: str, options: RerunOptions) -> RerunPlan:
    """Returns a rerun of the run under ``root``, and writes nothing. Raises `UsageError`, and `Conflict` if the run has
    not opened a period, or is in a rerun already, or if the separate rerun has begun."""
    name, then = options.name, options.then
    if (name is None) != options.instead:
        why = "both {name} and {instead} are given" if options.instead else "neither {name} nor {instead} is given"
        hint = Advice("{name} starts a separate run, {instead} replaces the live run")
        raise UsageError("period rerun", Advice(why), hint)
    if then not in ("close", "live"):
        raise UsageError(Advice("{then}"), f"{then!r} is neither close nor live")
    view, live = BarrierStateStore(session, root).read_consistent()
    if name is not None:
        if not name or "/" in name or name in (".", ".."):
            raise UsageError(f"rerun {name!r}", "cannot be the name of a node")
        root = f"{root}/reruns/{name}"
        if BarrierStateStore(session, root).read().seen.open_ is not None:
            raise _begun_already(root)
    elif live.rerun is not None:
        raise Conflict(f"run {root}", "is in a rerun already", "wait for its end, or start a separate rerun")
    adopted = PeriodSchedule(live.schedule.first_ms, live.schedule.length_ms) if then == "live" else None
    rerun = Rerun(options.until_ms, adopted)
    schedule = _schedule(options.from_ms, options.length_ms, rerun, live)
    return RerunPlan(root, schedule, rerun, live.number if name is None else None, view)


def begin_rerun(session: ZookeeperSession, plan: RerunPlan, now_ms: int) -> None:
    """Begins a rerun. Raises `Conflict` if the separate rerun has already begun, or if the live run has just advanced.

    A separate rerun gets the partitions of the live run. In the live run, the open period is recorded as abandoned.
    """
    nodes, open_, partitions = BarrierStateStore(session, plan.root), plan.live.seen.open_, plan.live.seen.partitions
    assert open_ is not None and partitions is not None  # the view is consistent
    if plan.abandoned is None:
        nodes.prepare()
        first = OpenNode(plan.schedule, 0, _LEADER, 0, now_ms, rerun=plan.rerun)
        if not nodes.write_advance(Advance(first, PartitionsNode(0, partitions.partitions), None), NO_NODES):
            raise _begun_already(plan.root)
        return
    number = open_.number + 1
    reopened = OpenNode(replace(plan.schedule, base=number), number, _LEADER, open_.epoch, now_ms, rerun=plan.rerun)
    abandoned = ClosedPeriod(
        open_.schedule.period(open_.number),
        open_.opened_ms,
        now_ms,
        _LEADER,
        open_.epoch,
        {},
        abandoned=f"abandoned for a {plan}",
    )
    if not nodes.write_advance(Advance(reopened, PartitionsNode(number, partitions.partitions), abandoned), plan.live):
        raise Conflict(f"run {plan.root}", "has just advanced to another period", "try again")


def _begun_already(root: str) -> Conflict:
    return Conflict(f"rerun {root}", "has begun already", "give this one another name")


def _schedule(first_ms: int, length_ms: int, rerun: Rerun, live: OpenNode) -> PeriodSchedule:
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
