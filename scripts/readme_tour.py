"""Runs the commands of the README's tour in one shell, and compares their output with the README.

In the README a line ``...`` matches any lines, and ``...`` at the end of a line matches the rest of the line. A word
with a digit (ports, ids, times, offsets of a running group) matches any word with a digit. The exit code is 1 if an
output differs. At the end the script stops all processes that it has started.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
README: Final = PROJECT / "README.md"
LAST: Final = "offsetmgr sandbox down"
SETTING_UP: Final = ("python3 -m venv venv", ". venv/bin/activate", "pip install --quiet '.[sandbox]'")
"""The README's steps for which `scripts/tour` itself has prepared an environment."""
DONE: Final = "the command has ended"


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    shown: tuple[str, ...]


def steps(text: str) -> list[Step]:
    """The commands of the tour, each with the output in the README."""
    tour = text.partition("## Tour\n")[2].partition("\n## ")[0]
    found: list[Step] = []
    for block in re.findall(r"```console\n(.*?)```", tour, re.DOTALL):
        lines = block.splitlines()
        while lines:
            command = lines.pop(0).removeprefix("$ ")
            while not _whole(command):
                command += "\n" + lines.pop(0)
            shown = []
            while lines and not lines[0].startswith("$ "):
                shown.append(lines.pop(0))
            found.append(Step(command, tuple(shown)))
    return found


def _whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # the quotation continues in the next line
        return False
    return True


def same(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Whether the printed lines match those in the README."""
    pattern = ""
    for line in shown:
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            words, rest = (line[:-3].split(), ".*") if line.endswith("...") else (line.split(), "")
            pattern += r" ".join(_word(word) for word in words) + rest + r"\n"
    text = "".join(" ".join(line.split()) + "\n" for line in printed)
    return re.fullmatch(pattern, text) is not None


def _word(word: str) -> str:
    """The pattern that a word of the README stands for. ``vm`` is a host name, for which any word matches."""
    return r"\S*\d\S*" if any(c.isdigit() for c in word) else r"\S+" if word == "vm" else re.escape(word)


def main() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="offsetmgr-tour-") as directory:
        environ = os.environ | {"XDG_STATE_HOME": f"{directory}/state", "XDG_CONFIG_HOME": f"{directory}/config"}
        environ = {name: value for name, value in environ.items() if not name.startswith("OFFSETMGR_")}
        shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=directory,
            env=environ,
        )
        try:
            for step in steps(README.read_text("utf-8")):
                if step.command in SETTING_UP:
                    continue
                print(f"$ {step.command}", flush=True)
                printed = _run(shell, step.command)
                print("\n".join(printed), flush=True)
                if not same(step.shown, printed):
                    wrong += 1
                    print("*** the README shows:\n" + "\n".join(step.shown), flush=True)
        finally:
            _run(shell, f"kill %1 2>/dev/null; {LAST}")
            shell.terminate()
            shell.wait()
    print(f"{wrong} differences" if wrong else "every command printed what the README shows")
    return 1 if wrong else 0


def _run(shell: subprocess.Popen[str], command: str) -> list[str]:
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{command}\necho; echo '{DONE}'\n")
    shell.stdin.flush()
    lines: list[str] = []
    for line in shell.stdout:
        if line.rstrip("\n") == DONE:
            return lines[:-1] if lines and not lines[-1] else lines
        lines.append(line.rstrip("\n"))
    raise RuntimeError(f"the shell ended in {command}")


if __name__ == "__main__":
    sys.exit(main())
