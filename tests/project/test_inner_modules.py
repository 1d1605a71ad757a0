"""Tests import public names and the sandbox, and of the other modules only those that inner_modules.txt lists."""

from pathlib import Path

import counts
from test_public_api import PACKAGES

PROJECT = Path(__file__).parents[2]


def test_tests_use_only_inner_modules_of_the_list() -> None:
    paths = [path for folder in ("offsetmgr", "tests") for path in (PROJECT / folder).rglob("*.py")]
    inner = counts.inner_modules({str(path.relative_to(PROJECT)): path.read_text("utf-8") for path in paths})
    listed = Path(__file__).with_name("inner_modules.txt").read_text("utf-8").split()
    assert sorted(PACKAGES) == sorted(f"offsetmgr{one}" for one in counts.PUBLIC)
    assert inner == listed
    assert len(listed) <= 200
