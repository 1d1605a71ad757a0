"""A Griffe extension. It puts each doctest of a docstring, which is written for ``help()``, into a code block. It also
finds the public names of a package that imports them lazily (`offsetmgr.core`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import griffe

DOCTEST: Final = re.compile(r"^([ ]*)>>> .*(?:\n\1\S.*|\n\1[ ]+\S.*)*", re.MULTILINE)
"""A prompt, and all lines up to the next blank line."""


NAMES: Final = (Path(__file__).parent.parent / "docs" / "reference" / "api.md").read_text("utf-8")
"""The page whose order of names the reference has."""


class Docstrings(griffe.Extension):
    """Without a code block, Markdown would read a printed list as a link."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Sets ``__all__`` of a package with lazy imports."""
        if "lazy_exports" in mod.members:
            own = [name for name, found in mod.members.items() if found.is_alias and f"`{name}`" in NAMES]
            mod.exports = sorted(own, key=lambda name: NAMES.index(f"`{name}`"))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", obj.docstring.value
            )
