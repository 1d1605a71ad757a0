"""scripts/sizes.py finds modules and functions that are too long, and functions with too many parameters."""

from pathlib import Path

import pytest
import sizes

COMMAND = "@app.command()\n"
EIGHT = ", ".join(f"p{number}" for number in range(8))


def function(lines: int, *, parameters: int = 0, decorator: str = "", signature_lines: int = 1) -> str:
    """A function of so many lines, including its signature."""
    signature = ", ".join(f"p{number}" for number in range(parameters))
    padding = "\n" * (signature_lines - 1)
    return f"{decorator}def work({signature}{padding}):\n" + "    pass\n" * (lines - signature_lines)


@pytest.mark.parametrize(
    ("text", "excess"),
    [
        ("x = 1\n" * 1000, []),
        ("x = 1\n" * 1001, ["one.py: 1001 lines (at most 1000)"]),
        *((kind + function(60), []) for kind in ("", "async ")),
        *((kind + function(61), ["one.py:1: work has 61 lines (at most 60)"]) for kind in ("", "async ")),
        (function(2, parameters=8), []),
        (function(2, parameters=9), ["one.py:1: work has 9 parameters (at most 8)"]),
        (f"class Thing:\n    def one(self, {EIGHT}): pass\n    def two(cls, *, {EIGHT}): pass\n", []),
        (f"def outer():\n    def inner({EIGHT}, p8): pass\n", ["one.py:2: inner has 9 parameters (at most 8)"]),
        (function(90, parameters=20, decorator=COMMAND, signature_lines=30), []),
        (
            function(91, parameters=20, decorator=COMMAND, signature_lines=30),
            ["one.py:2: work has 61 lines (at most 60)"],
        ),
    ],
)
def test_what_is_too_large_is_found(tmp_path: Path, text: str, excess: list[str]):
    """The signature of a command counts neither its lines nor its parameters; self and cls do not count."""
    path = tmp_path / "one.py"
    path.write_text(text)
    assert list(sizes.excesses(path, "one.py")) == excess
