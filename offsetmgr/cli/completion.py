"""The completion of command lines in bash, zsh and fish."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, TypeAlias

import typer

from offsetmgr.app import completion
from offsetmgr.cli.connect_flags import ConnectFlags, contexts_of
from offsetmgr.cli.options import command_group
from offsetmgr.cli.render import note
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.config.user_directories import downloads_directory
from offsetmgr.core import TITLES
from offsetmgr.core.errors import OffsetMgrError

app = command_group("Shell completion.")

_FILE_METAVARS: Final = ("FILE", "DIR", "PATH", "PLAN")
_DESCRIPTION_WIDTH: Final = 60
EVERYWHERE: Final = ("--debug", "--wide")
"""The options that every command accepts, although no command declares them."""
_Item: TypeAlias = tuple[str, str]
"""A completion and its description, which can be empty."""


def _add_command(shell: str, versions: str) -> None:
    @app.command(shell, help=f"Print the completion script for {versions}.")
    def print_script() -> None:
        sys.stdout.write(Path(__file__).with_name(f"completion.{shell}").read_text(encoding="utf-8"))


_add_command("bash", "bash 4 and later")
_add_command("zsh", "zsh")
_add_command("fish", "fish")


def complete(root: Any, arguments: Sequence[str]) -> int:
    """Prints the completions of a command line for a completion script, and returns the exit code.

    ``root`` is the command ``offsetmgr``. ``arguments`` are ``bash LINE WORDBREAKS`` or ``zsh|fish WORD...``. The
    first word is the name of the program, and the last word is the incomplete one. Prints only the first line if the
    completions cannot be computed.
    """
    try:
        shell, *words = arguments
        quoted = raw = ""
        if shell == "bash":
            line, wordbreaks = words
            words, raw, quoted = _split_line(line)
        elif shell == "fish":  # fish passes the incomplete word with its quotes
            words[-1] = _split_line(words[-1])[0][-1]
        given = [word for word in words[1:-1] if word not in EVERYWHERE]
        files, items = _completions(root, given, words[-1])
        if shell == "bash":
            items = [(_bash_completion(value, raw, wordbreaks, quoted=quoted), "") for value, _ in items]
        print("files" if files else "words")
        for value, text in items:
            print(f"{value}\t{shorten(text, _DESCRIPTION_WIDTH, placeholder='...')}" if text else value)
    except Exception as error:  # a shell shows errors in the middle of the command line
        print("words")
        note(f"error: completion: {error}")  # the scripts redirect stderr
        return 1
    return 0


def _completions(root: Any, words: list[str], incomplete: str) -> tuple[bool, list[_Item]]:
    """Returns whether the shell completes names of files, and the completions of the word ``incomplete`` that follows
    ``words``."""
    # The package depends on the release of typer: some releases contain a copy of click.
    package = typer.core.TyperCommand.__mro__[1].__module__.rpartition(".")[0]
    click: Any = import_module(f"{package}.shell_completion")
    # The parser ignores all arguments if the value of the last option is missing.
    complete_words = words[:-1] if words and words[-1].startswith("-") else words
    context = click._resolve_context(root, {}, "offsetmgr", complete_words)
    prefix = ""
    if (attached := _ATTACHED.fullmatch(incomplete)) is not None:
        prefix, incomplete = attached.groups()
        words = [*words, prefix.removesuffix("=")]
    target, incomplete = click._resolve_incomplete(context, words, incomplete)
    if target is root and not incomplete.startswith("-"):
        return False, [item for item in root.summaries() if item[0].startswith(incomplete)]
    if isinstance(target, typer.core.TyperGroup | typer.core.TyperCommand):
        return False, [(item.value, item.help or "") for item in target.shell_complete(context, incomplete)]
    found = names_for(target, context.params, incomplete)
    if found is not None:
        return False, [(prefix + value, "") for value in found if value.startswith(incomplete)]
    if any(word in (target.metavar or "") for word in _FILE_METAVARS):
        return not prefix, []
    return False, [(prefix + item.value, "") for item in target.shell_complete(context, incomplete)]


_ATTACHED: Final = re.compile(r"(--[^=]+=|-[a-z](?=.))(.*)", re.DOTALL)
_WORD: Final = re.compile(r"""(?:[^\s'"\\]|\\.?|'[^']*'?|"(?:[^"\\]|\\.?)*"?)+""", re.DOTALL)
_PART: Final = re.compile(r"""\\(.?)|'([^']*)('?)|"((?:[^"\\]|\\.?)*)("?)""", re.DOTALL)
_ESCAPE_IN_QUOTES: Final = re.compile(r'\\(["\\$`])')


def _split_line(line: str) -> tuple[list[str], str, str]:
    """Splits a command line into words. Returns the words, the last word with its quotes, and the quote that is open at
    the end of the line ('' if none is)."""
    found = list(_WORD.finditer(line))
    raws = [word[0] for word in found]
    if not found or found[-1].end() < len(line):
        raws.append("")
    parts = list(_PART.finditer(raws[-1]))
    last = parts[-1] if parts and parts[-1].end() == len(raws[-1]) else None
    quote = "" if last is None else "'" if last[3] == "" else '"' if last[5] == "" else ""
    return [_PART.sub(_unquoted, raw) for raw in raws], raws[-1], quote


def _unquoted(part: re.Match[str]) -> str:
    return part[1] or part[2] or _ESCAPE_IN_QUOTES.sub(r"\1", part[4] or "")


def _bash_completion(value: str, raw: str, wordbreaks: str, *, quoted: str) -> str:
    """Returns what bash inserts for a completion. ``raw`` is the incomplete word on the command line.

    bash replaces only the part of the word after the last of its ``wordbreaks``, such as a colon. It inserts the text
    without quotes, unless a quote is open.
    """
    if quoted:
        if quoted == '"':
            return "".join(f"\\{char}" if char in '"\\$`' else char for char in value)
        return value.replace("'", r"'\''")
    rests = [value.split(char, raw.count(char))[-1] for char in ":=@" if char in wordbreaks]
    rest = min([value, *rests], key=len)
    return "".join(char if char.isalnum() or char in "._-:=@/+,%" else f"\\{char}" for char in rest)


# The names that a shell completes, for the options and arguments of commands. The servers have `LIMIT_S` seconds to
# answer. Names are cached for `CACHE_S` seconds. If a server does not answer, the names of the last answer are
# completed too, and no server is contacted again until `CACHE_S` seconds have passed.

LIMIT_S: Final = 1.5
CACHE_S: Final = 30.0
_REQUEST_MS: Final = 1_000


def names_for(parameter: Any, given: Mapping[str, Any], incomplete: str) -> Iterable[str] | None:
    """Returns the names that the option or argument ``parameter`` accepts, or None if it accepts no names of groups,
    topics, contexts, stores, waves or operations. In a list, each name follows the complete names of ``incomplete``.

    ``given`` maps the parameters that are already on the command line to their values.
    """
    options, metavar = set(parameter.opts), parameter.metavar or ""
    named = (given.get("plan_path"), given.get("plan"), *(given.get("plans") or ()))
    plans = [Path(one) for one in named if isinstance(one, str)]
    if "--context" in options or metavar == "CONTEXT":
        from offsetmgr.config.contexts import Contexts  # it imports asyncio, which takes time

        names = printable(Contexts.read().layers)
        return _listed(names, incomplete) if "," in metavar else names
    if metavar == "URI" and "zookeeper, kafka" in (parameter.help or ""):
        return TITLES
    if "--wave" in options:
        waves = {one.wave for one in completion.planned_groups(plans, LIMIT_S)}
        return printable(map(str, waves - {None}))
    if any(option.endswith("-group") for option in options) or "[GROUP]" in metavar or metavar == "GROUP":
        if plans:
            return printable({one.name for one in completion.planned_groups(plans, LIMIT_S)})
        return _cached("groups", given, completion.groups)
    topic, colon, numbers = incomplete.partition(":")
    if colon and ":" in metavar and "--topic" in options:
        known = _cached(f"partitions of {topic}", given, partial(completion.partitions, topic))
        return [f"{topic}:{name}" for name in _listed(known, numbers)]
    if any(option.endswith("-topic") for option in options):
        return _cached("topics", given, completion.topics)
    return completion.operations() if metavar == "ID" else None


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """Returns the names that can complete a list with commas. Leaves out those that the list has already."""
    known, comma, _ = incomplete.rpartition(",")
    return [f"{known}{comma}{name}" for name in names if name not in known.split(",")]


def printable(names: Iterable[str]) -> list[str]:
    """Returns the names that a completion script can read, sorted. A script reads a name from each line, up to a
    tab."""
    return sorted(name for name in names if name and name.isprintable())


def _cached(
    kind: str,
    given: Mapping[str, Any],
    read: Callable[[Callable[[], ConnectFlags], float], completion.Names],
) -> list[str]:
    """Returns the names from the cache if it is new enough, else from the cluster, which is the first of several."""
    named = {name: given.get(name) for name in ("bootstrap_server", "zookeeper", "store", "command_config")}
    settings = SettingsLayer(**named, timeout_ms=min(given.get("timeout") or _REQUEST_MS, _REQUEST_MS))
    context = next(iter(contexts_of(given.get("context")) or ()), given.get("context"))
    connect = partial(ConnectFlags, settings, context)
    resolved = connect().resolved
    selected = [kind, resolved.store, resolved.bootstrap_server, resolved.zookeeper, context]
    selected += [settings.command_config, os.environ.get("OFFSETMGR_COMMAND_CONFIG")]
    key = hashlib.sha256(repr(selected).encode()).hexdigest()[:32]
    file = downloads_directory() / "completion" / f"{key}.txt"
    known, age_s = _load(file)
    if age_s < CACHE_S:
        return known
    names = completion.Names()
    with suppress(OffsetMgrError):  # no store is selected
        names = read(connect, LIMIT_S)
    shown = printable(names.found if names.complete else {*names.found, *known})
    _save(file, shown)
    return shown


def _load(file: Path) -> tuple[list[str], float]:
    """Returns the cached names and their age in seconds."""
    try:
        age_s = time.time() - file.stat().st_mtime
        names = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return [], float("inf")
    return (names, age_s) if age_s >= 0 else ([], float("inf"))


def _save(file: Path, names: list[str]) -> None:
    """Writes the cache. Does nothing if the cache cannot be written."""
    from offsetmgr.core.atomic_file import write_atomically  # it imports asyncio, which takes time

    content = "".join(f"{name}\n" for name in names).encode()
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, lambda stream: stream.write(content), overwrite=True)
