"""The table of store schemes: which module implements ``kafka://``, ``zookeeper://`` and so on.

The package `offsetmgr` fills the table with module names, so that Python imports the module of a store only when a URI
contains its scheme. A package of any layer can add a store: `register_scheme("history",
"offsetmgr.history.store:SCHEME")`.
"""

from __future__ import annotations

from typing import Final

SCHEMES: Final[dict[str, str]] = {}
"""Maps the name of a scheme (``kafka`` of ``kafka://...``) to ``module:attribute`` of its
`offsetmgr.stores.uri.Scheme`."""


def register_scheme(name: str, location: str) -> None:
    """Adds the scheme ``name``; ``location`` is ``module:attribute`` of its `offsetmgr.stores.uri.Scheme`."""
    SCHEMES[name] = location
