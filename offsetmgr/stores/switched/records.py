"""The content of a switch's znodes: JSON with a version. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import CorruptData, UnknownVersion

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StorageModeNode:
    """``storage``: the storage mode of the group.

    ``epoch`` grows by one with every change. While ``turning`` names a mode, a switch to it is in progress and members
    neither commit nor fetch; ``mode`` then applies again if the switch is abandoned.
    """

    mode: CommitMode
    epoch: int
    who: str
    """The user, host and process that wrote it, for people."""
    when_ms: int
    """The time on the clock of that process."""
    turning: CommitMode | None = None


@dataclass(frozen=True, slots=True)
class FollowerNode:
    """``storage/NAME`` (ephemeral): a member, and the newest epoch that it has adopted."""

    epoch: int
    host: str
    process: int


@dataclass(frozen=True, slots=True)
class SwitcherNode:
    """``switcher`` (ephemeral): the process that is switching the group; at most one."""

    who: str


def encode_storage(storage: StorageModeNode) -> bytes:
    return _bytes(
        {
            "mode": storage.mode.value,
            "epoch": storage.epoch,
            "who": storage.who,
            "when": storage.when_ms,
            "turning": None if storage.turning is None else storage.turning.value,
        }
    )


def decode_storage(path: str, data: bytes) -> StorageModeNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion`."""
    found = _object(path, data)
    try:
        turning = found["turning"]
        return StorageModeNode(
            CommitMode(found["mode"]),
            _count(found["epoch"]),
            _text(found["who"]),
            _count(found["when"]),
            None if turning is None else CommitMode(turning),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise _broken(path, error) from error


def encode_follower(node: FollowerNode) -> bytes:
    return _bytes({"epoch": node.epoch, "host": node.host, "process": node.process})


def decode_follower(path: str, data: bytes) -> FollowerNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion`."""
    found = _object(path, data)
    try:
        return FollowerNode(_count(found["epoch"]), _text(found["host"]), _count(found["process"]))
    except (KeyError, ValueError, TypeError) as error:
        raise _broken(path, error) from error


def encode_switcher(node: SwitcherNode) -> bytes:
    return _bytes({"who": node.who})


def decode_switcher(path: str, data: bytes) -> SwitcherNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion`."""
    found = _object(path, data)
    try:
        return SwitcherNode(_text(found["who"]))
    except (KeyError, ValueError, TypeError) as error:
        raise _broken(path, error) from error


def _bytes(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise _broken(path, error) from error
    if not isinstance(found, dict):
        raise _broken(path, TypeError("no JSON object"))
    if (version := found.get("version")) != VERSION:
        raise UnknownVersion(f"ZooKeeper node {path}", f"version {version!r}; known: {VERSION}", "a newer offsetmgr?")
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _broken(path: str, error: Exception) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", f"does not say where a group's offsets are: {error}")
