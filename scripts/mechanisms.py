"""Checks that each shared mechanism has one home: prints one line for each second copy; exits with 1 if there is any.

docs/explanation/architecture.md lists the mechanisms. This check finds copies of those that a syntax tree shows.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

PACKAGE: Final = Path(__file__).resolve().parent.parent / "offsetmgr"
EXCEPTIONS: Final = frozenset(
    node.name
    for node in ast.parse((PACKAGE / "core" / "errors.py").read_bytes()).body
    if isinstance(node, ast.ClassDef)
)
"""The names of the exceptions of `core.errors`."""


class Mechanism(NamedTuple):
    """A mechanism, its home, and how a copy looks. ``elsewhere`` maps other modules that may look like a copy to the
    reason."""

    name: str
    home: str
    copies: Callable[[ast.Module], Iterator[int]]
    elsewhere: Mapping[str, str]


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree. The mechanisms share the trees, and `ast.walk` takes most of the time."""
    return tuple(ast.walk(tree))


def last_name(function: ast.expr) -> str:
    """The name of a function without the names in front of it: ``sleep`` for ``asyncio.sleep``."""
    return getattr(function, "attr", getattr(function, "id", ""))


def calls(tree: ast.AST, name: str) -> Iterator[int]:
    """The lines of calls of a function or class of this name."""
    for node in nodes(tree):
        if isinstance(node, ast.Call) and last_name(node.func) == name:
            yield node.lineno


def sleeps(node: ast.AST) -> bool:
    """Whether a node is a call that sleeps. A sleep of the constant 0 only yields to other tasks."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "sleep":
        return False
    return not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)


def waits_for_an_event(node: ast.AST) -> bool:
    """Whether a node is a call of an object's method ``wait`` with a timeout."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "wait"
        and ast.unparse(node.func.value) not in ("asyncio", "concurrent.futures")
        and bool(node.args or node.keywords)
    )


def loops(
    pauses: Callable[[ast.AST], bool], *, after_errors: bool, lasting: str = ""
) -> Callable[[ast.Module], Iterator[int]]:
    """The lines of loops that pause. ``after_errors``: whether the loop also catches an exception. If ``lasting`` is
    given, pauses whose length contains one of these words are found outside of loops too."""

    def found(tree: ast.Module) -> Iterator[int]:
        for node in nodes(tree):
            if isinstance(node, ast.While | ast.For | ast.AsyncFor):
                inside = list(nodes(node))
                catches = any(isinstance(one, ast.ExceptHandler) for one in inside)
                if catches is after_errors and any(map(pauses, inside)):
                    yield node.lineno
            elif isinstance(node, ast.Call) and pauses(node) and lasting:
                length = " ".join(map(ast.unparse, node.args))
                if re.search(lasting, length, re.IGNORECASE):
                    yield node.lineno

    return found


def imports(*packages: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module imports one of these packages or a module of them."""

    def found(tree: ast.Module) -> Iterator[int]:
        for node in nodes(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            if any(f"{name}.".startswith(f"{package}.") for name in names for package in packages):
                yield node.lineno

    return found


def shifts_by_seven(tree: ast.Module) -> Iterator[int]:
    """The lines of expressions that shift by seven bits or mask seven bits, as variable-length numbers need."""
    for node in nodes(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
            operator, number = node.op, node.value.value
        elif isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
            operator, number = node.op, node.right.value
        else:
            continue
        shifts = isinstance(node, ast.AugAssign) or isinstance(operator, ast.LShift | ast.RShift)
        if (shifts and number == 7) or (isinstance(operator, ast.BitAnd) and number == 0x7F):
            yield node.lineno


def tables_of_error_codes(tree: ast.Module) -> Iterator[int]:
    """The lines of dicts that map several error codes to something, or a number to an exception of `core.errors`."""
    for node in nodes(tree):
        if isinstance(node, ast.Dict):
            codes = [key for key in node.keys if key is not None and ast.unparse(key).startswith("ErrorCode.")]
            numbered = any(
                isinstance(key, ast.Constant) and isinstance(key.value, int) and last_name(value) in EXCEPTIONS
                for key, value in zip(node.keys, node.values, strict=True)
            )
            if len(codes) > 1 or numbered:
                yield node.lineno


def replacements_of_files(tree: ast.Module) -> Iterator[int]:
    """The lines that rename a file or a directory, with `os` or with `Path`. ``replace`` of a string has two
    arguments."""
    for node in nodes(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
            continue
        of_os = ast.unparse(node.func.value) == "os" and node.func.attr in ("replace", "rename", "renames")
        if of_os or (node.func.attr in ("replace", "rename") and len(node.args) == 1):
            yield node.lineno


def comparisons_with_expected(tree: ast.Module) -> Iterator[int]:
    """The lines that compare something called ``expected``, or a field of it, for equality."""
    for node in nodes(tree):
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops):
            sides = [re.sub(r"\[.*\]", "", ast.unparse(side)).split(".") for side in (node.left, *node.comparators)]
            if any("expected" in names for names in sides):
                yield node.lineno


def writers_of_two_stores(tree: ast.Module) -> Iterator[int]:
    """The lines of classes and functions that use a primary and a secondary, and define or call a function that
    writes."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        used, names = set[str](), set[str]()
        for one in nodes(node):
            if isinstance(one, ast.Attribute | ast.Name):
                used.add((one.attr if isinstance(one, ast.Attribute) else one.id).lstrip("_"))
            if isinstance(one, ast.Call):
                names.add(last_name(one.func))
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(one.name)
        writes = any(re.match("_?(commit|edit|write|enqueue)(_|$)", name) for name in names)
        if {"primary", "secondary"} <= used and writes:
            yield node.lineno


def file_loads(tree: ast.Module) -> Iterator[int]:
    """The lines that parse JSON or TOML from a string or from a file."""
    yield from calls(tree, "loads")
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.load", "tomllib.load"):
            yield node.lineno


def requests_for_log_ends(tree: ast.Module) -> Iterator[int]:
    """The lines that request the start or the end of a log, with the protocol or with Kafka's client."""
    yield from calls(tree, "get_watermark_offsets")
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Request", "EncodedRequest"):
            yield from (node.lineno for key in node.args[:1] if ast.unparse(key) == "ApiKey.LIST_OFFSETS")
        if isinstance(node, ast.Attribute) and last_name(node.value).endswith("OffsetSpec"):
            yield node.lineno


def definitions(*names: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module defines a function of one of these names."""

    def found(tree: ast.Module) -> Iterator[int]:
        yield from (node.lineno for node in nodes(tree) if isinstance(node, ast.FunctionDef) and node.name in names)

    return found


def log_range_tables(tree: ast.Module) -> Iterator[int]:
    """The lines where an object declares an attribute that holds log ranges or their errors."""
    in_classes = {id(node) for each in nodes(tree) if isinstance(each, ast.ClassDef) for node in each.body}
    for node in nodes(tree):
        if isinstance(node, ast.AnnAssign) and (isinstance(node.target, ast.Attribute) or id(node) in in_classes):
            annotation = ast.unparse(node.annotation)
            if annotation.startswith("dict[TopicPartition, LogRange"):
                yield node.lineno


def subclasses(*names: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module derives a class from a class of one of these names."""

    def found(tree: ast.Module) -> Iterator[int]:
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in names for base in node.bases):
                yield node.lineno

    return found


def uses_of(name: str) -> Callable[[ast.Module], Iterator[int]]:
    """The lines where a module uses an attribute of this name, for example a member of an enumeration."""

    def found(tree: ast.Module) -> Iterator[int]:
        for node in nodes(tree):
            if isinstance(node, ast.Attribute) and last_name(node.value) == name:
                yield node.lineno

    return found


def member_requests(tree: ast.Module) -> Iterator[int]:
    """The lines that create a request with which a client joins a group, remains in it or leaves it."""
    keys = {f"ApiKey.{name}" for name in ("JOIN_GROUP", "SYNC_GROUP", "HEARTBEAT", "LEAVE_GROUP")}
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Request" and node.args:
            yield from (node.lineno for key in node.args[:1] if ast.unparse(key) in keys)


def plural_endings(tree: ast.Module) -> Iterator[int]:
    """The lines of conditions that choose between the endings '' and 's' of a noun."""
    for node in nodes(tree):
        if isinstance(node, ast.IfExp) and {ast.unparse(node.body), ast.unparse(node.orelse)} == {"''", "'s'"}:
            yield node.lineno


STOPPABLE_WAITS: Final = {
    "consumer/partition_manager.py": "periodic commits",
    "manager/runtime/standby.py": "a stop of the standby ends the pause; the pause depends on the error",
    "migration/mirror.py": "waits for the next round",
    "spark/periods.py": "waits for a period, not after an error",
    "stores/switched/mode_listener.py": "a stop ends the pause, and one pause serves all groups that failed",
    "zookeeper/client/session_lease.py": "periodic heartbeats",
    "zookeeper/client/session_member.py": "a stop ends the pause; the pause depends on the error",
    "zookeeper/groups/consumer_member.py": "a change of the group ends the pause, as with the old consumer",
}
"""The modules that wait for an event with a timeout. `core.retry` has no pause that an event ends."""


def shortened_lists(tree: ast.Module) -> Iterator[int]:
    """The lines of conditions that choose between no text and a text such as ``and 2 more``."""
    for node in nodes(tree):
        if not isinstance(node, ast.IfExp) or not isinstance(node.body, ast.JoinedStr):
            continue
        if ast.unparse(node.orelse) == "''" and re.search(r"^f['\"][,;]? and \{.*\} more", ast.unparse(node.body)):
            yield node.lineno


def closing_exits(tree: ast.Module) -> Iterator[int]:
    """The lines of methods ``__exit__`` that only close the object."""
    for node in nodes(tree):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == "__exit__"
            and [ast.unparse(statement) for statement in node.body] == ["self.close()"]
        ):
            yield node.lineno


def uses_of_ivy(tree: ast.Module) -> Iterator[int]:
    """The lines with a text of an Ivy module or of Ivy's command line."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.search("<ivy-module|-Divy", node.value)
        ):
            yield node.lineno


def batch_loops(tree: ast.Module) -> Iterator[int]:
    """The lines of loops that take a batch of items from an iterator until none is left."""
    for node in nodes(tree):
        if isinstance(node, ast.While) and isinstance(node.test, ast.NamedExpr) and list(calls(node.test, "islice")):
            yield node.lineno


MECHANISMS: Final = (
    Mechanism(
        "retry loop",
        "core/retry.py",
        loops(sleeps, after_errors=True),
        {
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
        "retry loop that waits for an event",
        "core/retry.py",
        loops(waits_for_an_event, after_errors=True, lasting="pause|retry|backoff"),
        STOPPABLE_WAITS,
    ),
    Mechanism(
        "loop that sleeps",
        "core/retry.py",
        loops(sleeps, after_errors=False),
        {
            "cli/watch.py": "repeats a command at an interval",
            "cli/zk_rebalance.py": "polls until the group is stable",
            "consumer/offsets.py": "polls a lease in memory",
            "kafka/groups/consumer_takeover.py": "periodic heartbeats",
            "kafka/groups/group_takeover.py": "periodic heartbeats",
            "groups/leftover_locks.py": "waits for locks to expire and reports the rest of the wait",
            "manager/node/manager_node.py": "polls a state in memory",
            "manager/node/peer_monitor.py": "periodic connections to other managers",
            "migration/bounce.py": "polls a process of an earlier run",
            "migration/group_observer.py": "observes a group at an interval",
            "migration/group_watch.py": "observes many groups at an interval",
            "migration/journaled_writer.py": "waits for locks to expire and reports the rest of the wait",
            "migration/mirror.py": "waits for the next round",
            "migration/refresh.py": "waits for locks to expire and reports the rest of the wait",
            "sandbox/process_ref.py": "polls a process or a port of the development tool",
            "server/network/socket_server.py": "polls for the end of running requests",
            "server/store_backends/in_doubt_writes.py": "reads all writes with an unknown outcome at an interval",
            "server/store_backends/secondary.py": "polls a number in memory",
            "zookeeper/client/connection.py": "polls kazoo's number of connections",
        },
    ),
    Mechanism(
        "evaluation of a conditional change",
        "core/evaluation.py",
        lambda tree: calls(tree, "RewindRefused"),
        {},
    ),
    Mechanism(
        "comparison with an expected value",
        "core/evaluation.py",
        comparisons_with_expected,
        {
            "kafka/groups/lock_membership.py": "compares the whole value, with its metadata, under the lock",
            "manager/commit_checks.py": "compares an encoded offset, not a value with a version, with an expected one",
            "migration/journal.py": "the number of a line, not an offset",
            "server/store_backends/store_backend.py": "decodes the sentinel for 'no commit' of a request",
            "zookeeper/offsets/bulk_edits.py": "a call for each node would cost more than the write of the node",
        },
    ),
    Mechanism("comparison of two offset values", "core/evaluation.py", definitions("same_value"), {}),
    Mechanism(
        "rules of dual commit", "stores/dual_policy.py", definitions("accepted_by_primary", "secondary_change"), {}
    ),
    Mechanism(
        "write to two stores",
        "stores/dual.py",
        writers_of_two_stores,
        {
            "groups/dual_execute.py": "writes values that two files of before-images hold, each on its own condition",
            "server/store_backends/dual_store.py": "answers a commit on an event loop; pending values stay in memory",
            "server/store_backends/in_doubt_writes.py": "passes values that the primary has to the secondary",
            "server/store_backends/secondary_reconcile.py": "raises the secondary after a restart, without a commit",
        },
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
    Mechanism(
        "context manager that closes itself",
        "core/closeable.py",
        closing_exits,
        {"spark/committer.py": "its close returns whether all offsets are committed"},
    ),
    Mechanism("Java's string hash", "core/java_hash.py", definitions("java_hash"), {}),
    Mechanism(
        "variable-length numbers",
        "core/varint.py",
        shifts_by_seven,
        {
            "records/avro.py": "a fast path without calls for the usual values of each record",
            "records/avro_fields.py": "builds the tables of the fast path",
            "segments/offsets.py": "a fast path without calls for the usual values of each record",
            "snapshots/avro_encoder.py": "caches the bytes of a part of a number",
        },
    ),
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
        "request for the end of a log",
        "kafka/client/log_ranges.py",
        requests_for_log_ends,
        {
            "consumer/fetch.py": "the consumer's own connection, after Kafka rejected its position",
            "kafka/client/backing_cluster.py": "forwards a client's timestamps and returns the brokers' error codes",
            "kafka/client/fetch.py": "encodes the request for the home",
            "kafka/cluster/librdkafka.py": "sends the request with librdkafka; the home combines starts and ends",
            "manager/log/kafka/consumer.py": "the consumer's own connection, after Kafka rejected its position",
            "manager/log/kafka/offsets.py": "ends at the last stable offset, in a thread without an event loop",
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
    Mechanism(
        "first items of a list",
        "core/plurals.py",
        shortened_lists,
        {
            "cli/edits.py": "the record of an operation has the number of the other groups",
            "migration/mirror_group.py": "names the reason of the first item",
        },
    ),
    Mechanism(
        "splitting into batches",
        "core/batches.py",
        batch_loops,
        {
            "server/store_backends/secondary_reconcile.py": "repeats a part of each batch",
            "stores/zookeeper.py": "the size of each batch depends on the server",
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
        "call from a thread without an event loop",
        "kafka/client/background_loop.py",
        lambda tree: calls(tree, "run_coroutine_threadsafe"),
        {},
    ),
    Mechanism(
        "replacement of a file",
        "core/atomic_file.py",
        replacements_of_files,
        {
            "segments/repair.py": "renames the files of a log; the renames can be undone",
            "spark/ivy.py": "renames a directory of downloads",
        },
    ),
    Mechanism("download of jars", "spark/ivy.py", uses_of_ivy, {}),
    Mechanism(
        "use of the schemas of Kafka's messages",
        "kafka/protocol/schema_declarations.py",
        imports("kio.schema", "kio.serial", "kio.index"),
        {},
    ),
    Mechanism(
        "typed fields of JSON objects",
        "core/field_reader.py",
        file_loads,
        {
            "config/connection.py": "a TOML file that has only tables of strings",
            "config/toml_table.py": "parses TOML for a FieldReader",
            "kafka/client/manager_admin.py": "a response of a manager, which has no fixed fields",
            "kafka/client/oauth_tokens.py": "outputs of token commands and endpoints, whose fields have several names",
            "kafka/client/sasl.py": "the reason of a rejected token, for a message",
            "migration/bounce_checkpoint.py": "dataclasses in their plain form",
            "migration/journal.py": "lines with a checksum, written by this program",
            "migration/plan_codec.py": "lines of a hashed file, decoded in bulk",
            "migration/plan_file.py": "the header of a hashed file",
            "migration/baseline_file.py": "finds the observation in one of two formats",
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
    gc.disable()  # it would scan millions of nodes again and again, and finds nothing to free
    paths = sorted(PACKAGE.rglob("*.py"))
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_bytes()) for path in paths}
    found = list(findings(trees))
    print("\n".join(found) if found else f"mechanisms: {len(MECHANISMS)} with one home each")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
