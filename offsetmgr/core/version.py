"""The version of offsetmgr. offsetmgr does not read it from pyproject.toml, because this would take longer. A test
compares the two versions."""

from typing import Final

__version__: Final = "0.1.0"
