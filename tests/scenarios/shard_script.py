"""Plays the scenarios of ``shard/*.txt``: one process does one thing a line, and says what it must show.

* ``a commits g t-0=5 t-1=6:metadata [by member] [kept 10h] [if t-0=4]``, ``a deletes g [t-0]``, ``a expires [members of
  g] [nobody knows of g]``: prepared, and waiting;
* ``a appends[: FATE]``: all that waits, in one (fates: `Fate`);
* ``a is answered ok | CODE | t-0:CODE``: the latest request;
* ``a fetches g: t-0=5 t-1=absent`` or ``nothing``;
* ``a claims``, ``a follows`` (to the end), ``a crashes``, ``a is serving`` (see `Role`), ``10h pass``,
  ``the cleaner comes``.

Text after ``#`` is for people.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from scenarios.claimant import Claimant, Role
from scenarios.oracle import LIMITS
from scenarios.world import Fate, World

from offsetmgr.manager.expiration import HOUR_MS
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, DeleteResponse, FetchRequest
from offsetmgr.records.base import RecordFormat

SCENARIOS = sorted((Path(__file__).parent / "shard").glob("*.txt"))
_PLACE = re.compile(r"(\w+)-(\d+)(?:=(-?\d+|absent))?(?::(\S+))?")


def needed_fates(scenario: Path) -> set[Fate]:
    """What a world must be able to do to an append."""
    return {fate for fate in Fate if f"appends: {fate.value}" in scenario.read_text()}


def play(scenario: Path, world: World, record_format: RecordFormat) -> None:
    stage = _Stage(world, record_format)
    for number, line in enumerate(scenario.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                stage.play(words)
            except Exception as error:
                error.add_note(f"{scenario.name}:{number}: {line}")
                raise


class _Stage:
    def __init__(self, world: World, record_format: RecordFormat) -> None:
        self.world = world
        self.record_format = record_format
        self.now = 1_800_000_000_000
        self.cast: dict[str, Claimant] = {name: self.newcomer() for name in "ab"}
        self.answers: dict[str, object] = {}

    def newcomer(self) -> Claimant:
        return Claimant(self.world, self.record_format, LIMITS)

    def play(self, words: list[str]) -> None:
        if words[1:] == ["pass"]:
            self.now += _hours(words[0])
        elif words == ["the", "cleaner", "comes"]:
            self.world.compact()
        else:
            who, verb, *rest = words
            verbs: Mapping[str, Callable[[str, list[str]], None]] = {
                "claims": lambda who, _: self.cast[who].claim(),
                "follows": self.follows,
                "crashes": self.crashes,
                "commits": self.commits,
                "deletes": self.deletes,
                "expires": self.expires,
                "appends": self.appends,
                "appends:": self.appends,
                "fetches": self.fetches,
                "is": self.is_,
            }
            verbs[verb](who, rest)

    def follows(self, who: str, rest: list[str]) -> None:
        assert self.cast[who].follow()

    def crashes(self, who: str, rest: list[str]) -> None:
        self.cast[who].give_up()
        self.cast[who] = self.newcomer()

    def commits(self, who: str, rest: list[str]) -> None:
        group, *words = rest
        text = " ".join(words)
        text, _, condition = text.partition(" if ")
        kept = re.search(r" kept (\w+)", text)
        places = [_PLACE.fullmatch(word) for word in text.split()]
        request = CommitRequest(
            group,
            [(m[1], [(int(m[2]), int(m[3]), -1, m[4] or "")]) for m in places if m],
            generation=1 if "by member" in text else -1,
            retention_ms=_hours(kept[1]) if kept else None,
            expected={(m[1], int(m[2])): int(m[3]) for m in _PLACE.finditer(condition)},
        )
        prepared = self.cast[who].shard.commit(request, self.now)
        self.answers[who] = prepared.response
        self.cast[who].put(prepared)

    def deletes(self, who: str, rest: list[str]) -> None:
        group, *places = rest
        shard = self.cast[who].shard
        if places:
            found = [_PLACE.fullmatch(place) for place in places]
            some = shard.delete_offsets(group, [(m[1], [int(m[2])]) for m in found if m])
            self.answers[who] = some.response
            self.cast[who].put(some)
        else:
            whole = shard.delete_group(group)
            self.answers[who] = whole.response
            self.cast[who].put(whole)

    def expires(self, who: str, rest: list[str]) -> None:
        text = " ".join(rest)
        members: dict[str, bool | None] = dict.fromkeys(re.findall(r"members of (\w+)", text), True)
        members |= dict.fromkeys(re.findall(r"nobody knows of (\w+)", text), None)
        self.cast[who].put(self.cast[who].shard.expire(self.now, lambda group: members.get(group, False)))

    def appends(self, who: str, rest: list[str]) -> None:
        text, _, overtaker = " ".join(rest).partition(" by ")
        self.world.fate = Fate(text) if text else Fate.WRITTEN
        if overtaker:
            self.world.overtake = self.cast[overtaker].claim
        claimant = self.cast[who]
        if claimant.pending:
            claimant.append(len(claimant.pending))

    def fetches(self, who: str, rest: list[str]) -> None:
        group, *expected = rest
        shard, group = self.cast[who].shard, group.removesuffix(":")
        if expected == ["nothing"]:
            assert shard.fetch(FetchRequest(group)).topics == []
            assert not shard.has_group(group)
            return
        for match in (_PLACE.fullmatch(word) for word in expected):
            assert match
            [(_, [answer])] = shard.fetch(FetchRequest(group, [(match[1], [int(match[2])])])).topics
            offset = -1 if match[3] == "absent" else int(match[3])
            assert answer == (int(match[2]), offset, -1, match[4] or "", 0)

    def is_(self, who: str, rest: list[str]) -> None:
        if rest[0] != "answered":
            assert self.cast[who].role is Role(rest[0])
            return
        answer = self.answers[who]
        if rest[1] == "ok":
            assert answer in (0, CommitResponse(), DeleteResponse())
        elif ":" in rest[1]:
            place, _, code = rest[1].rpartition(":")
            match = _PLACE.fullmatch(place)
            assert match
            assert answer == CommitResponse(0, {(match[1], int(match[2])): int(code)})
        else:
            assert answer in (int(rest[1]), CommitResponse(int(rest[1])), DeleteResponse(int(rest[1])))


def _hours(text: str) -> int:
    return int(text.removesuffix("h")) * HOUR_MS
