"""Notes and warnings on the offsets of an edit that are outside their logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from offsetmgr.cli.render import note

if TYPE_CHECKING:
    from offsetmgr.cli.connect_flags import ConnectFlags
    from offsetmgr.cli.edit_command import Edit
    from offsetmgr.groups.edit_plan import GroupEditPlan


def noted_outside_logs(
    connect: ConnectFlags, edit: Edit, plans: Iterable[GroupEditPlan], verb: str
) -> Iterator[GroupEditPlan]:
    """Returns the plans with a note on each offset that is outside its log. The edit then warns of these offsets before
    its prompt, with ``verb``, a past participle."""
    from offsetmgr.groups.log_checks import OutsideLogChecks

    if not connect.has_logs(edit.store, note):
        return iter(plans)
    # Brokers that do not respond must not prevent an edit in ZooKeeper, so the cluster is opened late.
    checks = OutsideLogChecks(
        lambda partitions: connect.cluster_for_edit(edit.operation, edit.store).log_ranges(partitions), verb
    )
    edit.more_warnings = checks.warnings
    return checks.noted(plans)
