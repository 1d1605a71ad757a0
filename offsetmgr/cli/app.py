"""The entry point ``offsetmgr``: runs one command line, and handles the failures of commands."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import typer
from typer.core import TyperGroup

from offsetmgr.cli import sigint
from offsetmgr.cli.connect_flags import (
    SIGNALS,
    ignore_first_signal,
    preserved_signal_handlers,
    raise_on_termination_signals,
)
from offsetmgr.cli.render import BROKEN_PIPE, FAILED, INTERRUPTED, report, set_wide
from offsetmgr.core.errors import FileFailure, OffsetMgrError, UnsupportedOperation, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# The root of the command tree: the command groups, and the options of ``offsetmgr`` itself. The module of a command
# group is imported only when a command of the group is used, because the import of all modules would delay
# ``--help``.

REGISTRY: Final[dict[str, str]] = {
    "groups": "Consumer groups: list, describe, delete, copy, rename.",
    "offsets": "Offsets: get, lag, peek, set, reset, export, import, diff, delete.",
    "edits": "The operation log: list, show and undo edits and migrations.",
    "migrate": "Move groups between stores, and back: plan, apply, verify, finalize, rollback, mirror, readiness,"
    " cutover.",
    "cluster": "Kafka clusters: the brokers' releases and capabilities.",
    "doctor": "Check every configured server and this machine; changes nothing.",
    "context": "Contexts of the config file: list, show, use, add.",
    "runbook": "Rolling-bounce runbooks: write, check, bounce.",
    "zk": "Kafka in ZooKeeper: tree, brokers, topics, members, owners, check, elect, reassign, delete-topic.",
    "manager": "The offset manager: serve, status, dump.",
    "log": "Kafka's logs on disk, without a broker: dump, verify, recover, offsets.",
    "spark": "Audit, compare and copy offsets with Spark, for very large clusters.",
    "period": "Runs of the period coordinator: status, history, rerun, abort.",
    "sandbox": "Real ZooKeeper and Kafka servers on this machine, for experiments.",
    "help": "Help on a subject: connection.",
    "mcp": "Serve offsets to an agent by the Model Context Protocol; changes no cluster.",
    "completion": "Shell completion: bash, zsh, fish.",
}
"""Command group -> one line of help. The group's typer app is ``app`` in the module of its name; that of ``help`` is in
`options`."""

SINGLE_COMMANDS: Final = ("doctor", "mcp")
"""The entries of `REGISTRY` that are commands without subcommands."""

EPILOG: Final = (
    "Exit codes: 0 done; 1 failed, partly failed, or a check found a difference; 2 wrong usage. "
    "--debug, anywhere on the command line, prints the traceback of an error; --wide shows tables in full, even if "
    "they are wider than the terminal. "
    "Settings come from flags, else from OFFSETMGR_* variables, else from a context of the config file "
    "($OFFSETMGR_CONFIG, or offsetmgr/config.toml under $XDG_CONFIG_HOME)."
)


class LazyGroup(TyperGroup):
    """Imports the module of a command group when the group is used. Listing the groups does not import any of these
    modules."""

    _subcommand: str | None = None
    """The name after the name of the command group in the command line."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer hands it over
        return list(REGISTRY)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in REGISTRY:
            return None
        module_name = f"offsetmgr.cli.{'options' if cmd_name == 'help' else cmd_name}"
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as missing:
            if missing.name != module_name:
                raise
            raise UnsupportedOperation(f"offsetmgr {cmd_name}", "this installation does not contain it") from missing
        from offsetmgr.cli.options import complete_help

        command: Any
        if cmd_name in SINGLE_COMMANDS:
            command = typer.main.get_command_from_info(
                module.app.registered_commands[0], pretty_exceptions_short=True, rich_markup_mode=None
            )
            complete_help(command, cmd_name)
        else:
            app = _with_one_command(module.app, self._subcommand)
            command = typer.main.get_group(app)  # get_command would add completion options
            for name, subcommand in command.commands.items():  # typer would truncate the first paragraph
                subcommand.short_help = " ".join((subcommand.help or "").split("\n\n")[0].split())
                complete_help(subcommand, f"{cmd_name} {name}")
        command.name = cmd_name
        sigint.uninstall()
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # For a typo, typer suggests names of `commands`, although this class imports each command on use.
        self.commands = cast("dict[str, Any]", dict.fromkeys(REGISTRY))
        self._subcommand = next(iter(args[1:]), None)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries())

    def summaries(self) -> list[tuple[str, str]]:
        """Returns the name of each command group and its purpose."""
        return list(REGISTRY.items())


def _with_one_command(app: typer.Typer, name: str | None) -> typer.Typer:
    """Returns a copy of a command group's app that has only the command ``name``, because typer inspects the
    parameters of every command of an app. Returns the app itself if it has no such command."""
    parts = [app, *(part.typer_instance for part in app.registered_groups)]
    found = [command for part in parts if part for command in part.registered_commands if command.name == name]
    if len(found) != 1:
        return app
    only = copy(app)
    only.registered_commands, only.registered_groups = found, []
    return only


root = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},  # the contexts of all commands inherit the setting
)


def _print_version(requested: bool) -> None:
    if requested:
        from offsetmgr.core import __version__

        print(f"offsetmgr {__version__}")
        raise typer.Exit


@root.callback()
def offsetmgr(
    show_version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Inspect Kafka consumer-group offsets in ZooKeeper and Kafka, and migrate groups between them."""


# Streams for stdout and stderr. If writing to stdout fails, for example because the disk is full, the stream raises
# `FileFailure`. If the terminal of stdout is lost, output to this terminal is dropped, and the command continues.
# Output that cannot be written to stderr is dropped too. Files and pipes get UTF-8 in every locale. A terminal with
# another encoding gets escapes for the characters that its encoding does not have, so that names of groups cannot
# make a command fail.

_BUFFER: Final = 64 * 1024


class _Descriptor(io.FileIO):
    """The descriptor of stdout. A write to a closed pipe raises `BrokenPipeError`. Any other failed write raises
    `FileFailure`, except that output to a lost terminal is dropped."""

    def __init__(self, descriptor: int, *, terminal: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._terminal = terminal

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._terminal and error.errno == errno.EIO:
                return memoryview(data).nbytes
            raise FileFailure("cannot write the output", error.strerror or str(error)) from error


class _Messages(io.FileIO):
    """The descriptor of stderr. Drops output that cannot be written."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def replace_streams() -> None:
    """Replaces ``sys.stdout`` and ``sys.stderr`` with the streams of this module.

    If stdin or stderr is closed, opens the null device in its place. Otherwise a file that is opened later would get
    the descriptor of stdin or stderr, and messages could be written to that file. Stdin is replaced before stderr,
    because an opened file gets the lowest free descriptor. Raises `FileFailure` if stdout is closed.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    else:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Messages(sys.stderr.fileno(), "w", closefd=False)),
            encoding=sys.stderr.encoding,
            errors=sys.stderr.errors,
            line_buffering=True,
        )
    if sys.stdout is None:
        raise FileFailure("cannot write the output", os.strerror(errno.EBADF))
    before = sys.stdout
    terminal = before.isatty()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(before.fileno(), terminal=terminal), _BUFFER),
        encoding=before.encoding if terminal else "utf-8",
        errors=before.errors if not terminal or before.encoding.lower() in ("utf-8", "utf8") else "backslashreplace",
        line_buffering=terminal,
    )


def discard_output() -> None:
    """Redirects stdout to the null device, so that the interpreter can flush stdout at exit without an error."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


COMPLETE: Final = "__complete"
"""The first argument with which the completion scripts call offsetmgr."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line, prints its errors, and returns its exit code. Restores the signal handlers."""
    with preserved_signal_handlers():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    """Like `run`, but does not restore the signal handlers that the command has replaced."""
    if arguments[:1] == [COMPLETE]:
        from offsetmgr.cli.completion import complete

        return complete(typer.main.get_command(root), arguments[1:])
    arguments, debug = _strip_flag(arguments, "--debug")
    arguments, wide = _strip_flag(arguments, "--wide")
    set_wide(wide)
    try:
        _reject_dry_run_with_execute(arguments)
        command = typer.main.get_command(root)
        with command.make_context("offsetmgr", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        discard_output()
        return BROKEN_PIPE
    except SystemExit:
        raise
    except BaseException as error:  # every failure of a command is handled here
        if type(error).__name__ == "NoArgsIsHelpError":  # the message of this error is the help text
            print(getattr(error, "format_message", lambda: "")(), file=sys.stderr)
            return 2
        if isinstance(error, typer.Abort):
            return report(KeyboardInterrupt(), debug=debug)
        return report(error, debug=debug)
    return 0


def _strip_flag(arguments: Sequence[str], flag: str) -> tuple[list[str], bool]:
    """Returns the arguments without the flag, and whether the flag was among them. Every command accepts ``--debug``
    and ``--wide``, although no command declares these options."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    remaining = [a for a in arguments[:end] if a != flag]
    return [*remaining, *arguments[end:]], len(remaining) != end


def _reject_dry_run_with_execute(arguments: Sequence[str]) -> None:
    """Raises `UsageError` if both --dry-run and --execute are given. The option parser would silently use the last of
    the two."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if {"--dry-run", "--execute"} <= set(arguments[:end]):
        raise UsageError("--dry-run and --execute", "are both given", "only one of them; without any it is a dry run")


def main() -> None:
    """Runs the process's command line and exits with its code."""
    # The thread of a client library needs only microseconds for each response, but it waits for the interpreter lock
    # while the main thread builds rows. With Python's default switch interval of 5 ms, the server would be idle during
    # this wait.
    sys.setswitchinterval(0.0002)
    code = FAILED
    try:
        replace_streams()
        raise_on_termination_signals()
        code = _run(sys.argv[1:])
        ignore_first_signal(dict.fromkeys(SIGNALS, signal.SIG_DFL))
        if not code:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        code = BROKEN_PIPE
    except FileFailure as failure:
        code = report(failure)
    except KeyboardInterrupt:  # a second Ctrl-C, while the command reports the first
        code = INTERRUPTED
    if code:
        # The failure of the command was already reported, so output that cannot be written is dropped.
        try:
            sys.stdout.flush()
        except (OSError, OffsetMgrError, AttributeError):
            discard_output()
    # At exit the interpreter searches all objects for reference cycles. The search takes three times as long as all
    # other work at exit. Freezing the objects avoids this search. The objects do not need to be finalized.
    gc.freeze()
    sys.exit(code)
