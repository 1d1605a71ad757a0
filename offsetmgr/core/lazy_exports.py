"""Public names of a package that are imported on first use, so that the import of the package is fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__getattr__`` (PEP 562) and the ``__dir__`` of ``package``. ``modules`` maps each public name to
    the module that defines it, relative to ``offsetmgr``.

    The returned ``__getattr__`` raises `AttributeError` for any other name.
    """
    namespace = vars(sys.modules[package])

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"offsetmgr.{modules[name]}"), name)

    return attribute, lambda: sorted({*namespace, *namespace["__all__"]})
