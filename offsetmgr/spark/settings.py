"""The settings of Spark jobs that audit, compare and copy stores. This module does not import pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from offsetmgr.config.connection import ConnectionConfig


class SparkSettings(NamedTuple):
    """Spark's master (None: the cores of this machine) and Spark's settings."""

    master: str | None = None
    conf: Mapping[str, str] = {}


class AuditOptions(NamedTuple):
    """The settings of an audit.

    A group is silent if its last commit is more than ``silent_days`` old. A gap is a pause of more than ``gap_minutes``
    between two commits. ``compare`` is the URI of a store that is compared with the topic, and ``compare_config`` its
    settings; None: those of the connections.
    """

    offsets_topic: str = "__consumer_offsets"
    silent_days: float = 7.0
    gap_minutes: int = 60
    compare: str | None = None
    compare_config: ConnectionConfig | None = None


class Sides(NamedTuple):
    """The URIs of a job's two stores, and the settings of each; None: those of the connections."""

    source: str
    target: str
    source_config: ConnectionConfig | None = None
    target_config: ConnectionConfig | None = None

    def stores(self, default: ConnectionConfig) -> tuple[tuple[str, ConnectionConfig], tuple[str, ConnectionConfig]]:
        """Returns the URI and the settings of both stores."""
        return (self.source, self.source_config or default), (self.target, self.target_config or default)
