"""Values, errors and protocols that every other package uses. No module here connects to a server."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

__version__: Final = "0.1.0"
"""The version of offsetmgr, which pyproject.toml reads from here."""

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


# The table of store schemes: which module implements ``kafka://``, ``zookeeper://`` and so on. The package
# `offsetmgr` fills the table with module names, so that Python imports the module of a store only when a URI contains
# its scheme. A package of any layer can add a store: `register_scheme("history", "offsetmgr.history.store:SCHEME")`.


class RegisteredScheme(NamedTuple):
    """The place and the example of a scheme; see `register_scheme`."""

    location: str
    example: str


SCHEMES: Final[dict[str, RegisteredScheme]] = {}
"""The schemes by name: ``kafka`` of ``kafka://...``."""
TITLES: Final[dict[str, str]] = {}
"""The names of stores in messages, by scheme, of the schemes whose stores groups can live in."""


def register_scheme(name: str, location: str, example: str = "", title: str = "") -> None:
    """Adds the scheme ``name``. ``location`` is ``module:attribute`` of its `offsetmgr.stores.uri.Scheme`. ``example``
    is a URI for help texts. ``title`` names its stores in messages if consumers commit to them, so that a group can
    live there; it is empty for files, and for pairs of stores."""
    SCHEMES[name] = RegisteredScheme(location, example)
    if title:
        TITLES[name] = title


def title_of(uri: str) -> str:
    """Returns the name of a store in messages: the title of its scheme, or the URI if the scheme has no title."""
    return TITLES.get(uri.partition(":")[0], uri)


def example_uris() -> str:
    """Returns one URI of each scheme, as a list for help texts."""
    return ", ".join(scheme.example for scheme in SCHEMES.values() if scheme.example)


_SLASH: Final = r"(?:/|%(?:25)*2F)"
# The path of a file on this machine has no credentials. The group is atomic, so that the search takes linear time.
_CREDENTIALS: Final = re.compile(
    rf"(?is)\A(?!(?:dual:\?)?[^:/%]*file(?::|%3A)(?!{_SLASH}{{2}}(?!{_SLASH}))[^?&]*(?:\?[^@&]*)?\Z)"
    rf"((?>.*?(?:{_SLASH}{{2,}}|(?:\A|=)(?!dual:\?)[\w.+-]+(?::|%(?:25)*3A){_SLASH}*))).*(?=@|%(?:25)*40)"
)


def redact(uri: str) -> str:
    """Returns the URI for error messages: asterisks replace what is between the scheme and the last ``@``, also in the
    percent-encoded URIs of a pair of stores. A query with an ``@`` is hidden, too."""
    pair = r"(?i)&(?=(?:primary|secondary)=[a-z]+(?::|%3A))" if "dual:?" in uri else r"(?!)"
    return "&".join(_CREDENTIALS.sub(r"\1***", one) for one in re.split(pair, uri))
