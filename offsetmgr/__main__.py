"""``python -m offsetmgr`` runs the command line, even if the console script is not on the path."""

from __future__ import annotations

from offsetmgr.cli.entry import main

if __name__ == "__main__":
    main()
