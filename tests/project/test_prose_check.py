"""`scripts/prose.py`: it flags translated sentences, and accepts their rewrites."""

import json
import tomllib
from pathlib import Path

import prose
import pytest

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLES = json.loads((PROJECT / "tests" / "data" / "prose_examples.json").read_text(encoding="utf-8"))


def test_it_flags_at_least_45_of_the_55_examples() -> None:
    assert len(EXAMPLES) == 55
    flagged = [one["as_it_is"] for one in EXAMPLES if list(prose.problems(one["as_it_is"]))]
    assert len(flagged) >= 45


def test_it_accepts_every_rewrite() -> None:
    found = {one["rewrite"]: [match for _, match in prose.problems(one["rewrite"])] for one in EXAMPLES}
    assert {text: matches for text, matches in found.items() if matches} == {}


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("module.py", '"""What a module is."""\n\n# Nobody reads this comment.\n'
         'NAME = f"somebody changed {1} offset here"\nWORD = "short"\n', [(1, "What"), (3, "Nobody"), (4, "somebody")]),
        ("script", "#!/usr/bin/env bash\n# Nobody reads\n# this.\necho somebody\n", [(2, "Nobody")]),
        ("Program.java", "/**\n * Which program\n * this is.\n */\nclass Program { // nobody\n}\n"
         "    // Nobody reads it.\n", [(1, "Which"), (7, "Nobody")]),
        ("page.md", "The option `what is` exists.\n\n```\nnobody\n```\n\nThen nobody answers.\n", [(7, "nobody")]),
    ],
    ids=["Python", "shell", "Java", "Markdown"],
)  # fmt: skip
def test_it_reads_docstrings_comments_messages_and_pages(name: str, content: str, found, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content)
    matches = [(one.line, match) for one in prose.texts(file) for _, match in prose.problems(one.text)]
    assert sorted(set(matches)) == sorted(set(found))


def test_sentences_without_a_subject_in_front_are_flagged() -> None:
    for opening in ("What", "Who", "Whose", "Whoever", "Which"):
        found = list(prose.problems(f"{opening} partitions a member owns."))
        assert ("opening", opening) in [(rule.name, match) for rule, match in found]
    assert list(prose.problems("The members whose partitions are lost.")) == []
    for text in ("How far it has come.", "Those that stay.", "Nothing of it is kept.", "It is let go of."):
        assert list(prose.problems(text)), text
    assert list(prose.problems("Is there none, it waits."))


def test_code_scripts_tests_and_pages_are_checked() -> None:
    checked = {path.relative_to(prose.ROOT).as_posix() for path in prose.project_files()}
    assert checked >= {
        "offsetmgr/core/model.py",
        "scripts/sizes.py",
        "tests/conftest.py",
        "tests/crash/history.py",
        "tests/project/test_sizes_check.py",
        "docs/reference/data-rules.md",
        "scripts/setup",
        "offsetmgr/sandbox/OldConsumerMain.java",
    }
    assert checked.isdisjoint(prose.UNCHECKED)
    assert all(prose.UNCHECKED.values()), "each unchecked file has a reason"


def test_a_synonym_from_the_glossary_is_flagged_in_text_and_in_names(tmp_path: Path) -> None:
    glossary = "| Term | Meaning | Replaces |\n| --- | --- | --- |\n| shard group | shards | slot, old slot |\n"
    rules = prose.glossary_rules(glossary)
    file = tmp_path / "first_slot.py"
    file.write_text("def read(slot: int) -> None: ...\n")
    assert [match for name in prose.names(file) for _, match in prose.problems(name.words, rules)] == ["slot", "slot"]
    advice = "the glossary's term is 'shard group'"
    assert [rule.advice for rule, _ in prose.problems("the old slot", rules)] == [advice, advice]


def test_an_exception_covers_one_text_and_must_match() -> None:
    text = prose.Text(prose.ROOT / "offsetmgr" / "a.py", 1, "nobody is here")
    other = prose.Text(prose.ROOT / "offsetmgr" / "a.py", 9, "nobody is there")
    found = [prose.Finding(one, "pronoun", "nobody", "name the actor") for one in (text, other)]
    here = {"file": "offsetmgr/a.py", "words": "nobody", "in": "is here", "reason": "quoted"}
    stale = here | {"in": "is gone"}
    left, unused = prose.without_exceptions(found, [here, stale])
    assert [one.text.line for one in left] == [9]
    assert unused == ["offsetmgr/a.py: 'nobody'"]


def test_there_are_at_most_40_exceptions_each_with_a_reason() -> None:
    exceptions = tomllib.loads(prose.EXCEPTIONS.read_text(encoding="utf-8")).get("exception", [])
    assert len(exceptions) <= 40
    assert all(one["reason"].strip() for one in exceptions)
