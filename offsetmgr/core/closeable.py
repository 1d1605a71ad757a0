"""`Closeable`: a context manager that closes itself at the end of its ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """Base of objects that hold connections or files. ``with`` returns the object itself."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Releases what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
