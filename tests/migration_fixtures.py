"""The fixture of tests with one migration."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_migration import Migration


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    return Migration(tmp_path)
