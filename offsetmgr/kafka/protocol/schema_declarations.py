"""Reads the declarations of Kafka's messages from kio's modules.

kio declares each message as a dataclass, and loads several modules of scalar types for the declarations. Making the
dataclasses for one ``groups describe`` would take a seventh of the time of the whole command, although the codec needs
only the names, types and defaults of the fields. This module therefore runs the code of kio's module with substitutes
for what the code imports: ``dataclass`` returns the class with a simple constructor, and each scalar type of kio
returns its argument. The substitutes exist only in the run; other importers of kio's modules get the real ones.
"""

from __future__ import annotations

import builtins
import dataclasses
import datetime
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import kio.schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

REQUIRED: Final = object()
"""A marker in place of the default, for fields without a default."""


class UnknownSchema(LookupError):
    """kio has no schema of an API in a version."""


class FieldDeclaration(NamedTuple):
    """A field of a message."""

    name: str
    """kio's name of the field."""
    type: Any
    """The annotation: the class of a nested message or a scalar type, possibly in ``tuple[..., ...]`` or ``| None``."""
    kafka_type: str
    """kio's name of the scalar type, such as ``int32``. Empty for nested messages."""
    tag: int | None
    """The tag of a tagged field."""
    default: Any
    """The default in the form that the codec decodes, or `REQUIRED`."""


def request_class(api_key: int, version: int) -> type:
    """Returns the class that declares a request. Raises `UnknownSchema`."""
    return _message_class(api_key, version, EntityType.request)


def response_class(api_key: int, version: int) -> type:
    """Returns the class that declares a response. Raises `UnknownSchema`."""
    return _message_class(api_key, version, EntityType.response)


def is_message(annotation: Any) -> bool:
    """Returns whether an annotation without ``tuple`` and ``| None`` is a message of its own."""
    return hasattr(annotation, "__flexible__")


def is_flexible(message: Any) -> bool:
    """Returns whether the message has tagged fields (KIP-482)."""
    return cast(bool, message.__flexible__)


def fields_of(message: type) -> list[FieldDeclaration]:
    """Returns the fields of a message in the order of the wire format."""
    return [_field(message, name, hint) for name, hint in message.__annotations__.items() if not name.startswith("__")]


def _field(message: type, name: str, annotation: Any) -> FieldDeclaration:
    declared = vars(message).get(name, dataclasses.MISSING)
    if not isinstance(declared, dataclasses.Field):
        return FieldDeclaration(name, annotation, "", None, _default(name, declared))
    metadata = declared.metadata
    default = _default(name, declared.default)
    return FieldDeclaration(name, annotation, metadata.get("kafka_type", ""), metadata.get("tag"), default)


def _default(name: str, default: Any) -> Any:
    if name == "throttle_time":
        return 0
    if default is dataclasses.MISSING:
        return REQUIRED
    if isinstance(default, tuple):
        return list(default)
    if isinstance(default, datetime.timedelta):
        return default // datetime.timedelta(milliseconds=1)
    if is_message(default):
        return {field.name: field.default for field in fields_of(type(default))} | vars(default)
    return default


def _message_class(api_key: int, version: int, kind: EntityType) -> type:
    try:
        path = schema_name_map[api_key_map[api_key]][version][kind]  # type: ignore[index]  # only requests and responses
    except KeyError:
        raise UnknownSchema(f"API {api_key} in version {version}") from None
    module, _, name = path.partition(":")
    return cast(type, _declarations(module)[name])


def _declarations(module: str) -> dict[str, Any]:
    """Runs the code of a module of kio with the substitutes, and returns the names that the code defines."""
    # The search starts at the directory of the module, because an import of its package would import the module itself.
    *directories, _ = module.removeprefix("kio.schema.").split(".")
    spec = PathFinder.find_spec(module, [str(Path(part, *directories)) for part in kio.schema.__path__])
    code = cast(Any, spec).loader.get_code(module)
    names = {"__name__": module, "__builtins__": {**vars(builtins), "__import__": _import}}
    exec(code, names)
    return names


class _Scalar:
    """The substitute of all scalar types: returns its argument."""

    def __new__(cls, value: Any) -> Any:
        return value

    @staticmethod
    def parse(value: Any) -> Any:
        return value


class _Scalars:
    """The substitute of each module of kio that defines scalar types or headers."""

    def __getattr__(self, name: str) -> type[_Scalar]:
        return _Scalar


def _keep_values(self: object, **values: Any) -> None:
    vars(self).update(values)


def _dataclass(**_: bool) -> Any:
    def decorate(cls: Any) -> Any:
        cls.__init__ = _keep_values  # kio creates instances for the defaults of nested messages
        return cls

    return decorate


_DATACLASSES: Final = SimpleNamespace(dataclass=_dataclass, field=dataclasses.field)
_SCALARS: Final = _Scalars()


def _import(name: str, *rest: Any) -> Any:
    if name == "dataclasses":
        return _DATACLASSES
    if name.startswith("kio.") and name != "kio.static.constants":
        return _SCALARS
    return builtins.__import__(name, *rest)
