"""All managers of a topic are in one group. In two groups, two managers would own the same shard."""

from __future__ import annotations

import inspect
from dataclasses import fields

from offsetmgr.cli.manager import serve
from offsetmgr.manager.embedded import OffsetManager
from offsetmgr.manager.ownership import managers_group
from offsetmgr.server.process.config import ServeOptions


def test_the_group_name_is_derived_from_the_topic() -> None:
    assert managers_group("__offsetmgr_offsets") == "__offsetmgr_offsets.managers"
    assert managers_group("a") != managers_group("b")


def test_no_option_names_another_group() -> None:
    named = {
        *inspect.signature(OffsetManager).parameters,
        *inspect.signature(serve).parameters,
        *(field.name for field in fields(ServeOptions)),
    }

    assert [name for name in named if "group" in name] == []
