"""The version of offsetmgr. A test compares it with pyproject.toml, which takes longer to read."""

from typing import Final

__version__: Final = "0.1.0"
