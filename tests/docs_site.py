"""Builds the documentation site for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def build_site(directory: Path) -> None:
    """Builds the site. A broken link, a missing anchor and a page without a place in the navigation fail the build."""
    built = subprocess.run(
        # Without --quiet, which would hide the warnings from --strict.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory],
        cwd=PROJECT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
