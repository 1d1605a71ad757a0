"""Generates the documentation of the command line from its help.

docs/reference/cli.md contains a table of all commands, and the whole help of every command. ``--check`` writes nothing;
the exit code is 1 if the file is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from offsetmgr.cli.app import root

PROJECT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = Path("docs/reference/cli.md")
WIDTH: Final = 100
"""Columns of the help texts, independent of the terminal."""
_OPTION: Final = re.compile(r"(?<![`\w-])--[a-z][a-z-]*")


def context_of(command: Any, name: str, parent: Any = None) -> Any:
    """The context in which a command prints its help, with a fixed width."""
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH, **command.context_settings}
    return command.context_class(command, info_name=name, parent=parent, **settings)


def walk(command: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    """This command and all its subcommands as (full name, command, context), in the order of the help."""
    yield context.command_path, command, context
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            yield from walk(found, context_of(found, name, context))


def every_command() -> list[tuple[str, Any, Any]]:
    """``offsetmgr`` itself, its command groups, and their commands."""
    top = typer.main.get_command(root)
    return list(walk(top, context_of(top, "offsetmgr")))


def help_text(command: Any, context: Any) -> str:
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def first_sentence(command: Any) -> str:
    """The first paragraph of a command's help, in one line. Options are code, so that a browser does not break them."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return _OPTION.sub(r"`\g<0>`", text)


def summary() -> list[str]:
    """A table with a row for each command."""
    rows = [
        f"| [`{name}`](#{name.replace(' ', '-')}) | {first_sentence(command).replace('|', chr(92) + '|')} |"
        for name, command, _ in every_command()
        if not hasattr(command, "list_commands")
    ]
    return ["| command | |", "|---|---|", *rows]


def reference() -> str:
    """The content of docs/reference/cli.md: a table of the commands, and the whole help of each."""
    parts = [
        "# Command line reference",
        "",
        "The full help of every command, written by `scripts/readme`: change the command, not this page.",
        "The [how-to guides](../index.md#i-want-to) show the commands of each task.",
        "",
        *summary(),
    ]
    for name, command, context in every_command():
        parts += ["", f"## {name}", "", "```text", f"$ {name} --help", help_text(command, context), "```"]
    return "\n".join(parts) + "\n"


def expected_content() -> dict[Path, str]:
    """The expected content of each generated file."""
    return {REFERENCE: reference()}


def stale_files(project: Path) -> list[Path]:
    """The generated files whose content is not the expected one."""

    def present(file: Path) -> str | None:
        return (project / file).read_text(encoding="utf-8") if (project / file).exists() else None

    return [file for file, content in expected_content().items() if present(file) != content]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/readme", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    parser.add_argument("--project", type=Path, default=PROJECT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    project: Path = options.project
    old = stale_files(project)
    for file in old:
        if options.check:
            print(f"error: {file}: it is stale: run scripts/readme", file=sys.stderr)
            continue
        content = expected_content()[file]
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text(content, encoding="utf-8")
        print(f"wrote {file}", file=sys.stderr)
    return 1 if options.check and old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
