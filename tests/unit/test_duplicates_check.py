"""scripts/duplicates.py finds copies of 12 lines, and ignores imports, docstrings and comments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "scripts" / "duplicates.py"
CODE = [f"    value_{n} = values[{n}]" for n in range(12)]
IMPORTS = [f"import module_{n}" for n in range(12)]
COMMENTS = [f"    # The comment {n}." for n in range(12)]
DOCSTRING = ['    """', *(f"    The line {n}." for n in range(12)), '    """']


@pytest.mark.parametrize(
    ("shared", "exit_code"),
    [
        pytest.param(CODE, 1, id="12 lines of code"),
        pytest.param(CODE[:11], 0, id="11 lines of code"),
        pytest.param(DOCSTRING, 0, id="docstring"),
        pytest.param(COMMENTS, 0, id="comments"),
    ],
)
def test_two_functions_share_lines(tmp_path: Path, shared: list[str], exit_code: int) -> None:
    for name in ("one", "other"):
        lines = [*IMPORTS, "", "", f"def {name}(values):", *shared, f"    return {name}", ""]
        (tmp_path / f"{name}.py").write_text("\n".join(lines))

    command = [sys.executable, str(CHECK), str(tmp_path / "one.py"), str(tmp_path / "other.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, "one.py" in done.stdout) == (exit_code, bool(exit_code)), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("shared", "exit_code"),
    [
        pytest.param(CODE, 1, id="12 lines of code"),
        pytest.param(CODE[:11], 0, id="11 lines of code"),
        pytest.param(DOCSTRING, 0, id="docstring"),
        pytest.param([*CODE[:6], *COMMENTS, "", *CODE[6:]], 1, id="code with comments between"),
    ],
)
def test_two_functions_of_one_file_share_lines(tmp_path: Path, shared: list[str], exit_code: int) -> None:
    functions = [[f"def {name}(values):", *shared, f"    return {name}", "", ""] for name in ("one", "other")]
    path = tmp_path / "both.py"
    path.write_text("\n".join([*functions[0], *functions[1]]))

    done = subprocess.run([sys.executable, str(CHECK), str(path)], capture_output=True, text=True, check=False)

    assert (done.returncode, "both.py: 2 and" in done.stdout) == (exit_code, bool(exit_code)), done.stdout + done.stderr


@pytest.mark.parametrize("script", ["duplicates.py", "prose.py"])
def test_the_scripts_print_their_help(script: str) -> None:
    command = [sys.executable, str(CHECK.with_name(script)), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_each_duplicate_of_two_files_is_reported(tmp_path: Path) -> None:
    """An allowed duplicate does not hide another duplicate of the same files."""
    second = [line.replace("value", "other") for line in CODE]
    for name in ("one", "other"):
        lines = [f"def {name}(values):", *CODE, f"    return {name}", f"def {name}_2(values):", *second, "    return 0"]
        (tmp_path / f"{name}.py").write_text("\n".join([*lines, ""]))

    command = [sys.executable, str(CHECK), str(tmp_path / "one.py"), str(tmp_path / "other.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.count("duplicate: ")) == (1, 2), done.stdout + done.stderr
