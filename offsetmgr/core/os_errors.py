"""Converts errors of the operating system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offsetmgr.core.errors import OffsetMgrError


@contextmanager
def os_error_as(kind: Callable[[str, str, str], OffsetMgrError], what: str, hint: str = "") -> Iterator[None]:
    """Converts an `OSError` to an error of this kind, with the operating system's text as the reason."""
    try:
        yield
    except OSError as error:
        raise kind(what, error.strerror or str(error), hint) from error
