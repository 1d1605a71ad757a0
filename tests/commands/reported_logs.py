"""Log ranges as brokers report them, for commands that run without brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from offsetmgr import KafkaCluster, OffsetMgrError, TopicPartition
from offsetmgr.core.model import LogRange

Reported = LogRange | OffsetMgrError


def report_log(log: Reported | Callable[[], Reported], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every partition has this log range or this error. A function is called for each request, and may raise an
    error."""

    def log_ranges(_cluster: KafkaCluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Reported]:
        return dict.fromkeys(partitions, log() if callable(log) else log)

    monkeypatch.setattr(KafkaCluster, "log_ranges", log_ranges)
    monkeypatch.setattr(KafkaCluster, "cluster_id", lambda _cluster: "one-log")
    monkeypatch.setattr(KafkaCluster, "brokers", lambda _cluster: frozenset({"h:1"}))
    monkeypatch.setattr(KafkaCluster, "topics", lambda _cluster, names=None: dict.fromkeys(names or (), 8))
