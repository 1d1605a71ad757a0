"""The help of the commands: examples that parse, and connection options that are described once."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import offsetmgr
from offsetmgr.cli.app import run
from offsetmgr.cli.examples import EXAMPLES, example_lines
from offsetmgr.cli.help_text import CONNECTION_PARAMETERS
from offsetmgr.cli.root import REGISTRY, SINGLE_COMMANDS, root


def commands() -> dict[str, Any]:
    top: Any = typer.main.get_command(root)
    groups = {name: top.get_command(None, name) for name in REGISTRY}
    return {
        f"{name} {sub}".rstrip(): command
        for name, group in groups.items()
        for sub, command in getattr(group, "commands", {"": group}).items()
    }


def test_every_command_has_examples_and_no_example_is_left_over() -> None:
    assert set(EXAMPLES) == set(commands())


@pytest.mark.parametrize("line", [line for command in EXAMPLES for line in example_lines(command)])
def test_the_examples_parse(line: str) -> None:
    _, group, name, *arguments = shlex.split(line)
    if group in SINGLE_COMMANDS:
        commands()[group].make_context(group, [name, *arguments]).close()
    else:
        commands()[f"{group} {name}"].make_context(name, arguments).close()


def test_every_command_with_an_option_for_groups_accepts_the_short_one_and_an_argument() -> None:
    for name, command in commands().items():
        group = next((one for one in command.params if "--group" in one.opts), None)
        if group is None or group.metavar is None or name in ("log offsets", "sandbox up"):
            continue
        assert "-g" in group.opts, name
        assert any("[GROUP]" in (one.metavar or "") for one in command.params if one is not group), name


OTHER_TOOLS = re.compile(
    "--(add|alter|create|cancel|config|cluster|cluster-id|describe|operation|add-config|if-not-exists|allow-principal"
    "|entity-(default|name|type)|no-binary|preserve-throttles)"
)
"""Options of Kafka's tools and of pip in messages."""
STYLED = ("document.py", "document_style.py", "page.py")
"""The modules with styles, whose variables look like options."""


def messages() -> Iterator[str]:
    """The texts of the package, without docstrings and without the styles of pages."""
    for path in Path(offsetmgr.__file__).parent.rglob("*.py"):
        if "--" not in (source := path.read_text(encoding="utf-8")) or path.name in STYLED:
            continue
        tree = ast.parse(source)
        docstrings = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield node.value


@pytest.mark.slow
def test_every_option_in_a_message_exists() -> None:
    known = {option for one in commands().values() for p in one.params for option in (*p.opts, *p.secondary_opts)}
    named = {option for text in messages() for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)}
    assert len(named) > 100
    unknown = {option for option in named - known if not OTHER_TOOLS.fullmatch(option)}
    assert unknown - {"--debug", "--help", "--version", "--wide"} == set()


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_shows_examples_and_one_line_about_the_connection(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert run(["groups", "describe", option]) == 0
    text = capsys.readouterr().out
    assert "  offsetmgr groups describe billing --watch 5\n" in text
    assert "see offsetmgr help connection" in text
    assert "Kafka brokers. They are also the store" not in text


def test_the_connection_options_have_their_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "connection"]) == 0
    text = capsys.readouterr().out
    for name in CONNECTION_PARAMETERS:
        assert f"--{name.replace('_', '-')} " in text
