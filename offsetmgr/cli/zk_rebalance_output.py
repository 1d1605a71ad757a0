"""The output of ``zk rebalance``: a table of members or a table of partitions, and a summary line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.cli.columns import PARTITION
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot
    from offsetmgr.zookeeper.rebalance_preview.predict import Prediction

MEMBERS_AND_CHANGES: Final = (
    Column("member_id", rank=1),
    Column("change", optional=True),
    Column("before", right=True),
    Column("after", right=True),
    Column("kept", right=True),
    Column("gained", right=True),
    Column("revoked", right=True),
    Column("partitions_before"),
    Column("partitions_after"),
)
MEMBERS_NOW: Final = (
    Column("member_id", rank=1),
    Column("note", optional=True),
    Column("owned", right=True),
    Column("due", right=True),
    Column("right", right=True),
    Column("missing", right=True),
    Column("wrong", right=True),
    Column("partitions_owned"),
    Column("partitions_due"),
)
PARTITIONS_AND_CHANGES: Final = (
    *PARTITION,
    Column("before"),
    Column("after"),
    Column("change"),
)
PARTITIONS_NOW: Final = (
    *PARTITION,
    Column("owned"),
    Column("due"),
    Column("state"),
)

PREDICTED_TEXTS: Final = {
    "kept": "stay",
    "moved": "move to another member",
    "rethreaded": "move to another stream of their member",
    "gained": "had no owner",
    "lost": "lose their owner",
}
"""Texts that describe what happens to partitions after the simulated changes."""
CURRENT_TEXTS: Final = {
    "kept": "owned as assigned",
    "moved": "owned by another member than assigned",
    "rethreaded": "owned by another stream than assigned",
    "gained": "without an owner: no member consumes them",
    "lost": "owned, but not assigned to any member",
}
"""Texts that describe how the present owners of partitions differ from the computed assignment."""
_STATES: Final = {
    "kept": "right",
    "moved": "wrong",
    "rethreaded": "wrong stream",
    "gained": "missing",
    "lost": "not due",
}


def write_prediction(
    prediction: Prediction, before: GroupSnapshot, after: GroupSnapshot, output: OutputFormat, *, by_partition: bool
) -> None:
    """Prints the changes of the assignment between two snapshots."""
    if by_partition:
        write_rows(PARTITIONS_AND_CHANGES, _partition_rows(prediction), output)
    else:
        write_rows(MEMBERS_AND_CHANGES, _member_rows(prediction, before, after), output)


def write_owners(prediction: Prediction, snapshot: GroupSnapshot, output: OutputFormat, *, by_partition: bool) -> None:
    """Prints the owners and the computed assignment."""
    if by_partition:
        rows = ((*row[:-1], _STATES[row[-1]]) for row in _partition_rows(prediction))
        write_rows(PARTITIONS_NOW, rows, output)
    else:
        write_rows(MEMBERS_NOW, _member_rows(prediction, snapshot, snapshot), output)


def summary_line(prediction: Prediction, why: str, words: Mapping[str, str]) -> None:
    """Prints a line with counts, and one line for each caveat of the prediction. ``why`` is a text that describes how
    the strategy was determined."""
    counted = [(getattr(prediction.moves, name), text) for name, text in words.items()]
    total = count_of(len({*prediction.before, *prediction.after}), "partition")
    summary = ", ".join(f"{number:,} {text}" for number, text in counted if number) or "nothing to assign"
    note(f"strategy {prediction.strategy} ({why}); {total}: {summary}")
    for caveat in prediction.caveats:
        note(caveat)


def _member_rows(prediction: Prediction, before: GroupSnapshot, after: GroupSnapshot) -> Iterator[tuple[Any, ...]]:
    from offsetmgr.zookeeper.rebalance_preview.predict import UNREADABLE, partition_ranges

    held = [{tp: thread.member_id for tp, thread in each.items()} for each in (prediction.before, prediction.after)]
    members = {*before.members, *after.members, *held[0].values()} - {UNREADABLE.member_id}
    for member in sorted(members):
        old, new = ({tp for tp, owner in each.items() if owner == member} for each in held)
        yield (
            member,
            _comes_or_goes(member, before, after),
            len(old),
            len(new),
            len(old & new),
            len(new - old),
            len(old - new),
            partition_ranges(old) or None,
            partition_ranges(new) or None,
        )


def _comes_or_goes(member: str, before: GroupSnapshot, after: GroupSnapshot) -> str | None:
    if member not in before.members:
        return "joins" if member in after.members else "is no live member"
    return None if member in after.members else "leaves"


def _partition_rows(prediction: Prediction) -> Iterator[tuple[Any, ...]]:
    from offsetmgr.zookeeper.rebalance_preview.predict import UNREADABLE

    for tp in sorted({*prediction.before, *prediction.after}):
        old, new = prediction.before.get(tp), prediction.after.get(tp)
        if old == new:
            change = "kept"
        elif old is None:
            change = "gained"
        elif new is None:
            change = "lost"
        else:
            change = "rethreaded" if old.member_id == new.member_id else "moved"
        shown = None if old is None else "(unreadable)" if old == UNREADABLE else str(old)
        yield tp.topic, tp.partition, shown, None if new is None else str(new), change
