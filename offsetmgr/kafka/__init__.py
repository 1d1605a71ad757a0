"""A Kafka client for operations that Kafka's client libraries do not support: offset requests for many groups at once,
and the group lock.

The library kio provides the schemas of the requests and responses; only `protocol.schema_codec` uses them. The client
uses asyncio. For synchronous callers, `client.background_loop` runs the client in an
event loop in a background thread.

This module does not import kio, so that the import of this module is fast.
"""

from __future__ import annotations

import sys


def _import_kio_without_hypothesis() -> None:
    """Imports kio's base module, and prevents kio from importing hypothesis. If the program has already imported
    hypothesis, does nothing.

    If kio can import hypothesis, kio registers test strategies for its types. The registration takes longer than the
    rest of the import.
    """
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # With None here, Python raises ImportError for the module.
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_kio_without_hypothesis()
