"""The code blocks of README.md and docs/, and the rules by which tests run them. docs/contributing/documentation.md
describes the rules for authors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

PROJECT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md")))
FOLLOWED: Final = (PROJECT / "README.md", *sorted((PROJECT / "docs" / "tutorials").glob("*.md")))
"""The pages whose blocks `scripts/tour` runs, in one shell each. A block with a title is a file of such a page."""
MATRIX_PAGES: Final = tuple(
    PROJECT / "docs" / "how-to" / f"{name}.md"
    for name in (
        "failover-and-failback",
        "library",
        "many-clusters",
        "migrate-a-group",
        "migrate-from-kafka-07",
        "migrate-many-groups",
        "mirror-a-group",
        "move-groups-to-another-cluster",
        "restore-offsets",
        "sandbox",
        "why-a-lag-looks-wrong",
        "zookeeper",
        "zookeeper-admin",
        "zookeeper-check",
    )
)
"""The pages whose shell blocks take long, or need servers that no other page needs.
`tests/project/test_documented_commands.py` runs them."""
GENERATED: Final = (PROJECT / "docs" / "reference" / "cli.md",)

SHELL: Final = ("sh", "console")
_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"[^\"]+\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_RUN: Final = re.compile(r"<!-- run(?:: exit code (?P<code>\d))? -->\s*\Z")
_NOT_RUN: Final = re.compile(r"<!-- not run: (?P<reason>[^>]+?) -->\s*\Z")


class Block(NamedTuple):
    """A code block.

    ``line`` is the page's line with its first line of code. ``not_run`` is the reason why no test runs the block, from
    a comment ``<!-- not run: REASON -->`` in front of it. ``runs`` is whether a test runs the block: a Python block
    without such a reason, or a shell block with the comment ``<!-- run -->`` in front of it. ``output`` is the ``text``
    block that follows, with at most the words "It prints" between. ``exit_code`` is the exit code of a shell block that
    runs: 0, or the code of a comment ``<!-- run: exit code 1 -->``.
    """

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    runs: bool
    output: str | None
    exit_code: int = 0

    @property
    def heading(self) -> str:
        """The heading of the section with the block, or an empty string in front of the first section."""
        above = self.page.read_text("utf-8").splitlines()[: self.line]
        return next((line.removeprefix("## ") for line in reversed(above) if line.startswith("## ")), "")

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text("utf-8")
    fences = list(_FENCE.finditer(text))
    found = []
    for number, fence in enumerate(fences):
        before = _NOT_RUN.search(text, 0, fence.start())
        run = _RUN.search(text, 0, fence.start())
        after = fences[number + 1] if number + 1 < len(fences) else None
        prints = (
            after
            and after["language"] == "text"
            and re.fullmatch(r"\s*(?:It prints:?)?\s*", text[fence.end() : after.start()])
        )
        code = "".join(line.removeprefix(fence["indent"]) for line in fence["text"].splitlines(keepends=True))
        found.append(
            Block(
                page,
                text.count("\n", 0, fence.start("text")) + 1,
                fence["language"],
                code,
                before["reason"] if before else None,
                (page not in FOLLOWED and (fence["language"] == "python" and not before)) or bool(run),
                after["text"] if prints and after else None,
                int(run["code"] or 0) if run else 0,
            )
        )
    return found


ADDRESSES: Final = {
    "zookeeper": re.compile(r"\b(?:zk\d?|host):2181(?:,zk\d:2181)*"),
    "kafka": re.compile(r"\b(?:(?:broker|kafka-?|new|host|h)\d?|127\.0\.0\.1):909[23](?:,(?:broker|kafka-?)\d:9092)*"),
    "manager": re.compile(r"\b(?:offsets-\d|127\.0\.0\.1|0\.0\.0\.0):9192"),
    "metrics": re.compile(r"\b(?:offsets-\d|127\.0\.0\.1|0\.0\.0\.0):9190"),
    "logs": re.compile(r"/(?:mnt|var)/kafka-logs"),
    "output": re.compile(r"s3a://results"),
}
"""The servers and directories that pages name, and that tests replace by those of the sandbox."""


def with_addresses(text: str, addresses: Mapping[str, str]) -> str:
    """Replaces the servers of the documentation by ``addresses``, whose keys are those of `ADDRESSES`."""
    for name, address in addresses.items():
        text = ADDRESSES[name].sub(address.replace("\\", r"\\"), text)
    return text


def needs(page: Path, name: str) -> bool:
    """Whether a block that runs names this server or directory."""
    return any(ADDRESSES[name].search(block.text) for block in blocks(page) if block.runs)
