"""The types in the signatures of the public API that no other public package exports.

Most of them are types of returned values, which a program gets from `offsetmgr.OffsetAdmin`, `offsetmgr.Migration`, the
stores and the other entry points. It needs these types only for annotations, and to compare a status. The others are
types of optional arguments, such as `ManagerConfig`, `Producer` and `RecordSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.api.migration import RollbackReport
    from offsetmgr.core.clock import Clock
    from offsetmgr.core.clock_difference import ClockDifference
    from offsetmgr.core.group_tree import SavedNode, UnrecognisedData
    from offsetmgr.core.log_origin import LogOrigin, OriginComparison, Relation
    from offsetmgr.core.model import GroupDescription, GroupMember, LogRange, Offset, Weakness
    from offsetmgr.core.offset_store import (
        Capabilities,
        ChangeOutcome,
        Committer,
        EditStatus,
        GroupEditResult,
        GroupOffsets,
        Guard,
        PartitionKinds,
        StoreIdentity,
    )
    from offsetmgr.groups.describe import DescribedGroup, DescribedPartition
    from offsetmgr.groups.edit_plan import Counts, GroupEditPlan, PlannedChange
    from offsetmgr.groups.lag import GroupLag, LagRow
    from offsetmgr.groups.last_writer import KnownWrite, LastWriter
    from offsetmgr.groups.reset import Scenario
    from offsetmgr.groups.selection import GroupSelection, TopicPattern, TopicSelection
    from offsetmgr.kafka.client.brokers import ClusterBroker
    from offsetmgr.kafka.cluster.base import Cluster
    from offsetmgr.kafka.protocol.channel import Address
    from offsetmgr.kafka.protocol.releases import Capability
    from offsetmgr.manager.runtime.config import ManagerConfig
    from offsetmgr.manager.runtime.status import Role, ShardStatus
    from offsetmgr.manager.shard import ShardLimits
    from offsetmgr.migration.evidence import Confidence, PartitionEvidence
    from offsetmgr.migration.finalize import FinalizeReport, GroupGate
    from offsetmgr.migration.finalize_groups import GroupFinalizeReport
    from offsetmgr.migration.group_location import (
        GroupLocation,
        GroupPhase,
        GroupSample,
        LocatedPartition,
        MigratedGroup,
        PhaseEvidence,
        StoreSample,
    )
    from offsetmgr.migration.journaled_writer import GroupOutcome, Report
    from offsetmgr.migration.partition_map import MapOrigin
    from offsetmgr.migration.phase_inference import MemberEvidence, PhaseReport
    from offsetmgr.migration.plan import Action, GroupPlan, PlanHeader, PlanSource, PlanStep, StoreEndpoint
    from offsetmgr.migration.plan_file import PlanSummary
    from offsetmgr.migration.progress import GroupNote, GroupProgress, MigrationState, PartitionSet, RunProgress
    from offsetmgr.migration.rollback import RollbackDifference
    from offsetmgr.migration.verify import PartitionResult, VerifySummary
    from offsetmgr.migration.verify_rules import Status, VerifyEvidence
    from offsetmgr.period.barrier import OpenPeriod, ReportStatus, TimePosition
    from offsetmgr.period.job_records import Attempt, PublishedOutput, RangeScan, Work
    from offsetmgr.segments.batch_builder import Producer
    from offsetmgr.segments.batch_reader import RecordBatch
    from offsetmgr.segments.entries import Chunk, EntryHeader, EntryReader, LogEntry
    from offsetmgr.segments.indexes import AbortedTransaction, IndexEntry, OffsetIndex, TimeEntry, TimeIndex
    from offsetmgr.segments.log_appender import AppendInfo
    from offsetmgr.segments.message_scan import LogMessage
    from offsetmgr.segments.retention import DeletionCandidate, DeletionDecision, DeletionPolicy
    from offsetmgr.segments.segment import LogSlice, Segment
    from offsetmgr.segments.time_lookup import TimedOffset
    from offsetmgr.spark.group_committer import CommitterState
    from offsetmgr.spark.period_dataframes import RecordSource
    from offsetmgr.stores.snapshot import SnapshotReport

_MODULES: Final = {
    "AbortedTransaction": "segments.indexes",
    "Action": "migration.plan",
    "Address": "kafka.protocol.channel",
    "AppendInfo": "segments.log_appender",
    "Attempt": "period.job_records",
    "Capabilities": "core.offset_store",
    "Capability": "kafka.protocol.releases",
    "ChangeOutcome": "core.offset_store",
    "Chunk": "segments.entries",
    "Clock": "core.clock",
    "ClockDifference": "core.clock_difference",
    "Cluster": "kafka.cluster.base",
    "ClusterBroker": "kafka.client.brokers",
    "Committer": "core.offset_store",
    "CommitterState": "spark.group_committer",
    "Confidence": "migration.evidence",
    "Counts": "groups.edit_plan",
    "DeletionCandidate": "segments.retention",
    "DeletionDecision": "segments.retention",
    "DeletionPolicy": "segments.retention",
    "DescribedGroup": "groups.describe",
    "DescribedPartition": "groups.describe",
    "EditStatus": "core.offset_store",
    "EntryHeader": "segments.entries",
    "EntryReader": "segments.entries",
    "FinalizeReport": "migration.finalize",
    "GroupDescription": "core.model",
    "GroupEditPlan": "groups.edit_plan",
    "GroupEditResult": "core.offset_store",
    "GroupFinalizeReport": "migration.finalize_groups",
    "GroupGate": "migration.finalize",
    "GroupLag": "groups.lag",
    "GroupLocation": "migration.group_location",
    "GroupMember": "core.model",
    "GroupNote": "migration.progress",
    "GroupOffsets": "core.offset_store",
    "GroupOutcome": "migration.journaled_writer",
    "GroupPhase": "migration.group_location",
    "GroupPlan": "migration.plan",
    "GroupProgress": "migration.progress",
    "GroupSample": "migration.group_location",
    "GroupSelection": "groups.selection",
    "Guard": "core.offset_store",
    "IndexEntry": "segments.indexes",
    "KnownWrite": "groups.last_writer",
    "LagRow": "groups.lag",
    "LastWriter": "groups.last_writer",
    "LocatedPartition": "migration.group_location",
    "LogEntry": "segments.entries",
    "LogMessage": "segments.message_scan",
    "LogOrigin": "core.log_origin",
    "LogRange": "core.model",
    "LogSlice": "segments.segment",
    "ManagerConfig": "manager.runtime.config",
    "MapOrigin": "migration.partition_map",
    "MemberEvidence": "migration.phase_inference",
    "MigratedGroup": "migration.group_location",
    "MigrationState": "migration.progress",
    "Offset": "core.model",
    "OffsetIndex": "segments.indexes",
    "OpenPeriod": "period.barrier",
    "OriginComparison": "core.log_origin",
    "PartitionEvidence": "migration.evidence",
    "PartitionKinds": "core.offset_store",
    "PartitionResult": "migration.verify",
    "PartitionSet": "migration.progress",
    "PhaseEvidence": "migration.group_location",
    "PhaseReport": "migration.phase_inference",
    "PlanHeader": "migration.plan",
    "PlanSource": "migration.plan",
    "PlanStep": "migration.plan",
    "PlanSummary": "migration.plan_file",
    "PlannedChange": "groups.edit_plan",
    "Producer": "segments.batch_builder",
    "PublishedOutput": "period.job_records",
    "RangeScan": "period.job_records",
    "RecordBatch": "segments.batch_reader",
    "RecordSource": "spark.period_dataframes",
    "Relation": "core.log_origin",
    "Report": "migration.journaled_writer",
    "ReportStatus": "period.barrier",
    "Role": "manager.runtime.status",
    "RollbackDifference": "migration.rollback",
    "RollbackReport": "api.migration",
    "RunProgress": "migration.progress",
    "SavedNode": "core.group_tree",
    "Scenario": "groups.reset",
    "Segment": "segments.segment",
    "ShardLimits": "manager.shard",
    "ShardStatus": "manager.runtime.status",
    "SnapshotReport": "stores.snapshot",
    "Status": "migration.verify_rules",
    "StoreEndpoint": "migration.plan",
    "StoreIdentity": "core.offset_store",
    "StoreSample": "migration.group_location",
    "TimeEntry": "segments.indexes",
    "TimeIndex": "segments.indexes",
    "TimePosition": "period.barrier",
    "TimedOffset": "segments.time_lookup",
    "TopicPattern": "groups.selection",
    "TopicSelection": "groups.selection",
    "UnrecognisedData": "core.group_tree",
    "VerifyEvidence": "migration.verify_rules",
    "VerifySummary": "migration.verify",
    "Weakness": "core.model",
    "Work": "period.job_records",
}

__all__ = [
    "AbortedTransaction",
    "Action",
    "Address",
    "AppendInfo",
    "Attempt",
    "Capabilities",
    "Capability",
    "ChangeOutcome",
    "Chunk",
    "Clock",
    "ClockDifference",
    "Cluster",
    "ClusterBroker",
    "Committer",
    "CommitterState",
    "Confidence",
    "Counts",
    "DeletionCandidate",
    "DeletionDecision",
    "DeletionPolicy",
    "DescribedGroup",
    "DescribedPartition",
    "EditStatus",
    "EntryHeader",
    "EntryReader",
    "FinalizeReport",
    "GroupDescription",
    "GroupEditPlan",
    "GroupEditResult",
    "GroupFinalizeReport",
    "GroupGate",
    "GroupLag",
    "GroupLocation",
    "GroupMember",
    "GroupNote",
    "GroupOffsets",
    "GroupOutcome",
    "GroupPhase",
    "GroupPlan",
    "GroupProgress",
    "GroupSample",
    "GroupSelection",
    "Guard",
    "IndexEntry",
    "KnownWrite",
    "LagRow",
    "LastWriter",
    "LocatedPartition",
    "LogEntry",
    "LogMessage",
    "LogOrigin",
    "LogRange",
    "LogSlice",
    "ManagerConfig",
    "MapOrigin",
    "MemberEvidence",
    "MigratedGroup",
    "MigrationState",
    "Offset",
    "OffsetIndex",
    "OpenPeriod",
    "OriginComparison",
    "PartitionEvidence",
    "PartitionKinds",
    "PartitionResult",
    "PartitionSet",
    "PhaseEvidence",
    "PhaseReport",
    "PlanHeader",
    "PlanSource",
    "PlanStep",
    "PlanSummary",
    "PlannedChange",
    "Producer",
    "PublishedOutput",
    "RangeScan",
    "RecordBatch",
    "RecordSource",
    "Relation",
    "Report",
    "ReportStatus",
    "Role",
    "RollbackDifference",
    "RollbackReport",
    "RunProgress",
    "SavedNode",
    "Scenario",
    "Segment",
    "ShardLimits",
    "ShardStatus",
    "SnapshotReport",
    "Status",
    "StoreEndpoint",
    "StoreIdentity",
    "StoreSample",
    "TimeEntry",
    "TimeIndex",
    "TimePosition",
    "TimedOffset",
    "TopicPattern",
    "TopicSelection",
    "UnrecognisedData",
    "VerifyEvidence",
    "VerifySummary",
    "Weakness",
    "Work",
]

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __getattr__ = lazy_exports(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
