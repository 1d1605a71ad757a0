"""Reads the groups that a user selects from a store, in the order of the selection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import CorruptData, GroupNotFound, NotAuthorized, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, OtherGroupKind, fetch_group
from offsetmgr.core.selection import KNOWN_GROUPS, GroupSelection, TopicPattern, TopicSelection, is_pattern

if TYPE_CHECKING:
    from offsetmgr.groups.edit_plan import GroupEditPlan


def choose_groups(store: OffsetStore, selection: GroupSelection, others: Iterable[OffsetStore] = ()) -> list[str]:
    """Returns the selected groups, sorted; see `GroupSelection.within`.

    A group that is selected by name need not exist; `require_known` checks that. Raises any error from
    ``store.groups()``, which is not called if the selection has only names. A glob selects no groups without committed
    offsets.
    """
    try:
        return selection.within(
            store.groups() if selection.patterns is None or any(map(is_pattern, selection.patterns)) else (),
            store.uri,
            unlisted=True,
            others=lambda: (group for other in others for group in other.groups()),
        )
    except GroupNotFound as missing:
        wanted = GroupSelection(missing.groups or None, exclude=selection.excluded)
        left_out = [*filter(wanted.matches, store.left_out)]
        if selection.patterns is None or not left_out:  # without patterns, the exclusion is the reason
            raise
        why = f"only groups without committed offsets match, such as {left_out[0]!r}"
        hint = Advice("name share groups in full; {} shows them", Invocation("groups list", (), {"type": True}))
        raise GroupNotFound(missing.what, why, hint, groups=missing.groups) from None


def require_known(stores: Iterable[OffsetStore], empty: Iterable[str], hint: str = KNOWN_GROUPS) -> None:
    """Raises the error that `not_known` returns."""
    if (missing := not_known(stores, empty, hint)) is not None:
        raise missing


def not_known(stores: Iterable[OffsetStore], empty: Iterable[str], hint: str = KNOWN_GROUPS) -> GroupNotFound | None:
    """Returns `GroupNotFound` if none of the stores lists a group in ``empty``, otherwise None. The error names all
    stores. ``empty`` are groups for which no offsets were found."""
    unknown, uris = set(empty), []
    for store in stores:
        uris.append(store.uri)
        if unknown:
            unknown.difference_update(store.groups())
    if not unknown:
        return None
    first, *rest = sorted(unknown)
    more = f" (and {len(rest)} more)" if rest else ""
    why = f"does not exist in {' nor in '.join(uris)}"
    return GroupNotFound(f"group {first!r}{more}", why, hint, groups=[first, *rest])


def require_kind(store: OffsetStore, group: str) -> None:
    """Raises `OtherGroupKind` if a group that the store does not list is a share group, for example."""
    for found in store.scan([group]):
        if isinstance(found.error, OtherGroupKind):
            raise found.error


def scan_in_order(
    store: OffsetStore,
    groups: Iterable[str],
    named: Callable[[str], Iterable[TopicPartition]] = lambda _group: (),
    *,
    expected: Mapping[str, Collection[TopicPartition]] = MappingProxyType({}),
) -> Iterator[GroupOffsets]:
    """Scans groups like ``store.scan``, with the results in the order of ``groups``. If data of a group that cannot be
    decoded or read prevents the scan, reads the partitions that ``named`` returns for the group.

    ``expected`` has partitions of groups that the caller knows by name. If a scan omits one, the function asks for it
    by name, because its offset may be pending or hidden.
    The function keeps a result in memory until it has yielded the results of all earlier groups. Therefore memory grows
    with the number of groups that the store reads at the same time.
    """
    requested: deque[str] = deque()

    def remember() -> Iterator[str]:
        for group in groups:
            requested.append(group)
            yield group

    early: dict[str, GroupOffsets] = {}
    for result in store.scan(remember()):
        early[result.name] = result
        while requested and requested[0] in early:
            found = early.pop(requested.popleft())
            if found.error is not None:
                yield _with_named(store, found, named)
            else:
                yield from with_unlisted(store, [found], expected) if expected else [found]


def without_impossible(found: GroupOffsets) -> GroupOffsets:
    """Returns a group without offsets if the store cannot contain a group of this name."""
    return GroupOffsets(found.name, {}) if isinstance(found.error, UsageError) else found


def _with_named(
    store: OffsetStore, found: GroupOffsets, named: Callable[[str], Iterable[TopicPartition]]
) -> GroupOffsets:
    if not isinstance(found.error, CorruptData | NotAuthorized) or not (partitions := list(named(found.name))):
        return found
    fetched = fetch_group(store, found.name, partitions)
    return found if fetched.error is not None else fetched


def with_unlisted(
    store: OffsetStore, groups: Sequence[GroupOffsets], expected: Mapping[str, Iterable[TopicPartition]]
) -> list[GroupOffsets]:
    """Asks by name for the partitions of ``expected`` that the scans of these groups omitted, and adds the answers to
    their results. An omitted offset may be pending, or hidden from this login; then the answer is an error."""
    missing = {one.name: [] if one.error else _unlisted(one, expected.get(one.name, ())) for one in groups}
    requested = {name: partitions for name, partitions in missing.items() if partitions}
    answers = {one.name: one for one in store.scan_partitions(requested)} if requested else {}
    return [_with_answer(one, answers.get(one.name)) for one in groups]


def _unlisted(found: GroupOffsets, expected: Iterable[TopicPartition]) -> list[TopicPartition]:
    listed = {*found.offsets, *found.errors}
    return [tp for tp in expected if tp not in listed and type(tp.partition) is int]


def _with_answer(found: GroupOffsets, answer: GroupOffsets | None) -> GroupOffsets:
    if answer is None:
        return found
    offsets, errors = {**found.offsets, **answer.offsets}, {**found.errors, **answer.errors}
    return replace(found, offsets=offsets, errors=errors, error=answer.error)


# Finds ``--topic`` patterns that match no partition. A pattern without a match is probably mistyped, so the command
# fails.


class TopicMatches(TopicSelection):
    """The selection ``topics`` during one call. `matches` gets each partition that the call finds, and records the
    patterns that have matched none yet."""

    incomplete = False
    """Whether some partitions could not be read. A pattern without a match may match an unreadable partition."""

    def __init__(self, topics: TopicSelection) -> None:
        super().__init__(topics.patterns)
        self._left = [*topics.patterns]

    def matches(self, tp: TopicPartition) -> bool:
        if self._left:
            self._left[:] = [pattern for pattern in self._left if not pattern.matches(tp)]
        return super().matches(tp)

    @property
    def missing(self) -> Sequence[TopicPattern]:
        """The patterns without a match. Empty if some partitions could not be read, because the read error is reported
        instead."""
        return () if self.incomplete else self._left

    def require_all(self, where: str) -> None:
        """Raises `UnknownTopicOrPartition` if patterns have no match. ``where`` is the store to name in the error."""
        if missing := self.missing:
            raise UnknownTopicOrPartition(
                f"topic{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}",
                f"not among the groups' offsets in {where}",
                Advice("check the names; {} shows what is committed", Invocation("offsets get")),
            )


def require_topics(plans: Iterable[GroupEditPlan], topics: TopicMatches, where: str) -> Iterator[GroupEditPlan]:
    """Yields plans that are made with ``topics``. At the end, raises `UnknownTopicOrPartition` for selected topics that
    occur in none of the plans.

    If a plan has the problem `GroupNotFound` and none of the selected topics occurs in any plan, the function raises no
    error, because the user has already seen this problem.
    """
    any_rejected = False
    for plan in plans:
        absent = isinstance(plan.problem, GroupNotFound)
        any_rejected = any_rejected or absent
        topics.incomplete |= not absent and plan.problem is not None
        yield plan
    if len(topics.missing) < len(topics.patterns) or not any_rejected:
        topics.require_all(where)
