"""The fixture of tests with one migration."""

from __future__ import annotations

from pathlib import Path

import one_migration
import pytest
from one_migration import Migration

from offsetmgr.core.scheme_table import SCHEMES
from offsetmgr.stores.scheme import Scheme, StoreUri


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    return Migration(tmp_path)


@pytest.fixture
def opened(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> Migration:
    """The migration. Commands open its stores as ``memory:source`` and ``memory:target``."""
    scheme = Scheme(frozenset(), lambda *of: StoreUri("memory", of[1]), lambda uri, _: getattr(migration, uri[7:]))
    monkeypatch.setenv("XDG_STATE_HOME", str(migration.directory / "state"))
    monkeypatch.setitem(SCHEMES, "memory", "one_migration:MEMORY")
    monkeypatch.setattr(one_migration, "MEMORY", scheme, raising=False)
    return migration
