"""Builds the documentation site for a test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from processes import run_command

PROJECT = Path(__file__).resolve().parents[1]


def build_site(directory: Path) -> None:
    """Builds the site. A broken link, a missing anchor and a page without a place in the navigation fail the build."""
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(PROJECT)}
    # Without --quiet, which would hide the warnings from --strict.
    program = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    run_command(program=program, cwd=PROJECT, environ=environ)
