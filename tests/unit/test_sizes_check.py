"""scripts/sizes.py finds modules and functions that are too long, and functions with too many parameters."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import sizes

COMMAND = "@app.command()\n"


def found(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "one.py"
    path.write_text(text)
    return list(sizes.excesses(path, "one.py"))


def function(lines: int, *, parameters: int = 0, decorator: str = "", signature_lines: int = 1) -> str:
    """A function of so many lines, including its signature."""
    signature = ", ".join(f"p{number}" for number in range(parameters))
    padding = "\n" * (signature_lines - 1)
    return f"{decorator}def work({signature}{padding}):\n" + "    pass\n" * (lines - signature_lines)


@pytest.mark.parametrize(("lines", "excess"), [(1000, []), (1001, ["one.py: 1001 lines (at most 1000)"])])
def test_a_module_has_at_most_1000_lines(tmp_path: Path, lines: int, excess: list[str]):
    assert found(tmp_path, "x = 1\n" * lines) == excess


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_function_has_at_most_60_lines(tmp_path: Path, kind: str):
    assert found(tmp_path, kind + function(60)) == []
    assert found(tmp_path, kind + function(61)) == ["one.py:1: work has 61 lines (at most 60)"]


def test_a_function_has_at_most_8_parameters(tmp_path: Path):
    assert found(tmp_path, function(2, parameters=8)) == []
    assert found(tmp_path, function(2, parameters=9)) == ["one.py:1: work has 9 parameters (at most 8)"]


def test_self_and_cls_do_not_count_as_parameters(tmp_path: Path):
    names = ", ".join(f"p{number}" for number in range(8))
    methods = f"    def one(self, {names}): pass\n    def two(cls, *, {names}): pass\n"
    assert found(tmp_path, "class Thing:\n" + methods) == []


def test_functions_inside_others_are_checked_too(tmp_path: Path):
    names = ", ".join(f"p{number}" for number in range(9))
    text = f"def outer():\n    def inner({names}): pass\n"
    assert found(tmp_path, text) == ["one.py:2: inner has 9 parameters (at most 8)"]


def test_the_signature_of_a_command_counts_neither_its_lines_nor_its_parameters(tmp_path: Path):
    assert found(tmp_path, function(90, parameters=20, decorator=COMMAND, signature_lines=30)) == []
    (line,) = found(tmp_path, function(91, parameters=20, decorator=COMMAND, signature_lines=30))
    assert line == "one.py:2: work has 61 lines (at most 60)"
