"""The version of offsetmgr. offsetmgr does not read the version from pyproject.toml, because a constant is faster. A
test compares this constant with the version of the installed package."""

from typing import Final

__version__: Final = "0.1.0"
