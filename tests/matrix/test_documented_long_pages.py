"""The blocks of the documentation's long pages run against real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from doc_blocks import PAGES
from documented_servers import LONG_PAGES, check_page, environ, kafka, run_page, topics, zookeeper

__all__ = ["environ", "kafka", "run_page", "topics", "zookeeper"]
pytestmark = [pytest.mark.servers, pytest.mark.matrix]


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in LONG_PAGES], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, run_page: Callable[[Path], str]) -> None:
    check_page(page, run_page)
