"""The store in which a group lives, for commands about groups for which no option names the store. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from offsetmgr.core.errors import GateRefused, OffsetMgrError
from offsetmgr.core.model import GroupDescription
from offsetmgr.core.plurals import list_of
from offsetmgr.core.selection import group_words, literal_pattern
from offsetmgr.groups.last_writes import TITLES

if TYPE_CHECKING:
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.migration.group_location import GroupLocation


class OtherHome(NamedTuple):
    """The home of a group that is not known to live in the selected store ``selected``. ``uri`` is the store to which
    its consumers commit, ``name`` the name of the group there, and ``why`` the evidence; if ``uri`` is None, the home
    is unknown. ``candidates`` are the configured stores that may be the home, and ``same`` is whether they hold the
    same offsets. ``options`` are the connection options of a command that `refusal` names."""

    group: str
    name: str
    selected: str
    uri: str | None
    why: str
    candidates: tuple[str, ...]
    same: bool = False
    options: str = ""

    @property
    def text(self) -> str:
        """The home of the group, with the evidence."""
        if self.uri is None:
            return f"the store to which its consumers commit is not known: {self.why}"
        there, here = (TITLES.get(uri.partition(":")[0], uri) for uri in (self.uri, self.selected))
        name = "" if self.name == self.group else f" as {self.name!r}"
        return f"its consumers commit to {there}{name}, not to {here}: {self.why}"

    @property
    def is_readable(self) -> bool:
        """Whether a command can read the group under its own name in a configured store."""
        return self.name == self.group and self.uri in self.candidates

    def refusal(self) -> GateRefused:
        """Returns the error of an edit in the selected store."""
        if self.uri is None:
            watch = shlex.join(("offsetmgr", "groups", "where", *group_words(literal_pattern(self.group))))
            named = " or ".join(f"--store {shlex.quote(uri)}" for uri in self.candidates)
            hint = f"name the store: add {named}; {watch} --window 60{self.options} watches commits"
        else:
            named, here = shlex.quote(self.uri), shlex.quote(self.selected)
            name = "" if self.name == self.group else f" and name the group {self.name!r}"
            hint = f"add --store {named}{name}; --store {here} edits the offsets that its consumers do not use"
        return GateRefused(f"group {self.group!r}", self.text, hint)


def homes_text(homes: Sequence[OtherHome]) -> str:
    """Returns the names of groups, and the home of the first."""
    first = homes[0]
    if len(homes) == 1:
        return f"group {first.group!r}: {first.text}"
    return f"groups {list_of((repr(home.group) for home in homes), 5)}: of {first.group!r}, {first.text}"


def other_home(one: GroupLocation, kind: str, options: str = "") -> OtherHome | None:
    """Returns the home of a group; None if it lives in the selected store, which is of this kind, or if no other store
    has anything of it. See `OtherHome` for ``options``."""
    sample, phase, plan = one.sample, one.phase.phase.value, one.sample.plan
    selected = sample.store(kind)
    others = [store for store in sample.stores if store.name != kind]
    used = [store for store in others if store.offsets or store.members or store.error or store.members_error]
    if phase == kind or selected is None:
        return None
    name, uri = one.group, None
    if phase == "moved" and plan is not None:
        if (plan.target, plan.target_group) == (kind, one.group):
            return None
        target = sample.store(plan.target or "")
        name, uri = plan.target_group, plan.target_uri if target is None else target.uri
    elif (there := sample.store(phase)) is not None:
        uri = there.uri
    elif not used:
        return None
    same = all(not store.problem and store.committed == selected.committed for store in (selected, *used))
    candidates = (selected.uri, *(store.uri for store in used))
    return OtherHome(one.group, name, selected.uri, uri, one.phase.why, candidates, same, options)


def refused_elsewhere(
    describe: DescribeGroups, homes: Callable[[Iterable[str]], Mapping[str, OtherHome]]
) -> DescribeGroups:
    """Returns a function that describes groups like ``describe``, and returns the refusal of an edit for each group
    that ``homes`` has."""

    def checked(groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        names = list(groups)
        return {**describe(names), **{name: home.refusal() for name, home in homes(names).items()}}

    return checked
