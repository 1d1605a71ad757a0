"""The types of the values that methods of the public API return.

A program gets these values from `offsetmgr.OffsetAdmin`, `offsetmgr.Migration` and the stores. It needs the types
only for annotations, and to compare a status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.api.migration import RollbackReport
    from offsetmgr.core.log_origin import LogOrigin, OriginComparison
    from offsetmgr.core.model import GroupDescription, GroupMember, LogRange, Offset, Weakness
    from offsetmgr.core.offset_store import (
        Capabilities,
        ChangeOutcome,
        EditStatus,
        GroupEditResult,
        GroupOffsets,
        Guard,
        StoreIdentity,
    )
    from offsetmgr.groups.describe import DescribedGroup, DescribedPartition
    from offsetmgr.groups.edit_plan import Counts, GroupEditPlan, PlannedChange
    from offsetmgr.groups.lag import GroupLag, LagRow
    from offsetmgr.groups.reset import Scenario
    from offsetmgr.migration.evidence import Confidence, PartitionEvidence
    from offsetmgr.migration.finalize import FinalizeReport, GroupGate
    from offsetmgr.migration.journaled_writer import GroupOutcome, Report
    from offsetmgr.migration.phase_inference import MemberEvidence, PhaseReport
    from offsetmgr.migration.plan import Action, GroupPlan, PlanHeader, PlanStep, StoreEndpoint
    from offsetmgr.migration.plan_file import PlanSummary
    from offsetmgr.migration.progress import MigrationState
    from offsetmgr.migration.rollback import RollbackDifference
    from offsetmgr.migration.verify import PartitionResult, Status, VerifySummary
    from offsetmgr.stores.snapshot import SnapshotReport

_MODULES: Final = {
    "Action": "migration.plan",
    "Capabilities": "core.offset_store",
    "ChangeOutcome": "core.offset_store",
    "Confidence": "migration.evidence",
    "Counts": "groups.edit_plan",
    "DescribedGroup": "groups.describe",
    "DescribedPartition": "groups.describe",
    "EditStatus": "core.offset_store",
    "FinalizeReport": "migration.finalize",
    "GroupDescription": "core.model",
    "GroupEditPlan": "groups.edit_plan",
    "GroupEditResult": "core.offset_store",
    "GroupGate": "migration.finalize",
    "GroupLag": "groups.lag",
    "GroupMember": "core.model",
    "GroupOffsets": "core.offset_store",
    "GroupOutcome": "migration.journaled_writer",
    "GroupPlan": "migration.plan",
    "Guard": "core.offset_store",
    "LagRow": "groups.lag",
    "LogOrigin": "core.log_origin",
    "LogRange": "core.model",
    "MemberEvidence": "migration.phase_inference",
    "MigrationState": "migration.progress",
    "Offset": "core.model",
    "OriginComparison": "core.log_origin",
    "PartitionEvidence": "migration.evidence",
    "PartitionResult": "migration.verify",
    "PhaseReport": "migration.phase_inference",
    "PlanHeader": "migration.plan",
    "PlanStep": "migration.plan",
    "PlanSummary": "migration.plan_file",
    "PlannedChange": "groups.edit_plan",
    "Report": "migration.journaled_writer",
    "RollbackDifference": "migration.rollback",
    "RollbackReport": "api.migration",
    "Scenario": "groups.reset",
    "SnapshotReport": "stores.snapshot",
    "Status": "migration.verify",
    "StoreEndpoint": "migration.plan",
    "StoreIdentity": "core.offset_store",
    "VerifySummary": "migration.verify",
    "Weakness": "core.model",
}

__all__ = [
    "Action",
    "Capabilities",
    "ChangeOutcome",
    "Confidence",
    "Counts",
    "DescribedGroup",
    "DescribedPartition",
    "EditStatus",
    "FinalizeReport",
    "GroupDescription",
    "GroupEditPlan",
    "GroupEditResult",
    "GroupGate",
    "GroupLag",
    "GroupMember",
    "GroupOffsets",
    "GroupOutcome",
    "GroupPlan",
    "Guard",
    "LagRow",
    "LogOrigin",
    "LogRange",
    "MemberEvidence",
    "MigrationState",
    "Offset",
    "OriginComparison",
    "PartitionEvidence",
    "PartitionResult",
    "PhaseReport",
    "PlanHeader",
    "PlanStep",
    "PlanSummary",
    "PlannedChange",
    "Report",
    "RollbackDifference",
    "RollbackReport",
    "Scenario",
    "SnapshotReport",
    "Status",
    "StoreEndpoint",
    "StoreIdentity",
    "VerifySummary",
    "Weakness",
]

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __getattr__ = lazy_exports(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
