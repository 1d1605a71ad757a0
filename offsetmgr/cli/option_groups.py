"""Options that several commands have, as one parameter: a command with ``flags: EditFlags`` has an option for each
field of `EditFlags`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, get_type_hints


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
