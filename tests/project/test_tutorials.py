"""The pages of `follow.PAGES`, followed as printed, with an installed offsetmgr."""

from pathlib import Path

import follow
import pytest

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return follow.install(tmp_path_factory.mktemp("installed"))


@pytest.mark.parametrize("page", follow.PAGES, ids=lambda page: page.stem)
def test_every_command_prints_what_the_page_shows(page: Path, environment: Path) -> None:
    assert follow.follow(page, environment) == 0
