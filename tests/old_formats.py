"""The files that offsetmgr 0.1 wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Final

OLD: Final = Path(__file__).parent / "data" / "formats" / "0.1"
