"""Every type in the signature of a public function or method is public, so that a program can annotate its values."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from test_public_api import PACKAGES

from offsetmgr.core import errors

INTERNAL = {
    "ClientThread": "the base class of KafkaCluster takes it, and KafkaCluster creates it",
    "Connections": "MigrationConfig opens its connections with it",
    "EditPlan": "OffsetAdmin creates PlannedEdit",
    "StreamState": "ZookeeperConsumer creates MessageStream",
}
"""Types of arguments that no program passes, with the reason."""

PUBLIC = {id(getattr(import_module(package), name)) for package in PACKAGES for name in import_module(package).__all__}
PUBLIC |= {id(error) for error in vars(errors).values()}


@cache
def namespace(module_name: str) -> Mapping[str, Any]:
    """The names of a module, with those that it imports only for type checkers."""
    module = import_module(module_name)
    found: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for imported in (one for one in node.body if isinstance(one, ast.ImportFrom) and one.module):
                source = import_module(str(imported.module))
                found |= {one.asname or one.name: getattr(source, one.name) for one in imported.names}
    return {**found, **vars(module)}


def callables(found: Any) -> Iterator[Any]:
    """A function; or the public methods and properties of a class and of its bases in offsetmgr."""
    if not inspect.isclass(found):
        yield inspect.unwrap(found)
        return
    for base in found.__mro__:
        if not base.__module__.startswith("offsetmgr."):
            continue
        own_init = not dataclasses.is_dataclass(base)
        for name, member in vars(base).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function) and (not name.startswith("_") or (name == "__init__" and own_init)):
                yield function


def classes(annotation: Any) -> Iterator[type]:
    """The classes in an annotation."""
    if isinstance(annotation, list | tuple):
        for one in annotation:
            yield from classes(one)
    elif typing.get_origin(annotation) is not None:
        yield from classes(typing.get_args(annotation))
    elif isinstance(annotation, type):
        yield annotation


def annotated(found: Any) -> Iterator[tuple[str, type]]:
    """The names and types of the parameters and results of a public function, or of the methods of a public class."""
    for one in callables(found):
        for name, annotation in typing.get_type_hints(one, globalns=dict(namespace(one.__module__))).items():
            if not name.startswith("_"):
                yield from ((f"{one.__qualname__}: {name}", each) for each in classes(annotation))


@pytest.mark.parametrize("package", [one for one in PACKAGES if one != "offsetmgr.results"])
def test_every_type_in_a_public_signature_is_public(package: str) -> None:
    module = import_module(package)
    public = [getattr(module, name) for name in module.__all__]
    missing = {
        f"{where}: {found.__name__}"
        for one in public
        if inspect.isclass(one) or inspect.isroutine(one)
        for where, found in annotated(one)
        if found.__module__.startswith("offsetmgr.") and id(found) not in PUBLIC and found.__name__ not in INTERNAL
    }
    assert missing == set()
