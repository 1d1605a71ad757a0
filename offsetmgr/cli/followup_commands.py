"""Command lines that offsetmgr prints for the user to run next. Each word is quoted for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def command_line(*words: object, options: Sequence[str] = ()) -> str:
    """Returns the command line of ``words`` (text, numbers or paths), followed by ``options``."""
    return shlex.join(("offsetmgr", *map(str, words), *options))
