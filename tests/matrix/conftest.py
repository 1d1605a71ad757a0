"""Makes the fixtures of `release_fixtures` available to all tests of this directory."""

from __future__ import annotations

from release_fixtures import release_cluster, start_release

__all__ = ["release_cluster", "start_release"]
