"""The capability table in the reference matches real brokers of each release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
SCRIPT = Path(__file__).parents[2] / "scripts" / "broker_table.py"


def test_the_capability_table_matches_the_brokers() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
