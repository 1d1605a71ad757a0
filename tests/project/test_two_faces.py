"""The command line and the library can do the same: each command is a function of `offsetmgr.app`."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from offsetmgr.cli.app import root
from offsetmgr.core.advice import Advice, Invocation

ONLY_COMMANDS = ("completion", "context", "help", "mcp", "sandbox")
"""Command groups without a function: the shell's completion, the user's configuration, help, commands as tools of
agents, and test servers."""

OF_OPTIONS = {
    ("offsets", "diff_translated"),  # diff --translate
    ("migrate", "draft_partition_map"),  # plan --draft-partition-map
    ("migrate", "refresh"),  # apply --refresh
    ("migrate", "plan_reverse"),  # rollback --reverse-plan
    ("migrate", "preview_rollback"),  # rollback --dry-run
}
"""The functions of options that make a command do something else."""


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    command = typer.main.get_command(root) if command is None else command
    if not hasattr(command, "list_commands"):
        yield path
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), (*path, name))


def function_of(path: tuple[str, ...]) -> tuple[str, str]:
    group, name = Invocation(" ".join(path)).function.split(".")
    return group, name


def test_each_command_is_a_function_and_each_function_a_command() -> None:
    of_commands = {function_of(path) for path in commands() if path[0] not in ONLY_COMMANDS}
    of_app = {
        (group, name)
        for group in {group for group, _ in of_commands}
        for module in [import_module(f"offsetmgr.app.{group}")]
        for name, found in vars(module).items()
        if inspect.isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_")
    }
    assert of_app == of_commands | OF_OPTIONS


def test_a_function_takes_connections_or_a_ui_first() -> None:
    for group, name in {function_of(path) for path in commands() if path[0] not in ONLY_COMMANDS}:
        function = getattr(import_module(f"offsetmgr.app.{group}"), name)
        assert next(iter(inspect.signature(function).parameters)) in ("connections", "ui"), (group, name)


def test_each_invocation_in_a_text_is_a_function_of_a_program() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in (Path(__file__).parents[2] / "offsetmgr").rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    named = [
        node for node in calls if ast.unparse(node.func).split(".")[-1] in ("Invocation", "invocation", "_of_name")
    ]
    verbs = {node.args[0].value for node in named if isinstance(node.args[0], ast.Constant)} - {""}
    assert len(verbs) > 20
    for verb in verbs:
        group, name = Invocation(str(verb)).function.split(".")
        assert callable(getattr(import_module(f"offsetmgr.app.{group}"), name, None)), verb


def test_a_text_for_a_program_has_the_arguments_of_functions() -> None:
    call = Invocation("migrate plan", (), {"from": "a", "to": "b", "group": ("g",), "output": "p"})
    assert str(call) == "migrate.plan(source='a', target='b', groups=('g',), path='p')"
    assert Advice("add {topic} TOPIC:NUMBER, or call {}", Invocation("edits list")) == (
        "add topics=TOPIC:NUMBER, or call edits.list_()"
    )
