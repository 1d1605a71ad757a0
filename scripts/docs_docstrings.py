"""A Griffe extension for docstrings, which are written for ``help()``: puts each doctest into a code block."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

DOCTEST: Final = re.compile(r"^([ ]*)>>> .*(?:\n\1\S.*|\n\1[ ]+\S.*)*", re.MULTILINE)
"""A prompt, and all lines up to the next blank line."""


class Doctests(griffe.Extension):
    """Without a code block, Markdown would read a printed list as a link."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", obj.docstring.value
            )
