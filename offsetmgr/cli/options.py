"""The options that commands share, named as in Kafka's own tools."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import typer

from offsetmgr.cli.render import COLLECTOR, MetricsFormat, OutputFormat
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.config.user_directories import require_kept, state_directory
from offsetmgr.core import example_uris
from offsetmgr.core.durations import parse_milliseconds, parse_seconds
from offsetmgr.core.errors import UsageError
from offsetmgr.core.log_origin import OffsetTranslation, TranslationChoice, TranslationRules
from offsetmgr.core.offset_store import RunningEdit
from offsetmgr.core.selection import GroupSelection, TopicSelection

if TYPE_CHECKING:
    from offsetmgr.app.migrate import PlanSelection


def opt(names: str, metavar: str | None, help: str, **more: Any) -> Any:
    """An option with a value. ``names`` are separated by spaces."""
    return typer.Option(*names.split(), metavar=metavar, help=help, **more)


def arg(metavar: str, help: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, help=help)


def flag(names: str, help: str, **more: Any) -> Any:
    """An option without a value."""
    return typer.Option(*names.split(), help=help, **more)


def command_group(help: str | None = None) -> typer.Typer:
    """Returns the app of a group of commands. Without a command it prints its help."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def parsed_by(parse: Callable[[str], Any]) -> dict[str, Any]:
    """Returns arguments of an option whose text ``parse`` converts. Typer replaces the message of a `ValueError`, such
    as a `UsageError`, that its own ``parser`` raises."""
    return {"parser": str, "callback": lambda value: None if value is None else parse(value)}


def seconds_option(option: str, help: str, *, least: float = 0, metavar: str = "SECONDS", **others: Any) -> Any:
    """An option whose value is a number of seconds, or a duration such as ``5m``."""
    parser = parsed_by(lambda text: parse_seconds(text, option, least))
    return typer.Option(option, metavar=metavar, help=help, **parser, **others)


def file_to_write(param: typer.CallbackParam, value: Path | str | None) -> Path | str | None:
    """Checks the value of an option that names an output file. Raises `UsageError` if the value is ``-`` or empty."""
    if str(value) in ("-", ""):
        why = "- is not standard input or output here" if value else "the name of the file is empty"
        raise UsageError(f"{param.opts[0]} {value}".rstrip(), why, "name a file that does not exist yet")
    return value


BootstrapServer = Annotated[
    str | None,
    opt(
        "--bootstrap-server",
        "HOST:PORT,...",
        "Kafka brokers. They are also the store, unless --store or --zookeeper names another store.",
    ),
]
Zookeeper = Annotated[
    str | None,
    opt(
        "--zookeeper",
        "HOST:PORT/CHROOT",
        "ZooKeeper as the store (old consumers); add --bootstrap-server for commands that read logs.",
    ),
]
Store = Annotated[
    str | None,
    opt("--store", "URI", f"The store: {example_uris()}."),
]
ContextName = Annotated[
    str | None,
    opt("--context", "NAME", "Settings of [context.NAME] of the config file."),
]
ContextNames = Annotated[
    str | None,
    opt(
        "--context",
        "NAME,...",
        "Settings of [context.NAME] of the config file; a list or a glob reads several clusters at once.",
    ),
]
CommandConfig = Annotated[
    str | None,
    opt(
        "--command-config",
        "FILE",
        "Client .properties, as for kafka-consumer-groups; also zookeeper.auth=digest:USER:PASSWORD.",
    ),
]
Timeout = Annotated[
    int | None,
    opt(
        "--timeout",
        "MS",
        "Maximum wait for one response of a server: milliseconds (30000), or a duration such as 30s.",
        **parsed_by(lambda text: parse_milliseconds(text, "--timeout")),
    ),
]


class ConnectionFlags(NamedTuple):
    """The options that most commands accept."""

    bootstrap_server: BootstrapServer = None
    zookeeper: Zookeeper = None
    store: Store = None
    context: ContextName = None
    command_config: CommandConfig = None
    timeout: Timeout = None
    ignore_persistent_members: Annotated[
        bool | None,
        opt(
            "--ignore-persistent-members",
            None,
            "Consumers with persistent member nodes in ZooKeeper have stopped: ignore them unless a commit is seen.",
        ),
    ] = None

    def settings(self) -> SettingsLayer:
        """Returns the settings that the options give, without the context."""
        given = self._asdict()
        del given["context"]
        return SettingsLayer(timeout_ms=given.pop("timeout"), **given)


GroupsOption = Annotated[
    list[str] | None,
    opt("--group -g", "NAME", "A group, or a glob (a literal star: [*]); repeatable."),
]
OneGroup = Annotated[str, opt("--group -g", "NAME", "The group.")]
ExcludeGroup = Annotated[
    list[str] | None,
    opt("--exclude-group", "NAME", "Leave out this selected group, or those that match a glob; repeatable."),
]
OnlyWithLag = Annotated[bool, flag("--only-with-lag", "Show only partitions with lag, an error or an unknown lag.")]
AllTopics = Annotated[bool, flag("--all-topics", "All topics in which the group has committed.")]
Execute = Annotated[bool, flag("--execute/--dry-run", "Make the changes; without it the command only shows them.")]
Yes = Annotated[bool, flag("--yes -y", "Do not ask before acting.")]
BeforeImage = Annotated[
    str | None,
    opt(
        "--before-image",
        "FILE",
        "File for the before-images, which undo the edit (default: a new file in the state directory).",
        callback=file_to_write,
    ),
]
Reason = Annotated[
    str | None,
    opt("--reason", "TEXT", "Why, for the operation log (offsetmgr edits list)."),
]
FormatOption = Annotated[OutputFormat, opt("--format", None, "Output format of stdout; --wide shows a table in full.")]
MetricsOption = Annotated[MetricsFormat, opt("--format", None, "Output format of stdout; prometheus is for metrics.")]
UnterminatedOption = Annotated[
    bool,
    flag("--accept-unterminated", "Accept a text file whose last line has no line end: the file is complete."),
]
SavePlan = Annotated[
    str | None,
    opt("--plan", "FILE", "Save the edit as a plan, which offsets import executes later.", callback=file_to_write),
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace an existing file.")]
TranslateOption = Annotated[
    OffsetTranslation | None,
    opt(
        "--translate",
        None,
        "Allow another Kafka cluster as the target. none: equal topics, so offsets stay. For others: offsets diff.",
    ),
]
AcceptUnseen = Annotated[
    bool, flag("--accept-unseen", "Also delete offsets that this login cannot read, or may not see.")
]
AllowRewind = Annotated[bool, flag("--allow-rewind", "Allow offsets to go backwards.")]


WaitEmpty = Annotated[
    float,
    seconds_option("--wait-empty", "Wait this long for active groups to become empty."),
]


WatchedWindow = Annotated[
    float | None,
    seconds_option("--window", "Watch commits for at most this time, to see the phase instead of inferring it."),
]


class MemberFlags(NamedTuple):
    """The options of edits of groups with members."""

    running: Annotated[
        bool,
        flag(
            "--running",
            "Edit groups while their consumers run: the members leave for some seconds and continue at the edit.",
        ),
    ] = False
    wait_empty_s: WaitEmpty = 0.0

    def active(self) -> RunningEdit | float:
        """Returns how to treat groups with members. Raises `UsageError` if both options are given."""
        if self.running and self.wait_empty_s:
            why = "the first edits groups with members, the second waits until they have none"
            raise UsageError("--running and --wait-empty", why, "give one of them")
        return RunningEdit() if self.running else self.wait_empty_s


class GroupFlags(NamedTuple):
    """The options that select groups."""

    group: GroupsOption = None
    all_groups: Annotated[bool, flag("--all-groups", "All groups.")] = False
    exclude_group: ExcludeGroup = None

    def selection(self) -> GroupSelection:
        """Returns the selected groups. Raises `UsageError` unless exactly one of --group and --all-groups is given."""
        require_choice("--group", self.group, "--all-groups", self.all_groups)
        return GroupFilter(self.group, self.exclude_group).selection()


class TopicFlags(NamedTuple):
    """The options that select topics and partitions."""

    topic: Annotated[
        list[str] | None, opt("--topic -t", "NAME[:0,1]", "A topic, a glob, or some partitions of it; repeatable.")
    ] = None

    def selection(self) -> TopicSelection:
        """Returns the selected partitions. Raises `UsageError` for a text that names no topic."""
        return TopicSelection.parse(self.topic or [])


class GroupFilter(NamedTuple):
    """The options that select groups, of a command that takes all groups without them."""

    group: GroupsOption = None
    exclude_group: ExcludeGroup = None

    def selection(self) -> GroupSelection:
        """Returns the selected groups. A group that only some of several clusters have is no reason to leave out the
        rest of a cluster."""
        collector = COLLECTOR.get()
        on_missing = None if collector is None else collector.errors.append
        return GroupSelection(self.group or None, exclude=self.exclude_group, on_missing=on_missing)


def require_choice(option: str, named: list[str] | None, other: str, everything: bool) -> None:
    """Raises `UsageError` unless exactly one of two options is given: ``option``, which names groups or topics, and
    ``other``, which selects all of them."""
    if bool(named) == everything:
        why = f"both {option} and {other} are given" if everything else f"no {option.lstrip('-')} is named"
        raise UsageError(option, why, f"as in {option} NAME (repeatable, globs), or {other}")


PlanPath = Annotated[Path, arg("PLAN", "The plan file; its journal is in the same directory.")]
PlanGroups = Annotated[
    list[str] | None,
    opt("--group -g", "NAME", "Only this group of the plan, or a glob; repeatable."),
]
WaveOption = Annotated[
    list[int] | None,
    opt("--wave", "N", "Only the groups of this wave; repeatable.", min=1),
]


class PlanScope(NamedTuple):
    """The options that limit a command to some groups of a plan."""

    group: PlanGroups = None
    wave: WaveOption = None
    exclude_group: ExcludeGroup = None

    def selection(self) -> PlanSelection:
        """Returns the selected groups."""
        from offsetmgr.app.migrate import PlanSelection

        groups = GroupSelection(self.group or None, exclude=self.exclude_group or ())
        return PlanSelection(groups, tuple(self.wave or ()))


SourceStore = Annotated[str, opt("--from", "URI", "The store to read: a URI, or zookeeper, kafka or manager.")]
TargetStore = Annotated[str, opt("--to", "URI", "The store to write: a URI, or zookeeper, kafka or manager.")]
Rename = Annotated[
    list[str] | None,
    opt("--rename", "OLD=NEW", "Give a group another name in the target; repeatable."),
]


def parse_renames(pairs: list[str] | None) -> dict[str, str]:
    """Returns the new names of the groups that `Rename` names. Raises `UsageError`."""
    renames: dict[str, str] = {}
    for pair in pairs or []:
        old, equals, new = pair.partition("=")
        if not (equals and new):  # the empty group id is valid in Kafka
            raise UsageError(f"--rename {pair!r}", "must be OLD=NEW")
        if old in renames:
            raise UsageError(f"--rename {pair!r}", f"{old} is renamed twice")
        renames[old] = new
    return renames


def bytes_option(option: str, help: str, metavar: str = "BYTES") -> Any:
    """An option whose value is a number of bytes, or a size such as ``64MB``."""
    return typer.Option(option, metavar=metavar, help=help, **parsed_by(lambda text: _parse_bytes(text, option)))


def _parse_bytes(text: str, option: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*([kMGT]?)(i?)B?", text, re.IGNORECASE)
    if found is None or not int(found[1]):
        raise UsageError(option, f"{text!r} is not a number of bytes", "as in 500000, 64MB, 1GiB")
    power = "kmgt".index(found[2].lower()) + 1 if found[2] else 0
    size: int = int(found[1]) * (1024 if found[3] else 1000) ** power
    return size


class PositionTranslation(StrEnum):
    """How a command finds the right positions of another cluster."""

    AUTO = "auto"
    NONE = "none"


TranslateAuto = Annotated[
    PositionTranslation | None,
    opt(
        "--translate",
        None,
        "For another Kafka cluster. auto: find the same records there. none: equal topics, so offsets stay.",
    ),
]


class AcceptedVerdict(StrEnum):
    """A verdict that the user accepts."""

    INFERRED = "inferred"
    BRACKETED = "bracketed"
    MISSING = "missing"


class TranslationFlags(NamedTuple):
    """The options of a translation by the records."""

    rename_topic: Annotated[
        list[str] | None,
        opt(
            "--rename-topic",
            "PATTERN=REPLACEMENT",
            r"Names of topics in the target, as in '(.*)=east.\1'; the first matching pattern counts; repeatable.",
        ),
    ] = None
    accept: Annotated[
        list[AcceptedVerdict] | None,
        opt("--accept", None, "A verdict to accept in addition to seen; repeatable. The smallest offset counts."),
    ] = None
    ignore_header: Annotated[
        list[str] | None,
        opt("--ignore-header", "NAME", "A header that the copier adds to records; repeatable."),
    ] = None
    max_read: Annotated[
        int | None,
        bytes_option(
            "--max-read", "Read at most this much of a partition, in both clusters together [default: 256MiB]."
        ),
    ] = None
    throttle: Annotated[int | None, bytes_option("--throttle", "Read at most this much in a second.", "BYTES/s")] = None

    def rules(self) -> TranslationRules:
        """Returns the rules of the translation."""
        accepts, headers = tuple(self.accept or ()), tuple(self.ignore_header or ())
        return TranslationRules(tuple(self.rename_topic or ()), accepts, self.max_read, self.throttle, headers)

    def chosen(self, translate: PositionTranslation | None) -> TranslationChoice | None:
        """Returns the choice of --translate. Raises `UsageError` for options that need --translate auto."""
        if translate is PositionTranslation.AUTO:
            return self.rules()
        given = next((name for name, value in self._asdict().items() if value), None)
        if given is not None:
            why, hint = "is for a translation by the records", "add --translate auto"
            raise UsageError(f"--{given.replace('_', '-')}", why, hint)
        return None if translate is None else OffsetTranslation.NONE


class SideConfigs(NamedTuple):
    """The files with the settings of the source and of the target."""

    from_command_config: Annotated[
        str | None, opt("--from-command-config", "FILE", "Like --command-config, but only for the source.")
    ] = None
    to_command_config: Annotated[
        str | None, opt("--to-command-config", "FILE", "Like --command-config, but only for the target.")
    ] = None


class StepFlags(NamedTuple):
    """The options of a step that changes production."""

    yes: Yes = False
    reason: Reason = None


class OptionGroups:
    """Replaces each parameter whose type is a named tuple with one parameter for each field, and puts the values
    together again.

    ``parameters`` are the parameters of the command for the option parser.
    """

    def __init__(self, parameters: Iterable[inspect.Parameter]) -> None:
        self.parameters: list[inspect.Parameter] = []
        self._types: dict[str, Any] = {}
        for given in parameters:
            kind = given.annotation
            if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
                self.parameters.append(given)
                continue
            fields: Any = kind
            self._types[given.name] = fields
            for name, annotation in get_type_hints(fields, include_extras=True).items():
                default = fields._field_defaults.get(name, inspect.Parameter.empty)
                self.parameters.append(inspect.Parameter(name, given.kind, default=default, annotation=annotation))

    def combine(self, values: dict[str, Any]) -> None:
        """Replaces the values of the fields with one value for each group."""
        for name, fields in self._types.items():
            values[name] = fields(**{field: values.pop(field) for field in fields._fields})


def without_connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a command that connects to no server, with a parameter for each field of its groups of options."""
    signature = inspect.signature(command, eval_str=True)
    groups = OptionGroups(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values())

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        require_state_volume(values)
        groups.combine(values)
        return command(**values)

    return with_parameters(run, with_several_contexts(groups.parameters))


def with_several_contexts(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    """Returns the parameters of a command, of which ``--context`` accepts several contexts."""
    return [one.replace(annotation=ContextNames) if one.annotation == ContextName else one for one in parameters]


def require_state_volume(values: Mapping[str, Any]) -> None:
    """Raises `FileFailure` in a container that would lose before-images, a plan or the state of a bounce, if a command
    with these options needs an undo. An operator must not stop consumers first, nor answer a question, for an edit that
    is then refused."""
    is_edit = values.get("execute", "yes" in values and not (values.get("dry_run") or values.get("reverse_plan")))
    if not is_edit or values.get("in_place") is False:
        return
    named = [values.get(name) for name in ("before_image", "plan_path", "keep")]
    named += [values["state"] or Path("bounce-*.json")] if "state" in values else []
    # log recover copies the bytes that it removes to --keep, or next to each log.
    copied = [] if values.get("keep") else values.get("paths") or []
    for file in (state_directory(), *filter(None, named), *copied):
        require_kept(Path(file), ": --state FILE" * (file in named[3:]))


def with_parameters(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Callable[..., Any]:
    """Returns the function with these parameters for the option parser."""
    shown: Any = function
    shown.__signature__ = inspect.Signature(parameters)
    shown.__annotations__ = {one.name: one.annotation for one in parameters}
    return function


ARGUMENT: Final = "group_arguments"
"""The name of the added parameter."""
Groups = Annotated[list[str] | None, arg("[GROUP]...", "The same as --group.")]
Group = Annotated[str | None, arg("[GROUP]", "The same as --group.")]
OptionalGroup = Annotated[str | None, opt("--group -g", "NAME", "The group.")]


class GroupArguments:
    """Adds an argument to a command with an option ``--group``, and combines the values of both.

    ``parameters`` are the parameters of the command for the option parser. A command keeps its parameters if it has
    none of the options `GroupsOption`, `OneGroup` and `PlanGroups`, or if it already has an argument that can be left
    out or repeated.
    """

    def __init__(self, parameters: Sequence[inspect.Parameter]) -> None:
        self.parameters = list(parameters)
        self._name = ""
        self._single = False
        if any(_is_variable_argument(parameter) for parameter in parameters):
            return
        for at, parameter in enumerate(parameters):
            if parameter.annotation in (GroupsOption, OneGroup, PlanGroups):
                self._name, self._single = parameter.name, parameter.annotation == OneGroup
                if self._single:
                    self.parameters[at] = parameter.replace(annotation=OptionalGroup, default=None)
                annotation: Any = Group if self._single else Groups
                added = inspect.Parameter(ARGUMENT, parameter.kind, default=None, annotation=annotation)
                self.parameters.append(added)
                return

    def combine(self, values: dict[str, Any]) -> None:
        """Moves the names of the argument into the value of the option. Raises `UsageError` if a command that needs
        one group has none, or two."""
        if not self._name:
            return
        given = values.pop(ARGUMENT)
        if not self._single:
            values[self._name] = [*(values[self._name] or ()), *(given or ())] or None
            return
        names = [name for name in (values[self._name], given) if name is not None]
        if len(names) != 1:
            why = "two groups are named" if names else "no group is named"
            raise UsageError("--group", why, "name one group, as an argument or with --group NAME")
        values[self._name] = names[0]


def _is_variable_argument(parameter: inspect.Parameter) -> bool:
    """Whether the parameter is an argument that can be left out or repeated."""
    metadata = getattr(parameter.annotation, "__metadata__", ())
    if not any(isinstance(entry, typer.models.ArgumentInfo) for entry in metadata):
        return False
    return parameter.default is not inspect.Parameter.empty or get_origin(get_args(parameter.annotation)[0]) is list


# The help of commands: examples, and connection options that are described once, by ``offsetmgr help connection``.

_EXAMPLES: Final = Path(__file__).with_name("examples.sh")
"""The examples in the help of the commands. A command without one is an example itself."""
_CONNECTION: Final = """\b
Connection options (see offsetmgr help connection): --bootstrap-server,
--zookeeper, --store, --context, --command-config, --timeout,
--ignore-persistent-members"""

app = command_group("Help on a subject.")


@app.command("connection")
@without_connection
def connection(typer_context: typer.Context, flags: ConnectionFlags) -> None:  # noqa: ARG001 - only its help is used
    """Print the connection options, which most commands accept.

    A value comes from the option, else from the variable OFFSETMGR_BOOTSTRAP_SERVER, OFFSETMGR_ZOOKEEPER,
    OFFSETMGR_STORE, OFFSETMGR_COMMAND_CONFIG or OFFSETMGR_TIMEOUT, else from a context of the config file.
    OFFSETMGR_CONTEXT selects a context, like --context.
    """
    print(typer_context.get_help())


def complete_help(command: Any, path: str) -> None:
    """Adds the examples of the command ``path`` to its help. Replaces the description of the connection options by one
    line."""
    parameters = {parameter.name: parameter for parameter in command.params}
    paragraphs = [command.epilog] if command.epilog else []
    if path != "help connection" and parameters.keys() >= set(ConnectionFlags._fields):
        for name in ConnectionFlags._fields:
            parameters[name].get_help_record = lambda ctx: None  # noqa: ARG005 - click passes it by name
        paragraphs.append(_CONNECTION)
    call = f"offsetmgr {path}"
    examples = [one for one in _EXAMPLES.read_text("utf-8").splitlines() if one.startswith(f"{call} ")] or [call]
    title = "Example:" if len(examples) == 1 else "Examples:"
    paragraphs.append("\n".join(["\b", title, *(f"  {one}" for one in examples)]))
    command.epilog = "\n\n".join(paragraphs)
