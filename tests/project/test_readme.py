"""The documentation: generated parts are current, and links resolve."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = PROJECT / "scripts" / "readme_help.py"
PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")])


def readme(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_generated_parts_are_current() -> None:
    done = readme("--check")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project that contains only the documentation."""
    shutil.copytree(PROJECT / "docs", tmp_path / "docs")
    return tmp_path


@pytest.mark.slow
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
