"""Columns that the tables of several commands have."""

from __future__ import annotations

from typing import Final

from offsetmgr.cli.render import Column

PARTITION: Final = (Column("topic"), Column("partition", right=True, title="PART"))
GROUP_PARTITION: Final = (Column("group"), *PARTITION)
PLANNED_WRITE: Final = (
    *GROUP_PARTITION,
    Column("current_offset", right=True, title="CURRENT"),
    Column("new_offset", right=True, title="NEW"),
    Column("note", optional=True),
)
"""An offset that a command replaces, before the command writes the new one."""
