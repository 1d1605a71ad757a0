"""The checkpoint files of a broker's log directory: an offset for each partition.

Source: org.apache.kafka.server.common.CheckpointFile: version, number of lines, then ``topic partition offset`` lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from offsetmgr.core.errors import CorruptData, FileFailure, UnknownVersion
from offsetmgr.core.model import TopicPartition

LOG_START: Final = "log-start-offset-checkpoint"
"""The start of logs that begin within a segment (DeleteRecords); other logs are not listed."""
RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
"""The offset up to which a log was certainly on disk when the broker last wrote it."""
_VERSION: Final = 0


def read_checkpoint(file: Path) -> dict[TopicPartition, int]:
    """Returns the offsets of the file; none if it does not exist or is empty.

    Raises `FileFailure`, `CorruptData`, `UnknownVersion`.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise CorruptData(str(file), "it is no text") from error
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
        raise CorruptData(str(file), f"it is no checkpoint file: {error}") from error
    if len(found) != count:
        raise CorruptData(str(file), f"it says that it has {count} lines, and has {len(found)}")
    return found
