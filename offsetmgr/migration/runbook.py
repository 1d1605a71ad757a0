"""A runbook: the rolling bounces that lead one group to another phase, written from the group's observed state.

A runbook is a value: the stages with their settings, gates and ways back, and the *baseline*, which is the observation
of the group when the runbook was written. `runbook_render` turns a runbook into Markdown.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offsetmgr.core.commit_mode import SAFE_CHANGES, SETTINGS, CommitMode, CommitModeChange, CommitModeSettings, route
from offsetmgr.core.errors import GateRefused, GroupNotFound, MalformedData, UnknownVersion
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.migration import bounce_checkpoint, observation
from offsetmgr.migration.evidence import Confidence, EvidenceThresholds
from offsetmgr.migration.forward_copy import behind
from offsetmgr.migration.group_observer import GroupView, ObservationWindow, watch_group
from offsetmgr.migration.observation import Observation, at
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import InferredPhase, PhaseReport, assess_phase, infer_phase
from offsetmgr.stores.dual_policy import partitions_ahead

FORMAT = "offsetmgr-runbook"
VERSION = 1
VERSION_GROUPS = 2
"""The version of a file with the runbooks of several groups."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One rolling bounce of the runbook. ``gate`` and ``bounce`` are the commands that the operator runs. ``copies``
    are the partitions without traffic whose offset in Kafka must be copied to ZooKeeper."""

    change: CommitModeChange
    why_safe: str
    settings: CommitModeSettings
    before: tuple[str, ...]
    gate: str
    bounce: str
    way_back: tuple[str, ...]
    copies: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Runbook:
    """The stages that lead one group to a phase. ``stores`` has the identity of each store (cluster id, ...)."""

    group: str
    to: CommitMode
    found: InferredPhase
    stores: Mapping[str, str]
    baseline: Observation
    stages: tuple[Stage, ...]
    warnings: tuple[str, ...]


def write_runbook(
    view: GroupView,
    group: str,
    to: CommitMode,
    *,
    start: CommitMode | None = None,
    window: ObservationWindow | None = None,
    options: str = "",
    baseline_file: str = "runbook.json",
    waiting: Callable[[float], None] = lambda _seconds: None,
) -> Runbook:
    """Watches the group until its phase is known, and returns the runbook. If ``start`` is given, the phase of the
    group is not inferred: it is ``start``.

    ``options`` are the connection options for the commands; ``baseline_file`` is the name of the JSON file. ``waiting``
    is called before each further observation, with the seconds that remain of the window. Raises `GateRefused` if the
    phase cannot be inferred, or if no member is alive.
    """
    window = window or ObservationWindow(seconds=30)

    def known(history: GroupHistory) -> bool:
        return start is not None or not _has_members(history) or infer_phase(history).confidence is Confidence.SEEN

    deadline = view.clock.monotonic() + window.seconds

    def report() -> bool:
        waiting(deadline - view.clock.monotonic())
        return False

    history = watch_group(view, group, window, enough=known, stop=report)
    observation = history.latest
    if observation is None or not observation.members:
        raise GateRefused(
            f"runbook of group {group}",
            "no live member is registered in ZooKeeper, so there is no member to bounce",
            "check the name and the chroot; to move an idle group, use `offsetmgr migrate`",
        )
    found = infer_phase(history) if start is None else InferredPhase(start, Confidence.UNKNOWN, "given by --from")
    if found.phase is None:
        raise GateRefused(
            f"runbook of group {group}",
            f"its phase is unknown: {found.why}",
            _hint_for_unknown_phase(history),
        )
    changes = route(found.phase, to)
    return Runbook(
        group=group,
        to=to,
        found=found,
        stores={"zookeeper": view.zookeeper.identity().id, "kafka": view.kafka.identity().id},
        baseline=observation,
        stages=tuple(_stage(group, change, history, options, baseline_file, n) for n, change in enumerate(changes)),
        warnings=_warnings(history, observation, changes),
    )


def _hint_for_unknown_phase(history: GroupHistory) -> str:
    idle = all(
        not one.kafka.changes and not one.zookeeper.changes and one.lag == 0 for one in history.partitions.values()
    )
    if history.partitions and idle:
        return "no partition had traffic: send a message to a partition of each member, or give the phase with --from"
    return "use a --window of at least three auto.commit.interval.ms, or give the phase with --from"


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
            "check its name, and the chroot of --zookeeper",
        )
    return assess_phase(history, phase, baseline=baseline, rules=rules)


def _has_members(history: GroupHistory) -> bool:
    return history.latest is not None and bool(history.latest.members)


# --- the stages --------------------------------------------------------------------------------------


def _stage(
    group: str, change: CommitModeChange, history: GroupHistory, options: str, baseline_file: str, number: int
) -> Stage:
    quoted = shlex.quote(group)
    tail = f" {options}" if options else ""
    to = change.to.value
    baseline = baseline_file if number == 0 else f"{to}-{baseline_file}"
    before = []
    if number:
        renew = f"offsetmgr runbook write --group {quoted} --to {to} --from {change.start.value} -o {baseline}{tail}"
        before.append(f"Renew the baseline, so that the gate compares with the current members: `{renew}`")
    if change == CommitModeChange(CommitMode.DUAL, CommitMode.ZOOKEEPER):
        before.append(
            "Check that ZooKeeper has caught up on every partition (the gate of the dual phase). In partitions "
            "without traffic where ZooKeeper is behind, copy Kafka's offset first. `runbook bounce` does both."
        )
    return Stage(
        change=change,
        why_safe=SAFE_CHANGES[change],
        settings=SETTINGS[change.to],
        before=tuple(before),
        gate=f"offsetmgr runbook check --group {quoted} --phase {to} --baseline {baseline} --window 180{tail}",
        bounce=(
            f"offsetmgr runbook bounce --group {quoted} --to-phase {to} --from-phase {change.start.value}"
            f" --baseline {baseline} --command 'ssh {{host}} RESTART-WITH {{settings}}'{tail}"
        ),
        way_back=_WAYS_BACK[change],
        copies=tuple(sorted(behind(history))) if change in _CHANGES_WITH_COPIES else (),
    )


_CHANGES_WITH_COPIES = (
    CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL),
    CommitModeChange(CommitMode.DUAL, CommitMode.ZOOKEEPER),
)

_WAYS_BACK: Mapping[CommitModeChange, tuple[str, ...]] = {
    CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.DUAL): (
        "At any point: bounce the restarted members back to zookeeper. Before that, copy Kafka's offset to ZooKeeper"
        " for partitions without traffic where Kafka is ahead; `runbook bounce --to-phase zookeeper` does it before"
        " its gate.",
    ),
    CommitModeChange(CommitMode.DUAL, CommitMode.KAFKA): (
        "At any point: bounce the restarted members back to dual (`runbook bounce --to-phase dual`). Then copy Kafka's"
        " offsets to ZooKeeper for partitions without traffic (forward only, conditional on the version; the bounce"
        " does it before its gate): a dual member assumes that the larger offset is already stored and never "
        "writes it by itself.",
        "After that, once the gate of phase dual has passed, bounce to zookeeper. Never from kafka to zookeeper"
        " directly: the group would consume again everything that it committed to Kafka alone.",
    ),
    CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL): (
        "At any point: bounce the restarted members back to kafka. Kafka has had every commit all the time.",
    ),
    CommitModeChange(CommitMode.DUAL, CommitMode.ZOOKEEPER): (
        "At any point: bounce the restarted members back to dual. They read the larger of both offsets, so nothing is"
        " consumed twice.",
        "Never from zookeeper to kafka directly: Kafka does not have what was committed to ZooKeeper alone.",
    ),
}


def _warnings(
    history: GroupHistory, observation: Observation, changes: tuple[CommitModeChange, ...]
) -> tuple[str, ...]:
    warnings = [f"ZooKeeper node {node} cannot be read: every gate stays closed" for node in observation.unreadable]
    quiet_ms = EvidenceThresholds().quiet_ms
    idle = [tp for tp, t in history.partitions.items() if t.lag == 0 and t.unchanged_ms >= quiet_ms]
    if idle:
        warnings.append(
            f"{count_of(len(idle), 'partition')} had no traffic for {quiet_ms // 1000} s or longer"
            f" ({_shortened(idle)}): their gates say unknown. Send a message to each, or use --accept-idle, which lets"
            " them pass if the offsets show that nothing can be lost"
        )
    for member in observation.members.values():
        if member.host is None:
            warnings.append(
                f"{member.id} has a configured consumer.id: its id stays the same after a restart, so the gate "
                f"uses its registration and its commits; give its host with --host"
            )
        if not observation.owned_by(member.id):
            warnings.append(
                f"{member.id} owns no partition, so its commits cannot be seen (--accept-spare lets it pass)"
            )
    unowned = [tp for tp in observation.partitions if tp not in observation.owners]
    if unowned:
        count = count_of(len(unowned), "partition")
        warnings.append(f"no member owns {count} ({_shortened(unowned)}): let the group rebalance first")
    if observation.unconsumed:
        count = count_of(len(observation.unconsumed), "partition")
        warnings.append(
            f"no live member subscribes to {count} with offsets ({_shortened(observation.unconsumed)}): a bounce"
            " does not move them; `offsetmgr migrate` does"
        )
    if changes and (ahead := _ahead_in_the_other(observation, changes[0].start)):
        other = "Kafka" if changes[0].start is CommitMode.ZOOKEEPER else "ZooKeeper"
        warnings.append(
            f"{other} is ahead on {_shortened(ahead)}: a dual member reads the larger offset and would skip messages"
            " there; the bounce refuses to begin before that is resolved"
        )
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


def _shortened(partitions: list[TopicPartition] | tuple[TopicPartition, ...]) -> str:
    shown = ", ".join(str(tp) for tp in sorted(partitions)[:6])
    return shown + (", ..." if len(partitions) > 6 else "")


# --- JSON ----------------------------------------------------------------------------------------


def to_json(book: Runbook) -> dict[str, Any]:
    """Returns the runbook as plain JSON values, with the baseline for `read_baseline`."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "group": book.group,
        "to": book.to.value,
        "from": {
            "phase": book.found.phase.value if book.found.phase else None,
            "known": book.found.confidence.value,
            "why": book.found.why,
        },
        "taken_at": at(book.baseline.at_ms),
        "stores": dict(book.stores),
        "stages": [
            {
                "from": s.change.start.value,
                "to": s.change.to.value,
                "why_safe": s.why_safe,
                "settings": dict(s.settings.properties),
                "notes": list(s.settings.notes),
                "before": list(s.before),
                "gate": s.gate,
                "bounce": s.bounce,
                "way_back": list(s.way_back),
                "copy_to_zookeeper": [str(tp) for tp in s.copies],
            }
            for s in book.stages
        ],
        "warnings": list(book.warnings),
        "baseline": observation.to_json(book.baseline),
    }


def groups_to_json(books: Sequence[Runbook]) -> dict[str, Any]:
    """Returns the runbooks of several groups as plain JSON values, with the baselines for `read_baseline`."""
    if len(books) == 1:
        return to_json(books[0])
    return {"format": FORMAT, "version": VERSION_GROUPS, "runbooks": [to_json(book) for book in books]}


def read_baseline(path: Path, group: str) -> Observation:
    """Returns the baseline in a runbook's JSON, or in the state file of a bounce.

    Raises `MalformedData` (also if the baseline belongs to another group) and `UnknownVersion`.
    """
    what = f"baseline {path}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MalformedData(what, error.strerror or str(error)) from error
    except ValueError as error:
        raise MalformedData(
            what, f"it is not JSON ({error})", "give the JSON that `offsetmgr runbook write` made"
        ) from error
    if isinstance(data, dict) and data.get("format") == bounce_checkpoint.FORMAT:
        saved = bounce_checkpoint.load_all(path)
        if group not in saved:
            raise _of_other_groups(what, saved, group)
        return saved[group].baseline
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise MalformedData(what, "it is not a runbook", "give the JSON that `offsetmgr runbook write` made")
    if data.get("version") not in (VERSION, VERSION_GROUPS):
        known = f"{VERSION} and {VERSION_GROUPS}"
        raise UnknownVersion(what, f"version {data.get('version')!r}, this program knows {known}")
    books = (
        [data] if data["version"] == VERSION else [one.values for one in FieldReader(data, what).objects("runbooks")]
    )
    baselines = [observation.from_json(book.get("baseline"), where=what) for book in books]
    found = next((baseline for baseline in baselines if baseline.group == group), None)
    if found is None:
        raise _of_other_groups(what, [baseline.group for baseline in baselines], group)
    return found


def _of_other_groups(what: str, groups: Iterable[str], group: str) -> MalformedData:
    names = sorted(groups)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return MalformedData(what, f"it belongs to group {', '.join(names[:3])}{more}, not to {group}")
