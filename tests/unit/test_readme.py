"""The documentation: generated parts are current, links resolve, and examples use existing commands and options."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "scripts" / "readme_help.py"
PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")])
COMMAND = re.compile(r"^(?:\$ )?(offsetmgr (?:[^\\\n]|\\\n)*)", re.MULTILINE)


def readme(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_generated_parts_are_current() -> None:
    done = readme("--check")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project that contains only the documentation."""
    shutil.copytree(PROJECT / "docs", tmp_path / "docs")
    return tmp_path


def test_the_check_finds_a_stale_help_and_the_generator_repairs_it(copy: Path) -> None:
    page = copy / "docs" / "reference" / "cli.md"
    good = page.read_text()
    page.write_text(good.replace("--all-groups", "--every-group"))

    found = readme("--check", "--project", str(copy))
    assert found.returncode == 1
    assert found.stderr == "error: docs/reference/cli.md: it is stale: run scripts/readme\n"
    assert page.read_text() != good

    assert readme("--project", str(copy)).returncode == 0
    assert page.read_text() == good


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub generates them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_resolve(page: Path) -> None:
    links = [(target, anchor) for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text())]
    wrong = []
    for target, anchor in links:
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append((target, anchor))

    assert wrong == []


def commands_of(page: Path) -> list[list[str]]:
    """Every ``offsetmgr`` command in the page's code blocks, split as a shell would."""
    found = []
    for block in re.findall(r"^```(?:sh|text|console)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for command in COMMAND.findall(block):
            words = shlex.split(command.replace("\\\n", " "), comments=True)
            found.append(words)
    return found


def help_of_commands() -> dict[str, str]:
    text = (PROJECT / "docs" / "reference" / "cli.md").read_text()
    parts = re.findall(r"^## (offsetmgr[^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return dict(parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_examples_use_commands_and_options_that_exist(page: Path) -> None:
    helps = help_of_commands()
    wrong = []
    for words in commands_of(page):
        name = " ".join(words[:3]) if " ".join(words[:3]) in helps else " ".join(words[:2])
        known = helps.get(name) or helps["offsetmgr"]
        options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)} - {"--debug", "--help"}
        wrong += [f"{' '.join(words)}: {option}" for option in options if f"{option}" not in known]

    assert wrong == []
