"""Reads the fields of Kafka's messages from kio, a library with a dataclass for each message in each version.

kio's modules are imported only when a message is first encoded or decoded, because each takes some milliseconds.
"""

from __future__ import annotations

import dataclasses
import datetime
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple, cast

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
    """The annotation: a scalar type, or the class of a nested message. An array is ``tuple[..., ...]``, and a nullable
    field has ``| None``."""
    kafka_type: str
    """kio's name of the scalar type, or of the scalar type of the array's items, such as ``int32``. Empty for nested
    messages."""
    tag: int | None
    """The tag of a tagged field (KIP-482); None for other fields."""
    default: Any
    """The default in the form that the codec uses (a list for an array, a dict for a nested message, milliseconds for a
    duration), or `REQUIRED`."""


def request_class(api_key: int, version: int) -> type:
    """Returns the class of a request. Raises `UnknownSchema` if kio does not have the API in this version."""
    return _message_class(api_key, version, EntityType.request)


def response_class(api_key: int, version: int) -> type:
    """Returns the class of a response. Raises `UnknownSchema` as `request_class` does."""
    return _message_class(api_key, version, EntityType.response)


def is_message(annotation: Any) -> bool:
    """Returns whether ``annotation``, after the caller has removed ``tuple`` and ``| None``, is the class of a nested
    message."""
    return dataclasses.is_dataclass(annotation)


def is_flexible(message: Any) -> bool:
    """Returns whether this version of the message has the flexible encoding, with compact strings and tagged fields
    (KIP-482)."""
    return cast(bool, message.__flexible__)


def fields_of(message: Any) -> list[FieldDeclaration]:
    """Returns the fields of a message, in the order in which the message contains them."""
    return [
        FieldDeclaration(
            field.name,
            field.type,
            field.metadata.get("kafka_type", ""),
            field.metadata.get("tag"),
            _default(field.name, field.default),
        )
        for field in dataclasses.fields(message)
    ]


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
        return {field.name: _default(field.name, getattr(default, field.name)) for field in dataclasses.fields(default)}
    return default


def _message_class(api_key: int, version: int, kind: EntityType) -> type:
    try:
        path = schema_name_map[api_key_map[api_key]][version][kind]  # type: ignore[index]  # only requests and responses
    except KeyError:
        raise UnknownSchema(f"API {api_key} in version {version}") from None
    return cast(type, resolve_name(path))
