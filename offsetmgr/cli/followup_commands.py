"""Command lines that offsetmgr prints for the user to run next. Each word is quoted for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from offsetmgr.core.plurals import count_of

MAX_NAMED: Final = 100
"""The number of groups that a printed command names at most."""


def command_line(*words: object, options: Sequence[str] = ()) -> str:
    """Returns the command line of ``words`` (text, numbers or paths), followed by ``options``."""
    return shlex.join(("offsetmgr", *map(str, words), *options))


def delete_groups_command(store: str, groups: Sequence[str], options: Sequence[str]) -> str:
    """Returns the command line that deletes these groups from the store at the URI ``store``. If there are more than
    `MAX_NAMED`, it has the first of them, and a text after it has the number of the others."""
    from offsetmgr.core.selection import literal_pattern

    named = (word for name in groups[:MAX_NAMED] for word in ("--group", literal_pattern(name)))
    command = command_line("groups", "delete", "--store", store, *named, *options, "--execute")
    left = len(groups) - MAX_NAMED
    return command if left <= 0 else f"{command}  ({count_of(left, 'more empty group')}: see offsetmgr groups list)"
