"""The console script: it watches for Ctrl-C before anything else is imported."""

from __future__ import annotations

from offsetmgr.cli import sigint

sigint.watch()


def main() -> None:
    """What the console script calls."""
    from offsetmgr.cli import app

    app.main()
