"""The console script, which handles Ctrl-C before it imports anything else."""

from __future__ import annotations

from offsetmgr.cli import sigint

sigint.install()


def main() -> None:
    """The console script's function."""
    from offsetmgr.cli import app

    app.main()
