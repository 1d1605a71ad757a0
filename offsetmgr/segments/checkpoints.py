"""Reads the checkpoint files of a broker's log directory. Each file has one offset for each partition.

The format is the version, the number of lines, and then one line ``topic partition offset`` for each partition.
Source: org.apache.kafka.server.common.CheckpointFile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from offsetmgr.core.errors import CorruptData, FileFailure, UnknownVersion
from offsetmgr.core.model import TopicPartition

LOG_START: Final = "log-start-offset-checkpoint"
"""The file with the start offsets of logs. The file contains only the logs whose start offset is within a segment,
because a DeleteRecords request moved the start offset."""
RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
"""The file with one offset for each log. All messages of the log before this offset were on disk when the broker wrote
the file."""
_VERSION: Final = 0


def read_checkpoint(file: Path) -> dict[TopicPartition, int]:
    """Returns the offsets of the file. Returns an empty dict if the file does not exist or is empty.

    Raises `FileFailure`, `CorruptData`, `UnknownVersion`.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise CorruptData(str(file), "it is not a text file") from error
    except OSError as error:
        raise FileFailure(f"cannot read {file}", error.strerror or str(error)) from error
    if not lines:  # a broker creates it empty
        return {}
    try:
        version, count = int(lines[0]), int(lines[1])
        if version != _VERSION:
            raise UnknownVersion(str(file), f"version {version} of a checkpoint file is not known")
        found = {}
        for line in filter(None, lines[2:]):
            topic, partition, offset = line.split()
            found[TopicPartition(topic, int(partition))] = int(offset)
    except (ValueError, IndexError) as error:
        raise CorruptData(str(file), f"it is not a checkpoint file: {error}") from error
    if len(found) != count:
        raise CorruptData(str(file), f"its header announces {count} lines, but it has {len(found)}")
    return found
