"""The hint of errors about a package that an optional dependency group (an extra) of offsetmgr installs."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """Returns the hint that names the extra.

    >>> install_hint("spark")
    "install offsetmgr with its extra spark: pip install '.[spark]' in its source directory"
    """
    return f"install offsetmgr with its extra {extra}: pip install '.[{extra}]' in its source directory"
