"""Notes and warnings on the offsets of an edit that are outside their logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from offsetmgr.cli.render import note

if TYPE_CHECKING:
    from offsetmgr.cli.connect_flags import ConnectFlags
    from offsetmgr.cli.edit_command import Edit
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.edit_plan import GroupEditPlan


def has_logs(connect: ConnectFlags, store: OffsetStore) -> bool:
    """Returns whether the offsets of the store can be compared with logs: brokers are known, and the store does not
    hold positions of Kafka 0.7, which belong to no log."""
    from offsetmgr.core.offset_store import PartitionKinds

    if store.capabilities.partitions is PartitionKinds.OF_BROKERS:
        return False
    known = connect.bootstrap() is not None
    if not known and store.uri.startswith("zookeeper:"):
        note("not checked: topics and log ranges, because no brokers are known; add --bootstrap-server")
    return known


def noted_outside_logs(
    connect: ConnectFlags, edit: Edit, plans: Iterable[GroupEditPlan], verb: str
) -> Iterator[GroupEditPlan]:
    """Returns the plans with a note on each offset that is outside its log. The edit then warns of these offsets before
    its prompt, with ``verb``, a past participle."""
    from offsetmgr.groups.log_checks import OutsideLogChecks

    if not has_logs(connect, edit.store):
        return iter(plans)
    # Brokers that do not respond must not prevent an edit in ZooKeeper, so the cluster is opened late.
    checks = OutsideLogChecks(lambda partitions: connect.cluster(edit.operation).log_ranges(partitions), verb)
    edit.more_warnings = checks.warnings
    return checks.noted(plans)
