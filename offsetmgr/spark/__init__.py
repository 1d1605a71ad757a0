"""Consumer groups in Spark jobs: Kafka sessions, offset commits of streaming queries, and tables of offset stores.

Only this package imports pyspark. The package imports each public name on first use, so that a program that uses none
of them does not load Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.core import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.spark.commit_policy import CommitPolicy as CommitPolicy
    from offsetmgr.spark.committer import OffsetCommitter as OffsetCommitter
    from offsetmgr.spark.foreach_batch import BatchCommitter as BatchCommitter
    from offsetmgr.spark.period_dataframes import LateRecords as LateRecords
    from offsetmgr.spark.period_dataframes import PeriodTask as PeriodTask
    from offsetmgr.spark.period_work import JobSettings as JobSettings
    from offsetmgr.spark.period_work import PeriodRules as PeriodRules
    from offsetmgr.spark.period_work import PeriodStep as PeriodStep
    from offsetmgr.spark.periods import Coordination as Coordination
    from offsetmgr.spark.periods import published_outputs as published_outputs
    from offsetmgr.spark.periods import run_periods as run_periods
    from offsetmgr.spark.spark_session import session as session
    from offsetmgr.spark.start_offsets import StartingOffsets as StartingOffsets
    from offsetmgr.spark.start_offsets import reader_from_group as reader_from_group
    from offsetmgr.spark.start_offsets import starting_offsets as starting_offsets
    from offsetmgr.spark.table_registration import register as register
    from offsetmgr.spark.table_registration import table_session as table_session
    from offsetmgr.stores.uri import open_store as open_store

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
