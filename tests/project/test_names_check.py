"""scripts/names.py finds names with two meanings, participles and gerunds, and durations without a unit."""

import ast

import names
import pytest


def found(**sources: str) -> list[str]:
    return list(names.findings({f"offsetmgr/{name}.py": ast.parse(text) for name, text in sources.items()}))


@pytest.mark.parametrize(
    "definition",
    [
        "class Batch: pass",
        "Batch: TypeAlias = Any",
        "Batch = Callable[[str], None]",
        "Batch = tuple[int, str]",
        "Batch = Start | End",
        'Batch = NewType("Batch", int)',
        'Batch = Annotated[str, typer.Option("--batch")]',
    ],
)
def test_a_public_class_or_type_in_two_modules_is_found(definition: str):
    line = "Batch: one name of a class or type in 2 modules: offsetmgr/one.py, offsetmgr/two.py"
    assert found(one="class Batch: pass", two=definition) == found(one=definition, two=definition) == [line]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("Waiting = Callable[[], None]", ["offsetmgr/one.py:1: Waiting: a participle or gerund as the name of a type"]),
        *((f"class {name}: pass", [f"offsetmgr/one.py:1: {name}: "]) for name in ("Reading", "Followed", "_Standing")),
        *(
            (f"{name} = 0.5", [f"offsetmgr/one.py:1: {name}: a duration without its unit"])
            for name in ("TIMEOUT", "_RETRY_PAUSE", "LOOK_INTERVAL")
        ),
        *((f"{name}_S = 0.5\n{name}_MS: int = 500", []) for name in ("TIMEOUT", "_RETRY_PAUSE", "LOOK_INTERVAL")),
        ("class Failure(Exception): pass\nclass RewindRefused(Failure): pass\nclass Committed: pass", []),
    ],
)
def test_participles_and_durations_without_a_unit_are_found(source: str, named: list[str]):
    lines = found(one=source)
    assert [line[: len(start)] for line, start in zip(lines, named, strict=True)] == named


def test_a_participle_or_gerund_is_no_name_of_a_module():
    assert found(following="") == ["offsetmgr/following.py: a participle or gerund as the name of a module"]


@pytest.mark.parametrize("annotation", ["float", "int | None", 'Annotated[float, typer.Option("--window")]'])
@pytest.mark.parametrize("source", ["def f({}): pass", "def f(*, {}): pass", "class Options:\n    {} = 1"])
def test_a_parameter_and_a_field_that_hold_a_duration_end_in_their_unit(source: str, annotation: str):
    (line,) = found(one=source.format(f"poll_window: {annotation}"))
    assert line.endswith("poll_window: a duration without its unit")
    assert found(one=source.format(f"window_s: {annotation}")) == []


@pytest.mark.parametrize(
    "source",
    [
        "class _Part: pass",
        "_Batch = tuple[int, str]",
        'Item = TypeVar("Item")',
        "T = 1",
        "BATCH = 500",
        "def work():\n    Batch = tuple[int, str]\n    return Batch",
        "def f(window: ObservationWindow): pass",
        "def f(pause: Callable[[], None]): pass",
        "def f(wait: bool): pass",
    ],
)
def test_private_and_local_names_and_parameters_of_other_types_are_accepted(source: str):
    assert found(one=source, two=source) == []
