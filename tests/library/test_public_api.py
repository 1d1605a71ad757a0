"""The public names: listed in docs/reference/api.md, importable, documented, and quick to import."""

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import docstring_examples
import pytest

from offsetmgr import OffsetStore

PACKAGES = (*docstring_examples.PACKAGES, "offsetmgr.results")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_api_page_lists_exactly_the_public_names(package: str) -> None:
    section = PAGE.read_text("utf-8").partition(f"\n## {package}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) == set(import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_method_and_property_has_a_docstring(package: str) -> None:
    """``help`` shows these docstrings. A method may inherit its docstring. `OffsetStore` describes the
    methods of stores, and the name of a test describes the test."""
    public = {name: getattr(import_module(package), name) for name in import_module(package).__all__}
    undocumented = {
        name for name, found in public.items() if callable(found) and not (inspect.getdoc(found) or "").strip()
    }
    undocumented |= {
        f"{name}.{member.name}"
        for name, found in public.items()
        if inspect.isclass(found)
        for member in inspect.classify_class_attrs(found)
        if not member.name.startswith(("_", "test_"))
        and member.kind in ("method", "class method", "static method", "property")
        and member.defining_class.__module__.startswith("offsetmgr.")
        and not inspect.getdoc(getattr(found, member.name))
        and not inspect.getdoc(getattr(OffsetStore, member.name, None))
    }
    assert undocumented == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_a_public_object_and_an_unknown_name_is_an_attribute_error(package: str) -> None:
    """Python would bind the module under that name as soon as another module imports it."""
    module = import_module(package)
    assert {path.stem for path in Path(str(module.__file__)).parent.glob("*.py")}.isdisjoint(module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        module.Missing  # noqa: B018


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        (", ".join(PACKAGES), {"kazoo", "kio", "confluent_kafka", "pyspark", "typer", "pytest"}),
        ("offsetmgr", {"dataclasses", "fastavro", "rich", "offsetmgr.core.offset_store"}),
        ("offsetmgr.app.edits", {"confluent_kafka", "kio", "offsetmgr.kafka.cluster"}),
        ("offsetmgr.app.migrate", {"fastavro"}),
    ],
)
def test_an_import_imports_no_more_than_it_needs(imported: str, absent: set[str]) -> None:
    program = f"import sys; import {imported}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not absent & set(loaded)
