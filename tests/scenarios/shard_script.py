"""Runs the scenarios of ``shard/*.txt``. Each line is an action or an expectation of one process, ``a`` or ``b``:

* ``a commits g t-0=5 t-1=6:metadata [by member] [kept 10h] [if t-0=4]``, ``a deletes g [t-0]``, ``a expires [members of
  g] [unknown members of g]``: prepares records and enqueues them;
* ``a appends[: OUTCOME]``: appends all enqueued records in one batch (outcomes: `AppendOutcome`);
* ``a responds ok | CODE | t-0:CODE``: the expected response to the latest request;
* ``a fetches g: t-0=5 t-1=absent`` or ``nothing``: the expected offsets;
* ``a claims``, ``a follows`` (to the end), ``a crashes``, ``a is serving`` (see `Role`), ``10h pass``,
  ``the log is compacted``.

Text after ``#`` is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from scenarios.claimant import Claimant, Role
from scenarios.oracle import LIMITS
from scenarios.scenario_log import AppendOutcome, ScenarioLog

from offsetmgr.manager.expiration import HOUR_MS
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, DeleteResponse, FetchRequest
from offsetmgr.records.base import RecordFormat

SCENARIOS = sorted((Path(__file__).parent / "shard").glob("*.txt"))
_PLACE = re.compile(r"(\w+)-(\d+)(?:=(-?\d+|absent))?(?::(\S+))?")


def required_outcomes(scenario: Path) -> set[AppendOutcome]:
    """The append outcomes that a scenario needs from its log."""
    return {outcome for outcome in AppendOutcome if f"appends: {outcome.value}" in scenario.read_text()}


def run_scenario(scenario: Path, scenario_log: ScenarioLog, record_format: RecordFormat) -> None:
    interpreter = _Interpreter(scenario_log, record_format)
    for number, line in enumerate(scenario.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                interpreter.run_scenario(words)
            except Exception as error:
                error.add_note(f"{scenario.name}:{number}: {line}")
                raise


class _Interpreter:
    def __init__(self, scenario_log: ScenarioLog, record_format: RecordFormat) -> None:
        self.scenario_log = scenario_log
        self.record_format = record_format
        self.now = 1_800_000_000_000
        self.claimants: dict[str, Claimant] = {name: self.newcomer() for name in "ab"}
        self.responses: dict[str, object] = {}

    def newcomer(self) -> Claimant:
        return Claimant(self.scenario_log, self.record_format, LIMITS)

    def run_scenario(self, words: list[str]) -> None:
        if words[1:] == ["pass"]:
            self.now += _hours(words[0])
        elif words == ["the", "log", "is", "compacted"]:
            self.scenario_log.compact()
        else:
            name, verb, *rest = words
            verbs: Mapping[str, Callable[[str, list[str]], None]] = {
                "claims": lambda name, _: self.claimants[name].claim(),
                "follows": self.follows,
                "crashes": self.crashes,
                "commits": self.commits,
                "deletes": self.deletes,
                "expires": self.expires,
                "appends": self.appends,
                "appends:": self.appends,
                "fetches": self.fetches,
                "is": self.has_role,
                "responds": self.responds,
            }
            verbs[verb](name, rest)

    def follows(self, name: str, rest: list[str]) -> None:
        assert self.claimants[name].follow()

    def crashes(self, name: str, rest: list[str]) -> None:
        self.claimants[name].release()
        self.claimants[name] = self.newcomer()

    def commits(self, name: str, rest: list[str]) -> None:
        group, *words = rest
        text = " ".join(words)
        text, _, condition = text.partition(" if ")
        retention = re.search(r" kept (\w+)", text)
        places = [_PLACE.fullmatch(word) for word in text.split()]
        request = CommitRequest(
            group,
            [(m[1], [(int(m[2]), int(m[3]), -1, m[4] or "")]) for m in places if m],
            generation=1 if "by member" in text else -1,
            retention_ms=_hours(retention[1]) if retention else None,
            expected={(m[1], int(m[2])): int(m[3]) for m in _PLACE.finditer(condition)},
        )
        prepared = self.claimants[name].shard.commit(request, self.now)
        self.responses[name] = prepared.response
        self.claimants[name].enqueue(prepared)

    def deletes(self, name: str, rest: list[str]) -> None:
        group, *places = rest
        shard = self.claimants[name].shard
        if places:
            found = [_PLACE.fullmatch(place) for place in places]
            some = shard.delete_offsets(group, [(m[1], [int(m[2])]) for m in found if m])
            self.responses[name] = some.response
            self.claimants[name].enqueue(some)
        else:
            whole = shard.delete_group(group)
            self.responses[name] = whole.response
            self.claimants[name].enqueue(whole)

    def expires(self, name: str, rest: list[str]) -> None:
        text = " ".join(rest)
        members: dict[str, bool | None] = dict.fromkeys(re.findall(r"members of (\w+)", text), True)
        members |= dict.fromkeys(re.findall(r"unknown members of (\w+)", text), None)
        self.claimants[name].enqueue(
            self.claimants[name].shard.expire(self.now, lambda group: members.get(group, False))
        )

    def appends(self, name: str, rest: list[str]) -> None:
        text, _, fencing_process = " ".join(rest).partition(" by ")
        self.scenario_log.outcome = AppendOutcome(text) if text else AppendOutcome.WRITTEN
        if fencing_process:
            self.scenario_log.fence = self.claimants[fencing_process].claim
        claimant = self.claimants[name]
        if claimant.pending:
            claimant.append(len(claimant.pending))

    def fetches(self, name: str, rest: list[str]) -> None:
        group, *expected = rest
        shard, group = self.claimants[name].shard, group.removesuffix(":")
        if expected == ["nothing"]:
            assert shard.fetch(FetchRequest(group)).topics == []
            assert not shard.has_group(group)
            return
        for match in (_PLACE.fullmatch(word) for word in expected):
            assert match
            [(_, [answer])] = shard.fetch(FetchRequest(group, [(match[1], [int(match[2])])])).topics
            offset = -1 if match[3] == "absent" else int(match[3])
            assert answer == (int(match[2]), offset, -1, match[4] or "", 0)

    def has_role(self, name: str, rest: list[str]) -> None:
        assert self.claimants[name].role is Role(rest[0])

    def responds(self, name: str, rest: list[str]) -> None:
        answer = self.responses[name]
        if rest[0] == "ok":
            assert answer in (0, CommitResponse(), DeleteResponse())
        elif ":" in rest[0]:
            place, _, code = rest[0].rpartition(":")
            match = _PLACE.fullmatch(place)
            assert match
            assert answer == CommitResponse(0, {(match[1], int(match[2])): int(code)})
        else:
            assert answer in (int(rest[0]), CommitResponse(int(rest[0])), DeleteResponse(int(rest[0])))


def _hours(text: str) -> int:
    return int(text.removesuffix("h")) * HOUR_MS
