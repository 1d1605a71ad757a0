"""Follows pages of the documentation: runs their commands in one shell, and compares the output with the page.

Usage: ``scripts/tour [--fresh] [PAGE...]``; without pages, the README and every tutorial.

Two kinds of blocks of a page are used:

- A block ``console`` holds commands, each after a ``$``, and their output.
- A block with ``title="NAME"`` is saved as the file NAME in the shell's directory.

In an output, a line ``...`` matches any lines, and ``...`` at the end of a line matches the rest of the line. A number
of at most four digits matches only itself. Any other word with a digit (ports, ids, times, paths) matches any word
with a digit. If the line above a block is ``<!-- numbers vary -->``, all its numbers do. ``vm`` matches any host name.

The three lines that install offsetmgr are not run as printed, because they fetch all packages: the shell starts in an
environment into which offsetmgr was installed from a copy of this checkout, with the packages of ``.venv``. With
``--fresh`` the shell starts in that copy, without an environment, and runs these lines too.

The exit code is 1 if an output differs. At the end of each page the script stops all processes that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offsetmgr.sandbox import Sandbox

PROJECT: Final = Path(__file__).resolve().parent.parent
README: Final = PROJECT / "README.md"
PAGES: Final = (README, *sorted((PROJECT / "docs" / "tutorials").glob("*.md")))
INSTALLED: Final = ("offsetmgr", "schemas", "pyproject.toml", "README.md", "LICENSE", "constraints.txt")
"""The parts of the checkout from which pip installs offsetmgr."""
PIP: Final = "pip install --quiet "
SETTING_UP: Final = ("python3 -m venv venv", ". venv/bin/activate")
DONE: Final = "the command has ended"
LEFT_OUT: Final = re.compile(
    r"bash: line \d+: +\d+ (Killed|Terminated) |watching commits for up to \d+ s$|%4\|\d+\.\d+\|METADATAUPDATE\|"
)
"""Lines that are not compared: the shell's notice that a background process was killed, which comes with any later
command, the notice of a watch of commits that takes longer than 3 s on a busy machine, and librdkafka's warning about
a leader of a new topic that it does not know yet."""
PAGE_TIMEOUT_S: Final = 1200.0
"""The time after which a page that hangs is ended. ``--fresh`` allows `INSTALL_TIMEOUT_S` more."""
INSTALL_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Step:
    """A command and the output on the page."""

    command: str
    shown: tuple[str, ...]
    numbers_vary: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page has its reader save."""

    name: str
    content: str


def steps(text: str) -> list[Step | File]:
    """The commands and files of a page, in order."""
    found: list[Step | File] = []
    blocks = re.finditer(r"^(<!-- numbers vary -->\n)?```(\w+)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for vary, language, options, content in (block.groups() for block in blocks):
        title = re.search(r'title="([^"]*)"', options)
        if title:
            found.append(File(title[1], content))
        elif language == "console":
            found += _commands(content.splitlines(), vary is not None)
    return found


def _commands(lines: list[str], numbers_vary: bool) -> Iterator[Step]:
    while lines:
        command = lines.pop(0).removeprefix("$ ")
        while not _whole(command):
            command += "\n" + lines.pop(0)
        shown = []
        while lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        yield Step(command, tuple(shown), numbers_vary)


def _whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # the quotation continues in the next line
        return False
    return not command.endswith("\\")


def same(step: Step, printed: list[str]) -> bool:
    """Whether the printed lines match the page."""
    places = {0}
    """The numbers of printed lines that the lines of the page so far can match."""
    for line in step.shown:
        if line == "...":
            places = set(range(min(places, default=len(printed) + 1), len(printed) + 1))
        else:
            pattern = _pattern(line, step.numbers_vary)
            places = {n + 1 for n in places if n < len(printed) and pattern.fullmatch(" ".join(printed[n].split()))}
    return len(printed) in places


def _pattern(line: str, numbers_vary: bool) -> re.Pattern[str]:
    words, rest = (line[:-3].split(), ".*") if line.endswith("...") else (line.split(), "")
    return re.compile(" ".join(_word(word, numbers_vary) for word in words) + rest)


def _word(word: str, numbers_vary: bool) -> str:
    """The pattern that a word of the page stands for."""
    if word == "vm" or re.fullmatch(r"[\w-]{22},?", word):  # a host, or a cluster id, which may have no digit
        return r"\S+"
    exact = not any(c.isdigit() for c in word) or (not numbers_vary and re.fullmatch(r"\d{1,4}", word))
    return re.escape(word) if exact else r"\S*\d\S*"


def copy_of_checkout(directory: Path) -> Path:
    """Copies the parts of the checkout from which pip installs, so that pip writes nothing into the checkout."""
    for name in INSTALLED:
        here, there = PROJECT / name, directory / name
        if here.is_dir():
            shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(here, there)
    return directory


def install(directory: Path) -> Path:
    """Makes an environment in ``directory`` with offsetmgr installed, and returns it.

    The packages that offsetmgr needs are those of the environment that runs this program. Its editable offsetmgr is
    not among them, because Python does not process the ``.pth`` files of a directory that another one names.
    """
    environment = directory / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "packages-of-the-checkout.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    source = copy_of_checkout(directory / "checkout")
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, str(source)], check=True)
    return environment


class Shell:
    """A shell in a directory of its own, in which a page's commands run."""

    def __init__(self, directory: Path, environment: Path | None, timeout_s: float) -> None:
        """Without ``environment``, the shell starts without an activated one."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OFFSETMGR_")}
        for name in ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            environ.pop(name, None)
        environ["PATH"] = _path(environment)
        environ |= _places(directory)
        self.work = directory / "work"
        self.work.mkdir(exist_ok=True)
        self._directory = directory
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.work,
            env=environ,
            start_new_session=True,
        )
        self._timer = threading.Timer(timeout_s, self._kill)
        self._timer.start()

    def run(self, command: str) -> list[str]:
        """Runs a command and returns the lines that it printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{command}\necho; echo '{DONE}'\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.rstrip("\n") == DONE:
                return lines[:-1] if lines and not lines[-1] else lines
            if not LEFT_OUT.match(line):
                lines.append(line.rstrip("\n"))
        raise RuntimeError("\n".join([f"the shell ended, or was killed after a timeout, in {command}", *lines]))

    def save(self, file: File) -> None:
        """Saves a file of the page in the shell's present directory."""
        end = "END OF FILE"
        self.run(f"cat > {shlex.quote(file.name)} <<'{end}'\n{file.content}{end}")

    def close(self) -> None:
        """Stops the background processes and the servers of the page, even if its shell hangs or has been killed."""
        self._timer.cancel()
        self._kill()
        self._shell.wait()
        for state in self._directory.rglob("state.json"):
            Sandbox(state.parent).down()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)


def _places(directory: Path) -> dict[str, str]:
    """A home and a directory for temporary files below ``directory``, and the caches of this machine."""
    for name in ("home", "tmp"):
        (directory / name).mkdir()
    places = {"HOME": f"{directory}/home", "TMPDIR": f"{directory}/tmp", "COLUMNS": "120"}
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places["OFFSETMGR_CACHE"] = os.environ.get("OFFSETMGR_CACHE") or str(caches / "offsetmgr")
    places["PIP_CACHE_DIR"] = os.environ.get("PIP_CACHE_DIR") or str(caches / "pip")
    return places


def _path(environment: Path | None) -> str:
    """PATH without the environment of this program, and with ``environment``."""
    own = str(Path(sys.prefix) / "bin")
    directories = [name for name in os.environ["PATH"].split(os.pathsep) if name != own]
    return os.pathsep.join([*([str(environment / "bin")] if environment else []), *directories])


def follow(page: Path, environment: Path | None) -> int:
    """Follows one page, prints everything, and returns the number of commands that printed something else."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="offsetmgr-tour-", ignore_cleanup_errors=True) as name:
        if environment is None:
            copy_of_checkout(Path(name) / "work")
        shell = Shell(Path(name), environment, PAGE_TIMEOUT_S + (0 if environment else INSTALL_TIMEOUT_S))
        try:
            for step in steps(page.read_text("utf-8")):
                if isinstance(step, File):
                    shell.save(step)
                    continue
                if environment is not None and (step.command in SETTING_UP or step.command.startswith(PIP)):
                    continue
                wrong += not _printed_the_same(shell, step)
        finally:
            shell.close()
    return wrong


def _printed_the_same(shell: Shell, step: Step) -> bool:
    print(f"$ {step.command}", flush=True)
    started = time.monotonic()
    printed = shell.run(step.command)
    print("\n".join([*printed, f"  [{time.monotonic() - started:.1f} s]"]), flush=True)
    if same(step, printed):
        return True
    print("*** the page shows:\n" + "\n".join(step.shown), flush=True)
    return False


def name_of(page: Path) -> str:
    """The page's path below the checkout; a page outside it keeps its path."""
    return str(page.relative_to(PROJECT) if page.is_relative_to(PROJECT) else page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/tour", description=__doc__.partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="install with pip as the pages say, for each page")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all of them")
    options = parser.parse_args()
    pages = [page.resolve() for page in options.pages] or list(PAGES)
    results = {}
    with tempfile.TemporaryDirectory(prefix="offsetmgr-install-") as name:
        environment = None if options.fresh else install(Path(name))
        for page in pages:
            print(f"\n=== {name_of(page)}", flush=True)
            started = time.monotonic()
            results[page] = follow(page, environment), time.monotonic() - started
    print()
    for page, (wrong, seconds) in results.items():
        outcome = f"{wrong} differences" if wrong else "every command printed what the page shows"
        print(f"{name_of(page)}: {outcome} ({seconds:.0f} s)")
    return 1 if any(wrong for wrong, _ in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
