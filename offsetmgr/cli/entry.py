"""The console script: it handles Ctrl-C before anything else is imported."""

from __future__ import annotations

from offsetmgr.cli import sigint

sigint.install()


def main() -> None:
    """The console script's function."""
    from offsetmgr.cli import app

    app.main()
