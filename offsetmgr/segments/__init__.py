"""Kafka's log on disk: messages and batches, segments with their indexes, and the directory of a partition.

`batch_reader`, `compression` and `batch_builder` are pure: they convert bytes, and also work on Fetch responses. The
other modules read files, or write to directories that no running broker uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.core import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.segments.batch_reader import Record as Record
    from offsetmgr.segments.batch_reader import batches as batches
    from offsetmgr.segments.compression import ZSTD as ZSTD
    from offsetmgr.segments.log_appender import LogAppender as LogAppender
    from offsetmgr.segments.log_appender import RollPolicy as RollPolicy
    from offsetmgr.segments.message_scan import MessageFilter as MessageFilter
    from offsetmgr.segments.message_scan import messages as messages
    from offsetmgr.segments.partition import Partition as Partition
    from offsetmgr.segments.retention import AnyOf as AnyOf
    from offsetmgr.segments.retention import LargerThan as LargerThan
    from offsetmgr.segments.retention import OlderThan as OlderThan
    from offsetmgr.segments.retention import report as report
    from offsetmgr.segments.time_lookup import at_or_after as at_or_after

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
