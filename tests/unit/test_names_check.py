"""scripts/names.py finds names with two meanings, participles and gerunds, and durations without a unit."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import names


def found(**sources: str) -> list[str]:
    return list(names.findings({f"offsetmgr/{name}.py": ast.parse(text) for name, text in sources.items()}))


def test_a_public_class_name_in_two_modules_is_found_and_a_private_one_is_not():
    (line,) = found(one="class Batch: pass\nclass _Part: pass", two="class Batch: pass\nclass _Part: pass")
    assert line == "Batch: one name of a class or type in 2 modules: offsetmgr/one.py, offsetmgr/two.py"


@pytest.mark.parametrize(
    "alias",
    [
        "Batch: TypeAlias = Any",
        "Batch = Callable[[str], None]",
        "Batch = tuple[int, str]",
        "Batch = Start | End",
        'Batch = NewType("Batch", int)',
        'Batch = Annotated[str, typer.Option("--batch")]',
    ],
)
def test_a_public_type_alias_counts_as_a_class(alias: str):
    (line,) = found(one="class Batch: pass", two=alias)
    assert line == "Batch: one name of a class or type in 2 modules: offsetmgr/one.py, offsetmgr/two.py"
    (line,) = found(one=alias, two=alias)
    assert line.startswith("Batch: one name of a class or type in 2 modules")


@pytest.mark.parametrize("line", ["_Batch = tuple[int, str]", 'Item = TypeVar("Item")', "T = 1", "BATCH = 500"])
def test_private_aliases_type_variables_and_constants_may_have_one_name(line: str):
    assert found(one=line, two=line) == []


def test_an_alias_inside_a_function_does_not_count():
    source = "def work():\n    Batch = tuple[int, str]\n    return Batch"
    assert found(one=source, two=source) == []


def test_a_participle_is_no_name_of_a_type_alias():
    assert found(one="Waiting = Callable[[], None]") == [
        "offsetmgr/one.py:1: Waiting: a participle or gerund as the name of a type"
    ]


@pytest.mark.parametrize("name", ["Reading", "Followed", "_Standing"])
def test_a_participle_or_gerund_is_no_name_of_a_class(name: str):
    assert [line.split(": ")[1] for line in found(one=f"class {name}: pass")] == [name]


def test_a_participle_or_gerund_is_no_name_of_a_module():
    assert found(following="") == ["offsetmgr/following.py: a participle or gerund as the name of a module"]


def test_exceptions_and_named_result_types_may_say_what_happened():
    source = "class Failure(Exception): pass\nclass RewindRefused(Failure): pass\nclass Committed: pass"
    assert found(errors=source) == []


@pytest.mark.parametrize("name", ["TIMEOUT", "_RETRY_PAUSE", "LOOK_INTERVAL"])
def test_a_duration_ends_in_its_unit(name: str):
    assert found(one=f"{name} = 0.5") == [f"offsetmgr/one.py:1: {name}: a duration without its unit"]
    assert found(one=f"{name}_S = 0.5\n{name}_MS: int = 500") == []


@pytest.mark.parametrize("annotation", ["float", "int | None", 'Annotated[float, typer.Option("--window")]'])
@pytest.mark.parametrize("source", ["def f({}): pass", "def f(*, {}): pass", "class Options:\n    {} = 1"])
def test_a_parameter_and_a_field_that_hold_a_duration_end_in_their_unit(source: str, annotation: str):
    (line,) = found(one=source.format(f"poll_window: {annotation}"))
    assert line.endswith("poll_window: a duration without its unit")
    assert found(one=source.format(f"window_s: {annotation}")) == []


@pytest.mark.parametrize("parameter", ["window: ObservationWindow", "pause: Callable[[], None]", "wait: bool"])
def test_a_parameter_of_another_type_needs_no_unit(parameter: str):
    assert found(one=f"def f({parameter}): pass") == []
