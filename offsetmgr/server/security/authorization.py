"""`AuthorizationRules`: the rules for groups, topics and admin APIs, from a file.

The brokers see only the manager's own principal, so the manager has to check its clients' permissions itself. An
example of a file::

    [[rule]]
    principals = ["billing"]            # user names; "*" means all users
    groups = ["billing", "billing-*"]   # names, or prefixes that end with a star; "*" means all
    topics = ["orders*"]
    transactional_ids = ["billing-*"]
    operations = ["read", "write"]      # read, write, delete, describe, produce, consume; "all"

All operations that no rule allows are denied. Every operation implies describe.

| operation | on a group | on a topic | on a transactional id |
|---|---|---|---|
| describe | list and describe it | Metadata and ListOffsets | find its coordinator |
| read | fetch its offsets, join it | fetch offsets of it | |
| write | commit its offsets | commit offsets of it | |
| delete | delete it or its offsets | delete offsets of it | |
| produce | | produce records to it | use it in transactions |
| consume | | fetch its records | |

Only the relay handles records and transactions, so produce, consume and transactional ids matter only with the relay.

The relay forwards an admin API (`ADMIN_APIS`) only if a rule allows it to the client::

    [[rule]]
    principals = ["operator"]
    apis = ["CreateTopics", "DeleteTopics"]   # "*" means all admin APIs
    topics = ["orders*"]                      # without this field: all topics and all other resources

No rule can allow access to the managers' own topic, group and transactional ids: `ReservedGroupsAuthorizer` and
`RequestFilter` reject such requests.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from offsetmgr.config import toml_table
from offsetmgr.config.toml_table import TomlTable
from offsetmgr.kafka.protocol.releases import ApiKey

T = TypeVar("T")

ANY_USER: Final = "*"
_ALL: Final = "all"
ADMIN_APIS: Final[Mapping[int, str]] = {
    ApiKey.CREATE_TOPICS: "CreateTopics",
    ApiKey.DELETE_TOPICS: "DeleteTopics",
    ApiKey.DELETE_RECORDS: "DeleteRecords",
    ApiKey.DESCRIBE_CONFIGS: "DescribeConfigs",
    ApiKey.ALTER_CONFIGS: "AlterConfigs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "AlterReplicaLogDirs",
    ApiKey.DESCRIBE_LOG_DIRS: "DescribeLogDirs",
    ApiKey.CREATE_PARTITIONS: "CreatePartitions",
    ApiKey.ELECT_LEADERS: "ElectLeaders",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "IncrementalAlterConfigs",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "AlterPartitionReassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "ListPartitionReassignments",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "DescribeClientQuotas",
    ApiKey.ALTER_CLIENT_QUOTAS: "AlterClientQuotas",
    ApiKey.DESCRIBE_QUORUM: "DescribeQuorum",
    ApiKey.DESCRIBE_PRODUCERS: "DescribeProducers",
    ApiKey.DESCRIBE_TRANSACTIONS: "DescribeTransactions",
    ApiKey.LIST_TRANSACTIONS: "ListTransactions",
    ApiKey.LIST_CONFIG_RESOURCES: "ListConfigResources",
}
"""The APIs that a rule's ``apis`` may name, by key: the forwarded APIs that only administrators use."""
_MAX_CACHED: Final = 20_000
_MAX_CACHED_LENGTH: Final = 249
"""Decisions are cached only for names of at most this number of characters."""


class Operation(enum.Enum):
    """The operations of the table above."""

    DESCRIBE = "describe"
    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    PRODUCE = "produce"
    CONSUME = "consume"


class Authorizer:
    """Decides whether a principal may use an operation. Handlers call it for each group and topic of a request. This
    class is the authorizer without rules, which allows everything."""

    has_rules = False
    """Whether the authorizer may deny an operation."""

    def allows(self, principal: str, operation: Operation, name: str, field: str) -> bool:  # noqa: ARG002
        """Whether the principal may use the operation on a name. ``field`` is the field of `Rule` for such names."""
        return True

    def any_topic(self, principal: str, right: Operation | int) -> bool:  # noqa: ARG002
        """Whether a rule allows an operation, or the admin API with this key, for any topic."""
        return True

    def admin(self, principal: str, api_key: int, topic: str | None) -> bool:  # noqa: ARG002
        """Whether the relay may forward this admin API for a topic. ``topic`` is None if the request concerns all
        topics, or a resource that is not a topic."""
        return True


class ReservedGroups(NamedTuple):
    """The names that the managers of one offsets topic use themselves. An empty string reserves nothing."""

    topic: str = ""
    """The offsets topic."""
    group: str = ""
    """The managers' group."""
    transactional_ids: str = ""
    """The prefix of the shards' transactional ids."""

    def has_transactional_id(self, name: str) -> bool:
        return bool(self.transactional_ids) and name.startswith(self.transactional_ids)


class ReservedGroupsAuthorizer(Authorizer):
    """Denies all operations on the reserved names; another authorizer decides about all other names."""

    has_rules = True

    def __init__(self, authorizer: Authorizer, reserved: ReservedGroups) -> None:
        self._authorizer = authorizer
        self._reserved = reserved

    def allows(self, principal: str, operation: Operation, name: str, field: str) -> bool:
        if field == "transactional_ids":
            reserved = self._reserved.has_transactional_id(name)
        else:
            reserved = name == (self._reserved.group if field == "groups" else self._reserved.topic)
        return not reserved and self._authorizer.allows(principal, operation, name, field)

    def any_topic(self, principal: str, right: Operation | int) -> bool:
        return self._authorizer.any_topic(principal, right)

    def admin(self, principal: str, api_key: int, topic: str | None) -> bool:
        if topic is not None and topic == self._reserved.topic:
            return False
        return self._authorizer.admin(principal, api_key, topic)


class Rule(NamedTuple):
    """One entry of the file. Names that end with a star are prefixes."""

    principals: frozenset[str]
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    operations: frozenset[Operation]
    apis: frozenset[int] = frozenset()
    """Keys of `ADMIN_APIS`. If the rule has ``topics``, the rule allows the APIs only for those topics."""
    transactional_ids: tuple[str, ...] = ()

    def concerns(self, principal: str, right: Operation | int) -> bool:
        named = principal in self.principals or ANY_USER in self.principals
        return named and (right in self.operations or right in self.apis)


class AuthorizationRules(Authorizer):
    """The authorizer with the rules of one file. Caches its decisions for a bounded number of names."""

    has_rules = True

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._known = lru_cache(2 * _MAX_CACHED)(self._decide)

    def any_topic(self, principal: str, right: Operation | int) -> bool:
        return any(rule.topics or right in rule.apis for rule in self._rules if rule.concerns(principal, right))

    def allows(self, principal: str, operation: Operation, name: str, field: str) -> bool:
        decide = self._known if len(name) <= _MAX_CACHED_LENGTH else self._decide
        return decide(principal, operation, name, field)

    def _decide(self, principal: str, operation: Operation, name: str, field: str) -> bool:
        return any(_matches(name, getattr(rule, field)) for rule in self._rules if rule.concerns(principal, operation))

    def admin(self, principal: str, api_key: int, topic: str | None) -> bool:
        return any(
            not rule.topics or (topic is not None and _matches(topic, rule.topics))
            for rule in self._rules
            if rule.concerns(principal, api_key)
        )

    def users_without_records(self) -> list[str]:
        """Returns the users that may fetch or commit offsets of topics, but may neither produce nor consume records."""
        offsets, records = {Operation.READ, Operation.WRITE}, (Operation.PRODUCE, Operation.CONSUME)
        rules = [rule for rule in self._rules if rule.topics and rule.operations & offsets]
        named = {principal for rule in rules for principal in rule.principals}
        return sorted(user for user in named if not any(self.any_topic(user, operation) for operation in records))


def load_rules(path: Path | str) -> AuthorizationRules:
    """Loads the rules of a file. Raises `ConfigError`, which names the file and the invalid line or field."""
    table = toml_table.load(path)
    table.reject_unknown(["rule"])
    rules = [_rule(entry) for entry in table.tables("rule")]
    if not rules:
        raise table.error("contains no [[rule]], so no client may do anything")
    return AuthorizationRules(rules)


def _rule(entry: TomlTable) -> Rule:
    entry.reject_unknown(["principals", "groups", "topics", "transactional_ids", "operations", "apis"])
    principals = entry.text_list("principals")
    if not principals:
        raise entry.error('must name a user, or "*" for all users', "principals")
    groups, topics, transactions = (_patterns(entry, field) for field in ("groups", "topics", "transactional_ids"))
    apis = _named(entry, "apis", {name: key for key, name in ADMIN_APIS.items()}, ANY_USER)
    if not groups and not topics and not transactions and (not apis or "operations" in entry.values):
        raise entry.error("names neither groups nor topics")
    needed = groups or transactions or not apis or "operations" in entry.values
    operations = frozenset[Operation]()
    if needed:
        operations = _named(entry, "operations", {operation.value: operation for operation in Operation}, _ALL)
        if not operations:
            raise entry.error("must name at least one operation", "operations")
        operations |= {Operation.DESCRIBE}
    return Rule(frozenset(principals), groups, topics, operations, apis, transactions)


def _named(entry: TomlTable, field: str, known: Mapping[str, T], everything: str) -> frozenset[T]:
    """Returns what a field names. The word ``everything`` stands for all known names."""
    names = entry.text_list(field)
    for name in names:
        if name != everything and name not in known:
            raise entry.error(f"{name!r} is not one of {', '.join([*known, everything])}", field)
    return frozenset(known.values()) if everything in names else frozenset(known[name] for name in names)


def _patterns(entry: TomlTable, field: str) -> tuple[str, ...]:
    patterns = entry.text_list(field)
    for pattern in patterns:
        if "*" in pattern[:-1]:
            raise entry.error(f"{pattern!r}: a star may only stand at the end", field)
    return tuple(patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)
