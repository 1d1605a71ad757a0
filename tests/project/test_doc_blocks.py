"""The code blocks and the sizes of the documentation's pages.

The Python blocks of pages that need servers run in `tests/project/test_documented_programs.py`.
"""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
from doc_blocks import FOLLOWED, GENERATED, PAGES, PROJECT, SHELL, Block, blocks, with_addresses
from docstring_examples import PACKAGES
from in_process import USAGE_ERROR, parse
from processes import fails

from offsetmgr.cli.app import run

EXAMPLES = sorted((PROJECT / "scripts" / "examples").glob("*.py"))
MAX_NOT_RUN = 10
MAX_WORDS = 2000
FOREIGN_CLASSES = {"IdempotentWrite", "RollingUpdate"}
"""Names of Kafka and Kubernetes in the pages that the package does not contain."""
SHELL_BLOCKS = [
    block
    for page in PAGES
    if page not in (*GENERATED, *FOLLOWED)
    for block in blocks(page)
    if block.language in SHELL or block.text.startswith("$ ")
]
"""The shell blocks of the pages that `scripts/tour` does not follow."""

# --- the mechanism ----------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("doc_blocks.PROJECT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nprint(1)\n```\n\nIt prints\n\n```text\n1\n```\n\n"
        "<!-- not run: needs three machines -->\n```sh\nssh one true\n```\n\n- item\n\n  ```python\n  print(2)\n  ```\n"
        "\nOther words.\n\n```text\n3\n```\n\n<!-- run -->\n```sh\ntrue\n```\n"
    )
    return page


def test_blocks_have_their_lines_reasons_and_outputs(page: Path) -> None:
    found = [block for block in blocks(page) if block.language != "text"]
    assert found == [
        Block(page, 4, "python", "print(1)\n", None, True, "1\n"),
        Block(page, 15, "sh", "ssh one true\n", "needs three machines", False, None),
        Block(page, 21, "python", "print(2)\n", None, True, None),
        Block(page, 32, "sh", "true\n", None, True, None),
    ]
    assert found[1].place == "page.md:15"


def test_addresses_of_the_documentation_are_replaced() -> None:
    text = (
        "zk1:2181,zk2:2181/kafka broker1:9092 kafka-1:9092,kafka-2:9092 127.0.0.1:9192 offsets-1:9192 /mnt/kafka-logs"
    )
    addresses = {"zookeeper": "z:1", "kafka": "k:2", "manager": "m:3", "logs": "/logs"}
    assert with_addresses(text, addresses) == "z:1/kafka k:2 k:2 m:3 m:3 /logs"


# --- the pages --------------------------------------------------------------------------------------


def test_every_block_names_its_language() -> None:
    """A block without a language is neither run nor marked as output."""
    known = {"python", "sh", "console", "text", "json", "toml", "properties", "yaml", "ini"}
    wrong = [block.place for page in PAGES for block in blocks(page) if block.language not in known]
    assert wrong == []


def test_at_most_ten_blocks_are_not_run() -> None:
    not_run = [f"{block.place}: {block.not_run}" for page in PAGES for block in blocks(page) if block.not_run]
    assert len(not_run) <= MAX_NOT_RUN, not_run


def test_pages_have_at_most_2000_words() -> None:
    """Generated pages are exempt."""
    sizes = {page: len(page.read_text("utf-8").split()) for page in PAGES if page not in GENERATED}
    assert {page: words for page, words in sizes.items() if words > MAX_WORDS} == {}


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: page.stem)
def test_pages_and_examples_import_only_public_packages(page: Path) -> None:
    """Pages for contributors and ADRs describe internal modules."""
    if "contributing" in page.parts:
        return
    imported = re.findall(r"(?:from|import) (offsetmgr(?:\.\w+)*)", page.read_text("utf-8"))
    assert set(imported) <= {*PACKAGES, "offsetmgr.app", "offsetmgr.errors", "offsetmgr.results"}


def test_the_classes_and_errors_in_the_text_of_pages_exist() -> None:
    package = PROJECT / "offsetmgr"
    known = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))))
    unknown = {
        (page.relative_to(PROJECT).as_posix(), name)
        for page in PAGES
        if page not in GENERATED and page.parent.name != "adr"
        for name in re.findall(r"`((?:[A-Z][a-z0-9]+){2,})`", page.read_text("utf-8"))
        if name not in known | FOREIGN_CLASSES
    }
    assert unknown == set()


def test_the_readme_fits_a_screen_and_a_half() -> None:
    text = (PROJECT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 80
    assert len(text.split()) <= 450


def test_the_programs_and_the_table_on_the_page_about_logs_print_what_it_shows(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(PROJECT / "docs" / "how-to" / "segments.md")
    for block in found:
        if block.language == "python":
            exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})
            assert capsys.readouterr().out == (block.output or "")
    (table,) = [block.text for block in found if block.text.startswith("$ offsetmgr log dump kafka-logs")]
    command, shown = table.split("\n", 1)
    assert run(command.split()[2:]) == 0
    assert capsys.readouterr().out == shown


# --- shell blocks -----------------------------------------------------------------------------------


def lines_of(block: Block) -> list[str]:
    """The command lines of a shell block. Except in a ``sh`` block, a command line begins after ``$``."""
    lines = block.text.replace("\\\n", " ").splitlines()
    found: list[str] = []
    while lines:
        line = lines.pop(0)
        if block.language != "sh" and not line.startswith("$ "):
            continue
        while fails(ValueError, shlex.split, line, True):  # a quotation continues in the next line
            line += "\n" + lines.pop(0)
        found.append(line.removeprefix("$ "))
    return found


def commands_of(line: str) -> list[list[str]]:
    """The simple commands of a command line, split into words."""
    words = shlex.shlex(line, posix=True, punctuation_chars="();|&<>")
    words.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in words:
        if word == ">&" or set(word) <= set("<>"):  # a redirection, perhaps with a number in front of it
            next(words)
            if found[-1][-1].isdigit():
                found[-1].pop()
        elif set(word) <= set("();|&"):
            found.append([])
        else:
            found[-1].append(word)
    return [command for command in found if command]


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=lambda block: block.place)
def test_shell_blocks_are_valid_and_their_commands_parse(block: Block) -> None:
    if block.language == "sh":
        checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
    wrong = []
    for command in [command for line in lines_of(block) for command in commands_of(line)]:
        if command[0] == "offsetmgr":
            try:
                parse([word for word in command[1:] if word != "--debug"])
            except typer.Exit:  # the command line prints help
                pass
            except USAGE_ERROR as error:
                wrong.append(f"{shlex.join(command)}: {error}")
    assert wrong == []


def test_every_shell_block_runs_or_has_a_reason() -> None:
    """For ``text`` blocks it is sufficient that a block has a command that parses."""
    wrong = []
    for block in SHELL_BLOCKS:
        commands = [command[0] for line in lines_of(block) for command in commands_of(line)]
        if not (block.runs or block.not_run or (block.language not in SHELL and "offsetmgr" in commands)):
            wrong.append(block.place)
    assert wrong == []


def test_a_command_that_does_not_exist_does_not_parse() -> None:
    parse(["groups", "describe", "--group", "shop"])
    for arguments in (["groups", "show"], ["groups", "describe", "--grupp", "shop"], ["migrate", "apply"]):
        with pytest.raises(USAGE_ERROR):
            parse(arguments)
