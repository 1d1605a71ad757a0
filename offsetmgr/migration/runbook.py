"""A runbook: the steps that lead one group to another phase by rolling bounces, written from the group's observed
state.

A runbook is a value: its steps (`runbook_steps`), its warnings, and the *baseline*, which is the observation of the
group when the runbook was written. `runbook_render` turns a runbook into a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, route
from offsetmgr.core.errors import GateRefused, GroupNotFound
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.phase import Confidence, Phase, PhaseEvidence
from offsetmgr.core.plurals import count_of
from offsetmgr.migration import observation
from offsetmgr.migration.apply import behind, read_writers
from offsetmgr.migration.baseline_file import FORMAT, VERSION
from offsetmgr.migration.evidence import EvidenceThresholds
from offsetmgr.migration.group_observer import GroupView, ObservationWindow, watch_group
from offsetmgr.migration.observation import Observation, at
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import PhaseReport, assess_phase, infer_phase
from offsetmgr.migration.runbook_commands import RunbookArguments, RunbookCommands, RunbookStep, RunbookSubject
from offsetmgr.migration.runbook_steps import abort_criteria, runbook_steps
from offsetmgr.stores.dual_policy import partitions_ahead

_SHOWN: Final = 6
"""Maximum number of partitions in a warning at a terminal."""


class Risk(NamedTuple):
    """A warning about partitions. ``text`` contains ``{}`` where the partitions are named."""

    text: str
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        return self.text.replace("{}", ", ".join(map(str, sorted(self.partitions))))

    @property
    def shortened(self) -> str:
        """The warning with at most `_SHOWN` partitions."""
        more = ", ..." if len(self.partitions) > _SHOWN else ""
        return self.text.replace("{}", ", ".join(map(str, sorted(self.partitions)[:_SHOWN])) + more)


@dataclass(frozen=True, slots=True)
class Runbook:
    """The steps that lead one group to a phase. ``abort`` are the conditions under which the operator goes back."""

    group: str
    to: CommitMode
    found: PhaseEvidence
    baseline: Observation
    changes: tuple[CommitModeChange, ...]
    steps: tuple[RunbookStep, ...]
    abort: tuple[str, ...]
    warnings: tuple[Risk, ...]


def write_runbook(
    view: GroupView,
    group: str,
    to: CommitMode,
    *,
    start: CommitMode | None = None,
    window: ObservationWindow | None = None,
    arguments: RunbookArguments | None = None,
) -> Runbook:
    """Watches the group until its phase is known, and returns the runbook. If ``start`` is given, the phase of the
    group is not inferred: it is ``start``.

    Raises `GateRefused` if the phase cannot be inferred, or if no member is alive.
    """
    window = window or ObservationWindow(duration_s=30)

    def known(history: GroupHistory) -> bool:
        return start is not None or not _has_members(history) or infer_phase(history).confidence is Confidence.SEEN

    began = view.clock.monotonic()
    history = watch_group(view, group, window, enough=known)
    observation = history.latest
    if observation is None or not observation.members:
        raise GateRefused(
            f"runbook of group {group}",
            "no live member is registered in ZooKeeper, so there is no member to bounce",
            "check the name and the chroot; to move an idle group, use `offsetmgr migrate`",
        )
    found = (
        infer_phase(history) if start is None else PhaseEvidence(Phase.of(start), Confidence.UNKNOWN, "given by --from")
    )
    if (present := found.phase.mode) is None:
        raise GateRefused(
            f"runbook of group {group}",
            f"its phase is unknown: {found.why}",
            _hint_for_unknown_phase(history),
        )
    changes = route(present, to)
    subject = RunbookSubject(
        group,
        to,
        changes,
        observation,
        {one: sorted(behind(history, read_writers(view, history))) for one in changes if one in _CHANGES_WITH_COPIES},
        view.clock.monotonic() - began if found.confidence is Confidence.SEEN else None,
    )
    baseline = replace(observation, stores=view.store_ids())
    arguments = arguments or RunbookArguments()
    steps = runbook_steps(subject, arguments)
    warnings = _warnings(history, observation, RunbookCommands(subject, arguments))
    return Runbook(group, to, found, baseline, changes, steps, abort_criteria(subject), warnings)


_CHANGES_WITH_COPIES = (
    CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL),
    CommitModeChange(CommitMode.DUAL, CommitMode.ZOOKEEPER),
)


def _hint_for_unknown_phase(history: GroupHistory) -> str:
    idle = all(
        not one.kafka.changes and not one.zookeeper.changes and one.lag == 0 for one in history.partitions.values()
    )
    if history.partitions and idle:
        text = "no partition had traffic: send a message to a partition of each member, or give the phase with {from}"
        return Advice(text)
    return Advice("use a {window} of at least three times auto.commit.interval.ms, or give the phase with {from}")


def check_phase(
    view: GroupView,
    group: str,
    phase: CommitMode,
    *,
    baseline: Observation | None = None,
    rules: EvidenceThresholds | None = None,
    window: ObservationWindow | None = None,
) -> PhaseReport:
    """Watches the group until the check is final, the window is over, or no member is alive. Returns the result of the
    check.

    Raises `GroupNotFound` if neither the registry nor a store knows the group, and any error of the servers during the
    first observation.
    """
    rules = rules or EvidenceThresholds()
    history = watch_group(
        view,
        group,
        window or ObservationWindow(),
        enough=lambda w: assess_phase(w, phase, baseline=baseline, rules=rules).final or not _has_members(w),
    )
    observation = history.latest
    if observation is not None and not (observation.members or observation.zookeeper or observation.kafka):
        raise GroupNotFound(
            f"group {group}",
            "it has neither a live member in ZooKeeper nor an offset in either store",
            Advice("check its name, and the chroot of {zookeeper}"),
        )
    return assess_phase(history, phase, baseline=baseline, rules=rules)


def _has_members(history: GroupHistory) -> bool:
    return history.latest is not None and bool(history.latest.members)


# --- the warnings ------------------------------------------------------------------------------------


def _warnings(history: GroupHistory, observation: Observation, commands: RunbookCommands) -> tuple[Risk, ...]:
    changes, retention_ms = commands.subject.changes, commands.arguments.retention_ms
    warnings = [
        Risk(f"ZooKeeper node {node} cannot be read: every gate stays closed") for node in observation.unreadable
    ]
    quiet_ms = EvidenceThresholds().quiet_ms
    idle = tuple(tp for tp, t in history.partitions.items() if t.lag == 0 and t.unchanged_ms >= quiet_ms)
    if idle:
        text = (
            f"{count_of(len(idle), 'partition')} had no traffic for {quiet_ms // 1000} s or longer"
            " ({}): their gates say unknown. Send a message to each, or use --accept-idle, which lets"
            " them pass if the offsets show that nothing can be lost"
        )
        warnings.append(Risk(text, idle))
    for member in observation.members.values():
        if member.host is None:
            text = (
                f"{member.id} has a configured consumer.id: its id stays the same after a restart, so the gate "
                f"uses its registration and its commits; give its host with --host"
            )
            warnings.append(Risk(text))
        if not observation.owned_by(member.id):
            text = f"{member.id} owns no partition, so its commits cannot be seen (--accept-spare lets it pass)"
            warnings.append(Risk(text))
    unowned = tuple(tp for tp in observation.partitions if tp not in observation.owners)
    if unowned:
        count = count_of(len(unowned), "partition")
        warnings.append(Risk(f"no member owns {count} ({{}}): let the group rebalance first", unowned))
    if observation.unconsumed:
        text = (
            f"no live member subscribes to {count_of(len(observation.unconsumed), 'partition')} with offsets ({{}}): a"
            " bounce does not move them; `offsetmgr migrate` does"
        )
        warnings.append(Risk(text, observation.unconsumed))
    copied = tuple(sorted({*idle, *unowned, *observation.unconsumed}))
    if copied and retention_ms is not None and commands.moves_to_kafka:
        renewal = commands.refresh if changes[-1].to is CommitMode.DUAL else "see Clean up"
        text = (
            f"no consumer commits the offsets of {count_of(len(copied), 'partition')} ({{}}): if you copy them now,"
            f" Kafka deletes them about {at(observation.at_ms + retention_ms)}, unless you renew them when no old"
            f" consumer is registered: {renewal}"
        )
        warnings.append(Risk(text, copied))
    if changes and (ahead := _ahead_in_the_other(observation, changes[0].start)):
        other = "Kafka" if changes[0].start is CommitMode.ZOOKEEPER else "ZooKeeper"
        text = (
            f"{other} is ahead on {{}}: a dual member reads the larger offset and would skip messages"
            " there; the bounce refuses to begin before that is resolved"
        )
        warnings.append(Risk(text, tuple(ahead)))
    return tuple(warnings)


def _ahead_in_the_other(observation: Observation, start: CommitMode) -> list[TopicPartition]:
    if start is CommitMode.DUAL:
        return []
    used, other = (
        (observation.zookeeper, observation.kafka)
        if start is CommitMode.ZOOKEEPER
        else (observation.kafka, observation.zookeeper)
    )
    return list(partitions_ahead(used, {tp: other[tp] for tp in observation.partitions if tp in other}))


# --- JSON ----------------------------------------------------------------------------------------


def _to_json(book: Runbook) -> dict[str, Any]:
    return {
        "group": book.group,
        "to": book.to.value,
        "from": {
            "phase": book.found.phase.value,
            "known": book.found.confidence.value,
            "why": book.found.why,
        },
        "taken_at": at(book.baseline.at_ms),
        "changes": [{"from": change.start.value, "to": change.to.value} for change in book.changes],
        "steps": [asdict(step) for step in book.steps],
        "abort": list(book.abort),
        "warnings": list(map(str, book.warnings)),
        "baseline": observation.to_json(book.baseline),
    }


def to_json(books: Sequence[Runbook]) -> dict[str, Any]:
    """Returns the runbooks as plain JSON values, with the baselines for `BaselineFile`."""
    return {"format": FORMAT, "version": VERSION, "runbooks": list(map(_to_json, books))}
