"""A user's type checker accepts the examples, and rejects names that the packages do not export."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docstring_examples import PACKAGES, example_blocks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "scripts" / "examples"

MISSPELLED = """
from offsetmgr import OfsetAdmin
from offsetmgr.consumer import SimpelConsumer
from offsetmgr.period import PeriodCordinator
from offsetmgr.results import GroupLags
from offsetmgr.segments import Partitions
from offsetmgr.spark import session_
from offsetmgr.testing import MemoryStores
import offsetmgr.spark
offsetmgr.spark.session_("shop")
"""

ANNOTATED = """
from collections.abc import Iterator

from offsetmgr import Migration, OffsetAdmin, PlannedEdit, ToEarliest
from offsetmgr.results import ApplyReport, DescribedGroup, GroupLag, PlannedChange, RollbackReport


def late(admin: OffsetAdmin) -> Iterator[GroupLag]:
    yield from (found for found in admin.lag() if any(row.lag for row in found.rows))


def members(group: DescribedGroup) -> list[str]:
    return [member.client_id for member in group.description.members]


def changes(admin: OffsetAdmin) -> list[PlannedChange]:
    plan: PlannedEdit = admin.plan_reset("shop", ToEarliest())
    return [change for group in plan for change in group.changes]


def run(migration: Migration) -> tuple[ApplyReport, RollbackReport]:
    return migration.apply(), migration.rollback()
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of mypy for a user's project: the programs in scripts/examples, the examples of the docstrings, and
    two programs of this module. The project has only the installed package, with its ``py.typed``."""
    project = tmp_path_factory.mktemp("project")
    for path in EXAMPLES.glob("*.py"):
        (project / path.name).write_text(path.read_text("utf-8"), "utf-8")
    for package in PACKAGES:
        for name, source in example_blocks(package):
            ast.parse(source)
            (project / f"doc_{package.replace('.', '_')}_{name.replace('.', '_')}.py").write_text(source, "utf-8")
    (project / "misspelled.py").write_text(MISSPELLED, "utf-8")
    (project / "annotated.py").write_text(ANNOTATED, "utf-8")
    (project / "mypy.ini").write_text("[mypy]\nstrict = True\n", "utf-8")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offsetmgr-tests" / "mypy"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", cache, *sorted(path.name for path in project.glob("*.py"))],
        cwd=project,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_mypy_strict_passes_on_every_example(checked: str) -> None:
    errors = [line for line in checked.splitlines() if ": error:" in line]
    assert [line for line in errors if not line.startswith("misspelled.py")] == []


def test_a_misspelled_import_is_an_error(checked: str) -> None:
    misspelled = re.findall(r"^from \S+ import (\w+)$", MISSPELLED, re.MULTILINE)
    assert len(misspelled) == 7
    for name in misspelled:
        assert f'has no attribute "{name}"' in checked
    assert checked.count("session_") == 2
