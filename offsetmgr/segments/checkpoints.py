"""Reads the checkpoint files of a broker's log directory, and checks the small files of a partition's directory.

A checkpoint file has one offset for each partition: its version, the number of lines, and then one line ``topic
partition offset`` for each partition. Source: org.apache.kafka.server.common.CheckpointFile,
org.apache.kafka.storage.internals.log.PartitionMetadataFile,
org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import CorruptData, FileFailure, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import TopicPartition

LOG_START: Final = "log-start-offset-checkpoint"
"""The file with the start offsets of logs. The file contains only the logs whose start offset is within a segment,
because a DeleteRecords request moved the start offset."""
RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
"""The file with one offset for each log. All messages of the log before this offset were on disk when the broker wrote
the file."""
_VERSION: Final = 0
_METADATA: Final = "partition.metadata"
"""The file with the id of the partition's topic, from Kafka 2.8 on."""
_EPOCHS: Final = "leader-epoch-checkpoint"
"""The file with the offset at which each leader epoch begins, from Kafka 0.11 on."""
_VERSION_LINE: Final = re.compile(r"[^:]*:\s+\d+")
_TOPIC_ID_LINE: Final = re.compile(r"[^:]*:\s+([A-Za-z0-9_-]{22})")
_NO_TOPIC_ID: Final = "A" * 22


def read_checkpoint(file: Path) -> dict[TopicPartition, int]:
    """Returns the offsets of the file. Returns an empty dict if the file does not exist or is empty.

    Raises `FileFailure`, `CorruptData`, `UnknownVersion`.
    """
    found = {}
    for line in _entries(file):
        try:
            topic, partition, offset = line.split()
            found[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError as error:
            raise CorruptData(str(file), f"it is not a checkpoint file: {error}") from error
    return found


def unusable_files(directory: Path) -> list[OffsetMgrError]:
    """Returns an error for each small file of a partition's directory that a broker could not read. The broker takes
    the whole log directory offline, and does not start if it has no other."""
    errors: list[OffsetMgrError] = []
    for name, check, remedy in (
        (_METADATA, _check_metadata, "stop the broker, and copy the file from another partition of the topic"),
        (_EPOCHS, _check_epochs, "stop the broker, and move the file away: the broker writes a new one when it starts"),
    ):
        try:
            check(directory / name)
        except FileFailure as error:
            errors.append(FileFailure(str(directory / name), error.why, "run the command as the broker's user"))
        except (CorruptData, UnknownVersion) as error:
            why = f"{error.why}; a broker takes the log directory offline, or does not start"
            errors.append(type(error)(error.what, why, remedy))
    return errors


def _check_metadata(file: Path) -> None:
    """Raises `CorruptData` unless the file is missing, or has a version and the topic's id."""
    if (lines := _lines(file)) is None:
        return
    if len(lines) < 2:
        raise CorruptData(str(file), "it is empty" if not lines else "it has no line with the topic's id")
    version, topic_id = _VERSION_LINE.fullmatch(lines[0]), _TOPIC_ID_LINE.fullmatch(lines[1])
    if version is None or topic_id is None or topic_id[1] == _NO_TOPIC_ID:
        raise CorruptData(str(file), "its lines are not version: 0 and topic_id: ID")


def _check_epochs(file: Path) -> None:
    """Raises `CorruptData` or `UnknownVersion` unless the file is missing, or has the epochs of the log's leaders."""
    for line in _entries(file):
        if re.fullmatch(r"\d+\s+\d+", line) is None:
            raise CorruptData(str(file), f"a line does not have an epoch and an offset: {line[:40]!r}")


def _entries(file: Path) -> list[str]:
    """Returns the lines after the header of a checkpoint file. Like a broker, returns no lines if the file does not
    exist, or ends before the number of lines."""
    lines = _lines(file) or []
    try:
        version, count = [int(line) for line in lines[:2]] if len(lines) > 1 else [int(*lines[:1]), 0]
    except ValueError as error:
        raise CorruptData(str(file), f"it is not a checkpoint file: {error}") from error
    if version != _VERSION:
        raise UnknownVersion(str(file), f"version {version} of a checkpoint file is not known")
    if len(lines) - 2 != count and len(lines) > 1:
        raise CorruptData(str(file), f"its header announces {count} lines, but it has {len(lines) - 2}")
    return lines[2:]


def _lines(file: Path) -> list[str] | None:
    """Returns the lines of a text file; None if it does not exist."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptData(str(file), "it is not a text file") from error
    except OSError as error:
        raise FileFailure(f"cannot read {file}", error.strerror or str(error)) from error
