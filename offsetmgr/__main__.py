"""``python -m offsetmgr`` runs the command line, even if the directory of the console script is not in ``PATH``."""

from __future__ import annotations

from offsetmgr.cli.entry import main

if __name__ == "__main__":
    main()
