"""Store schemes by name. The facade (`offsetmgr`) fills the table with places, so that no store is imported early.

A package of any layer can add a store: `register_scheme("history", "offsetmgr.history.store:SCHEME")`.
"""

from __future__ import annotations

from typing import Final

SCHEMES: Final[dict[str, str]] = {}
"""Scheme name (``kafka`` of ``kafka://...``) -> ``module:attribute`` of its `offsetmgr.stores.scheme.Scheme`."""


def register_scheme(name: str, location: str) -> None:
    """Adds the scheme ``name``; ``location`` is ``module:attribute`` of its `offsetmgr.stores.scheme.Scheme`."""
    SCHEMES[name] = location
