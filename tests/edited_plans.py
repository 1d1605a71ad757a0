"""Changes the text of a plan file, with a valid hash: as another release wrote it, or at another time."""

from __future__ import annotations

import hashlib
from pathlib import Path


def edit_plan(path: Path, *changes: tuple[str, str]) -> None:
    """Replaces each old text, which the file must contain, with the new one."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    body, mark, _ = text.rpartition(', "sha256": "')
    path.write_text(f'{body}{mark}{hashlib.sha256(body.encode()).hexdigest()}"}}\n')
