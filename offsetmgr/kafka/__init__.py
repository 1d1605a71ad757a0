"""Kafka's own protocol, for what no client library offers: group membership as a lock, and bulk offset requests.

Requests and responses are kio's (generated from Kafka's schemas); this package is its sole user. Everything in here is
asyncio; `background_loop` is the one place with a thread, so that synchronous callers can use the rest.

Importing this package costs next to nothing: kio is imported by the modules that need it.
"""

from __future__ import annotations

import sys


def _import_kio_without_hypothesis() -> None:
    """kio registers test strategies for its types if hypothesis is installed, which takes longer than all the rest
    of kio together: a program that has not asked for hypothesis need not wait for it."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Python's own way to say: not to be imported
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_kio_without_hypothesis()
