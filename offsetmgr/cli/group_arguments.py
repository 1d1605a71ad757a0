"""Names of groups as arguments: ``groups describe billing`` is ``groups describe --group billing``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, Final, get_args, get_origin

import typer

from offsetmgr.cli.migrate_options import PlanGroups
from offsetmgr.cli.options import GroupsOption, OneGroup, opt
from offsetmgr.core.errors import UsageError

ARGUMENT: Final = "group_arguments"
"""The name of the added parameter."""
Groups = Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="The same as --group.")]
Group = Annotated[str | None, typer.Argument(metavar="[GROUP]", help="The same as --group.")]
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


def one_group(argument: str | None, option: str | None) -> str | None:
    """Returns the group of a command for which a group is optional. Raises `UsageError` if two groups are named."""
    if argument is not None and option is not None and argument != option:
        raise UsageError("--group", f"both {argument} and --group {option} are given")
    return argument if argument is not None else option


def _is_variable_argument(parameter: inspect.Parameter) -> bool:
    """Whether the parameter is an argument that can be left out or repeated."""
    metadata = getattr(parameter.annotation, "__metadata__", ())
    if not any(isinstance(entry, typer.models.ArgumentInfo) for entry in metadata):
        return False
    return parameter.default is not inspect.Parameter.empty or get_origin(get_args(parameter.annotation)[0]) is list
