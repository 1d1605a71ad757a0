"""`scripts/follow.py`: it finds the commands and files of a page, and compares outputs with the page."""

from pathlib import Path

import pytest
from follow import PAGES, File, Step, same, steps

PAGE = """
```console
$ echo 'two
lines'
two
lines
$ echo one \\
    two
one two
```

```sh
not run
```

```python title="job.py"
print(1)
```

<!-- numbers vary -->
```console
$ date +%s
1795627494
```
"""


def test_a_page_has_commands_and_files_in_order() -> None:
    assert steps(PAGE) == [
        Step("echo 'two\nlines'", ("two", "lines")),
        Step("echo one \\\n    two", ("one two",)),
        File("job.py", "print(1)\n"),
        Step("date +%s", ("1795627494",), numbers_vary=True),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "equal"),
    [
        (["PART  LAG", "   0  125"], ["PART LAG", "0     125"], True),
        (["lag 125"], ["lag 124"], False),
        (["pid 25932"], ["pid 17"], True),
        (["on 127.0.0.1:2181"], ["on 127.0.0.1:3000"], True),
        (["member shop_vm-1795"], ["member none"], False),
        (["host vm"], ["host worker"], True),
        (["first", "...", "last"], ["first", "a", "b", "last"], True),
        (["...", "last"], ["last"], True),
        (["first", "..."], ["second"], False),
        (["wrote shop.json (...", "end"], ["wrote shop.json (sha256)", "end"], True),
        (["one"], ["one", "two"], False),
        ([], ["unexpected"], False),
    ],
)
def test_outputs_are_compared_word_by_word(shown: list[str], printed: list[str], equal: bool) -> None:
    assert same(Step("command", tuple(shown)), printed) is equal
    assert same(Step("command", ("lag 125",), numbers_vary=True), ["lag 7"])


def test_many_gaps_are_compared_quickly() -> None:
    shown = ("...", *("id 12345", "...") * 20, "end")
    printed = [f"id {number}" for number in range(2_000)]

    assert not same(Step("command", shown), printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_cleans_up(page: Path) -> None:
    commands = [step.command for step in steps(page.read_text("utf-8")) if isinstance(step, Step)]

    assert commands[-1] == "offsetmgr sandbox down" or "offsetmgr sandbox up" not in "\n".join(commands)
