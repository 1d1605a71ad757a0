"""Reads the fields of Kafka's messages from kio, a library with a Python module for each message in each version.

kio's modules declare messages as dataclasses. The codec needs only the names, types, defaults and tags of the fields,
and creating the dataclasses takes a seventh of the time of ``groups describe``. Therefore this module does not import
kio's modules. It executes their code in a namespace whose ``__import__`` returns substitutes:

- ``dataclass`` gives the class a constructor that stores its arguments, and does nothing else. The annotations and
  defaults of the class remain readable.
- Each scalar type, such as ``i32`` or ``TopicName``, is `_Scalar`, which returns its argument.

The module puts nothing into ``sys.modules``, so a program that imports kio itself gets the real dataclasses. The tests
compare the fields of all messages with kio's dataclasses. Run them when you change the version of kio.
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
"""The value of `FieldDeclaration.default` for a field that has no default, so that the caller must give a value."""


class UnknownSchema(LookupError):
    """kio has no schema of an API in a version."""


class FieldDeclaration(NamedTuple):
    """A field of a message."""

    name: str
    """kio's name of the field."""
    type: Any
    """The annotation: a scalar type, or the class that declares a nested message. An array is ``tuple[..., ...]``, and
    a nullable field has ``| None``."""
    kafka_type: str
    """kio's name of the scalar type, or of the scalar type of the array's items, such as ``int32``. Empty for nested
    messages."""
    tag: int | None
    """The tag of a tagged field (KIP-482); None for other fields."""
    default: Any
    """The default in the form that the codec uses (a list for an array, a dict for a nested message, milliseconds for a
    duration), or `REQUIRED`."""


def request_class(api_key: int, version: int) -> type:
    """Returns the class that declares a request. Raises `UnknownSchema` if kio does not have the API in this
    version."""
    return _message_class(api_key, version, EntityType.request)


def response_class(api_key: int, version: int) -> type:
    """Returns the class that declares a response. Raises `UnknownSchema` as `request_class` does."""
    return _message_class(api_key, version, EntityType.response)


def is_message(annotation: Any) -> bool:
    """Returns whether ``annotation``, after the caller has removed ``tuple`` and ``| None``, is the class of a nested
    message."""
    return hasattr(annotation, "__flexible__")


def is_flexible(message: Any) -> bool:
    """Returns whether this version of the message has the flexible encoding, with compact strings and tagged fields
    (KIP-482)."""
    return cast(bool, message.__flexible__)


def fields_of(message: type) -> list[FieldDeclaration]:
    """Returns the fields of a message, in the order in which the message contains them."""
    return [_field(message, name, hint) for name, hint in message.__annotations__.items() if not name.startswith("__")]


def _field(message: type, name: str, annotation: Any) -> FieldDeclaration:
    declared = vars(message).get(name, dataclasses.MISSING)
    if not isinstance(declared, dataclasses.Field):
        return FieldDeclaration(name, annotation, "", None, _default(name, declared))
    metadata = declared.metadata
    default = _default(name, declared.default)
    return FieldDeclaration(name, annotation, metadata.get("kafka_type", ""), metadata.get("tag"), default)


def _default(name: str, default: Any) -> Any:
    if name == "throttle_time":  # kio declares no default, but the servers of offsetmgr throttle no client
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
    """Executes the code of a module of kio with the substitutes, and returns the names that the code defines."""
    # Searches the directory of the module, because `importlib.util.find_spec` would import the package of the module,
    # and the package imports the module itself.
    *directories, _ = module.removeprefix("kio.schema.").split(".")
    spec = PathFinder.find_spec(module, [str(Path(part, *directories)) for part in kio.schema.__path__])
    code = cast(Any, spec).loader.get_code(module)
    names = {"__name__": module, "__builtins__": {**vars(builtins), "__import__": _import}}
    exec(code, names)
    return names


class _Scalar:
    """Replaces every scalar type of kio. A call returns its argument."""

    def __new__(cls, value: Any) -> Any:
        return value

    @staticmethod
    def parse(value: Any) -> Any:
        return value


class _ScalarModule:
    """Replaces each module of kio that a declaration imports. The modules define scalar types and message headers; the
    codec does not use kio's declarations of headers."""

    def __getattr__(self, name: str) -> type[_Scalar]:
        return _Scalar


def _store_fields(self: object, **values: Any) -> None:
    """Replaces the constructor of a dataclass, which kio calls only for the defaults of nested messages."""
    vars(self).update(values)


def _dataclass(**_: bool) -> Any:
    """Replaces ``dataclasses.dataclass``."""

    def decorate(cls: Any) -> Any:
        cls.__init__ = _store_fields
        return cls

    return decorate


_DATACLASSES_MODULE: Final = SimpleNamespace(dataclass=_dataclass, field=dataclasses.field)
_SCALAR_MODULE: Final = _ScalarModule()


def _import(name: str, *rest: Any) -> Any:
    """Replaces ``__import__`` in the code of kio's modules. ``kio.static.constants`` is small and is imported."""
    if name == "dataclasses":
        return _DATACLASSES_MODULE
    if name.startswith("kio.") and name != "kio.static.constants":
        return _SCALAR_MODULE
    return builtins.__import__(name, *rest)
