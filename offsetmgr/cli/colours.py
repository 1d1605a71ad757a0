"""Colours on a terminal. ``NO_COLOR`` switches them off."""

from __future__ import annotations

import os
import re
from typing import Final, TextIO

from offsetmgr.core.plurals import printable

BOLD: Final = "1"
RED: Final = "31"
YELLOW: Final = "33"
FAINT: Final = "2"
_MESSAGES: Final = {"error": RED, "warning": YELLOW, "hint": FAINT}
_MESSAGE: Final = re.compile(r"^(error|warning|hint):")


def has_colours(stream: TextIO) -> bool:
    """Whether output to the stream is coloured: the stream is a terminal that supports colours, and ``NO_COLOR`` is not
    set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def coloured(text: str, colour: str) -> str:
    """The text in a colour. Spaces around the text are not coloured."""
    core = text.strip()
    return text.replace(core, f"\x1b[{colour}m{core}\x1b[0m", 1) if core else text


def coloured_message(text: str, stream: TextIO) -> str:
    """A message of one line, with its first word in colour if it is an error, a warning or a hint, and without control
    characters."""
    text = printable(text)
    if not has_colours(stream):
        return text
    return _MESSAGE.sub(lambda found: f"{coloured(found[1], _MESSAGES[found[1]])}:", text)
