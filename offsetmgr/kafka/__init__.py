"""A Kafka client for requests that Kafka's client libraries do not support: offset requests for many groups, and joins
of a group that serve as a lock.

The library kio provides classes for the requests and responses. They are generated from Kafka's schemas. Only this
package imports kio. The client uses asyncio. `client.background_loop` runs it for synchronous callers, in an event loop
in a background thread.

This module does not import kio, so that the import of this module is fast.
"""

from __future__ import annotations

import sys


def _import_kio_without_hypothesis() -> None:
    """Imports kio's base module while hypothesis is hidden, unless the program has already imported hypothesis.

    If hypothesis is installed, kio registers test strategies for its types during the import. The registration takes
    longer than the rest of the import.
    """
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # With None here, Python raises ImportError for the module.
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_kio_without_hypothesis()
