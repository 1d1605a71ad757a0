"""The help of the commands: examples that parse, and connection options that are described once. Texts name only
options that exist, and texts below ``cli`` name none, because a program has none: `Advice` words arguments for both."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from in_process import command

import offsetmgr
from offsetmgr.cli.app import REGISTRY, root


@cache
def commands() -> dict[str, Any]:
    top: Any = typer.main.get_command(root)
    groups = {name: top.get_command(None, name) for name in REGISTRY}
    return {
        f"{name} {sub}".rstrip(): one
        for name, group in groups.items()
        for sub, one in getattr(group, "commands", {"": group}).items()
    }


def examples_of(name: str) -> list[str]:
    """The examples in the help of a command."""
    lines = command(*name.split(), "--help").stdout.splitlines()
    return [line.strip() for line in lines if line.startswith(f"    offsetmgr {name}")]


@pytest.mark.parametrize("name", commands())
def test_every_command_has_examples_that_parse(name: str) -> None:
    examples = examples_of(name)
    assert examples
    for line in examples:
        words = shlex.split(line)[1 + len(name.split()) :]
        commands()[name].make_context(name, words).close()


@pytest.mark.parametrize("name", [name for name in commands() if " " in name])
def test_the_error_of_a_typo_names_the_help_or_a_similar_name(name: str) -> None:
    group, word = name.split()
    done = command(group, word, "--no-such-opton", code=2)
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: No such option: --no-such-opton")
    assert (done.stdout, hint) == ("", f"hint: see offsetmgr {name} --help")
    done = command(group, f"{word}x", code=2)
    assert done.stderr.startswith(f"error: No such command '{word}x'. Did you mean ")
    assert done.stdout == ""


def test_each_command_that_selects_groups_can_exclude_some() -> None:
    found = {name: {option for one in command.params for option in one.opts} for name, command in commands().items()}
    without = {name for name, options in found.items() if "--group" in options and "--exclude-group" not in options}
    assert without == {"offsets set", "runbook check", "edits list", "doctor", "sandbox up"}  # exact names


def test_every_command_with_an_option_for_groups_accepts_the_short_one_and_an_argument() -> None:
    for name, found in commands().items():
        group = next((one for one in found.params if "--group" in one.opts), None)
        if group is None or group.metavar is None or name in ("log offsets", "sandbox up", "migrate report"):
            continue
        assert "-g" in group.opts, name
        assert any("[GROUP]" in (one.metavar or "") for one in found.params if one is not group), name


PACKAGE = Path(offsetmgr.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
CONNECTION_OPTIONS = (
    *("--bootstrap-server", "--command-config", "--zookeeper", "--store", "--context", "--timeout"),
    "--ignore-persistent-members",
)
OTHER_TOOLS = re.compile(
    "--(add|alter|create|cancel|config|cluster|cluster-id|describe|operation|add-config|if-not-exists|allow-principal"
    "|entity-(default|name|type)|no-binary|preserve-throttles|delete|(delete|reset)-offsets|input-topic|feature)"
)
"""Options of Kafka's tools and of pip in messages."""
STYLED = ("document.py", "document_style.py", "page.py")
"""The modules with styles, whose variables look like options."""


def texts(source: str) -> Iterator[str]:
    """Yields the string constants of a module, except its docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def messages() -> Iterator[str]:
    """The texts of the package, without docstrings and without the styles of pages."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if path.name not in STYLED:
            yield from texts(source)
        for found in re.findall(r'\bAdvice\(\s*"([^"]*)"', source):
            yield " ".join(
                f"--{name.replace('_', '-')}" for name in re.findall(r"\{(?:\w+:)?(\w+)(?:=[^}]*)?\}", found)
            )


@pytest.mark.slow
def test_every_option_in_a_message_exists() -> None:
    known = {option for one in commands().values() for p in one.params for option in (*p.opts, *p.secondary_opts)}
    named = {option for text in messages() for option in OPTION.findall(text)}
    assert len(named) > 100
    unknown = {option for option in named - known if not OTHER_TOOLS.fullmatch(option)}
    recorded = {"--declare", "--no-"}  # of `migrate switch`, which only old operation logs have; the start of options
    assert unknown - recorded - {"--debug", "--help", "--version", "--wide"} == set()


OTHER_PROGRAMS = {
    "core/document.py": "CSS",
    "kafka/client/broker_checks.py": "kafka-acls",
    "kafka/client/groups.py": "kafka-share-groups",
    "kafka/librdkafka.py": "pip",
    "manager/log/kafka/broker_checks.py": "kafka-acls",
    "manager/log/topic.py": "kafka-configs",
    "migration/restart_command.py": "kubectl",
    "sandbox/broker.py": "kafka-storage",
    "sandbox/topics.py": "kafka-topics",
    "zookeeper/admin/plan.py": "kafka-reassign-partitions",
}
"""The modules with options of other programs, or with variables of CSS, which look like options."""


def test_no_text_below_the_command_line_names_an_option() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name for name, path in modules.items() if any(map(OPTION.search, texts(path.read_text("utf-8"))))}
    below = {name for name in found if not name.startswith("cli/")} - OTHER_PROGRAMS.keys()
    assert below == set()


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_shows_examples_and_one_line_about_the_connection(option: str) -> None:
    text = command("groups", "describe", option).stdout
    assert "  offsetmgr groups describe billing --watch 5\n" in text
    assert "see offsetmgr help connection" in text
    assert "Kafka brokers. They are also the store" not in text


def test_the_connection_options_have_their_own_help() -> None:
    text = command("help", "connection").stdout
    for option in CONNECTION_OPTIONS:
        assert f"{option} " in text
