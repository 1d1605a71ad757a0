"""The README's tour, followed to the letter in one shell, its output held against what the README shows.

A line ``...`` in the README stands for any lines, and ``...`` at a line's end for its rest. Words with a digit in them
(ports, ids, times, offsets of a running group) may be others here, but must stand where the README has them. Before the
servers go, the examples of the library's page run against them. Exit code 1 where a command printed something else than
the README shows, or an example failed; everything that was started is stopped.
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
EXAMPLES: Final = PROJECT / "docs/guide/library.md"
LAST: Final = "offsetmgr sandbox down"
SETTING_UP: Final = ("python3 -m venv venv", ". venv/bin/activate", "pip install --quiet '.[sandbox]'")
"""Marks the steps that `scripts/tour` has completed."""
DONE: Final = "the command has ended"


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    shown: tuple[str, ...]


def steps(text: str) -> list[Step]:
    """The commands of the tour, with what the README shows of each one's output."""
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
    except ValueError:  # a quotation that goes on in the next line
        return False
    return True


def same(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Whether a command printed what is shown."""
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
    """Names of this machine are as good as those in the README."""
    return r"\S*\d\S*" if any(c.isdigit() for c in word) else r"\S+" if word == "vm" else re.escape(word)


def examples(text: str) -> list[str]:
    """The programs of a page, in its order."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


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
                if step.command == LAST:
                    wrong += sum(not _ran(shell, example) for example in examples(EXAMPLES.read_text("utf-8")))
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
    print(f"{wrong} of it went otherwise" if wrong else "every command printed what the README shows; all examples ran")
    return 1 if wrong else 0


def _ran(shell: subprocess.Popen[str], example: str) -> bool:
    printed = _run(shell, f"python - <<'END OF EXAMPLE'\n{example}END OF EXAMPLE\necho \"exit code $?\"")
    print(f"$ python\n{example}" + "\n".join(printed), flush=True)
    return printed[-1] == "exit code 0"


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
