"""Values, errors and protocols that every other package uses. No module here connects to a server."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

__version__: Final = "0.1.0"
"""The version of offsetmgr. offsetmgr does not read the version from pyproject.toml, because a constant is faster. A
test compares this constant with the version of the installed package."""

_EXPORT: Final = re.compile(r"^    from (offsetmgr[\w.]*) import (\w+) as \2$", re.MULTILINE)


def lazy_exports(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__all__``, the ``__getattr__`` (PEP 562) and the ``__dir__`` of ``package``. The public names are
    those that its source imports ``if TYPE_CHECKING`` with ``import name as name``, so each name is declared once.

    The returned ``__getattr__`` raises `AttributeError` for any other name.
    """
    namespace = vars(sys.modules[package])
    file = namespace["__file__"]
    if not file.endswith(".py"):
        raise ImportError(f"{package} needs its source file, which lists its public names", name=package)
    source = namespace["__loader__"].get_data(file).decode()
    modules = {name: module for module, name in _EXPORT.findall(source)}

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = vars(import_module(modules[name]))
        return found[name] if name in found else import_module(f"{modules[name]}.{name}")

    return list(modules), attribute, lambda: sorted({*namespace, *modules})
