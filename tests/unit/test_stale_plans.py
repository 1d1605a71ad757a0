"""The error of `migrate apply` for a plan that is older than a day: the command in its hint is a valid command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from one_migration import Migration, commit
from test_doc_blocks import parse

from offsetmgr.cli import migrate_apply
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import PlanError
from offsetmgr.migration.plan_file import PlanFile


class Later(SystemClock):
    """A clock that is two days ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * 24 * 3_600_000


def test_the_hint_for_an_old_plan_renews_the_same_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migration = Migration(tmp_path)
    commit(migration.source, "my shop", 10)
    migration.plan()
    commit(migration.source, "my shop", 11)
    monkeypatch.setattr(migrate_apply, "SystemClock", Later)
    scope = ["my shop", "--wave", "3", "--command-config", "a b.properties"]
    sides = SimpleNamespace(source=migration.source)
    with pytest.raises(PlanError) as raised:
        migrate_apply._reject_stale(sides, PlanFile(migration.path), migration.state(), None, scope)  # type: ignore[arg-type]
    command = re.search(r"plan them again: offsetmgr (.*); or", raised.value.hint)
    assert command is not None
    words = shlex.split(command[1])
    parse(words)
    assert words[2:] == [
        str(migration.path), "-o", "FILE", "my shop", "--wave", "3", "--command-config", "a b.properties",
    ]  # fmt: skip
