"""Who may do what with which groups and topics, from a file of rules; pure.

The brokers see only the manager's own principal, so the manager has to ask this itself.  A file::

    [[rule]]
    principals = ["billing"]            # user names; "*" is everybody
    groups = ["billing", "billing-*"]   # names, or beginnings of names with a star behind them; "*" is all
    topics = ["orders*"]
    operations = ["read", "write"]      # read, write, delete, describe; "all"

What no rule allows is forbidden.  Every operation implies describe.

| operation | on a group | on a topic |
|---|---|---|
| describe | be listed, be described | be named in Metadata and ListOffsets |
| read | offsets fetched | offsets of it fetched |
| write | offsets committed | offsets of it committed |
| delete | offsets deleted, or the group | offsets of it deleted |
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from offsetmgr.server import tomlfile
from offsetmgr.server.tomlfile import Table

ANYBODY: Final = "*"
_ALL: Final = "all"
_REMEMBERED: Final = 20_000


class Operation(enum.Enum):
    """See the module's table."""

    DESCRIBE = "describe"
    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class Authorizer(Protocol):
    """Decides; called once for each group and topic of a request."""

    def group(self, principal: str, operation: Operation, group: str) -> bool: ...

    def topic(self, principal: str, operation: Operation, topic: str) -> bool: ...


class EverythingAllowed:
    """No rules: whoever may connect may do everything."""

    def group(self, principal: str, operation: Operation, group: str) -> bool:  # noqa: ARG002
        return True

    def topic(self, principal: str, operation: Operation, topic: str) -> bool:  # noqa: ARG002
        return True


class Rule(NamedTuple):
    """One entry of the file. Names that end with a star are prefixes."""

    principals: frozenset[str]
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    operations: frozenset[Operation]

    def concerns(self, principal: str, operation: Operation) -> bool:
        return operation in self.operations and (principal in self.principals or ANYBODY in self.principals)


class Rules:
    """The rules of one file. Decisions are remembered, for a bounded number of names."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self.group = lru_cache(_REMEMBERED)(self._group)
        self.topic = lru_cache(_REMEMBERED)(self._topic)

    def _group(self, principal: str, operation: Operation, group: str) -> bool:
        return any(_matches(group, rule.groups) for rule in self._rules if rule.concerns(principal, operation))

    def _topic(self, principal: str, operation: Operation, topic: str) -> bool:
        return any(_matches(topic, rule.topics) for rule in self._rules if rule.concerns(principal, operation))


def load_rules(path: Path | str) -> Rules:
    """Raises `ConfigError` naming the file and the line or field that cannot be used."""
    table = tomlfile.load(path)
    table.only(["rule"])
    rules = [_rule(entry) for entry in table.tables("rule")]
    if not rules:
        raise table.error("holds no [[rule]], so nobody may do anything")
    return Rules(rules)


def _rule(entry: Table) -> Rule:
    entry.only(["principals", "groups", "topics", "operations"])
    principals = entry.texts("principals")
    if not principals:
        raise entry.error('must name somebody, or "*" for everybody', "principals")
    groups, topics = (_patterns(entry, field) for field in ("groups", "topics"))
    if not groups and not topics:
        raise entry.error("names neither groups nor topics")
    return Rule(frozenset(principals), groups, topics, _operations(entry))


def _patterns(entry: Table, field: str) -> tuple[str, ...]:
    patterns = entry.texts(field)
    for pattern in patterns:
        if "*" in pattern[:-1]:
            raise entry.error(f"{pattern!r}: a star may only stand at the end", field)
    return tuple(patterns)


def _operations(entry: Table) -> frozenset[Operation]:
    names = entry.texts("operations")
    if not names:
        raise entry.error("must name at least one operation", "operations")
    found = {Operation.DESCRIBE}
    for name in names:
        if name == _ALL:
            found.update(Operation)
            continue
        try:
            found.add(Operation(name))
        except ValueError:
            known = ", ".join([*(operation.value for operation in Operation), _ALL])
            raise entry.error(f"{name!r} is none of {known}", "operations") from None
    return frozenset(found)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)
