"""The alignment of two logs, against an oracle that knows which record of B is the copy of which record of A."""

from __future__ import annotations

import os
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest
from copied_logs import Case, Log, Record, World

from offsetmgr import KafkaCluster
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.translation.alignment import Alignment, InverseAlignment, Translation, Verdict
from offsetmgr.translation.fingerprints import Equality
from offsetmgr.translation.translator import _RECORD_BYTES, _AlignedLogs, _Log

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
SEED = int(os.environ.get("OFFSETMGR_SEED") or 0) if SOAK else 0
POSITIONS = 10_000 if SOAK else 1_000
IN_A_WORLD = 25
READ_AT_ONCE = 250
"""The number of records of a log that are read before a position is inferred."""

CASES = (
    Case("distinct", 0.99),
    Case("distinct, copy in progress", done=False),
    Case("restarts", 0.99, restart=0.3),
    Case("restarts, copy in progress", restart=0.5, done=False),
    Case("retries", 0.99, retry=0.2),
    Case("restarts and retries", 0.99, restart=0.3, retry=0.1),
    Case("transactions", 0.99, transactions=True),
    Case("transactions, restarts", 0.99, transactions=True, restart=0.3),
    Case("transactions, committed", 0.99, transactions=True, committed_only=True),
    Case("transactions, committed, in progress", transactions=True, committed_only=True, done=False),
    Case("equal payloads, times", 0.99, equal=1, same_times=0),
    Case("equal payloads, times, restarts", equal=1, restart=0.3, same_times=0.1),
    Case("equal payloads, no times", equal=1, keeps_times=False),
    Case("some equal, no times", equal=0.2, keeps_times=False),
    Case("some equal, no times, in progress", equal=0.2, keeps_times=False, done=False, restart=0.2, retry=0.1),
    Case("many equal, no times, restarts", equal=0.8, keeps_times=False, restart=0.3, retry=0.1),
    Case("many equal, no times, in progress", equal=0.6, keeps_times=False, restart=0.4, retry=0.1, done=False),
    Case("many equal, committed, retries", equal=0.6, keeps_times=False, transactions=True, committed_only=True,
         retry=0.2),
    Case("some equal, transactions", equal=0.3, keeps_times=False, transactions=True, restart=0.3),
    Case("some equal, holes", equal=0.2, keeps_times=False, hole=0.2),
    Case("long cycle, A deleted", cycle=190, keeps_times=False, retained=160, done=False, restart=0.1),
    Case("long cycle, A deleted, done", cycle=190, keeps_times=False, retained=160, restart=0.1),
    Case("long cycle, holes", cycle=190, keeps_times=False, retained=160, hole=0.2, restart=0.2, done=False),
    Case("short cycle", cycle=17, keeps_times=False, restart=0.2),
    Case("cycle about the length of A", cycle=150, keeps_times=False, delete_a=0.3, done=False, restart=0.2),
    Case("compacted A", 0.95, keys=40, compact_a=0.4),
    Case("compacted B", 0.95, keys=40, compact_b=0.4),
    Case("compacted A and B", 0.95, keys=40, compact_a=0.4, compact_b=0.4),
    Case("compacted, tombstones kept", 0.95, keys=40, compact_a=0.4, compact_b=0.4, tombstones=0.2),
    Case("compacted, tombstones removed", keys=40, compact_a=0.4, compact_b=0.4, tombstones=0.2,
         remove_tombstones=True),
    Case("compacted, restarts", keys=40, compact_a=0.4, compact_b=0.4, restart=0.3, done=False),
    Case("compacted, transactions", keys=40, compact_a=0.4, compact_b=0.4, transactions=True, restart=0.2),
    Case("compacted, equal values", keys=10, equal=0.5, keeps_times=False, compact_a=0.4, compact_b=0.4, restart=0.2),
    Case("compacted, many equal values", keys=30, equal=0.8, keeps_times=False, compact_a=0.4, compact_b=0.4),
    Case("compacted, foreign", keys=20, compact_a=0.4, compact_b=0.4, foreign=0.2),
    Case("holes", hole=0.3),
    Case("holes and restarts", hole=0.2, restart=0.3),
    Case("deleted head of A", delete_a=0.3),
    Case("deleted head of A, equal payloads, times", equal=1, delete_a=0.3, restart=0.2, done=False),
    Case("deleted head of A, transactions", delete_a=0.3, transactions=True, restart=0.3, reorder=0.1),
    Case("deleted head of A, compacted", delete_a=0.3, keys=40, compact_a=0.4, compact_b=0.4),
    Case("deleted head of A, no times", delete_a=0.3, equal=0.3, keeps_times=False, restart=0.3),
    Case("deleted head of B", delete_b=0.3),
    Case("deleted heads", delete_a=0.3, delete_b=0.3, restart=0.2, done=False),
    Case("foreign records among", foreign=0.2),
    Case("foreign records around", foreign_around=True, restart=0.2),
    Case("foreign records before, B at the end", foreign=0.05, restart=0.2, done=False),
    Case("changed copies", change=0.2),
    Case("changed copies, in progress", change=0.3, done=False),
    Case("changed copies, some equal", change=0.2, equal=0.3, keeps_times=False, transactions=True, delete_a=0.1),
    Case("changed copies, compacted A", change=0.2, keys=40, compact_a=0.4),
    Case("changed copies, compacted A, in progress", change=0.2, keys=40, compact_a=0.4, done=False),
    Case("changed copies, compacted B", change=0.2, keys=40, compact_b=0.4),
    Case("changed copies, compacted", change=0.2, keys=40, compact_a=0.4, compact_b=0.4),
    Case("reordered batches", reorder=0.2),
    Case("reordered batches, in progress", reorder=0.2, done=False, restart=0.2),
    Case("two copiers", copiers=2),
    Case("two copiers, in progress", copiers=2, done=False, restart=0.2),
    Case("equal logs", 0.99, transactions=True, equal_logs=True),
    Case("equal compacted logs", 0.95, keys=40, compact_a=0.4, equal_logs=True),
    Case("all at once", equal=0.05, keys=30, transactions=True, restart=0.2, retry=0.05, hole=0.05,
         foreign=0.05, compact_a=0.1, compact_b=0.1, tombstones=0.1, delete_a=0.05, delete_b=0.05, done=False),
    Case("all at once, no times", equal=0.1, keys=30, keeps_times=False, transactions=True, restart=0.2, retry=0.05,
         foreign=0.05, compact_a=0.1, compact_b=0.1, tombstones=0.1, delete_a=0.05, done=False),
)  # fmt: skip


def aligned(world: World, positions: list[int], random: Random, kind: type[Alignment] = Alignment) -> Alignment:
    """Reads both logs from their ends backward until the alignment needs no more of them."""
    times, a, b = world.case.keeps_times, world.a, world.b
    piece = random.choice([20, 60, 10**9])
    first_a, first_b = max(a.start, a.end - piece), max(b.start, b.end - piece)
    if world.case.cycle:
        first_a = min(first_a, world.last_copied)
    while True:
        alignment = kind(a.stretch(first_a, times, False), b.stretch(first_b, times, True))
        earlier_a, earlier_b = alignment.needs_earlier(positions)
        following = alignment.following
        if not (earlier_a or earlier_b):
            earlier_b = following is not None and world.first_not_older(following) < first_b
            if not earlier_b:
                return alignment
        assert not (earlier_a and first_a == a.start)
        assert not (earlier_b and first_b == b.start)
        # The next part is as long as all that was read.
        first_a = max(a.start, first_a - (a.end - first_a) * earlier_a)
        first_b = max(b.start, first_b - (b.end - first_b) * earlier_b)


def translations(case: Case) -> Iterator[tuple[World, Alignment, int, Translation]]:
    """Yields answers to positions in the worlds of a case."""
    for number in range(-(-POSITIONS // IN_A_WORLD)):
        random = Random(f"{case.name} {SEED} {number}")
        world = World(case, random)
        # The parts of the logs that are read depend on the position that lies furthest back.
        last = random.choice([world.a.end, max(world.a.start, world.last_copied + 2)])
        first = max(world.a.start, last - random.choice([20, 80, 10**9]))
        positions = [first, *(random.randint(first, min(last, world.a.end)) for _ in range(IN_A_WORLD - 1))]
        alignment = aligned(world, positions, random)
        for position in positions:
            yield world, alignment, position, alignment.translate(position)


def translations_back(case: Case) -> Iterator[tuple[World, Alignment, int, Translation]]:
    """Yields answers to positions in the copies of a case."""
    for number in range(-(-POSITIONS // IN_A_WORLD)):
        random = Random(f"{case.name} {SEED} {number}")
        world = World(case, random)
        first = max(world.b.start, world.b.end - random.choice([20, 80, 10**9]))
        positions = [first, *(random.randint(first, world.b.end) for _ in range(IN_A_WORLD - 1))]
        alignment = aligned(world, positions, random, InverseAlignment)
        for position in positions:
            yield world, alignment, position, alignment.translate(position)


def is_right(world: World, position: int, answer: Translation) -> bool:
    """Returns whether the right position is the answer, or within its bounds."""
    if answer.offset is None:
        return True
    if answer.upper is None:
        return answer.offset == world.right(position)
    return answer.offset <= world.right(position) <= answer.upper


def differs(world: World, alignment: Alignment, position: int, answer: Translation, committed: int) -> bool:
    """Returns whether the numbers of repeated and skipped records are wrong. Those of equal records and of changed
    copies are not exact."""
    found = alignment.difference(position, answer, committed)
    if found is None:
        return False
    repeats, skips = world.difference(position, committed)
    if answer.verdict is Verdict.SEEN:
        exact = world.case.keeps_times and not world.case.equal and not world.case.change
        return found[0] != repeats or (found[1] != skips and exact)
    least = alignment.difference(position, answer, committed, surely=True)
    return found[0] < repeats or found[1] < skips or bool(least and least[1] > skips and not world.case.change)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_right_position_is_the_answer_or_within_its_bounds(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    found, wrong = Counter[Verdict](), list[str]()
    for world, alignment, position, answer in translations(case):
        found[answer.verdict] += 1
        if not is_right(world, position, answer):
            wrong.append(f"{position}: right is {world.right(position)}, not {answer}")
        committed = (position * 7919) % (world.b.end + 1)
        if differs(world, alignment, position, answer, committed):
            apart = alignment.difference(position, answer, committed)
            wrong.append(f"{position}, at {committed}: {world.difference(position, committed)}, not {apart}, {answer}")
    report(case, found, wrong, capsys)
    assert wrong == []
    assert found[Verdict.SEEN] >= case.least_seen * found.total()


def report(case: Case, found: Counter[Verdict], wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled() if SOAK else nullcontext():
        shares = "".join(f"{verdict:>11}{found[verdict] / found.total():8.2%}" for verdict in Verdict)
        sys.stdout.write(f"{case.name:38}{shares}{len(wrong):5} wrong\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_way_back_leads_to_the_right_position_or_a_bracket_of_it(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    found, wrong = Counter[Verdict](), list[str]()
    for world, _, position, answer in translations_back(case):
        found[answer.verdict] += 1
        right = world.right_back(position)
        if answer.offset is None:
            continue
        upper = answer.offset if answer.upper is None else answer.upper
        if not world.next_in_a(answer.offset) <= right <= world.next_in_a(upper):
            wrong.append(f"{position}: right is {right}, not {answer}")
    report(case, found, wrong, capsys)
    assert wrong == []
    assert found[Verdict.SEEN] >= case.least_seen * found.total()


class MemoryLogs(KafkaCluster):
    """A cluster with one log in memory. Each read returns one batch."""

    def __init__(self, world: World, log: Log) -> None:
        self._world, self._batches = world, log.batches(log is world.a or world.case.keeps_times)
        self._last_offsets = [last for last, _ in self._batches]

    def read_log(self, tp: TopicPartition, offset: int, max_bytes: int) -> bytes:
        at = bisect_left(self._last_offsets, offset)
        return self._batches[at][1] if at < len(self._batches) else b""

    def offsets_for_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._world.first_not_older_than(timestamp_ms))


def log_of(world: World, log: Log) -> _Log:
    """A log of which few records may be read at once."""
    found = _Log(MemoryLogs(world, log), TopicPartition("t", 0), LogRange(log.start, log.end), None, lambda _: None)
    found.left = READ_AT_ONCE * _RECORD_BYTES
    return found


def inferences(case: Case, *, back: bool) -> Iterator[tuple[World, int, Translation]]:
    """Yields answers to positions far before the part of the logs that may be read."""
    rare = {
        name: getattr(case, name) / 6 for name in ("restart", "hole", "foreign", "change", "compact_a", "compact_b")
    }
    case = replace(case, rounds=60, **rare)
    for number in range(-(-POSITIONS // IN_A_WORLD // (2 if SOAK else 10))):
        random = Random(f"{case.name} {SEED} {number} {back}")
        world = World(case, random)
        logs = log_of(world, world.a), log_of(world, world.b)
        source, target = reversed(logs) if back else logs
        rules = TranslationRules(max_read=1 << 30, back=back)
        positions = [random.randint(source.range.start, source.range.end) for _ in range(IN_A_WORLD)]
        reading = _AlignedLogs((source, target), rules, Equality.ALL)
        reading.align(positions, target.range.end)
        for position in positions:
            yield world, position, reading.translate(position)


def test_a_stretch_whose_first_copy_is_too_far_back_to_be_read_may_be_copied_again() -> None:
    world = World(Case("restart", rounds=0), Random())
    records = [Record(None, number, number) for number in range(1000)]
    for log, written in ((world.a, records), (world.b, [*records, *records[100:900]])):
        for record in written:
            log.append(record, record.time)
    reading = _AlignedLogs(
        (log_of(world, world.a), log_of(world, world.b)), TranslationRules(max_read=1 << 30), Equality.ALL
    )
    reading.align([890], world.b.end)
    assert world.right(890) == 900
    answer = reading.translate(890)
    assert (answer.verdict, answer.waits, answer.earlier_b) == (Verdict.NOT_YET, 0, True)
    assert reading.alignment.lacking(890) is None


@pytest.mark.timeout(7200 if SOAK else 900)
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_an_inferred_position_is_right(back: bool, capsys: pytest.CaptureFixture[str]) -> None:
    total, wrong = 0, list[str]()
    for case in CASES:
        found, mistaken = Counter[Verdict](), list[str]()
        for world, position, answer in inferences(case, back=back):
            found[answer.verdict] += 1
            if answer.verdict is Verdict.INFERRED and answer.offset is not None:
                right = world.right_back(position) if back else world.right(position)
                log = world.of_a if back else world.b.delivered()
                if any(answer.offset <= one.offset < right or right <= one.offset < answer.offset for one in log):
                    mistaken.append(f"{case.name}: {position}: right is {right}, not {answer}")
        report(case, found, mistaken, capsys)
        total += found[Verdict.INFERRED]
        wrong += mistaken
    assert len(wrong) * 10_000 <= total, wrong
