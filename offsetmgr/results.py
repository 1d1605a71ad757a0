"""The types in the signatures of the public API that no other public package exports.

Most of them are types of returned values, which a program gets from `offsetmgr.OffsetAdmin`, `offsetmgr.Migration`, the
stores and the other entry points. It needs these types only for annotations, and to compare a status. The others are
types of optional arguments, such as `ManagerConfig`, `Producer` and `RecordSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.app.migration import RollbackReport as RollbackReport
    from offsetmgr.core.clock import Clock as Clock
    from offsetmgr.core.clock_difference import ClockDifference as ClockDifference
    from offsetmgr.core.group_tree import SavedNode as SavedNode
    from offsetmgr.core.group_tree import UnrecognisedData as UnrecognisedData
    from offsetmgr.core.log_origin import LogOrigin as LogOrigin
    from offsetmgr.core.log_origin import OriginComparison as OriginComparison
    from offsetmgr.core.log_origin import Relation as Relation
    from offsetmgr.core.model import GroupDescription as GroupDescription
    from offsetmgr.core.model import GroupMember as GroupMember
    from offsetmgr.core.model import LogRange as LogRange
    from offsetmgr.core.model import Offset as Offset
    from offsetmgr.core.model import Weakness as Weakness
    from offsetmgr.core.offset_store import Capabilities as Capabilities
    from offsetmgr.core.offset_store import ChangeOutcome as ChangeOutcome
    from offsetmgr.core.offset_store import Committer as Committer
    from offsetmgr.core.offset_store import EditStatus as EditStatus
    from offsetmgr.core.offset_store import GroupEditResult as GroupEditResult
    from offsetmgr.core.offset_store import GroupOffsets as GroupOffsets
    from offsetmgr.core.offset_store import Guard as Guard
    from offsetmgr.core.offset_store import PartitionKinds as PartitionKinds
    from offsetmgr.core.offset_store import StoreIdentity as StoreIdentity
    from offsetmgr.core.selection import TopicPattern as TopicPattern
    from offsetmgr.core.selection import TopicSelection as TopicSelection
    from offsetmgr.groups.describe import DescribedGroup as DescribedGroup
    from offsetmgr.groups.describe import DescribedPartition as DescribedPartition
    from offsetmgr.groups.edit_plan import Counts as Counts
    from offsetmgr.groups.edit_plan import GroupEditPlan as GroupEditPlan
    from offsetmgr.groups.edit_plan import PlannedChange as PlannedChange
    from offsetmgr.groups.lag import GroupLag as GroupLag
    from offsetmgr.groups.lag import LagRow as LagRow
    from offsetmgr.groups.last_writer import KnownWrite as KnownWrite
    from offsetmgr.groups.last_writer import LastWriter as LastWriter
    from offsetmgr.groups.reset import Scenario as Scenario
    from offsetmgr.kafka.client.brokers import ClusterBroker as ClusterBroker
    from offsetmgr.kafka.cluster.base import Cluster as Cluster
    from offsetmgr.kafka.protocol.channel import Address as Address
    from offsetmgr.kafka.protocol.releases import Capability as Capability
    from offsetmgr.manager.runtime.config import ManagerConfig as ManagerConfig
    from offsetmgr.manager.runtime.status import Role as Role
    from offsetmgr.manager.runtime.status import ShardStatus as ShardStatus
    from offsetmgr.manager.shard import ShardLimits as ShardLimits
    from offsetmgr.migration.evidence import Confidence as Confidence
    from offsetmgr.migration.evidence import PartitionEvidence as PartitionEvidence
    from offsetmgr.migration.finalize import FinalizeReport as FinalizeReport
    from offsetmgr.migration.finalize import GroupGate as GroupGate
    from offsetmgr.migration.finalize_groups import GroupFinalizeReport as GroupFinalizeReport
    from offsetmgr.migration.group_location import GroupLocation as GroupLocation
    from offsetmgr.migration.group_location import GroupPhase as GroupPhase
    from offsetmgr.migration.group_location import GroupSample as GroupSample
    from offsetmgr.migration.group_location import LocatedPartition as LocatedPartition
    from offsetmgr.migration.group_location import MigratedGroup as MigratedGroup
    from offsetmgr.migration.group_location import PhaseEvidence as PhaseEvidence
    from offsetmgr.migration.group_location import StoreSample as StoreSample
    from offsetmgr.migration.journaled_writer import GroupOutcome as GroupOutcome
    from offsetmgr.migration.journaled_writer import Report as Report
    from offsetmgr.migration.partition_map import MapOrigin as MapOrigin
    from offsetmgr.migration.phase_inference import MemberEvidence as MemberEvidence
    from offsetmgr.migration.phase_inference import PhaseReport as PhaseReport
    from offsetmgr.migration.plan import Action as Action
    from offsetmgr.migration.plan import GroupPlan as GroupPlan
    from offsetmgr.migration.plan import PlanHeader as PlanHeader
    from offsetmgr.migration.plan import PlanSource as PlanSource
    from offsetmgr.migration.plan import PlanStep as PlanStep
    from offsetmgr.migration.plan import StoreEndpoint as StoreEndpoint
    from offsetmgr.migration.plan_file import PlanSummary as PlanSummary
    from offsetmgr.migration.progress import GroupNote as GroupNote
    from offsetmgr.migration.progress import GroupProgress as GroupProgress
    from offsetmgr.migration.progress import MigrationState as MigrationState
    from offsetmgr.migration.progress import PartitionSet as PartitionSet
    from offsetmgr.migration.progress import RunProgress as RunProgress
    from offsetmgr.migration.rollback import RollbackDifference as RollbackDifference
    from offsetmgr.migration.verify import PartitionResult as PartitionResult
    from offsetmgr.migration.verify import VerifySummary as VerifySummary
    from offsetmgr.migration.verify_rules import Status as Status
    from offsetmgr.migration.verify_rules import VerifyEvidence as VerifyEvidence
    from offsetmgr.period.barrier import OpenPeriod as OpenPeriod
    from offsetmgr.period.barrier import ReportStatus as ReportStatus
    from offsetmgr.period.barrier import TimePosition as TimePosition
    from offsetmgr.period.job_records import Attempt as Attempt
    from offsetmgr.period.job_records import PublishedOutput as PublishedOutput
    from offsetmgr.period.job_records import RangeScan as RangeScan
    from offsetmgr.period.job_records import Work as Work
    from offsetmgr.segments.batch_builder import Producer as Producer
    from offsetmgr.segments.batch_reader import RecordBatch as RecordBatch
    from offsetmgr.segments.entries import Chunk as Chunk
    from offsetmgr.segments.entries import EntryHeader as EntryHeader
    from offsetmgr.segments.entries import EntryReader as EntryReader
    from offsetmgr.segments.entries import LogEntry as LogEntry
    from offsetmgr.segments.indexes import IndexEntry as IndexEntry
    from offsetmgr.segments.indexes import OffsetIndex as OffsetIndex
    from offsetmgr.segments.indexes import TimeEntry as TimeEntry
    from offsetmgr.segments.indexes import TimeIndex as TimeIndex
    from offsetmgr.segments.log_appender import AppendInfo as AppendInfo
    from offsetmgr.segments.message_scan import LogMessage as LogMessage
    from offsetmgr.segments.retention import DeletionCandidate as DeletionCandidate
    from offsetmgr.segments.retention import DeletionDecision as DeletionDecision
    from offsetmgr.segments.retention import DeletionPolicy as DeletionPolicy
    from offsetmgr.segments.segment import LogSlice as LogSlice
    from offsetmgr.segments.segment import Segment as Segment
    from offsetmgr.segments.time_lookup import TimedOffset as TimedOffset
    from offsetmgr.spark.group_committer import CommitterState as CommitterState
    from offsetmgr.spark.period_dataframes import RecordSource as RecordSource
    from offsetmgr.stores.snapshot import SnapshotReport as SnapshotReport

_MODULES: Final = {
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
    "RollbackReport": "app.migration",
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
    "TopicPattern": "core.selection",
    "TopicSelection": "core.selection",
    "UnrecognisedData": "core.group_tree",
    "VerifyEvidence": "migration.verify_rules",
    "VerifySummary": "migration.verify",
    "Weakness": "core.model",
    "Work": "period.job_records",
}

__all__ = list(_MODULES)

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, _MODULES)
