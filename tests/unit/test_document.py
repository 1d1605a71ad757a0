"""The parts of a document as Markdown and as HTML."""

from __future__ import annotations

from offsetmgr.core.document import Blanks, Code, DocumentPart, Items, SectionTitle, to_html, to_markdown

PARTS: list[DocumentPart] = [
    SectionTitle("1. a", 3),
    Items(["<x>", "*y*"]),
    Items(["z"], boxes=True),
    Blanks(("Who", "When")),
]


def test_lists_and_fields_are_in_both_formats() -> None:
    line = "\\_" * 12
    assert to_markdown("t", PARTS) == (
        f"# t\n\n### 1. a\n\n- \\<x>\n- \\*y\\*\n\n- [ ] z\n\nWho: {line} When: {line}\n"
    )
    html = to_html("t", PARTS)
    assert "<h3>1. a</h3><ul><li>&lt;x&gt;</li><li>*y*</li></ul>" in html
    assert '<ul class="boxes"><li>z</li></ul><p class="blanks"><span>Who</span><span>When</span></p>' in html


def test_code_is_unchanged() -> None:
    code = Code("a && b\n```\n<c> $(d) ````", "sh")
    assert "`````sh\na && b\n```\n<c> $(d) ````\n`````\n" in to_markdown("t", [code])
    assert '<pre class="sh"><code>a &amp;&amp; b\n```\n&lt;c&gt; $(d) ````</code></pre>' in to_html("t", [code])
