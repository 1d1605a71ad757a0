"""The content of the znodes of a group's storage mode: JSON with a version. Encoding and decoding are pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import CorruptData, UnknownVersion

VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class StorageModeNode:
    """``storage``: the storage mode of the group.

    ``epoch`` increases by one with every change. While ``switching_to`` names a mode, a switch to that mode is in
    progress and members neither commit nor fetch; if the switch is abandoned, ``mode`` applies again.
    """

    mode: CommitMode
    epoch: int
    who: str
    """The user, host and process that wrote the node, for people."""
    when_ms: int
    """The time of the write by the clock of that process, in milliseconds since 1970."""
    switching_to: CommitMode | None = None


@dataclass(frozen=True, slots=True)
class FollowerNode:
    """``storage/NAME`` (ephemeral): a member, and the newest epoch that it has acknowledged."""

    epoch: int
    host: str
    process: int


@dataclass(frozen=True, slots=True)
class SwitcherNode:
    """``switcher`` (ephemeral): the process that is switching the group."""

    who: str


def encode_storage(storage: StorageModeNode) -> bytes:
    return _bytes(
        {
            "mode": storage.mode.value,
            "epoch": storage.epoch,
            "who": storage.who,
            "when": storage.when_ms,
            "switching_to": None if storage.switching_to is None else storage.switching_to.value,
        }
    )


def decode_storage(path: str, data: bytes) -> StorageModeNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion`."""
    found = _object(path, data)
    try:
        switching_to = found["switching_to"]
        return StorageModeNode(
            CommitMode(found["mode"]),
            _count(found["epoch"]),
            _text(found["who"]),
            _count(found["when"]),
            None if switching_to is None else CommitMode(switching_to),
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
        raise _broken(path, TypeError("not a JSON object"))
    if (version := found.get("version")) != VERSION:
        raise UnknownVersion(f"ZooKeeper node {path}", f"version {version!r}; known: {VERSION}", "a newer offsetmgr?")
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a non-negative integer")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _broken(path: str, error: Exception) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", f"is not a valid node of a group's storage mode: {error}")
