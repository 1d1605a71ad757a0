"""Kafka's log on disk: messages and batches, segments with their indexes, and the directory of a partition.

`batch_reader`, `compression` and `batch_builder` are pure: they convert bytes, and also work on Fetch responses. The
other modules read files, or write to directories that no running broker uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.core.lazy_exports import lazy_exports

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

_MODULES: Final = {
    "ZSTD": "segments.compression",
    "AnyOf": "segments.retention",
    "LargerThan": "segments.retention",
    "LogAppender": "segments.log_appender",
    "MessageFilter": "segments.message_scan",
    "OlderThan": "segments.retention",
    "Partition": "segments.partition",
    "Record": "segments.batch_reader",
    "RollPolicy": "segments.log_appender",
    "at_or_after": "segments.time_lookup",
    "batches": "segments.batch_reader",
    "messages": "segments.message_scan",
    "report": "segments.retention",
}

__all__ = [
    "ZSTD",
    "AnyOf",
    "LargerThan",
    "LogAppender",
    "MessageFilter",
    "OlderThan",
    "Partition",
    "Record",
    "RollPolicy",
    "at_or_after",
    "batches",
    "messages",
    "report",
]

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __getattr__, __dir__ = lazy_exports(__name__, _MODULES)
