"""Spark jobs and consumer groups: sessions that read Kafka, streaming jobs that show in their group and start from it.

The sole user of pyspark. Each name is imported when it is first used, so that what needs no Spark does not start any.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from offsetmgr.spark.batches import BatchCommitter as BatchCommitter
    from offsetmgr.spark.committer import OffsetCommitter as OffsetCommitter
    from offsetmgr.spark.sparksession import session as session
    from offsetmgr.spark.starting import StartingOffsets as StartingOffsets
    from offsetmgr.spark.starting import reader_from_group as reader_from_group
    from offsetmgr.spark.starting import starting_offsets as starting_offsets

_HOME: Final = {
    "BatchCommitter": "batches",
    "OffsetCommitter": "committer",
    "StartingOffsets": "starting",
    "reader_from_group": "starting",
    "session": "sparksession",
    "starting_offsets": "starting",
}
__all__ = ["BatchCommitter", "OffsetCommitter", "StartingOffsets", "reader_from_group", "session", "starting_offsets"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'offsetmgr.spark' has no attribute {name!r}")
    return getattr(import_module(f"offsetmgr.spark.{_HOME[name]}"), name)
