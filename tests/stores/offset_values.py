"""The offsets of a result, without versions and times."""

from __future__ import annotations

from offsetmgr.core.model import Committed, Offset, TopicPartition


def offsets(found: dict[TopicPartition, Offset] | object) -> dict[TopicPartition, int]:
    assert isinstance(found, dict)
    return {tp: value.offset for tp, value in found.items() if isinstance(value, Committed)}
