"""Managers of one topic are always in one group: in two, each would answer for ever with what it knew first."""

from __future__ import annotations

import inspect
from dataclasses import fields

from offsetmgr.cli.manager import serve
from offsetmgr.manager.embedded import OffsetManager
from offsetmgr.manager.ownership import managers_group
from offsetmgr.server.process.config import ServeOptions


def test_the_group_follows_from_the_topic() -> None:
    assert managers_group("__offsetmgr_offsets") == "__offsetmgr_offsets.managers"
    assert managers_group("a") != managers_group("b")


def test_no_client_can_name_another_group() -> None:
    named = {
        *inspect.signature(OffsetManager).parameters,
        *inspect.signature(serve).parameters,
        *(field.name for field in fields(ServeOptions)),
    }

    assert [name for name in named if "group" in name] == []
