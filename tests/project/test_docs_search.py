"""The documentation site in a headless browser, opened as files: the search finds pages, nothing is requested from
another host, no page is wider than its window, and no option is broken after its hyphen."""

import time
from pathlib import Path

import pytest
from browser import Browser
from docs_site import build_site

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

TYPE = """(() => {
    const field = document.querySelector('.md-search__input')
    field.focus()
    field.value = 'before-image'
    field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))
})()"""
BROKEN_OPTIONS = """[...document.querySelectorAll('.md-content code')]
    .filter(code => /^-\\S*$/.test(code.textContent) && code.getClientRects().length > 1)
    .map(code => code.textContent)"""
FOUND = "[...document.querySelectorAll('.md-search-result__item a')].map(link => link.pathname.split('/').pop())"


def test_the_search_works_without_a_server_and_without_another_host(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build_site(site)
    with Browser(tmp_path) as browser:
        view = browser.open(site / "how-to" / "library.html", width=1400)
        view.evaluate(TYPE)
        deadline = time.monotonic() + 120
        while not (found := view.evaluate(FOUND)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "journal-and-plan.html" in found
        assert [url for url in view.requests if not url.startswith(("file:", "data:"))] == []
        for page in ("index.html", "reference/cli.html", "reference/python/offsetmgr.html", "how-to/everyday.html"):
            view = browser.open(site / page, width=400)
            assert view.evaluate("document.documentElement.scrollWidth") <= 400
            assert view.evaluate(BROKEN_OPTIONS) == []
            assert [url for url in view.requests if not url.startswith(("file:", "data:"))] == []
