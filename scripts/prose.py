"""Checks the prose of the project: docstrings, comments, messages and documentation, also those of the tests, and the
comments of shell scripts and of the programs in Java and Go.

Usage: ``scripts/prose.py [PATH...]``; without paths every file of the project. Prints one line per finding and exits
with 1 if there is any. Three sources of findings:

1. the patterns below: openings and words that make a sentence hard to read, with the replacement;
2. the synonyms that docs/reference/glossary.md replaces with one term;
3. codespell, an offline spelling checker. (LanguageTool needs 250 MB of jars, and proselint found nothing in the
   sentences of tests/data/prose_examples.json that these patterns do not find.)

A finding that is right for its place is listed in scripts/prose_exceptions.toml with a reason. An exception that
matches nothing is an error.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXCEPTIONS = ROOT / "scripts" / "prose_exceptions.toml"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

MAX_EXCEPTIONS = 40

CHECKED = (
    "offsetmgr/**.py",
    "scripts/*",
    "tests/**.py",
    "docs/**.md",
    "*.md",
    "*.java",
    "*.go",
)
UNCHECKED = {
    "scripts/prose.py": "contains the patterns",
    "tests/project/test_prose_check.py": "quotes bad sentences, which the check must find",
    "docs/reference/cli.md": "is generated from the help texts, which are checked",
}
"""Files that are not checked, each with the reason."""


class Rule(NamedTuple):
    """One pattern and its advice. ``opening``: the pattern applies to the beginning of a sentence. ``contained``: the
    pattern matches only texts that contain this in lower case, and a search for it is faster than the pattern."""

    name: str
    pattern: re.Pattern[str]
    advice: str
    opening: bool = False
    contained: str = ""


class Text(NamedTuple):
    """A docstring, a run of comment lines, a string literal or a paragraph, and the line where it begins."""

    path: Path
    line: int
    text: str


class Finding(NamedTuple):
    """A rule that matched a text."""

    text: Text
    rule: str
    match: str
    advice: str


def _opening(name: str, words: str, advice: str) -> Rule:
    return Rule(name, re.compile(rf"(?:{words})(?![\w-])"), advice, opening=True)


def _words(name: str, words: str, advice: str) -> Rule:
    return Rule(name, re.compile(rf"(?<![\w`/.-])(?:{words})(?![\w`/-])", re.IGNORECASE), advice)


RULES = (
    _opening("opening", "What|Who|Whose|Whoever|Which|Those who|Once more", "say what the thing is or does"),
    _opening(
        "opening-negation", "None(?! if| for| while| before| at| means)|Not|Nobody", "say what happens, with an actor"
    ),
    _opening("opening-of", "Of (?!course)|By a|As what|So it is|And it|Only with", "put the subject first"),
    _opening("opening-inversion", "Should (?:it|a|an|the|they)|Is the|Had (?:it|they)|Were it", "use 'if'"),
    _opening(
        "opening-relative",
        "How (?:far|it|they)|From where|Those that|Nothing of|All that|(?:Is|Are) there|Is it|That (?:it|they)|Till"
        "|Once (?:read|seen|written)",
        "put the subject first",
    ),
    _opening("opening-where", "Where (?:a|an|it|the|there|they|no|one|is)", "use 'if' or 'when' for a condition"),
    _words("pronoun", "somebody|nobody|whoever|whatever is|only who|for who|of one's own", "name the actor"),
    _words(
        "free-relative",
        r"(?:(?<=[.:;,(] )|(?<=\band )|(?<=\bbut )|(?<=\bonly )|(?<=\bof )|(?<=^))"
        r"what (?:is|was|were|had|has|it|they|could|cannot|must|would|differs|no|lies|stands|came|comes)"
        r"|all that there (?:is|are)",
        "name the thing",
    ),
    _words("archaic", r"anew|beside|mend(?:s|ed)?|lest|for ever|no more(?=[.,;:)]|$)|likewise|nowhere", "plain word"),
    _words("downwards", "downwards|upwards", "descendants or ancestors"),
    _words(
        "told",
        r"(?:is|are|was|were|be|been|being) (?:told|said|meant|minded|guessed)|tells (?:nobody|where|which)"
        r"|told by|let(?:s)? go of|as what they say|says (?:what|which|so|where)|has to be said|say it",
        "name the sender and the message: reports, logs, prints, returns",
    ),
    _words("unknown", "it is not known|nobody knows", "'unknown', or the actor that knows"),
    _words("stands", r"(?:it|which|that|offsets (?:are|were)|group) stands|stands in|which offsets lie", "is"),
    _words("verdict", r"verdicts? for each", "status or result"),
    _words("seizing", "taken for|takes .{0,60} for written|is there again|that is there|to be made", "plain verb"),
    _words("hang-up", "hung up on|hangs up on|lost its head|a look", "field term"),
    _words("wait-for", "(?:is|are|be) waited for|goes by|go by", "active verb"),
    _words("given", "given again|given nothing|gives .{0,40} up|answered any", "plain verb"),
    _words("compressed", r"is none of|there is none of|all and|nor when|more and more", "one statement each"),
    _words("private", r"new life|made again|hears? of|in the way|at Spark's scale", "field term"),
    _words("fragment", r"; None: |from when|each by itself|the other way round", "one idea a sentence"),
)

SENTENCE_END = re.compile(r"(?<=[.!?:])[\"'*`)]*\s+(?=[\"'*`(]*[A-Z])|\n\s*\n")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, without markup in front of them."""
    for part in SENTENCE_END.split(text):
        stripped = part.strip().lstrip("\"'*`(-…> ").strip()
        if stripped:
            yield stripped


def problems(text: str, rules: Iterable[Rule] = RULES) -> Iterator[tuple[Rule, str]]:
    """The rules that a text violates, with the matching words."""
    openings = list(sentences(text))
    lower = text.lower()
    for rule in rules:
        if rule.opening:
            for sentence in openings:
                if found := rule.pattern.match(sentence):
                    yield rule, found.group()
        elif rule.contained in lower:
            for found in rule.pattern.finditer(text):
                yield rule, found.group()


# --- finding the texts ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _nodes(path: Path) -> list[ast.AST]:
    """The nodes of a module's syntax tree, each after its parent. Several functions read the same module in turn."""
    return list(ast.walk(ast.parse(path.read_bytes())))


def _comments(path: Path) -> Iterator[Text]:
    """Runs of comment lines; a directive such as ``noqa`` is not prose."""
    if b"#" not in path.read_bytes():
        return
    first, last, lines = 0, -1, list[str]()
    with path.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type != tokenize.COMMENT:
                continue
            words = token.string.lstrip("# -").split("  # ")[0].strip()
            if re.match(r"(?:noqa|type:|ruff:|pragma|!)", words):
                continue
            if token.start[0] != last + 1 and lines:
                yield Text(path, first, "\n".join(lines))
                lines = []
            if not lines:
                first = token.start[0]
            lines.append(words)
            last = token.start[0]
    if lines:
        yield Text(path, first, "\n".join(lines))


def _joined(node: ast.JoinedStr) -> str:
    """An f-string's text, with ``X`` for each expression."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def _strings(path: Path) -> Iterator[Text]:
    """Docstrings, and string literals that are sentences: at least three words."""
    inside = set[int]()
    for node in _nodes(path):
        if isinstance(node, ast.JoinedStr):
            inside.update(map(id, node.values))
            text = _joined(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 3:
            yield Text(path, node.lineno, text)


def _paragraphs(path: Path) -> Iterator[Text]:
    """Paragraphs, list items and table cells of a Markdown file, without code."""
    code = False
    first, lines = 0, list[str]()

    def joined() -> Iterator[Text]:
        if lines:
            text = re.sub(r"`[^`]*`", "X", " ".join(lines))
            yield Text(path, first, text.lstrip("#-*0123456789. "))

    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = line.lstrip().startswith("```")
        code = code != fence
        begins = re.match(r"\s*(?:[-*#|]|\d+\.)\s?", line) is not None
        if fence or code or begins or not line.strip():
            yield from joined()
            lines = []
        if fence or code or not line.strip():
            continue
        if line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split(" | "):
                yield Text(path, number, re.sub(r"`[^`]*`", "X", cell.strip()))
            continue
        if not lines:
            first = number
        lines.append(line.strip())
    yield from joined()


def _line_comments(path: Path) -> Iterator[Text]:
    """Runs of comment lines of a shell script or of Java and Go."""
    mark = re.compile(r"\s*(?:/?\*\*?/?|//)\s?" if path.suffix else r"\s*#(?!!)\s?")
    first, lines = 0, list[str]()
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        if found := mark.match(line):
            first = first if lines else number
            lines.append(line[found.end() :].removesuffix("*/").strip())
        elif lines:
            yield Text(path, first, "\n".join(lines))
            lines = []


def texts(path: Path) -> Iterator[Text]:
    """Every text of a file that people read."""
    if path.suffix == ".py":
        yield from _comments(path)
        yield from _strings(path)
    elif path.suffix == ".md":
        yield from _paragraphs(path)
    else:
        yield from _line_comments(path)


def _is_text(name: str) -> bool:
    return Path(name).suffix in ("", ".py", ".md", ".java", ".go")


def project_files() -> list[Path]:
    """The checked files: code, scripts, tests and documentation."""
    listed = subprocess.run(["git", "ls-files", *CHECKED], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.splitlines() if name not in UNCHECKED and _is_text(name)]


# --- glossary, spelling, exceptions -----------------------------------------------------------------


def replaced_terms(glossary: str) -> dict[str, str]:
    """Synonym -> term, from the last column of the glossary's table."""
    found: dict[str, str] = {}
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and not set(cells[0]) <= {"-", " "} and cells[2] not in ("", "Replaces"):
            found |= {synonym.strip(): cells[0] for synonym in cells[2].split(",") if synonym.strip()}
    return found


def glossary_rules(glossary: str) -> tuple[Rule, ...]:
    """One rule for each synonym that the glossary replaces."""
    return tuple(
        _words("glossary", re.escape(synonym), f"the glossary's term is '{term}'")._replace(contained=synonym.lower())
        for synonym, term in replaced_terms(glossary).items()
    )


IDENTIFIER = re.compile(r"[a-z]+(?:[_-][a-z]+)*")
"""A string literal that looks like a name."""


class PublicName(NamedTuple):
    """The name of a module, class, function or attribute, split into its words."""

    path: Path
    line: int
    name: str

    @property
    def words(self) -> str:
        """The name as text: ``ShardWriter`` and ``shard_writer`` are both ``shard writer``."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]", " ", self.name).strip().lower()


def names(path: Path) -> Iterator[PublicName]:
    """The names that a module defines, and its own: classes, functions, arguments, variables, attributes, and the
    string literals that look like a name, such as JSON keys, columns and metrics."""
    yield PublicName(path, 1, path.stem)
    for node in _nodes(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield PublicName(path, node.lineno, node.name)
        elif isinstance(node, ast.arg):
            yield PublicName(path, node.lineno, node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if not name.startswith("__"):
                yield PublicName(path, node.lineno, name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IDENTIFIER.fullmatch(node.value):
            yield PublicName(path, node.lineno, node.value)


def misspellings(files: Iterable[Path]) -> list[str]:
    """codespell's findings, one line each."""
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--ignore-words",
        str(ROOT / "scripts" / "prose_words.txt"),
        *map(str, files),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def findings(files: Iterable[Path]) -> list[Finding]:
    """Everything that the patterns and the glossary find in these files."""
    rules = (*RULES, *glossary_rules(GLOSSARY.read_text(encoding="utf-8")))
    found = []
    for path in files:
        if path == GLOSSARY:
            continue
        for text in texts(path):
            found += [Finding(text, rule.name, match, rule.advice) for rule, match in problems(text.text, rules)]
        if path.suffix == ".py" and "offsetmgr" in path.relative_to(ROOT).parts[:1]:
            for name in names(path):
                text = Text(path, name.line, f"name {name.name}")
                found += [
                    Finding(text, rule.name, match, rule.advice)
                    for rule, match in problems(name.words, rules[len(RULES) :])
                ]
    return found


def without_exceptions(found: Iterable[Finding], exceptions: list[dict[str, str]]) -> tuple[list[Finding], list[str]]:
    """The findings without an exception, and the exceptions that match none."""
    used: set[int] = set()
    left = []
    for finding in found:
        name = finding.text.path.relative_to(ROOT).as_posix()
        matching = {
            number
            for number, one in enumerate(exceptions)
            if one["file"] == name
            and one["words"] == finding.match
            and one["in"] in " ".join(finding.text.text.split())
        }
        used |= matching
        if not matching:
            left.append(finding)
    unused = [f"{one['file']}: {one['words']!r}" for number, one in enumerate(exceptions) if number not in used]
    return left, unused


def main(arguments: list[str]) -> int:
    """Checks the given files, or all of them. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files to check (default: all)")
    arguments = parser.parse_args(arguments).paths
    gc.disable()  # it would scan millions of nodes again and again, and finds nothing to free
    files = [Path(name).resolve() for name in arguments] or project_files()
    exceptions = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8")).get("exception", [])
    left, unused = without_exceptions(findings(files), exceptions)
    lines = [
        f"{one.text.path.relative_to(ROOT)}:{one.text.line}: {one.rule}: {one.match!r}: {one.advice}" for one in left
    ]
    if not arguments:
        lines += [f"{EXCEPTIONS.name}: the exception matches nothing: {one}" for one in unused]
        lines += [f"{EXCEPTIONS.name}: no reason: {one['words']!r}" for one in exceptions if not one["reason"].strip()]
        if len(exceptions) > MAX_EXCEPTIONS:
            lines.append(f"{EXCEPTIONS.name}: {len(exceptions)} exceptions; at most {MAX_EXCEPTIONS} are allowed")
    lines += misspellings(files)
    print("\n".join(lines) if lines else f"prose: {len(files)} files, {len(exceptions)} exceptions")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
