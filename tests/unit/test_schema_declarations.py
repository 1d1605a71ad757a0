"""The declarations of messages have the fields of kio's dataclasses, without the cost of making dataclasses."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from offsetmgr.kafka.protocol.schema_declarations import (
    REQUIRED,
    UnknownSchema,
    fields_of,
    is_flexible,
    is_message,
    request_class,
    response_class,
)


def declared(message: type) -> list[Any]:
    """The fields of a message and of its nested messages."""
    return [
        (field.name, field.kafka_type, field.tag, field.default, [declared(kind) for kind in nested(field.type)])
        for field in fields_of(message)
    ]


def of_kio(message: Any) -> list[Any]:
    """The same fields, read from kio's dataclasses."""
    hints = typing.get_type_hints(message)
    return [
        (
            field.name,
            field.metadata.get("kafka_type", ""),
            field.metadata.get("tag"),
            0 if field.name == "throttle_time" else plain_default(field.default),
            [of_kio(kind) for kind in nested(hints[field.name])],
        )
        for field in dataclasses.fields(message)
    ]


def nested(annotation: Any) -> list[Any]:
    if is_message(annotation):
        return [annotation]
    return [kind for argument in typing.get_args(annotation) for kind in nested(argument)]


def plain_default(default: Any) -> Any:
    if default is dataclasses.MISSING:
        return REQUIRED
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        return dataclasses.asdict(default)
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    return list(default) if isinstance(default, tuple) else default


@pytest.mark.parametrize("api_key", api_key_map)
def test_the_declarations_of_an_api_have_the_fields_of_kio(api_key: int) -> None:
    for version in schema_name_map[api_key_map[api_key]]:
        for ours, theirs in ((request_class, load_request_schema), (response_class, load_response_schema)):
            message, expected = ours(api_key, version), theirs(api_key, version)
            assert is_flexible(message) == expected.__flexible__
            assert declared(message) == of_kio(expected), f"{expected}"


@pytest.mark.parametrize(("api_key", "version"), [(3, 999), (999, 0)])
def test_an_unknown_version_or_api_has_no_schema(api_key: int, version: int) -> None:
    with pytest.raises(UnknownSchema):
        request_class(api_key, version)


def test_a_program_gets_the_real_modules_of_kio_after_a_declaration_was_read() -> None:
    code = (
        "import sys, dataclasses\n"
        "from offsetmgr.kafka.protocol.schema_declarations import response_class\n"
        "response_class(3, 8)\n"
        "assert not {'kio.schema.metadata.v8.response', 'kio.static.primitive', 'hypothesis'} & set(sys.modules)\n"
        "from kio.schema.metadata.v8.response import MetadataResponse\n"
        "assert dataclasses.is_dataclass(MetadataResponse)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
