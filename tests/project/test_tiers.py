"""Each test is in one tier: fast, the rest of scripts/test, matrix, or soak."""

import re
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SCRIPT = (PROJECT / "scripts" / "test").read_text("utf-8")
EXPRESSIONS = dict(re.findall(r'^(\w+)="((?:not )?\w+(?: and not \w+)+)"$', SCRIPT, re.MULTILINE))
"""The expressions with which scripts/test selects tests by their markers."""

MARKED = re.compile(r"pytest\.mark\.soak")
MARKERS = ("slow", "servers", "matrix", "soak")


def test_these_are_all_markers() -> None:
    options = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert "--strict-markers" in options["addopts"]
    assert {line.partition(":")[0] for line in options["markers"]} == set(MARKERS)


def test_each_expression_is_used_by_one_run_of_pytest() -> None:
    assert (
        sorted(re.findall(r'pytest -m "\$(\w+)"', SCRIPT)) == sorted(EXPRESSIONS) == ["every_change", "fast", "matrix"]
    )


@pytest.mark.parametrize(
    "markers", [chosen for size in range(len(MARKERS) + 1) for chosen in combinations(MARKERS, size)], ids=" ".join
)
def test_a_test_with_these_markers_is_in_one_tier(markers: tuple[str, ...]) -> None:
    present = {marker: marker in markers for marker in MARKERS}
    selects = {name: eval(expression, {}, present) for name, expression in EXPRESSIONS.items()}
    assert [selects["every_change"], selects["matrix"], present["soak"]].count(True) == 1
    assert selects["every_change"] or not selects["fast"]


def test_the_soak_runs_all_files_that_have_its_marker() -> None:
    paths = re.findall(r"tests/[\w/.]+", (PROJECT / "scripts" / "soak").read_text("utf-8"))
    marked = [path for path in (PROJECT / "tests").rglob("test_*.py") if MARKED.search(path.read_text("utf-8"))]
    assert [path for path in marked if not any(path.is_relative_to(PROJECT / one) for one in paths)] == []
