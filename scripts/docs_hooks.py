"""Hooks of MkDocs: docstrings are written for ``help()`` first, and an option is one word."""

import re
from typing import Final

_OPTION: Final = re.compile(r"<code>(?=-[^<\s]*</code>)")


def on_page_content(html: str, **_: object) -> str:
    """Removes the second colon of ``Example::``, which marks a code block in reStructuredText. Keeps browsers from
    breaking an option such as ``--execute`` after its first hyphen."""
    return _OPTION.sub('<code style="white-space: nowrap">', html.replace("::</p>", ":</p>"))
