"""Checks that each shared mechanism has one home: prints one line for each second copy; exits with 1 if there is any.

docs/explanation/architecture.md lists the mechanisms. This check finds copies of those that a syntax tree shows.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

PACKAGE: Final = Path(__file__).resolve().parent.parent / "offsetmgr"


class Mechanism(NamedTuple):
    """A mechanism, its home, and how a copy looks. ``elsewhere`` maps other modules that may look like a copy to the
    reason."""

    name: str
    home: str
    copies: Callable[[ast.Module], Iterator[int]]
    elsewhere: Mapping[str, str]


def calls(tree: ast.AST, name: str) -> Iterator[int]:
    """The lines of calls of a function or class of this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            yield node.lineno


def sleeping_retries(tree: ast.Module) -> Iterator[int]:
    """The lines of loops that catch an exception and sleep. A sleep of the constant 0 only yields to other tasks."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.While | ast.For | ast.AsyncFor):
            continue
        inside = list(ast.walk(node))
        sleeps = [
            one
            for one in inside
            if isinstance(one, ast.Call)
            and ast.unparse(one.func).rpartition(".")[2] == "sleep"
            and not (one.args and isinstance(one.args[0], ast.Constant) and one.args[0].value == 0)
        ]
        if sleeps and any(isinstance(one, ast.ExceptHandler) for one in inside):
            yield node.lineno


def imports(*packages: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module imports one of these packages or a module of them."""

    def found(tree: ast.Module) -> Iterator[int]:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            if any(f"{name}.".startswith(f"{package}.") for name in names for package in packages):
                yield node.lineno

    return found


def shifts_by_seven(tree: ast.Module) -> Iterator[int]:
    """The lines of statements that shift by seven bits repeatedly, as an encoder of variable-length numbers does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant) and node.value.value == 7:
            yield node.lineno


def tables_of_error_codes(tree: ast.Module) -> Iterator[int]:
    """The lines of dicts that map several error codes to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            codes = [key for key in node.keys if key is not None and ast.unparse(key).startswith("ErrorCode.")]
            if len(codes) > 1:
                yield node.lineno


def definitions(*names: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module defines a function of one of these names."""

    def found(tree: ast.Module) -> Iterator[int]:
        yield from (node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names)

    return found


def log_range_tables(tree: ast.Module) -> Iterator[int]:
    """The lines where an object declares an attribute that holds log ranges or their errors."""
    in_classes = {id(node) for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in each.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and (isinstance(node.target, ast.Attribute) or id(node) in in_classes):
            annotation = ast.unparse(node.annotation)
            if annotation.startswith("dict[TopicPartition, LogRange"):
                yield node.lineno


def subclasses(*names: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module derives a class from a class of one of these names."""

    def found(tree: ast.Module) -> Iterator[int]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in names for base in node.bases):
                yield node.lineno

    return found


def uses_of(name: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module uses an attribute of this name, for example a member of an enumeration."""

    def found(tree: ast.Module) -> Iterator[int]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] == name:
                yield node.lineno

    return found


def member_requests(tree: ast.Module) -> Iterator[int]:
    """The lines that create a request with which a client joins a group, remains in it or leaves it."""
    keys = {f"ApiKey.{name}" for name in ("JOIN_GROUP", "SYNC_GROUP", "HEARTBEAT", "LEAVE_GROUP")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Request" and node.args:
            yield from (node.lineno for key in node.args[:1] if ast.unparse(key) in keys)


def plural_endings(tree: ast.Module) -> Iterator[int]:
    """The lines of conditions that choose between the endings '' and 's' of a noun."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and {ast.unparse(node.body), ast.unparse(node.orelse)} == {"''", "'s'"}:
            yield node.lineno


MECHANISMS: Final = (
    Mechanism(
        "retry loop",
        "core/retry.py",
        sleeping_retries,
        {
            "kafka/groups/group_member.py": "periodic heartbeats",
            "kafka/groups/static_membership.py": "periodic heartbeats",
            "manager/node/topic_monitor.py": "a periodic check of the topic",
            "manager/runtime/manager.py": "periodic background work",
            "migration/mirror.py": "waits for the next round",
            "server/proxy/brokers.py": "periodic metadata",
            "server/proxy/foreign_commit_monitor.py": "periodic reads",
            "server/store_backends/store_health.py": "a periodic probe",
            "zookeeper/admin/submit.py": "waits until the controller has finished",
        },
    ),
    Mechanism(
        "evaluation of a conditional change",
        "core/evaluation.py",
        lambda tree: calls(tree, "RewindRefused"),
        {},
    ),
    Mechanism("comparison of two offset values", "core/evaluation.py", definitions("same_value"), {}),
    Mechanism(
        "rules of dual commit", "stores/dual_policy.py", definitions("accepted_by_primary", "secondary_change"), {}
    ),
    Mechanism("matching of group names", "groups/selection.py", definitions("literal_of", "literal_pattern"), {}),
    Mechanism(
        "member that exists as long as its ZooKeeper session",
        "zookeeper/client/session_member.py",
        lambda tree: calls(tree, "SessionLease"),
        {"stores/switched/store.py": "opens a session when a caller needs it, in the caller's thread"},
    ),
    Mechanism(
        "outcome of a ZooKeeper transaction",
        "zookeeper/client/conditional_writes.py",
        uses_of("OperationState"),
        {
            "zookeeper/admin/submit.py": "reports an unknown outcome to the user",
            "zookeeper/client/session.py": "creates the outcomes",
            "zookeeper/offsets/edits.py": "decides for each node of a transaction",
        },
    ),
    Mechanism("Java's string hash", "core/java_hash.py", definitions("java_hash"), {}),
    Mechanism("variable-length numbers", "core/varint.py", shifts_by_seven, {}),
    Mechanism("meaning of Kafka's error codes", "kafka/protocol/errors.py", tables_of_error_codes, {}),
    Mechanism(
        "request for log ranges",
        "kafka/client/log_ranges.py",
        lambda tree: calls(tree, "LogRange"),
        {
            "migration/observation.py": "decodes a file",
            "segments/partition.py": "a log on disk",
            "spark/period_log.py": "ends at the last stable offset",
        },
    ),
    Mechanism(
        "cache of log ranges",
        "core/log_range_cache.py",
        log_range_tables,
        {"migration/observation.py": "decodes a file"},
    ),
    Mechanism("data source of Spark", "spark/data_source_api.py", subclasses("DataSource", "DataSourceReader"), {}),
    Mechanism(
        "count with a noun",
        "core/plurals.py",
        plural_endings,
        {
            "groups/topic_matches.py": "a noun without a count",
            "zookeeper/check/findings.py": "a noun without a count",
        },
    ),
    Mechanism("request of a group member", "kafka/groups/member_requests.py", member_requests, {}),
    Mechanism(
        "fsync",
        "core/atomic_file.py",
        lambda tree: calls(tree, "fsync"),
        {
            "migration/journal.py": "appends to a file",
            "segments/log_appender.py": "appends to a file",
            "segments/repair.py": "truncates a file in place",
        },
    ),
    Mechanism(
        "use of the schemas of Kafka's messages",
        "kafka/protocol/schema_codec.py",
        imports("kio.schema", "kio.serial", "kio.index"),
        {},
    ),
    Mechanism(
        "typed fields of JSON objects",
        "core/field_reader.py",
        lambda tree: calls(tree, "loads"),
        {
            "config/connection.py": "a TOML file that has only tables of strings",
            "config/toml_table.py": "parses TOML for a FieldReader",
            "kafka/client/manager_admin.py": "a response of a manager, which has no fixed fields",
            "migration/bounce_checkpoint.py": "dataclasses in their plain form",
            "migration/journal.py": "lines with a checksum, written by this program",
            "migration/plan_codec.py": "lines of a hashed file, decoded in bulk",
            "migration/plan_file.py": "the header of a hashed file",
            "migration/runbook.py": "finds the observation in one of two formats",
            "sandbox/state.py": "state of the development tool",
            "server/apis/admin_api.py": "a request without fixed fields",
            "snapshots/avro.py": "a list in the metadata of an Avro file",
            "snapshots/json_stream.py": "names the line of each error in a stream of documents",
            "spark/checkpoint.py": "text that may be of any source; other text is no error",
        },
    ),
)


def findings(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """One line for each copy outside the mechanism's home, and for each exception that matches nothing."""
    for mechanism in MECHANISMS:
        copied = {name: list(mechanism.copies(tree)) for name, tree in trees.items() if name != mechanism.home}
        for name, lines in copied.items():
            if name not in mechanism.elsewhere:
                yield from (f"offsetmgr/{name}:{line}: {mechanism.name} outside {mechanism.home}" for line in lines)
        for name in mechanism.elsewhere:
            if not copied.get(name):
                yield f"offsetmgr/{name}: an exception for '{mechanism.name}' that matches nothing"


def main() -> int:
    """Checks all modules. Returns the exit code."""
    paths = sorted(PACKAGE.rglob("*.py"))
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_bytes()) for path in paths}
    found = list(findings(trees))
    print("\n".join(found) if found else f"mechanisms: {len(MECHANISMS)} with one home each")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
