"""Kafka's own protocol, for requests that no client library offers: group membership as a lock, and bulk offset
requests.

kio provides requests and responses, generated from Kafka's schemas; only this package imports it. The code is asyncio.
`background_loop` has the only thread, so that synchronous callers can use the package.

An import of this package is quick: the modules that need kio import it.
"""

from __future__ import annotations

import sys


def _import_kio_without_hypothesis() -> None:
    """kio registers test strategies for its types if hypothesis is installed. That takes longer than the rest of kio,
    so this function hides hypothesis from kio unless the program has imported it."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Python's own way to say: not to be imported
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_kio_without_hypothesis()
