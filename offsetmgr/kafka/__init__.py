"""A Kafka client for requests that no client library offers, such as group membership as a lock and bulk offset
requests.

The library kio provides the requests and responses, generated from Kafka's schemas; only this package imports kio. The
code uses asyncio. Synchronous callers run it through `client.background_loop`, which has the only thread.

This module itself does not import kio, so an import of it is fast.
"""

from __future__ import annotations

import sys


def _import_kio_without_hypothesis() -> None:
    """Imports kio's base module while hypothesis is hidden, unless the program has already imported hypothesis.

    If hypothesis is installed, kio registers test strategies for its types, which takes longer than the rest of its
    import.
    """
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # With None here, Python raises ImportError for the module.
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_kio_without_hypothesis()
