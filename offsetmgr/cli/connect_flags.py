"""`ConnectFlags`: the stores, clusters and sessions that the connection options of a command line select.

A command that connects to servers has a parameter ``connect: ConnectFlags``. The decorator `command` replaces this
parameter with the connection options. It replaces a parameter with the values of several options, such as
``flags: EditFlags``, with these options (`OptionGroups`). If the command has the option ``--group``, the decorator adds
an argument with the same meaning (`GroupArguments`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import typer

from offsetmgr.app.connections import Connections
from offsetmgr.app.ui import Declined, Interrupted, Ui
from offsetmgr.cli.options import (
    BeforeImage,
    ConnectionFlags,
    Execute,
    FormatOption,
    GroupArguments,
    OptionGroups,
    Reason,
    Yes,
    require_state_volume,
    with_parameters,
    with_several_contexts,
)
from offsetmgr.cli.render import COLLECTOR, Meter, OutputFormat, exit_with, note, offsets_topic_progress, progress
from offsetmgr.cli.watch import (
    NamedCommand,
    RepeatFlags,
    WatchCommand,
    ordered,
    reject_watch_of_one_read,
    run_for_contexts,
    watch_command,
)
from offsetmgr.config.connection import ConnectionConfig, SettingsLayer, resolve, with_properties
from offsetmgr.core import redact
from offsetmgr.core.advice import Argument, for_command_line
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of, printable

if TYPE_CHECKING:
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.app.migrate import SideSettings
    from offsetmgr.cli.options import SideConfigs
    from offsetmgr.core.offset_store import OffsetStore


# `Terminal`: notes, progress, clean stops and prompts of the command line, and the options of commands that change
# production.

# Signal handlers of commands: in a `stop_on_signal` block, the first Ctrl-C requests a clean stop, and the second
# Ctrl-C interrupts the command. SIGTERM and SIGHUP have the same effect as Ctrl-C. When a terminal is lost, both the
# kernel and the shell may send SIGHUP, so commands ignore every SIGHUP after the first. A process that was started
# with SIGHUP ignored, for example with ``nohup``, ignores every SIGHUP. A manager only prints a line at a SIGHUP,
# because a manager continues to run when its terminal is lost. After a command has completed its writes, the first
# Ctrl-C has no effect. Otherwise, a command that has completed its writes would return the exit code of an
# interrupted command if Ctrl-C arrived during the output of its results.

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_hangup_received: Final = threading.Event()
"""Set if a SIGHUP has arrived, and was handled like Ctrl-C."""
Handlers: TypeAlias = Mapping[signal.Signals, Any]
"""The handler of each signal, as passed to ``signal.signal``."""


@contextmanager
def stop_on_signal(what: str, has_begun: Callable[[], bool] = lambda: True) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether a signal has requested a stop. ``what`` is the part of the message that
    describes when the command will stop. As long as ``has_begun`` returns False, the command has changed nothing, and
    the first Ctrl-C interrupts it.

    If the block ends without an exception and no stop was requested, calls `ignore_first_signal` for the rest of the
    command.
    """
    requested = False

    def request_stop(number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        if number == signal.SIGHUP:
            ignore_hangups()
        if requested and number == signal.SIGHUP:
            return
        if requested or not has_begun():
            raise KeyboardInterrupt
        requested = True
        _print_line(f"stopping: {what} (again to interrupt at once)")

    before = _current_handlers()
    _set_handlers(dict.fromkeys(SIGNALS, request_stop))
    done = False
    try:
        yield lambda: requested
        done = not requested
    finally:
        if done:
            ignore_first_signal(before)
        else:
            _set_handlers(before)


def ignore_first_signal(before: Handlers | None = None) -> None:
    """After this call, the first Ctrl-C or SIGTERM has no effect, except that a line is printed.

    ``before`` contains the handlers for all later signals. If ``before`` is `None`, the handlers that were installed
    before this call handle all later signals.
    """
    before = before or _current_handlers()

    def ignore_once(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            ignore_hangups()
        _set_handlers(before)
        _print_line("ending (again to interrupt at once)")

    _set_handlers(
        {number: ignore_once for number, handler in _current_handlers().items() if handler is not signal.SIG_IGN}
    )


def raise_on_termination_signals() -> None:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt. A signal that was ignored when the process was started stays
    ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            _set_handlers({number: _interrupt})


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        ignore_hangups()
    raise KeyboardInterrupt


def ignore_hangups() -> None:
    """Ignores SIGHUP after this call."""
    _hangup_received.set()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def print_hangups() -> None:
    """Makes SIGHUP only print a line, even if the process was started with SIGHUP ignored."""
    signal.signal(signal.SIGHUP, lambda *_: _print_line("SIGHUP does nothing"))


@contextmanager
def preserved_signal_handlers() -> Iterator[None]:
    """At the end of the block, restores the signal handlers from before the block."""
    before = _current_handlers()
    try:
        yield
    finally:
        _set_handlers(before)


def _current_handlers() -> Handlers:
    return {number: signal.getsignal(number) for number in SIGNALS}


def _set_handlers(handlers: Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # Python sets signal handlers only in the main thread
        for number, handler in handlers.items():
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _print_line(line: str) -> None:
    try:
        note(line)
    except RuntimeError:  # the signal interrupted a write to stderr, and such a write is not reentrant
        with contextlib.suppress(OSError):
            os.write(2, f"\n{line}\n".encode())


T = TypeVar("T")
_TERMINAL_INTERVAL_S: Final = 3.0
_FILE_INTERVAL_S: Final = 30.0


class ChangeFlags(NamedTuple):
    """The options of a command that changes production."""

    execute: Execute = False
    yes: Yes = False
    reason: Reason = None


class RunFlags(NamedTuple):
    """The options of `ChangeFlags`, of a command that prints a table."""

    execute: Execute = False
    yes: Yes = False
    reason: Reason = None
    output: FormatOption = OutputFormat.TABLE


class EditFlags(NamedTuple):
    """The options of a command that edits offsets: those of `RunFlags` and ``--before-image``."""

    execute: Execute = False
    yes: Yes = False
    before_image: BeforeImage = None
    output: FormatOption = OutputFormat.TABLE
    reason: Reason = None

    def run(self, edit: PlannedEdit, *, as_csv: bool = False, numbers_undo: bool = False, plan: str = "") -> int:
        """Runs an edit, or saves it as the file ``plan``, and returns the exit code. The first Ctrl-C after its end has
        no effect."""
        from offsetmgr.cli.edit_command import EditOutput

        others = {"--execute": self.execute, "--before-image": self.before_image, "--reason": self.reason}
        for other in filter(others.get, others) if plan else ():
            raise UsageError(f"--plan and {other}", "are both given", "give the second to offsets import")
        shown = EditOutput(edit, self.output, execute=self.execute, as_csv=as_csv, numbers_undo=numbers_undo)
        code = shown.run(self.before_image, self.reason or "", plan)
        ignore_first_signal()
        return code


class Terminal(Ui):
    """Prints notes and progress on stderr, and asks on stdin. ``yes`` is the option ``--yes``, and ``context`` the
    selected context, which the questions name.

    Prints at most one repeated note every 3 s, or every 30 s if stderr is not a terminal, and none if the command reads
    several clusters."""

    def __init__(self, *, yes: bool = False, context: str | None = None) -> None:
        self.yes, self.context = yes, context
        self._next = 0.0

    def confirm(self, question: str) -> None:
        """Asks the user the question, unless ``yes`` is true.

        Raises `Declined` if the answer is no. Raises `UsageError` if stdin is not a terminal, or if stdin ends before
        the user has answered.
        """
        if self.yes:
            return
        question = question if self.context is None else f"context {self.context}: {question}"
        if not sys.stdin.isatty():
            why = "stdin is not a terminal, so the prompt cannot be answered"
            raise UsageError(question.rstrip("?"), why, "add --yes")
        answer = ""
        Meter.clear()
        try:
            sys.stderr.write(f"{printable(question)} [y/N] ")
            sys.stderr.flush()
            with suppress(OSError):  # the terminal may be gone
                answer = sys.stdin.readline()
            if not answer:
                ignore_hangups()  # a lost terminal can still send SIGHUP
        except KeyboardInterrupt as error:
            if _hangup_received.is_set() or not sys.stdin.isatty():
                raise _unanswered(question) from error
            sys.stderr.write("\n")
            raise Interrupted("nothing was done") from error
        if not answer:
            raise _unanswered(question)
        if answer.strip().lower() not in ("y", "yes"):
            raise Declined

    def note(self, text: str, *, warning: bool = False, repeated: bool = False) -> None:
        if repeated:
            now = time.monotonic()
            if now < self._next or COLLECTOR.get() is not None:
                return
            self._next = now + (_TERMINAL_INTERVAL_S if sys.stderr.isatty() else _FILE_INTERVAL_S)
        note(f"warning: {for_command_line(text)}" if warning else text)

    def reads(self, text: str, *, warning: bool = True) -> None:
        self.note(text, warning=warning)

    def progress(self, items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
        return progress(items, what, total)

    def meter(self, what: str, unit: int = 1) -> Callable[[int, int | None], None]:
        return Meter(what, unit).show

    def stop(
        self, what: str, has_begun: Callable[[], bool] = lambda: True
    ) -> AbstractContextManager[Callable[[], bool]]:
        return stop_on_signal(what, has_begun)


def _unanswered(question: str) -> UsageError:
    why = "no answer was given (end of input), so nothing was done"
    return UsageError(question.rstrip("?"), why, "answer y or n, or add --yes")


_ONE_CONTEXT: Final = "name one context: offsetmgr context list"


class ConnectFlags(Connections):
    """The connection options of one command line. Opens the stores and clusters that the options select, and closes
    them at the end of the command."""

    refuses_other_cluster = False

    def __init__(self, settings: SettingsLayer, context: str | None, *, yes: bool = False) -> None:
        self.flags = settings
        """The values of the flags alone, without the values from environment variables and the config file."""
        resolved = resolve(settings, context)
        super().__init__(resolved, Terminal(yes=yes, context=resolved.context))
        self.named_context = context
        if resolved.unused_context is not None:
            note(f"context {resolved.unused_context} is not used: it does not name these servers")
        _note_ignored(self.resolved.command_config)
        addresses = ("zookeeper", "bootstrap_server", "store")
        self.given = {**{name: getattr(settings, name) for name in addresses}, **self.repeated()}
        self.cluster_name = ""
        """The context of this run if the command runs for several contexts; otherwise an empty string."""
        self.checks_store = False
        """Whether `store` raises an error if the selected store does not respond. A command for many clusters then
        waits only once for a dead cluster."""

    def store(self, uri: str | None = None, connection: ConnectionConfig | None = None) -> OffsetStore:
        """Opens the selected store, or the store at ``uri`` if given. Prints progress while a Kafka store reads the
        offsets topic."""
        store = super().store(uri, connection)
        for part in store.parts:
            part.on_read = offsets_topic_progress()
        if self.checks_store and uri in (None, self.resolved.store):
            store.log_origin()
        return store

    def connection(self, command_config: str | None) -> ConnectionConfig:
        """Returns the settings of the command line. If ``command_config`` is given, the Kafka settings, the ZooKeeper
        credentials and the ZooKeeper ACL come from the ``.properties`` file that it names."""
        if command_config is None:
            return self.resolved.connection
        _note_ignored(command_config)
        return with_properties(self.resolved.connection, command_config)

    def of_sides(self, from_config: str | None, to_config: str | None) -> tuple[ConnectionConfig, ConnectionConfig]:
        """Returns the settings for the source and for the target of a migration; see `connection`."""
        return self.connection(from_config), self.connection(to_config)

    def sides(self, configs: SideConfigs) -> SideSettings:
        """Returns how a migration connects to its source and to its target."""
        from offsetmgr.app.migrate import SideSettings

        return SideSettings(*self.of_sides(*configs), self.repeated(*configs))

    def repeated(
        self, from_config: str | None = None, to_config: str | None = None, *, command_config: str | None = None
    ) -> Mapping[str, Argument]:
        """Returns the arguments that a later use case for the same servers needs, from any directory: the files with
        settings and the context, or the servers that keep a default context from use. The first arguments are the
        values of ``--from-command-config`` and ``--to-command-config``. ``command_config`` replaces the value of
        ``--command-config``."""
        files = {
            "command_config": command_config or self.flags.command_config,
            "from_command_config": from_config,
            "to_command_config": to_config,
        }
        unused, found = self.resolved.unused_context is not None, self.resolved
        return {
            **{name: None if file is None else str(Path(file).absolute()) for name, file in files.items()},
            **({"zookeeper": found.zookeeper, "bootstrap_server": found.bootstrap_server} if unused else {}),
            "context": found.context,
            "ignore_persistent_members": bool(self.flags.ignore_persistent_members),
        }

    def undo_options(self, uri: str, command_config: str | None = None) -> Mapping[str, Argument]:
        """Returns the arguments that the undo of an edit of the store at ``uri`` needs besides ``store``: those of
        `repeated`, the ZooKeeper where old consumers are registered, and the brokers that have the logs. Other edits of
        the store need them too."""
        found = dict(self.repeated(command_config=command_config))
        for name, kind in (("zookeeper", "zookeeper:"), ("bootstrap_server", "kafka:")):
            if not uri.startswith(kind):  # a context names it
                found[name] = getattr(self.resolved if self.resolved.context is None else self.flags, name)
        return found

    def reject_for_many(self, given: Mapping[str, object], why: str, hint: str = _ONE_CONTEXT) -> None:
        """Raises `UsageError` if the command runs for several contexts and one of these options has a value."""
        option = next((option for option, value in given.items() if value), None)
        if self.cluster_name and option is not None:
            raise UsageError(f"{option} with several contexts", why, hint)


def _note_ignored(command_config: str | None) -> None:
    """Prints the settings of the ``.properties`` file that offsetmgr ignores."""
    if command_config is None:
        return
    from offsetmgr.config.java_config import ignored_keys
    from offsetmgr.config.properties import load_properties

    if keys := ignored_keys(load_properties(Path(command_config))):
        settings = f"{count_of(len(keys), 'setting')} that {'does' if len(keys) == 1 else 'do'} not concern"
        note(f"{command_config}: offsetmgr ignores {settings} the connection: {', '.join(keys)}")


def contexts_of(text: str | None) -> list[str] | None:
    """Returns the contexts that the value of ``--context`` selects if it is a list or a glob; None if it is a name.
    Raises `ConfigError` if it selects no context."""
    if text is None or not any(character in text for character in ",*?["):
        return None
    from offsetmgr.config.contexts import Contexts

    contexts = Contexts.read()
    return None if text in contexts.layers else contexts.select(text)


def require_many_clusters(context: str | None, settings: SettingsLayer, why_one: str) -> None:
    """Raises `UsageError` if a command must not run for several contexts. ``why_one`` is the reason why it must not."""
    from offsetmgr.config.contexts import ADDRESS_VARIABLES

    what = f"--context {context!r}"
    if why_one:
        raise UsageError(what, why_one, "name one: offsetmgr context list")
    if settings.bootstrap_server or settings.zookeeper or settings.store:
        why = "selects several clusters, but --bootstrap-server, --zookeeper or --store names the servers of one"
        raise UsageError(what, why, "leave out one of both")
    if name := next((name for name in ADDRESS_VARIABLES if os.environ.get(name)), None):
        why = f"selects several clusters, but the variable {name} replaces the address of each"
        raise UsageError(what, why, f"unset {name}")


def _warn_of_repeated_stores(names: Iterable[str], settings: SettingsLayer) -> None:
    """Prints a warning for each store that several of the contexts name."""
    contexts_of_store: dict[str, list[str]] = {}
    for name in names:
        with suppress(OffsetMgrError):  # the run of this context reports the error
            if (store := resolve(settings, name).store) is not None:
                contexts_of_store.setdefault(store, []).append(name)
    for store, same in contexts_of_store.items():
        if len(same) > 1:
            note(f"warning: contexts {', '.join(same)} name the same store, so its rows are repeated: {redact(store)}")


class _Run(NamedTuple):
    """One run of a command. ``raw`` are the values of the options, before `OptionGroups` combines them into
    ``values``."""

    command: Callable[..., Any]
    settings: SettingsLayer
    values: dict[str, Any]
    repeat: RepeatFlags
    raw: Mapping[str, Any]

    def for_one(self, context: str | None) -> int:
        """Runs the command, and returns its exit code."""
        with ConnectFlags(self.settings, context, yes=bool(self.raw.get("yes"))) as connect:

            def once() -> int:
                try:
                    return self.command(connect=connect, **self.values) or 0
                except GroupNotFound as missing:
                    raise connect.explained(missing) from None
                except typer.Exit as ended:
                    return ended.exit_code

            return watch_command(once, *self.repeat)

    def for_contexts(self, names: list[str]) -> int:
        """Runs the command for several contexts, and returns its exit code. The option ``--watch`` repeats the merged
        output."""
        _warn_of_repeated_stores(names, self.settings)
        sort, top = self.raw.get("sort"), self.raw.get("top")
        order = functools.partial(ordered, sort=sort, top=top) if sort or top else None

        def run_one(name: str) -> None:
            with ConnectFlags(self.settings, name) as connect:
                connect.checks_store = True
                connect.cluster_name = name
                exit_with(self.command(connect=connect, **self.values) or 0)

        def once() -> int:
            return run_for_contexts(names, run_one, self.raw.get("output", OutputFormat.TABLE), order)

        return watch_command(once, *self.repeat)


def command(
    app: typer.Typer,
    name: str,
    *,
    many: bool = False,
    one: str = "this command accepts only one context",
    watch: bool = False,
    cls: type[typer.core.TyperCommand] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a command of ``app`` that connects to servers. The command has the connection options as parameters;
    the function gets a `ConnectFlags` as ``connect``, and returns an exit code or None.

    ``many`` is for a function that writes to no server, and writes its results only with `write_rows`, `note` and
    `report_and_exit_code`: it runs for several contexts. Otherwise, ``one`` is the reason that the user gets. ``watch``
    adds the options ``--watch`` and ``--count``, which repeat the function. ``cls`` is the class of the command.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        run = _connected(function, many=many, one=one, watch=watch)
        return app.command(name, cls=cls or (WatchCommand if watch else NamedCommand))(run)

    return declare


def _connected(command: Callable[..., Any], *, many: bool, one: str, watch: bool) -> Callable[..., Any]:
    added: dict[str, Any] = {"repeat": RepeatFlags} if watch else {}
    added["connect"] = ConnectionFlags
    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "connect"]
    own += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in added.items()]
    option_groups = OptionGroups(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)
    groups = GroupArguments(option_groups.parameters)
    parameters = with_several_contexts(groups.parameters) if many else groups.parameters

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        groups.combine(values)
        raw = dict(values)
        require_state_volume(raw)
        option_groups.combine(values)
        flags, repeat = values.pop("connect"), values.pop("repeat", RepeatFlags())
        uris = tuple(uri for name in ("from_", "source", "to", "target") if ":" in (uri := str(raw.get(name))))
        context, settings = flags.context, replace(flags.settings(), other_stores=uris)
        reject_watch_of_one_read(repeat.watch, raw)
        names, this = contexts_of(context), _Run(command, settings, values, repeat, raw)
        if names is None:
            exit_with(this.for_one(context))
        else:
            require_many_clusters(context, settings, "" if many else one)
            exit_with(this.for_contexts(names))

    del run.__wrapped__
    return with_parameters(run, parameters)
