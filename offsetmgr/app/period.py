"""Runs of the period coordinator: their status, their history, reruns, and their end. All of it is in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from offsetmgr.app.connections import Connections
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.plurals import count_of
from offsetmgr.period.schedule import RerunOptions as RerunOptions

if TYPE_CHECKING:
    from offsetmgr.period.rerun import RerunPlan
    from offsetmgr.period.status import HistoryRow, RunStatus
    from offsetmgr.zookeeper.client.session import ZookeeperSession


def status(connections: Connections, root: str) -> RunStatus:
    """Returns the open period of the run under ``root`` and its partitions. Partitions that hold the period open come
    first. Raises `Conflict` if the run has opened no period."""
    from offsetmgr.period.state_nodes import BarrierStateStore
    from offsetmgr.period.status import status_of

    nodes = BarrierStateStore(connections.zookeeper("period status"), root)
    return status_of(*nodes.read_consistent(), SystemClock().now_ms())


def history(connections: Connections, root: str, periods: Sequence[int] | None = None) -> Iterator[HistoryRow]:
    """Returns the partitions of the closed periods with these numbers, or of all, and the work of jobs with fixed
    offset ranges. Raises `Conflict` if the run has opened no period."""
    from offsetmgr.period.history import History
    from offsetmgr.period.state_nodes import BarrierStateStore
    from offsetmgr.period.status import history_of

    session = connections.zookeeper("period history")
    nodes = BarrierStateStore(session, root)
    nodes.read_started()
    works = History(session, root).all_work(periods)
    return history_of(nodes.history(periods), works)


def rerun(
    connections: Connections, root: str, options: RerunOptions, *, execute: bool = False, reason: str = ""
) -> RerunPlan:
    """Processes past periods of the run under ``root`` again. Without ``execute`` nothing is written. ``reason`` is for
    the operation log. Raises `UsageError`, and `Conflict` if the run has opened no period or is in a rerun already, or
    if there is a rerun of this name."""
    from offsetmgr.period.rerun import begin_rerun, plan_rerun

    session, ui = connections.zookeeper("period rerun"), connections.ui
    plan = plan_rerun(session, root, options)
    then = "closes" if plan.rerun.then is None else "continues with the live periods"
    ui.note(f"{plan}, in {plan.root}; then it {then}")
    if plan.abandoned is not None:
        ui.note(f"the open period {plan.abandoned} is abandoned")
    if execute:
        if plan.abandoned is not None:
            ui.confirm(f"{plan}, instead of the live run?")
        with _recorded(session, "period rerun", reason):
            begin_rerun(session, plan, SystemClock().now_ms())
    return plan


def abort(
    connections: Connections, root: str, *, why: str = "aborted by hand", execute: bool = False, reason: str = ""
) -> None:
    """Ends the run under ``root`` permanently: no further period opens, and waiting members get ``why``. Finished work
    and the history remain. Without ``execute`` nothing is written. ``reason`` is for the operation log (default:
    ``why``). Raises `Conflict` if the run has opened no period, or has ended already."""
    from offsetmgr.period.state_nodes import BarrierStateStore

    session = connections.zookeeper("period abort")
    nodes = BarrierStateStore(session, root)
    view, open_ = nodes.read_running()
    connections.ui.note(f"{root}: period {open_.number} is open, with {count_of(len(view.members), 'live member')}")
    if execute:
        connections.ui.confirm(f"end the run {root} for good?")
        with _recorded(session, "period abort", reason or why):
            nodes.end_run(why or "aborted by hand")


def _recorded(session: ZookeeperSession, name: str, reason: str) -> AbstractContextManager[object]:
    """Returns a context that records the change of a run in the operation log."""
    from offsetmgr.groups.operation_log import OperationLog, OperationStart

    return OperationLog().recorded(OperationStart(name, (f"zookeeper://{session.connect}",), (), 0, 1, reason=reason))
