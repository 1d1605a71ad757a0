"""`Advice`: a text that names arguments and invocations, worded for a program or for the command line. `Invocation`: a
use case with its arguments, which is a function of `offsetmgr.app` and a command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from typing import Any, Final, NamedTuple, TypeAlias

Argument: TypeAlias = "str | int | float | bool | tuple[str, ...] | None"
_FIELD: Final = re.compile(r"\{(\w*)(?::(\w+))?(?:=([^}]*))?\}( (?=\{\}|[A-Z](?![a-z])))?")
"""A field of an `Advice`, and the space before its value: another field or a word in capitals."""
_SHORT: Final = {("migrate plan", "output"): "-o", ("runbook write", "output"): "-o"}
"""The arguments that a printed command has in their short form."""
_ARGUMENTS: Final = {
    "from": "source",
    "group": "groups",
    "topic": "topics",
    "groups where window": "window_s",
    "offsets diff to": "target",
    "migrate plan to": "target",
    "migrate cutover to": "target",
    "migrate plan output": "path",
    "migrate renew output": "new_path",
    "runbook bounce to_phase": "to",
    "runbook write output": "files",
}
"""The arguments of functions that have other names than the options, by option or by command and option."""
_OWN_FUNCTIONS: Final = {("offsets diff", "translate"): "offsets.diff_translated"}
"""The options with which a command calls another function, which has no such argument."""


class Invocation(NamedTuple):
    """A use case with its arguments. ``verb`` is the name of the command, such as "migrate apply". ``positional`` are
    the arguments without a name. ``named`` maps argument names to values: an argument with the value None or False is
    left out, True is a flag, and each value of a tuple repeats the option.

    >>> call = Invocation("migrate apply", ("shop.plan",), {"group": ("a", "b"), "execute": True})
    >>> str(call)
    "migrate.apply('shop.plan', groups=('a', 'b'), execute=True)"
    >>> call.command_line()
    'offsetmgr migrate apply shop.plan --group a --group b --execute'
    """

    verb: str
    positional: tuple[str, ...] = ()
    named: Mapping[str, Argument] = {}

    @property
    def function(self) -> str:
        """The name of the function, within `offsetmgr.app`.

        >>> Invocation("offsets import").function, Invocation("doctor").function
        ('offsets.import_', 'doctor.doctor')
        """
        group, _, name = self.verb.replace("-", "_").partition(" ")
        return f"{group}.{name or group}{'_' * (iskeyword(name) or name in ('list', 'set'))}"

    def words(self) -> tuple[str, ...]:
        """Returns the words of the command."""
        words = ["offsetmgr", *self.verb.split(), *self.positional]
        for name, value in self.named.items():
            named = _SHORT.get((self.verb, name)) or option(name)
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None and one is not False:
                    words += [named] if one is True else [named, _number(one)]
        return tuple(words)

    def command_line(self) -> str:
        """Returns the command as a line for a shell."""
        return shlex.join(self.words())

    def options(self) -> str:
        """Returns the options of the command as text that follows a command. Each word begins with a space."""
        return "".join(f" {shlex.quote(word)}" for word in self._replace(verb="", positional=()).words()[1:])

    def __str__(self) -> str:
        given = {name: value for name, value in self.named.items() if value not in (None, False)}
        own = [name for name in given if (self.verb, name) in _OWN_FUNCTIONS]
        function = _OWN_FUNCTIONS[self.verb, own[0]] if own else self.function
        named = (f"{_argument(name, self.verb)}={value!r}" for name, value in given.items() if name not in own)
        return f"{function}({', '.join((*map(repr, self.positional), *named))})"


class Advice(str):
    """A text for a program, in which ``{name}`` of the template is the argument ``name=``, ``{name=value}`` is the
    argument with a value (``True`` for a flag), and ``{}`` is the next one of ``values``. `command_line` words the same
    text for the command line, with ``--name`` and with commands. ``{name:option}`` has another name there. A ``{}`` or
    a word in capitals after an argument is its value.

    >>> advice = Advice("add {bootstrap_server}, or call {}", Invocation("groups where", ("shop",)))
    >>> advice
    "add bootstrap_server=, or call groups.where('shop')"
    >>> advice.command_line()
    'add --bootstrap-server, or call offsetmgr groups where shop'
    >>> str(Advice("a longer {timeout_ms:timeout}")), Advice("a longer {timeout_ms:timeout}").command_line()
    ('a longer timeout_ms=', 'a longer --timeout')
    >>> str(Advice("add {store} URI")), Advice("add {store} URI").command_line()
    ('add store=URI', 'add --store URI')
    >>> Advice("add {translate=none} and {execute=True}").command_line()
    'add --translate none and --execute'
    """

    __slots__ = ("template", "values")
    template: str
    values: tuple[object, ...]

    def __new__(cls, template: str, *values: object) -> Advice:
        text = super().__new__(cls, _worded(template, values, as_command=False))
        text.template, text.values = template, values
        return text

    @classmethod
    def joined(cls, texts: Iterable[str], separator: str = "; ") -> Advice:
        """Returns the texts as one text.

        >>> Advice.joined(["wait", Advice("add {run}")]).command_line()
        'wait; add --run'
        """
        values = list(texts)
        return cls(separator.join("{}" for _ in values), *values)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.template, *self.values)

    def command_line(self) -> str:
        """Returns the text for the command line."""
        return _worded(self.template, self.values, as_command=True)


def for_command_line(text: object) -> str:
    """Returns a text as the command line prints it: an `Advice` and a `Invocation` with options, and any other text
    unchanged."""
    return text.command_line() if isinstance(text, Advice | Invocation) else str(text)


def option(name: str) -> str:
    """Returns the option of an argument."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def _argument(name: str, verb: str = "") -> str:
    return _ARGUMENTS.get(f"{verb} {name}") or _ARGUMENTS.get(name, name)


def _number(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _worded(template: str, values: tuple[object, ...], *, as_command: bool) -> str:
    rest = iter(values)

    def word(field: re.Match[str]) -> str:
        name, as_option, value, space = field.groups(default="")
        if not name:
            return (for_command_line if as_command else str)(next(rest)) + space
        if not as_command:
            return f"{_argument(name)}={value}"
        return option(as_option or name) + ("" if value in ("", "True") else f" {value}") + space

    return _FIELD.sub(word, template)
