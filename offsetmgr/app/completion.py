"""The names that a shell completes: groups and topics of the selected cluster, groups of a migration plan, and ids of
recorded operations. The servers have ``limit_s`` seconds to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from offsetmgr.core.batches import in_threads
from offsetmgr.core.errors import OffsetMgrError

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.core.log_origin import LogOrigin
    from offsetmgr.migration.plan import GroupPlan

T = TypeVar("T")


class Names(NamedTuple):
    """Names, and whether all servers responded."""

    found: Iterable[str] = ()
    complete: bool = False


def planned_groups(paths: Iterable[Path], limit_s: float) -> list[GroupPlan]:
    """Returns the groups of plan files; none of a file that cannot be read."""
    from offsetmgr.migration.plan import PlanFile

    reads = [lambda path=path: list(PlanFile(path).groups()) for path in paths]
    return [one for found in _within_limit(reads, limit_s) for one in found or ()]


def operations() -> list[str]:
    """Returns the ids of the recorded operations."""
    from offsetmgr.groups.operation_log import OperationLog

    return [one.id for one in OperationLog().operations()]


def groups(connect: Callable[[], Connections], limit_s: float) -> Names:
    """Reads the groups of all configured stores at the same time, so that a dead store does not delay the others.
    Leaves out the groups of a store that is known to belong to another cluster than the selected store. ``connect``
    opens connections for one thread. Raises `UsageError` if no store is selected."""
    from offsetmgr.core.log_origin import compare_origins

    connections = connect()
    selected, configured = connections.uri, connections.configured_stores().values()
    # Groups of Storm and of Kafka 0.7 have one store.
    has_others = selected in configured and "layout=" not in selected
    others = [one for one in configured if one != selected] if has_others else []

    def read(uri: str) -> tuple[list[str], LogOrigin | None]:
        store = connect().store(uri)
        names, origin = list(store.groups()), None
        if others:
            with suppress(OffsetMgrError):
                origin = store.log_origin()
        return names, origin

    results = _within_limit([partial(read, uri) for uri in dict.fromkeys((selected, *others))], limit_s)
    own = results[0][1] if results[0] is not None else None
    names: set[str] = set()
    for found, origin in filter(None, results):
        if own is None or origin is None or origin is own or compare_origins(own, origin).keeps_epochs:
            names.update(found)
    return Names(names, None not in results)


def topics(connect: Callable[[], Connections], limit_s: float) -> Names:
    """Reads the topics of the selected cluster, or of the selected ZooKeeper if no brokers are known."""

    def read() -> list[str]:
        if (cluster := connect().cluster_or_none()) is not None:
            return list(cluster.topics())
        from offsetmgr.zookeeper.groups.topics import topic_names

        return list(topic_names(connect().zookeeper("completion")))

    return _names(read, limit_s)


def partitions(topic: str, connect: Callable[[], Connections], limit_s: float) -> Names:
    """Reads the partitions of a topic; see `topics`."""

    def read() -> list[str]:
        if (cluster := connect().cluster_or_none()) is not None:
            return [str(number) for number in range(cluster.topics([topic]).get(topic, 0))]
        from offsetmgr.zookeeper.groups.topics import topics

        session = connect().zookeeper("completion")
        return [str(number) for one in topics(session, [topic]) for number in one.partitions]

    return _names(read, limit_s)


def _names(read: Callable[[], list[str]], limit_s: float) -> Names:
    found = _within_limit([read], limit_s)[0]
    return Names(found or (), found is not None)


def _within_limit(reads: Sequence[Callable[[], T]], limit_s: float) -> list[T | None]:
    """Calls the functions at the same time. Returns the result of each, or None if it fails or takes longer than
    ``limit_s``."""
    from concurrent.futures import wait

    found = in_threads(reads)
    wait(found, limit_s)
    return [one.result() if one.done() and one.exception() is None else None for one in found]
