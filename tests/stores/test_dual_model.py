"""The dual store compared with an oracle of plain dicts, while either store fails and recovers, and other clients write
to the stores directly."""

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scripted_group import ScriptedClock

from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.stores.dual import DualStore
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore

pytestmark = pytest.mark.slow

PARTITIONS = [TopicPartition("t", p) for p in range(3)]
OFFSETS = st.integers(0, 12)
TP = st.sampled_from(PARTITIONS)


@dataclass
class StoreState:
    """The expected content of one store: offset and version, counted like `MemoryStore` does."""

    values: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def offset(self, tp: TopicPartition) -> int | None:
        return self.values[tp][0] if tp in self.values else None

    def put(self, tp: TopicPartition, offset: int | None) -> None:
        if offset is None:
            self.values.pop(tp, None)
        elif self.offset(tp) != offset:
            self.values[tp] = (offset, self.values[tp][1] + 1 if tp in self.values else 0)


@dataclass
class PendingWrite:
    """An expected pending write: its offset, whether it may rewind, and the value that it replaces."""

    after: int | None
    lowers: bool
    over: tuple[int, int] | str | None
    """The value read from the secondary (None: no commit), or "unknown"."""


class DualModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kafka, self.zookeeper = MemoryStore("kafka"), MemoryStore("zookeeper")
        self.primary, self.secondary = FaultyStore(self.kafka), FaultyStore(self.zookeeper)
        self.dual = DualStore(self.primary, self.secondary, clock=ScriptedClock())
        self.p, self.s = StoreState(), StoreState()
        self.pending: dict[TopicPartition, PendingWrite] = {}
        self.compared = False
        """Whether a call has compared the clusters of both stores. Before that the dual store writes nothing."""
        self.down: set[str] = set()
        self.down_partitions: set[TopicPartition] = set()

    # --- faults --------------------------------------------------------------------------

    @rule(what=st.sampled_from(["primary read", "primary write", "secondary read", "secondary write", "answers"]))
    def fail(self, what: str) -> None:
        self.down.add(what)
        self._arm()

    @rule(tp=TP)
    def fail_secondary_writes_of(self, tp: TopicPartition) -> None:
        self.down_partitions.add(tp)
        self._arm()

    @precondition(lambda self: self.down or self.down_partitions)
    @rule(what=st.sampled_from(["primary", "secondary", "all"]))
    def heal(self, what: str) -> None:
        if what == "primary":
            self.down = {d for d in self.down if not d.startswith("primary")}
        elif what == "secondary":
            self.down = {d for d in self.down if d.startswith("primary")}
            self.down_partitions = set()
        else:
            self.down, self.down_partitions = set(), set()
        self._arm()

    def _arm(self) -> None:
        self.primary.heal()
        self.secondary.heal()
        for what in self.down - {"answers"}:
            name, call = what.split()
            getattr(self, name).fail(call)
        if "answers" in self.down:
            self.secondary.fail("write", after=True)
        for tp in self.down_partitions:
            self.secondary.fail("write", Unreachable("part", "down"), partition=tp)

    # --- requests ---------------------------------------------------------------------------

    @rule(offsets=st.dictionaries(TP, OFFSETS, min_size=1, max_size=3), allow_rewind=st.booleans())
    def commit(self, offsets: dict[TopicPartition, int], allow_rewind: bool) -> None:
        self._edit({tp: Change(OffsetAndMetadata(o), allow_rewind=allow_rewind) for tp, o in offsets.items()})

    @rule(tp=TP, offset=OFFSETS, guessed=OFFSETS, use_current=st.booleans(), allow_rewind=st.booleans())
    def commit_if(self, tp: TopicPartition, offset: int, guessed: int, use_current: bool, allow_rewind: bool) -> None:
        larger = self._larger(tp)
        expected = Committed(larger if use_current and larger is not None else guessed)
        self._edit({tp: Change(OffsetAndMetadata(offset), expected, allow_rewind)})

    @rule(tps=st.sets(TP, min_size=1))
    def delete(self, tps: set[TopicPartition]) -> None:
        self._edit({tp: Change(None) for tp in tps})

    @rule(tp=TP, by=st.integers(1, 3), where=st.sampled_from(["primary", "secondary"]))
    def another_consumer_commits(self, tp: TopicPartition, by: int, where: str) -> None:
        store, state = (self.kafka, self.p) if where == "primary" else (self.zookeeper, self.s)
        offset = (state.offset(tp) or 0) + by
        store.commit("g", {tp: OffsetAndMetadata(offset)})
        state.put(tp, offset)

    @rule()
    def flush(self) -> None:
        self._retry(dict(self.pending))
        self.dual.flush()

    @rule()
    def fetch(self) -> None:
        if "primary read" in self.down or "secondary read" in self.down:
            try:
                self.dual.fetch("g")
            except Unreachable:
                return
            raise AssertionError("a failed read was treated as an empty store")
        self.compared = True
        expected = {tp: larger for tp in PARTITIONS if (larger := self._larger(tp)) is not None}
        assert {tp: c.offset for tp, c in self.dual.fetch("g").items() if isinstance(c, Committed)} == expected
        (scanned,) = self.dual.scan(["g"])
        assert {tp: c.offset for tp, c in scanned.offsets.items()} == expected

    # --- the oracle -------------------------------------------------------------------------------

    def _edit(self, changes: dict[TopicPartition, Change]) -> None:
        self.compared = self.compared or not self.down & {"primary read", "secondary read"}
        if not self.compared:
            (result,) = self.dual.edit([GroupEdit("g", changes)])
            assert all(isinstance(o.error, Unreachable) for o in result.outcomes.values())
            return
        before = dict(self.pending)
        accepted = {tp for tp, change in changes.items() if self._primary_accepts(tp, change)}
        reported = {tp for tp in accepted if self._secondary_fails(tp, changes[tp])}
        self._retry({tp: w for tp, w in before.items() if self.pending.get(tp) is w})
        (result,) = self.dual.edit([GroupEdit("g", changes)])
        assert {tp for tp, o in result.outcomes.items() if o.status is not EditStatus.FAILED} == accepted
        assert set(result.secondary) == reported

    def _primary_accepts(self, tp: TopicPartition, change: Change) -> bool:
        after = change.after.offset if change.after else None
        mine, theirs = self.p.offset(tp), self.s.offset(tp)
        if self.down & {"primary read", "primary write"}:
            return False
        floor = mine
        if "secondary read" in self.down:
            if change.expected is not None:
                return False
        else:
            larger = self._larger(tp)
            if isinstance(change.expected, Committed) and change.expected.offset != larger:
                return False
            pending = self.pending.get(tp)
            if not (pending and pending.lowers and change.expected is None):
                floor = max((o for o in (mine, theirs) if o is not None), default=None)
        if after is not None and floor is not None and after < floor and not change.allow_rewind:
            return False
        self.p.put(tp, after)
        return True

    def _secondary_fails(self, tp: TopicPartition, change: Change) -> bool:
        """Applies a change to the oracle's secondary. Returns whether the dual store must report a failure."""
        after = change.after.offset if change.after else None
        old = self.pending.pop(tp, None)
        lowers = change.allow_rewind or after is None or (old is not None and old.lowers)
        over = "unknown" if "secondary read" in self.down else self.s.values.get(tp)
        if over != "unknown" and self.s.offset(tp) == after:
            return False
        return self._write(tp, PendingWrite(after, lowers, over))

    def _write(self, tp: TopicPartition, pending: PendingWrite) -> bool:
        if "secondary write" in self.down or tp in self.down_partitions:
            self.pending[tp] = pending
            return True
        here = self.s.offset(tp)
        rejected = False
        if here == pending.after:
            pass
        elif pending.lowers:
            rejected = pending.over != "unknown" and self.s.values.get(tp) != pending.over
        else:
            rejected = here is not None and pending.after is not None and here > pending.after
        if not rejected:
            self.s.put(tp, pending.after)
        if "answers" in self.down:
            self.pending[tp] = pending
            return True
        self.pending.pop(tp, None)
        return rejected

    def _retry(self, pending: dict[TopicPartition, PendingWrite]) -> None:
        for tp, w in pending.items():
            if "primary read" in self.down:
                continue
            now = self.p.offset(tp)
            same = now == w.after
            ahead = not w.lowers and now is not None and w.after is not None and now >= w.after
            if same or ahead:
                self._write(tp, w)
            else:
                self.pending.pop(tp)

    def _larger(self, tp: TopicPartition) -> int | None:
        return max((o for o in (self.p.offset(tp), self.s.offset(tp)) if o is not None), default=None)

    # --- invariants ------------------------------------------------------------------------

    @invariant()
    def both_stores_equal_the_oracle(self) -> None:
        for store, state in ((self.kafka, self.p), (self.zookeeper, self.s)):
            assert {tp: c.offset for tp, c in store.data.get("g", {}).items()} == {
                tp: offset for tp, (offset, _) in state.values.items()
            }

    @invariant()
    def pending_writes_are_visible(self) -> None:
        shown = self.dual.pending.get("g", {})
        assert {tp: p.after.offset if p.after else None for tp, p in shown.items()} == {
            tp: w.after for tp, w in self.pending.items()
        }

    def teardown(self) -> None:
        """After recovery, without other writers, both stores have the offsets that were last written to the primary."""
        self.down, self.down_partitions = set(), set()
        self._arm()
        self._retry(dict(self.pending))
        self.dual.close()
        assert self.dual.pending == {}
        self.both_stores_equal_the_oracle()


TestDualModel = DualModel.TestCase
TestDualModel.settings = settings(
    max_examples=5000 if os.environ.get("OFFSETMGR_SOAK") else 150, stateful_step_count=40, deadline=None
)
