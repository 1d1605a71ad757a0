"""The types of the arguments and results of public functions and methods that no other public package exports, and the
enumerations of their fields.

A program gets the results from `offsetmgr.OffsetAdmin`, `offsetmgr.Migration`, the stores and the other entry points.
It needs the types only for annotations, and to compare a status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.core import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.app.edits import EditListener as EditListener
    from offsetmgr.app.groups import ListedGroup as ListedGroup
    from offsetmgr.config.manager_settings import ManagerSettings as ManagerSettings
    from offsetmgr.core.clock import Clock as Clock
    from offsetmgr.core.clock import ClockDifference as ClockDifference
    from offsetmgr.core.commit_mode import Confidence as Confidence
    from offsetmgr.core.commit_mode import Phase as Phase
    from offsetmgr.core.log_origin import LogOrigin as LogOrigin
    from offsetmgr.core.log_origin import Relation as Relation
    from offsetmgr.core.model import GroupDescription as GroupDescription
    from offsetmgr.core.model import GroupKind as GroupKind
    from offsetmgr.core.model import LogRange as LogRange
    from offsetmgr.core.model import Weakness as Weakness
    from offsetmgr.core.offset_store import Capabilities as Capabilities
    from offsetmgr.core.offset_store import EditStatus as EditStatus
    from offsetmgr.core.offset_store import GroupEditResult as GroupEditResult
    from offsetmgr.core.offset_store import GroupOffsets as GroupOffsets
    from offsetmgr.core.offset_store import Guard as Guard
    from offsetmgr.core.offset_store import StoreIdentity as StoreIdentity
    from offsetmgr.core.scenario import Scenario as Scenario
    from offsetmgr.groups.describe import DescribedGroup as DescribedGroup
    from offsetmgr.groups.edit_plan import Counts as Counts
    from offsetmgr.groups.edit_plan import GroupEditPlan as GroupEditPlan
    from offsetmgr.groups.edit_plan import PlannedChange as PlannedChange
    from offsetmgr.groups.lag import GroupLag as GroupLag
    from offsetmgr.groups.lag import LagRow as LagRow
    from offsetmgr.groups.operation_log import RecordedOperation as RecordedOperation
    from offsetmgr.kafka.client.producers import OpenTransaction as OpenTransaction
    from offsetmgr.kafka.client.producers import OpenTransactions as OpenTransactions
    from offsetmgr.kafka.client.share_groups import ShareOffset as ShareOffset
    from offsetmgr.kafka.client.share_groups import ShareOffsets as ShareOffsets
    from offsetmgr.kafka.client.topics import ClusterBroker as ClusterBroker
    from offsetmgr.kafka.protocol.frames import Address as Address
    from offsetmgr.manager.runtime.status import Role as Role
    from offsetmgr.manager.runtime.status import ShardStatus as ShardStatus
    from offsetmgr.migration.apply import ApplyReport as ApplyReport
    from offsetmgr.migration.evidence import PhaseReport as PhaseReport
    from offsetmgr.migration.finalize import FinalizeReport as FinalizeReport
    from offsetmgr.migration.location import GroupLocation as GroupLocation
    from offsetmgr.migration.plan import Action as Action
    from offsetmgr.migration.plan import GroupPlan as GroupPlan
    from offsetmgr.migration.plan import PlanHeader as PlanHeader
    from offsetmgr.migration.plan import PlanSummary as PlanSummary
    from offsetmgr.migration.progress import MigrationState as MigrationState
    from offsetmgr.migration.progress import Stage as Stage
    from offsetmgr.migration.rollback import RollbackReport as RollbackReport
    from offsetmgr.migration.verify import PartitionResult as PartitionResult
    from offsetmgr.migration.verify import Status as Status
    from offsetmgr.migration.verify import VerifyResults as VerifyResults
    from offsetmgr.period.barrier import OpenPeriod as OpenPeriod
    from offsetmgr.period.barrier import ReportStatus as ReportStatus
    from offsetmgr.period.barrier import TimePosition as TimePosition
    from offsetmgr.period.job_records import PublishedOutput as PublishedOutput
    from offsetmgr.segments.batch_builder import Producer as Producer
    from offsetmgr.segments.batch_reader import RecordBatch as RecordBatch
    from offsetmgr.segments.entries import LogSlice as LogSlice
    from offsetmgr.segments.log_appender import AppendInfo as AppendInfo
    from offsetmgr.segments.message_scan import LogMessage as LogMessage
    from offsetmgr.segments.retention import DeletionCandidate as DeletionCandidate
    from offsetmgr.segments.retention import DeletionDecision as DeletionDecision
    from offsetmgr.segments.retention import DeletionPolicy as DeletionPolicy
    from offsetmgr.segments.segment import Segment as Segment
    from offsetmgr.segments.time_lookup import TimedOffset as TimedOffset
    from offsetmgr.snapshots.base import SnapshotReport as SnapshotReport
    from offsetmgr.spark.group_committer import CommitterState as CommitterState
    from offsetmgr.spark.period_dataframes import RecordSource as RecordSource

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
