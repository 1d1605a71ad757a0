"""Converts messages of Kafka's protocol to and from plain dicts, in every version for which kio has a schema. Use this
codec for all requests and responses, except those that are so frequent or so large that they need their own codec.

The module uses kio's *schemas*, but not kio's reader. kio's reader allocates memory for the length that an array claims
to have, and aborts the process if the allocation fails; a request of 20 bytes can cause this. The keys of a dict are
kio's field names. If a version lacks a field, the decoder omits it and the encoder ignores it, so one handler serves
all versions. Times are in milliseconds, error codes and ids are numbers, nested messages are dicts, arrays are lists.

Servers use `decode_request` and `encode_response`, clients `encode_request` and `decode_response`.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pkgutil import resolve_name
from types import UnionType
from typing import Any, Final, NamedTuple, TypeAlias

from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.core.varint import decode_varint, encode_varint

# Reads and writes the primitive types of Kafka's protocol, in the classic and the flexible encoding (KIP-482). The
# reader is safe for data from untrusted clients, because a `Cursor` checks every length against the size of the
# message before it allocates memory. (kio's reader allocates memory for the length that an array claims to have, and
# aborts the process if the allocation fails.)

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
UINT16: Final = struct.Struct(">H")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")

NO_TAGS: Final = b"\0"

_VARINT_BYTES: Final = 5
"""The maximum size of a variable-length number, which has 32 bits."""

_MAX_ITEMS: Final = 200_000
"""The maximum number of array items in one message. A small item takes hundreds of times more memory as a Python object
than in its encoding, so a small message could use up the memory if there were no limit."""
_MIN_ITEM_BYTES: Final = 4
"""The assumed minimum size of an array item in a response. A replica id has this size, and a Metadata response of a
large cluster contains millions of replica ids."""


@dataclass(slots=True)
class DecodingLimits:
    """Limits for decoding one message."""

    tags: int = 64
    """The maximum number of tagged fields in one structure. The limit exists because a tagged field can be as small as
    three bytes, and the reader needs one iteration for each tagged field."""
    string_bytes: int = 32_767
    """The maximum size of a string. The default is the limit of the classic encoding; the flexible encoding has no
    limit of its own."""


DECODING: Final = DecodingLimits()
"""The limits of this process. `manager serve` sets them at its start."""


class Cursor:
    """Reads a message from a position onwards. Every method raises `InvalidRequest` for invalid bytes."""

    __slots__ = ("at", "data", "flexible", "items_left", "max_string_bytes")

    def __init__(
        self,
        data: bytes,
        at: int,
        *,
        flexible: bool,
        is_response: bool = False,
    ) -> None:
        """If ``is_response`` is True, the message is a broker's response. In this case the limits for strings and array
        items depend on the size of the message, because the connection already limits the size of a response."""
        self.max_string_bytes = len(data) if is_response else DECODING.string_bytes
        self.data = data
        self.at = at
        self.flexible = flexible
        self.items_left = max(_MAX_ITEMS, len(data) // _MIN_ITEM_BYTES) if is_response else _MAX_ITEMS

    def number(self, form: struct.Struct) -> int:
        """Reads a number of a fixed size."""
        value: int = form.unpack_from(self.data, self.take(form.size))[0]
        return value

    def int32(self) -> int:
        return self.number(INT32)

    def int64(self) -> int:
        return self.number(INT64)

    def boolean(self) -> bool:
        return self.data[self.take(1)] != 0

    def uuid(self) -> uuid.UUID | None:
        """Reads a UUID. Returns None for the zero UUID, with which Kafka expresses "none"."""
        at = self.take(16)
        value = uuid.UUID(bytes=self.data[at : self.at])
        return value if value.int else None

    def string(self) -> str:
        """Reads a string. The string must be valid UTF-8. If invalid bytes were replaced, the result would be a
        different name."""
        return self._text(self._not_null(self.length()))

    def nullable_string(self) -> str | None:
        length = self.length()
        return None if length < 0 else self._text(length)

    def octets(self) -> bytes:
        at = self.take(self._not_null(self._octets_length()))
        return self.data[at : self.at]

    def nullable_octets(self) -> bytes | None:
        length = self._octets_length()
        if length < 0:
            return None
        at = self.take(length)
        return self.data[at : self.at]

    def skip_octets(self) -> None:
        self.take(max(self._octets_length(), 0))

    def length(self) -> int:
        """Reads the length of a string. Returns -1 for null."""
        if self.flexible:
            return self.varint() - 1
        value = self.number(INT16)
        if value < -1:
            raise InvalidRequest("message", f"a string of {value} bytes")
        return value

    def count(self, min_item_bytes: int) -> int:
        """Reads the length of an array whose items have at least ``min_item_bytes``."""
        return self._not_null(self.nullable_count(min_item_bytes))

    def nullable_count(self, min_item_bytes: int) -> int:
        """Reads the length of an array whose items have at least ``min_item_bytes``. Returns -1 for null."""
        if self.flexible:
            count = self.varint() - 1
        else:
            (count,) = INT32.unpack_from(self.data, self.take(4))
        if count < -1 or count * min_item_bytes > len(self.data) - self.at:
            raise InvalidRequest("message", f"an array of {count} items does not fit in it")
        self.items_left -= count
        if self.items_left < 0:
            raise InvalidRequest("message", "it has too many items")
        return count

    def varint(self) -> int:
        """Reads an unsigned varint of at most 5 bytes."""
        at = self.at
        if at < len(self.data) and (byte := self.data[at]) < 0x80:  # most varints are lengths below 128
            self.at = at + 1
            return byte
        try:
            value, self.at = decode_varint(self.data, at, _VARINT_BYTES)
        except (IndexError, ValueError):
            raise InvalidRequest("message", "a variable-length number does not end") from None
        return value

    def tags(self, known: Callable[[int, int], None] | None = None) -> None:
        """Skips the tagged fields of a structure. Does nothing if the version is not flexible.

        For each field, the method moves the cursor to the start of the field's value and calls ``known`` with the tag
        and the size of the field. ``known`` may read the value.
        """
        if not self.flexible or (number := self.varint()) == 0:
            return
        if number > DECODING.tags:
            raise InvalidRequest("message", f"{number} tagged fields in a structure, allowed are {DECODING.tags}")
        for _ in range(number):
            tag = self.varint()
            size = self.varint()
            at = self.take(size)
            if known is not None:
                end, self.at = self.at, at
                known(tag, size)
                self.at = end

    def take(self, size: int) -> int:
        """Moves the position by ``size`` bytes and returns the old position."""
        at = self.at
        self.at = at + size
        if self.at > len(self.data):
            raise InvalidRequest("message", "it ends too early")
        return at

    def _octets_length(self) -> int:
        length = self.varint() - 1 if self.flexible else self.int32()
        if length < -1:
            raise InvalidRequest("message", f"a field of {length} bytes")
        return length

    def _text(self, length: int) -> str:
        if length > self.max_string_bytes:
            raise InvalidRequest("message", f"a string of {length} bytes, allowed are {self.max_string_bytes}")
        at = self.take(length)
        try:
            return self.data[at : self.at].decode()
        except UnicodeDecodeError:
            raise InvalidRequest("message", "a name in it is not UTF-8") from None

    @staticmethod
    def _not_null(length: int) -> int:
        if length < 0:
            raise InvalidRequest("message", "a non-nullable field is null")
        return length


def string(text: str, *, flexible: bool) -> bytes:
    """Encodes a string of a response. Characters that UTF-8 cannot encode are replaced by question marks."""
    return _with_length(text.encode("utf-8", "replace"), flexible)


def request_string(text: str, *, flexible: bool) -> bytes:
    """Encodes a string of a request. Raises UnicodeEncodeError for characters that UTF-8 cannot encode. If they were
    replaced, the request would name a different group or topic."""
    return _with_length(text.encode(), flexible)


def _with_length(data: bytes, flexible: bool) -> bytes:
    return (encode_varint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


def count(number: int, *, flexible: bool) -> bytes:
    """Encodes the length of an array."""
    return encode_varint(number + 1) if flexible else INT32.pack(number)


# Reads the fields of Kafka's messages from kio, a library with a dataclass for each message in each version. kio's
# modules are imported only when a message is first encoded or decoded, because each takes some milliseconds.

_REQUIRED: Final = object()
"""The default of a field that has no default, so that the caller must give a value."""


class UnknownSchema(LookupError):
    """kio has no schema of an API in a version."""


def _default(name: str, default: Any) -> Any:
    """Returns the default of a field in the form that the codec uses (a list for an array, a dict for a nested message,
    milliseconds for a duration), or `_REQUIRED`."""
    if name == "throttle_time":  # kio declares no default, but the servers of offsetmgr throttle no client
        return 0
    if default is dataclasses.MISSING:
        return _REQUIRED
    if isinstance(default, tuple):
        return list(default)
    if isinstance(default, datetime.timedelta):
        return default // datetime.timedelta(milliseconds=1)
    if dataclasses.is_dataclass(default):
        return {field.name: _default(field.name, getattr(default, field.name)) for field in dataclasses.fields(default)}
    return default


def _message_class(api_key: int, version: int, kind: EntityType) -> Any:
    try:
        path = schema_name_map[api_key_map[api_key]][version][kind]  # type: ignore[index]  # only requests and responses
    except KeyError:
        raise UnknownSchema(f"API {api_key} in version {version}") from None
    return resolve_name(path)


Message: TypeAlias = dict[str, Any]
_Read: TypeAlias = Callable[[Cursor], Any]
_Write: TypeAlias = Callable[[bytearray, Any], None]


class _StringEncoder(typing.Protocol):
    def __call__(self, text: str, *, flexible: bool) -> bytes: ...


def decode_request(api_key: int, version: int, frame: bytes, at: int) -> Message:
    """Decodes the request whose body begins at ``at``. Raises `InvalidRequest` if the bytes are not valid or exceed a
    limit."""
    schema = _request(api_key, version)
    return schema.read(Cursor(frame, at, flexible=schema.flexible))


def encode_response(api_key: int, version: int, message: Mapping[str, Any]) -> bytes:
    """Encodes the body of a response. Missing fields get their default. Raises KeyError for a missing field without a
    default."""
    return _response(api_key, version).encode(message)


def decode_response(api_key: int, version: int, frame: bytes, at: int) -> Message:
    """Decodes the response whose body begins at ``at``. Raises `InvalidRequest` for invalid bytes."""
    schema = _response(api_key, version)
    return schema.read(Cursor(frame, at, flexible=schema.flexible, is_response=True))


def read_response(api_key: int, version: int, cursor: Cursor) -> Message:
    """Decodes the response whose body begins at the position of ``cursor``. Raises `InvalidRequest` for invalid
    bytes."""
    return _response(api_key, version).read(cursor)


def encode_request(api_key: int, version: int, message: Mapping[str, Any]) -> bytes:
    """Encodes the body of a request. Missing fields get their default. Raises KeyError for a missing field without a
    default."""
    return _request(api_key, version).encode(message)


def request_is_flexible(api_key: int, version: int) -> bool:
    """Returns whether the headers of the request and of the response have tagged fields. For ApiVersions the result
    concerns only the request, because the response header of ApiVersions never has tagged fields."""
    return _request(api_key, version).flexible


def is_known(api_key: int, version: int) -> bool:
    """Returns whether kio has a schema of this API and version."""
    try:
        _request(api_key, version)
    except UnknownSchema:
        return False
    return True


class EncodedItems(NamedTuple):
    """Encoded items of an array, which the encoder accepts in place of the array. With this class, callers can encode a
    long array in pieces, so that the event loop can serve other clients between the pieces."""

    number: int
    data: bytes | bytearray


def encode_items(api_key: int, version: int, field: str, items: Iterable[Mapping[str, Any]]) -> bytes:
    """Encodes items of the array ``field`` of a response, for `EncodedItems`."""
    return _response(api_key, version).encode_items(field, items)


class _Field(NamedTuple):
    """A field of a message: its reader and writer, its tag if it is a tagged field, and its minimum size in bytes."""

    name: str
    read: _Read
    write: _Write
    write_item: _Write
    """Writes one item of an array field. For a field that is not an array, ``write_item`` equals ``write``."""
    tag: int | None
    default: Any
    min_bytes: int


class _Schema:
    """The codec of a message, or of a nested message, in one version."""

    def __init__(self, cls: Any, encode_string: _StringEncoder) -> None:
        self.flexible: bool = cls.__flexible__  # compact strings and tagged fields (KIP-482)
        fields = [_field(declared, self.flexible, encode_string) for declared in dataclasses.fields(cls)]
        self._plain = [field for field in fields if field.tag is None]
        self._reads = [(field.name, field.read) for field in self._plain]
        self._writes = [(field.name, field.default, field.write) for field in self._plain]
        self._tagged = {field.tag: field for field in fields if field.tag is not None}
        self.min_bytes = sum(field.min_bytes for field in self._plain) + (1 if self.flexible else 0)

    def encode(self, message: Mapping[str, Any]) -> bytes:
        out = bytearray()
        self.write(out, message)
        return bytes(out)

    def encode_items(self, name: str, items: Iterable[Mapping[str, Any]]) -> bytes:
        (field,) = (field for field in self._plain if field.name == name)
        out = bytearray()
        for item in items:
            field.write_item(out, item)
        return bytes(out)

    def read(self, cursor: Cursor) -> Message:
        message = {name: read(cursor) for name, read in self._reads}
        if self._tagged:
            for field in self._tagged.values():
                message[field.name] = field.default

            def known(tag: int, _size: int) -> None:
                if (field := self._tagged.get(tag)) is not None:
                    message[field.name] = field.read(cursor)

            cursor.tags(known)
        elif self.flexible:
            cursor.tags()
        return message

    def write(self, out: bytearray, message: Mapping[str, Any]) -> None:
        for name, default, write in self._writes:
            value = message.get(name, default)
            if value is _REQUIRED:
                raise KeyError(name)
            write(out, value)
        if self._tagged:
            self._write_tags(out, message)
        elif self.flexible:
            out += NO_TAGS

    def _write_tags(self, out: bytearray, message: Mapping[str, Any]) -> None:
        present = [
            (tag, field)
            for tag, field in sorted(self._tagged.items())
            if message.get(field.name, field.default) != field.default
        ]
        out += encode_varint(len(present))
        for tag, field in present:
            value = bytearray()
            field.write(value, message[field.name])
            out += encode_varint(tag) + encode_varint(len(value)) + value


@lru_cache(maxsize=256)
def _request(api_key: int, version: int) -> _Schema:
    return _Schema(_message_class(api_key, version, EntityType.request), request_string)


@lru_cache(maxsize=256)
def _response(api_key: int, version: int) -> _Schema:
    return _Schema(_message_class(api_key, version, EntityType.response), string)


def _field(field: dataclasses.Field[Any], flexible: bool, encode_string: _StringEncoder) -> _Field:
    scalar_type = field.metadata.get("kafka_type", "")  # of the field, or of an array's items
    nullable, kind = _not_null(field.type)
    array = typing.get_origin(kind) is tuple
    if array:
        items_nullable, item = _not_null(typing.get_args(kind)[0])
    else:
        items_nullable, item = nullable, kind
    if dataclasses.is_dataclass(item):
        read, write, min_bytes = _nested(_Schema(item, encode_string), items_nullable)
    else:
        read, write, min_bytes = _primitive(scalar_type, items_nullable, flexible, encode_string)
    write_item = write
    if array:
        read, write = _array(read, write_item, min_bytes, nullable, flexible, _NUMBERS.get(scalar_type))
        min_bytes = 1 if flexible else 4
    default = _default(field.name, field.default)
    return _Field(field.name, read, write, write_item, field.metadata.get("tag"), default, min_bytes)


def _not_null(hint: Any) -> tuple[bool, Any]:
    """Returns whether a type allows None, and the type without None."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        (kind,) = (argument for argument in typing.get_args(hint) if argument is not type(None))
        return True, kind
    return False, hint


def _number(form: struct.Struct) -> tuple[_Read, _Write, int]:
    unpack_from, pack, size = form.unpack_from, form.pack, form.size

    def read(cursor: Cursor) -> Any:
        # This function repeats the code of Cursor.number, but has no nested calls. This saves 12 to 27 % of the time to
        # decode large responses.
        at = cursor.at
        try:
            (value,) = unpack_from(cursor.data, at)
        except struct.error:
            raise InvalidRequest("message", "it ends too early") from None
        cursor.at = at + size
        return value

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return read, write, size


def _primitive(kind: str, nullable: bool, flexible: bool, encode_string: _StringEncoder) -> tuple[_Read, _Write, int]:
    """Returns the reader, the writer and the minimum size of a primitive."""
    if kind in _NUMBERS:
        return _number(_NUMBERS[kind])
    if kind == "string":

        def write_string(out: bytearray, value: str | None) -> None:
            if value is None and nullable:
                out += encode_varint(0) if flexible else INT16.pack(-1)
            else:
                out += encode_string(typing.cast(str, value), flexible=flexible)

        return (Cursor.nullable_string if nullable else Cursor.string), write_string, 1 if flexible else 2
    if kind in ("bytes", "records"):

        def write_octets(out: bytearray, value: bytes | None) -> None:
            if value is None and nullable:
                out += count(-1, flexible=flexible)
            else:
                octets = typing.cast(bytes, value)
                out += count(len(octets), flexible=flexible) + octets

        return (Cursor.nullable_octets if nullable else Cursor.octets), write_octets, 1 if flexible else 4
    if kind == "bool":
        return Cursor.boolean, _write_boolean, 1
    if kind == "uuid":
        return Cursor.uuid, _write_uuid, 16
    raise NotImplementedError(kind)


_NUMBERS: Final = {
    "int8": INT8,
    "int16": INT16,
    "uint16": UINT16,
    "int32": INT32,
    "int64": INT64,
    "float64": FLOAT64,
    "error_code": INT16,
    "timedelta_i32": INT32,
    "timedelta_i64": INT64,
    "datetime_i64": INT64,
}


def _write_boolean(out: bytearray, value: bool) -> None:
    out += b"\1" if value else b"\0"


def _write_uuid(out: bytearray, value: uuid.UUID | None) -> None:
    out += bytes(16) if value is None else value.bytes


def _nested(schema: _Schema, nullable: bool) -> tuple[_Read, _Write, int]:
    """Returns the reader, the writer and the minimum size of a nested message. In front of a nullable message, a byte
    indicates whether the message is present."""
    if not nullable:
        return schema.read, schema.write, schema.min_bytes

    def read_nullable(cursor: Cursor) -> Message | None:
        return schema.read(cursor) if cursor.number(INT8) >= 0 else None

    def write_nullable(out: bytearray, value: Message | None) -> None:
        out += INT8.pack(-1 if value is None else 1)
        if value is not None:
            schema.write(out, value)

    return read_nullable, write_nullable, 1


def _array(
    read: _Read, write: _Write, min_bytes: int, nullable: bool, flexible: bool, form: struct.Struct | None
) -> tuple[_Read, _Write]:
    """Returns the reader and the writer of an array. ``form`` is the format of its items if they are numbers."""
    code = form.format[1:] if form else ""

    def read_all(cursor: Cursor) -> list[Any] | None:
        number = cursor.nullable_count(min_bytes)
        if number <= 0:
            if number == 0:
                return []
            if nullable:
                return None
            raise InvalidRequest("message", "an array that must not be null is null")
        if code:
            return list(struct.unpack_from(f">{number}{code}", cursor.data, cursor.take(number * min_bytes)))
        return [read(cursor) for _ in range(number)]

    def write_all(out: bytearray, items: Any) -> None:
        if items is None:
            out += count(-1, flexible=flexible)
            return
        if isinstance(items, EncodedItems):
            out += count(items.number, flexible=flexible) + items.data
            return
        out += count(len(items), flexible=flexible)
        for item in items:
            write(out, item)

    return read_all, write_all
