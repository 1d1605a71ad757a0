"""Hooks of MkDocs for docstrings, which are written for ``help()`` first."""


def on_page_content(html: str, **_: object) -> str:
    """Removes the second colon of ``Example::``, which marks a code block in reStructuredText."""
    return html.replace("::</p>", ":</p>")
