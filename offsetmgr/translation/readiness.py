"""Checks whether groups could resume in the target if the source were lost now, and keeps the last check."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.clock import duration
from offsetmgr.core.document import moment
from offsetmgr.core.errors import CorruptData, ErrorCode, FileFailure, OffsetMgrError, os_error_as
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.stores.uri import parse_uri
from offsetmgr.translation.comparison import ONLY_TO, PositionCounts

VERSION: Final = 1
_MAX_FILES: Final = 50
_MAX_GROUPS: Final = 10_000
"""The largest number of groups in a file. The groups that are not ready come first."""
_MAX_NAMED: Final = 3
_LOOPBACK: Final = re.compile(r"^(localhost|\[::1\])(?=:|$)")


class GroupReadiness(NamedTuple):
    """The records that a group would get again or miss in the target.

    It ``repeats`` and ``skips`` this number of records; both count only positions that are known. In ``absent``
    partitions it has no offset there, so that ``auto.offset.reset`` decides. ``reasons`` has the number of positions
    that are not known, by reason. ``why`` describes the first of them, and the first offset in the target other
    than a plan wrote. ``lives`` names the members of the group in the target, if only the target has members.
    Then the loss of the source changes nothing for it, and nothing is counted.
    """

    name: str
    partitions: int
    repeats: int = 0
    skips: int = 0
    absent: int = 0
    reasons: Mapping[str, int] = {}
    why: str = ""
    lives: str = ""

    @classmethod
    def of(cls, name: str, counts: PositionCounts, lives: str = "", foreign: str = "") -> GroupReadiness:
        if lives:
            return cls(name, counts.total, lives=lives)
        others = {ONLY_TO: counts.only_to, "outside the log": counts.elsewhere}
        others |= {verdict: found.partitions for verdict, found in counts.unsure_skips.items()}
        reasons = counts.unknown + Counter(others)
        skips = counts.skipped + sum(found.least for found in counts.unsure_skips.values())
        why = "; ".join(filter(None, (counts.first_unknown, foreign)))
        return cls(name, counts.total, counts.repeated, skips, counts.only_from, reasons, why)

    @property
    def numbers(self) -> dict[str, int | None]:
        """The numbers of records and of positions by name; None if they were not counted."""
        names = ("repeats", "skips", "absent", "unknown")
        return {name: None if self.lives else getattr(self, name) for name in names}

    @property
    def unknown(self) -> int:
        """The number of positions that are not known."""
        return sum(self.reasons.values())

    @property
    def reasons_text(self) -> str:
        """The reasons, with their numbers."""
        return ", ".join(f"{number:,} {reason}" for reason, number in sorted(self.reasons.items()))

    def is_ready(self, max_repeats: int = 0) -> bool:
        """Whether all positions are known, and the group skips nothing and repeats no more records than this."""
        return self.repeats <= max_repeats and not (self.skips or self.absent or self.unknown)


@dataclass(frozen=True)
class Readiness:
    """The consequences if the cluster of ``source`` were lost.

    ``only_source`` records were found in the source that the target lacks; most of them are in ``only_source_in``. It
    is not known how many there are in ``unknown_partitions`` of the compared ``partitions``. ``clusters`` are the ids
    of both clusters, and ``arguments`` those of the call that chose the groups. ``silent`` is set if a cluster does not
    respond; then everything else is the last known state, of ``checked_at_ms``. ``errors`` are those of groups and
    partitions.
    """

    source: str
    target: str
    checked_at_ms: int
    clusters: Mapping[str, str]
    arguments: Mapping[str, Any]
    groups: tuple[GroupReadiness, ...] = ()
    partitions: int = 0
    only_source: int = 0
    only_source_in: str = ""
    unknown_partitions: int = 0
    more_groups: int = 0
    """The number of groups that the last known state leaves out, because they were too many."""
    errors: tuple[OffsetMgrError, ...] = field(default=(), compare=False)
    silent: OffsetMgrError | None = field(default=None, compare=False)

    def of(
        self,
        counts: Mapping[str, PositionCounts],
        lacking: Mapping[TopicPartition, int | None],
        errors: Sequence[OffsetMgrError],
        living: Mapping[str, str] = MappingProxyType({}),
        foreign: Mapping[str, str] = MappingProxyType({}),
    ) -> Readiness:
        """Returns the check of a comparison. A group with offsets only in the target does not need the source. The
        groups ``living`` have members only in the target, which the text names. Those in ``foreign`` have an offset
        there other than a plan wrote. Raises the first of the errors if no other group is left."""
        both = ((name, one) for name, one in counts.items() if one.total > one.only_to)
        groups = tuple(GroupReadiness.of(name, one, living.get(name, ""), foreign.get(name, "")) for name, one in both)
        if not groups:
            why = "no selected group has an offset in the source"
            raise next(iter(errors), OffsetMgrError("nothing to check", why))
        only = sorted((-number, tp) for tp, number in lacking.items() if number)
        return replace(
            self,
            groups=groups,
            partitions=len(lacking),
            only_source=-sum(number for number, _ in only),
            only_source_in=list_of((tp for _, tp in only), _MAX_NAMED),
            unknown_partitions=sum(one is None for one in lacking.values()),
            errors=tuple(errors),
        )

    @property
    def sums(self) -> GroupReadiness:
        """The sums over all groups."""
        names = ("partitions", "repeats", "skips", "absent")
        sums: dict[str, Any] = {name: sum(getattr(one, name) for one in self.groups) for name in names}
        return GroupReadiness("", **sums, reasons=sum((Counter(one.reasons) for one in self.groups), Counter[str]()))

    @property
    def is_complete(self) -> bool:
        """Whether no further call is likely to know more. An open transaction may last, and hides single positions."""
        errors = (error for error in self.errors if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return bool(self.groups) and not any(error.retriable for error in errors)

    def is_ready(self, max_repeats: int = 0, max_lost: int = 0) -> bool:
        """Whether this is known now, all groups are ready, and the source alone holds no more records than this."""
        known = self.silent is None and not self.errors and not self.unknown_partitions
        return known and self.only_source <= max_lost and all(one.is_ready(max_repeats) for one in self.groups)

    def lines(self, now_ms: int) -> Iterator[str]:
        """Yields the check in words."""
        groups, sums = self.groups, self.sums
        if self.silent is None:
            yield f"if {self.source} were lost now:"
        else:
            at, ago = moment(self.checked_at_ms), duration(max(now_ms - self.checked_at_ms, 0))
            yield f"as of {at} UTC, {ago} ago, if {self.source} had been lost then:"
        living = [f"{one.name} ({one.lives})" for one in groups if one.lives]
        total = len(groups) - len(living) + self.more_groups
        right = sum(one.is_ready() for one in groups) - len(living) + self.more_groups
        if total:
            yield f"  {right:,} of {count_of(total, 'group')} would resume at the right record"
        if living:
            live = f"{count_of(len(living), 'group')} already live{'s' * (len(living) == 1)} in the target"
            yield f"  {live}: {list_of(living, _MAX_NAMED)}"
        if sums.repeats:
            repeating = count_of(sum(one.repeats > 0 for one in groups), "group")
            yield f"  {repeating} would repeat {count_of(sums.repeats, 'record')}"
        if sums.skips:
            skipping = count_of(sum(one.skips > 0 for one in groups), "group")
            yield f"  {skipping} would skip {count_of(sums.skips, 'record')} that the target holds"
        if sums.absent:
            yield f"  {count_of(sums.absent, 'position')} without an offset there: auto.offset.reset decides"
        kinds = f" ({sums.reasons_text})" * bool(sums.unknown)
        yield f"  {count_of(sums.unknown, 'position')} not known{kinds}"
        where = f", in {self.only_source_in}" * bool(self.only_source_in)
        yield f"  {count_of(self.only_source, 'record')} that only the source holds would be lost{where}"
        if self.unknown_partitions:
            yield f"  in {count_of(self.unknown_partitions, 'more partition')}, their number is not known"
        partitions = count_of(self.partitions, "partition")
        yield f"  compared: {partitions}, from the first position of a group on, or at the end"


class LastReadiness:
    """The files with the last complete checks of the groups of two clusters. ``arguments`` of a call choose what is
    checked, and so the file."""

    def __init__(self, directory: Path, sides: tuple[str, str], arguments: Mapping[str, Any]) -> None:
        key = json.dumps([sides, dict(arguments)], sort_keys=True).encode()
        self.path = directory / f"{blake2b(key, digest_size=12).hexdigest()}.json"
        self._sides, self._arguments = sides, json.loads(json.dumps(dict(arguments)))

    def instead(self, silent: OffsetMgrError, origins: Mapping[str, LogOrigin]) -> Readiness:
        """Returns the last check, because a cluster does not respond. ``silent`` is its error, and ``origins`` are
        those of the sides that respond. Raises ``silent``, with the reason as its hint, if there is no such check."""
        try:
            known = _load(self.path) or self._of_other_addresses()
        except OffsetMgrError as error:
            silent.hint = f"{error}; {error.hint}" if error.hint else str(error)
            raise silent from None
        if known is None:
            silent.hint = self._others()
            raise silent
        for side, origin in origins.items():
            if not origin.is_named(name := known.clusters[side]):
                silent.hint = f"the last known state is of another {side}, cluster {name}"
                raise silent
        return replace(known, silent=silent)

    def _of_other_addresses(self) -> Readiness | None:
        """Returns the latest check of the same groups whose two clusters were named by other addresses."""
        found = (one for one in self._saved() if one.arguments == self._arguments and self._is_of_sides(one))
        return max(found, key=attrgetter("checked_at_ms"), default=None)

    def _is_of_sides(self, saved: Readiness) -> bool:
        return all(map(_have_common_address, self._sides, (saved.source, saved.target)))

    def _saved(self) -> Iterator[Readiness]:
        for file in self.path.parent.glob("*.json"):
            with suppress(OffsetMgrError):
                yield from filter(None, [_load(file)])

    def _others(self) -> str:
        """Returns a hint at the latest check of other groups of these clusters, of all groups if there is one. Without
        one, names the clusters of other checks."""
        saved = sorted(self._saved(), key=lambda one: (one.arguments["all_groups"], one.checked_at_ms))
        if not saved:
            return "there is no last known state: no complete check was saved"
        of_sides = list(filter(self._is_of_sides, saved))
        last = (of_sides or saved)[-1]
        given = {name: tuple(one) if isinstance(one, list) else one for name, one in last.arguments.items()}
        call = Invocation("migrate readiness", (), {"from": last.source, "to": last.target, **given})
        if of_sides:
            at = moment(last.checked_at_ms)
            return Advice("a last known state is saved of other options, of {} UTC: {}", at, call)
        states = {f"from {one.source} to {one.target}": moment(one.checked_at_ms) for one in saved}
        named = list_of((f"{sides} of {at} UTC" for sides, at in states.items()), _MAX_NAMED)
        why = "no last known state has an address in common with both clusters. There are states {}; to show one: {}"
        return Advice(why, named, call)

    def save(self, checked: Readiness) -> None:
        """Writes a check, and removes the oldest files. Raises `FileFailure`."""
        with os_error_as(FileFailure, f"file {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        groups = sorted(checked.groups, key=lambda one: one.is_ready() and not one.lives)[:_MAX_GROUPS]
        values = {name: value for name, value in vars(checked).items() if name not in ("errors", "silent")}
        values |= {"groups": groups, "more_groups": len(checked.groups) - len(groups), "version": VERSION}
        replace_file(self.path, lambda out: out.write(json.dumps(values).encode()), overwrite=True)
        for old in sorted(self.path.parent.glob("*.json"), key=_changed)[:-_MAX_FILES]:
            old.unlink(missing_ok=True)


def _load(path: Path) -> Readiness | None:
    """Returns the check, or None if there is none. Raises `CorruptData`, `UnknownVersion`, `FileFailure`."""
    what = f"the last known state in {path}"
    with os_error_as(FileFailure, what):
        data = path.read_bytes() if path.exists() else None
    if data is None:
        return None
    found = FieldReader.parse(data, what, CorruptData, "delete the file; the next complete check writes it again")
    found.version((VERSION,), "use the offsetmgr that wrote it, or a newer one")
    values = {name: value for name, value in found.values.items() if name != "version"}
    groups = tuple(GroupReadiness(*one) for one in values.pop("groups"))
    return Readiness(**values, groups=groups)


def _have_common_address(one: str, other: str) -> bool:
    """Returns whether two URIs name stores of one kind with a common address."""
    here, there = parse_uri(one), parse_uri(other)
    hosts = ({_LOOPBACK.sub("127.0.0.1", host) for host in uri.address.lower().split(",")} for uri in (here, there))
    same = (here.kind, here.path, here.options) == (there.kind, there.path, there.options)
    return same and not set.isdisjoint(*hosts)


def _changed(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0
