"""The documentation site builds without warnings, its search works without a server, and it loads nothing from other
hosts."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from docs_site import PROJECT, build_site
from docstring_examples import PACKAGES

LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object|link(?![^>]*rel="(?:canonical|next|prev)"))\b[^>]*?"""
    r"""\b(?:src|srcset|data|href)=["']?((?:https?:)?//[^"'\s>]+)|url\(["']?((?:https?:)?//[^)"']+)""",
    re.IGNORECASE,
)
"""An address on another host from which a page loads something. Plain hyperlinks (``<a href>``) are allowed."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    build_site(directory)
    return directory


@pytest.mark.slow
def test_the_site_has_a_page_for_every_markdown_file(site: Path) -> None:
    pages = {path.relative_to(PROJECT / "docs").with_suffix(".html") for path in (PROJECT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


@pytest.mark.slow
def test_the_search_index_is_a_script_and_contains_words_of_every_kind_of_page(site: Path) -> None:
    script = (site / "search" / "search_index.js").read_text("utf-8")
    documents = json.loads(script.removeprefix("var __index = "))["docs"]

    def pages_with(word: str) -> set[str]:
        return {page["location"].partition("#")[0] for page in documents if word in page["title"] + page["text"]}

    assert "reference/cli.html" in pages_with("--accept-refused")
    assert "reference/python/offsetmgr.html" in pages_with("OffsetAdmin")
    assert "reference/glossary.html" in pages_with("before-image")
    assert "explanation/architecture.html" in pages_with("shard")


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    wrong = {
        (path.relative_to(site).as_posix(), found.group())
        for path in site.rglob("*")
        if path.suffix in (".html", ".css")
        for found in LOADED.finditer(path.read_text("utf-8"))
    }
    assert wrong == set()
    # Material's own script would load the library for these diagrams from another host.
    assert [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text("utf-8")] == []


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ('<script src="https://cdn.example/a.js"></script>', True),
        ("<img alt='' src=//cdn.example/a.png>", True),
        ('<link rel="stylesheet" href="https://fonts.example/css">', True),
        ("@font-face { src: url(https://fonts.example/a.woff2) }", True),
        ('<a href="https://kafka.apache.org">Kafka</a>', False),
        ('<script src="../assets/a.js"></script>', False),
    ],
)
def test_the_check_for_other_hosts_distinguishes_loading_from_links(text: str, loads: bool) -> None:
    assert bool(LOADED.search(text)) == loads


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_the_api_reference_describes_every_public_name(site: Path, package: str) -> None:
    page = site / "reference" / "python" / f"{package.rpartition('.')[2]}.html"
    described = set(re.findall(rf'id="{re.escape(package)}\.(\w+)"', page.read_text("utf-8")))
    assert set(import_module(package).__all__) - {"errors"} - described == set()
