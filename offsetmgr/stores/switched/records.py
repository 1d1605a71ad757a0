"""The content of the znodes of a group's storage mode: JSON with a version. Encoding and decoding are pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import CorruptData
from offsetmgr.core.field_reader import FieldReader

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
    node = _read(path, data)
    if "switching_to" not in node:  # null has a meaning here, so a node without the field is incomplete
        raise node.missing("switching_to")
    return StorageModeNode(
        node.choice("mode", CommitMode),
        node.integer("epoch"),
        node.text("who"),
        node.integer("when"),
        node.optional_choice("switching_to", CommitMode),
    )


def encode_follower(node: FollowerNode) -> bytes:
    return _bytes({"epoch": node.epoch, "host": node.host, "process": node.process})


def decode_follower(path: str, data: bytes) -> FollowerNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion`."""
    node = _read(path, data)
    return FollowerNode(node.integer("epoch"), node.text("host"), node.integer("process"))


def encode_switcher(node: SwitcherNode) -> bytes:
    return _bytes({"who": node.who})


def decode_switcher(path: str, data: bytes) -> SwitcherNode:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion`."""
    return SwitcherNode(_read(path, data).text("who"))


def _bytes(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


def _read(path: str, data: bytes) -> FieldReader:
    node = FieldReader.parse(data, f"ZooKeeper node {path}", CorruptData)
    node.version((VERSION,), "a newer offsetmgr?")
    return node
