"""The blocks of the documentation and the programs in scripts/examples run against real servers.

A page's blocks run in order in one process. `doc_blocks.ADDRESSES` are the servers that pages name.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from doc_blocks import MATRIX_PAGES, PAGES, PROJECT, SHELL, blocks
from documented_servers import LONG_PAGES, check_page, environ, kafka, output_of, run_page, topics, zookeeper

from offsetmgr import OffsetAdmin
from offsetmgr.sandbox import KafkaBroker

__all__ = ["environ", "kafka", "run_page", "topics", "zookeeper"]
pytestmark = pytest.mark.servers

EXAMPLES: Final = PROJECT / "scripts" / "examples"
RUN_HERE: Final = [
    pytest.param(page, marks=[pytest.mark.matrix] if page.stem in LONG_PAGES else [])
    for page in PAGES
    if any(block.runs and not (page in MATRIX_PAGES and block.language in SHELL) for block in blocks(page))
]
"""`tests/project/test_documented_commands.py` runs the shell blocks of `MATRIX_PAGES`."""


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, run_page: Callable[[Path], str]) -> None:
    check_page(page, run_page)


@pytest.fixture
def run(tmp_path: Path, environ: dict[str, str]) -> Callable[[str], str]:
    """Runs a program of scripts/examples and returns its output."""
    return lambda name: output_of([sys.executable, EXAMPLES / f"{name}.py"], tmp_path, environ)


def test_a_lag_report(run: Callable[[str], str]) -> None:
    assert "shop lag: 26\n" in run("lag_report")


def test_a_copy_and_a_reset_that_is_undone(run: Callable[[str], str]) -> None:
    assert run("copy_group") == "1 offsets to write, no problems\nTrue\n"
    assert run("reset").endswith("1 written; undone: True\n")


def test_a_reset_while_consumers_may_run(run: Callable[[str], str]) -> None:
    run("copy_group")
    assert run("reset_running").endswith("1 written; {'shop-copy': 'the group had no members'}\n")


def test_a_snapshot(run: Callable[[str], str]) -> None:
    saved, same = run("snapshot").splitlines()
    assert saved.split()[0] == same.split()[0] != "0"


def test_a_migration_that_is_rolled_back(run: Callable[[str], str]) -> None:
    assert run("migrate") == "1 planned, 1 written\nverified: True rolled back: True\n"


def test_a_check_of_a_phase_fails_for_a_group_without_members(run: Callable[[str], str]) -> None:
    assert run("check_phase").startswith("passed: False\n")


def test_a_period_coordinator(run: Callable[[str], str]) -> None:
    assert run("period_coordinator") == "period 1 begins at 1700000001000 ms\nperiod 2 begins at 1700000002000 ms\n"


def test_a_spark_committer(run: Callable[[str], str], kafka: KafkaBroker) -> None:
    assert run("spark_committer") == "committed: True\n"
    with OffsetAdmin(f"kafka://{kafka.bootstrap}") as admin:
        (group,) = admin.lag("shop-job")
        assert {row.lag for row in group.rows} == {0}


def test_every_example_is_shorter_than_15_lines() -> None:
    assert all(len(path.read_text("utf-8").splitlines()) < 15 for path in EXAMPLES.glob("*.py"))
