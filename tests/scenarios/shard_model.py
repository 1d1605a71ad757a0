"""Shards of two processes over one partition of a log, against an oracle of dicts: commits, deletions, expiry, crashes,
failed appends, lost ownership, compaction.

Any log will do: a test gives the machine a `World` and a record format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scenarios.claimant import Claimant, Role
from scenarios.oracle import LIMITS, Change, Oracle, State, activity, changed, offsets_of
from scenarios.world import Fate, World

from offsetmgr.manager.expiration import HOUR_MS
from offsetmgr.manager.protocol_values import CommitRequest, FetchRequest
from offsetmgr.manager.shard import CoordinatorResult
from offsetmgr.records.base import GroupKey, OffsetKey, RecordFormat

GROUPS = ("", "grüppe")
PLACES = [("t", 0), ("t", 1), ("t", 300), ("u", 0)]
PLACE = st.sampled_from(PLACES)
GROUP = st.sampled_from(GROUPS)
OFFSET = st.one_of(st.integers(-2, 9), st.integers(0, 2**62))
COMMIT = st.tuples(OFFSET, st.sampled_from([-1, 0, 7]), st.sampled_from(["", "m", "zu lang"]))
AT_ONCE = st.booleans()
"""Whether a request is appended before the next one comes; else it stays in flight until `ShardModel.append`."""
ZOMBIE = st.sampled_from([False, False, True])
"""Whether the former owner is asked, if it does not know yet that it is none."""
HOURS = st.sampled_from([0, 1, 6, 24, 30])
"""That pass before a request."""


class Waiting(NamedTuple):
    """Prepared, and what the oracle expects of it."""

    prepared: CoordinatorResult[Any]
    change: Change


class Side:
    """A process, and what it must show. ``view`` None: it is somewhere in the middle of the log."""

    def __init__(self, claimant: Claimant) -> None:
        self.claimant = claimant
        self.view: State | None = {}
        self.waiting: list[Waiting] = []
        self.doubtful: list[Waiting] = []

    def in_flight(self) -> list[Change]:
        return [one.change for one in self.doubtful + self.waiting]


class ShardModel(RuleBasedStateMachine):
    record_format: ClassVar[RecordFormat]

    def new_world(self) -> World:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.world = self.new_world()
        self.oracle = Oracle(epochs=self.record_format.name != "kafka")
        self.now = 1_800_000_000_000
        self.durable: State = {}
        self.open: Change | None = None
        """What the next claim will write."""
        self.owner, self.other = self.new_side(), self.new_side()
        self.take(self.owner)

    def new_side(self) -> Side:
        return Side(Claimant(self.world, self.record_format, LIMITS))

    def take(self, side: Side) -> None:
        side.claimant.claim()
        if self.open is not None:
            self.durable = changed(self.durable, self.open)
            self.open = None
        side.view = dict(self.durable)
        side.doubtful = []

    # --- requests ----------------------------------------------------------------------------------

    def sides(self, *, zombie: bool) -> Side | None:
        """Who is asked: the owner, or one that was, as long as it does not know better."""
        if not zombie:
            return self.owner
        return self.other if self.other.claimant.role is Role.SERVING else None

    def asked(self, side: Side, prepared: CoordinatorResult[Any], change: Change, *, at_once: bool) -> None:
        """What was prepared is what the oracle expects to be written."""
        assert self.decoded(prepared) == change
        if change:
            side.waiting.append(Waiting(prepared, change))
            side.claimant.put(prepared)
        else:
            assert not prepared.records
        if at_once and side is self.owner and side.waiting and side.claimant.role is Role.SERVING:
            self.append_so(len(side.waiting), Fate.WRITTEN)

    def decoded(self, prepared: CoordinatorResult[Any]) -> Change:
        change: Change = {}
        for raw_key, raw in prepared.records:
            key = self.record_format.decode_key(raw_key)
            if isinstance(key, OffsetKey):
                change[key] = None if raw is None else self.record_format.decode_value(raw)
            else:
                assert isinstance(key, GroupKey)
                change[key] = None if raw is None else self.record_format.decode_group(raw)
        return change

    @rule(
        zombie=ZOMBIE,
        at_once=AT_ONCE,
        group=GROUP,
        wanted=st.dictionaries(PLACE, COMMIT, max_size=4),
        generation=st.sampled_from([-1, -1, 3]),
        retention=st.sampled_from([None, None, None, 0, 10 * HOUR_MS, 100 * HOUR_MS]),
    )
    def commit(
        self,
        zombie: bool,
        at_once: bool,
        group: str,
        wanted: Mapping[tuple[str, int], tuple[int, int, str]],
        generation: int,
        retention: int | None,
    ) -> None:
        topics = [(topic, [(partition, *commit)]) for (topic, partition), commit in wanted.items()]
        self.request_commit(zombie, at_once, CommitRequest(group, topics, generation, retention_ms=retention))

    @rule(zombie=ZOMBIE, at_once=AT_ONCE, group=GROUP, place=PLACE, offset=OFFSET, guess=OFFSET, right=st.booleans())
    def commit_if(
        self, zombie: bool, at_once: bool, group: str, place: tuple[str, int], offset: int, guess: int, right: bool
    ) -> None:
        side = self.sides(zombie=zombie)
        if side is None or side.view is None:
            return
        held = offsets_of(side.view, group).get(OffsetKey(group, *place))
        expected = guess if not right else held.offset if held else -1
        topics = [(place[0], [(place[1], offset, -1, "")])]
        self.request_commit(zombie, at_once, CommitRequest(group, topics, expected={place: expected}))

    def request_commit(self, zombie: bool, at_once: bool, request: CommitRequest) -> None:
        side = self.sides(zombie=zombie)
        if side is None or side.view is None:
            return
        response, change = self.oracle.commit(side.view, side.in_flight(), request, self.now)
        prepared = side.claimant.shard.commit(request, self.now)
        assert prepared.response == response
        self.asked(side, prepared, change, at_once=at_once)

    @rule(zombie=ZOMBIE, at_once=AT_ONCE, group=GROUP, places=st.one_of(st.none(), st.sets(PLACE, max_size=3)))
    def delete(self, zombie: bool, at_once: bool, group: str, places: set[tuple[str, int]] | None) -> None:
        side = self.sides(zombie=zombie)
        if side is None or side.view is None:
            return
        error, change = self.oracle.delete(side.view, side.in_flight(), group, places)
        shard = side.claimant.shard
        if places is None:
            prepared: CoordinatorResult[Any] = shard.delete_group(group)
            assert prepared.response == error
        else:
            prepared = shard.delete_offsets(group, [(topic, [partition]) for topic, partition in places])
            assert (prepared.response.error, prepared.response.errors) == (error, {})
        self.asked(side, prepared, change, at_once=at_once)

    @rule(zombie=ZOMBIE, at_once=AT_ONCE, members=st.dictionaries(GROUP, st.sampled_from([True, None])), hours=HOURS)
    def expire(self, zombie: bool, at_once: bool, members: Mapping[str, bool | None], hours: int) -> None:
        self.now += hours * HOUR_MS
        side = self.sides(zombie=zombie)
        if side is None or side.view is None:
            return
        change = self.oracle.expire(side.view, side.in_flight(), self.now, members)
        prepared = side.claimant.shard.expire(self.now, lambda group: members.get(group, False))
        self.asked(side, prepared, change, at_once=at_once)

    # --- appends -----------------------------------------------------------------------------------

    @precondition(lambda self: self.owner.waiting and self.owner.claimant.role is Role.SERVING)
    @rule(count=st.integers(1, 5), fate=st.sampled_from([*Fate, *[Fate.WRITTEN] * 5]))
    def append(self, count: int, fate: Fate) -> None:
        self.append_so(count, fate if fate in self.world.fates else Fate.WRITTEN)

    def append_so(self, count: int, fate: Fate) -> None:
        side = self.owner
        batch, side.waiting = side.waiting[:count], side.waiting[count:]
        self.world.fate = fate
        self.world.overtake = lambda: self.overtaken_after(side, batch)
        side.claimant.append(count)
        if fate is Fate.WRITTEN:
            assert side.view is not None
            side.view = self.after(side.view, batch)
            self.durable = self.after(self.durable, batch)
        elif fate is Fate.FENCED_WRITTEN:
            side.waiting = []
        elif fate is not Fate.NOT_WRITTEN:
            side.doubtful += batch
            if fate is Fate.UNKNOWN_WRITTEN:
                self.durable = self.after(self.durable, batch)
            elif fate is Fate.OPEN_WRITTEN:
                self.open = self.after({}, batch, tombstones=True)

    def after(self, state: State, batch: Sequence[Waiting], *, tombstones: bool = False) -> Any:
        for one in batch:
            state = {**state, **one.change} if tombstones else changed(state, one.change)
        return state

    def overtaken_after(self, side: Side, batch: Sequence[Waiting]) -> None:
        """Between the append and its answer."""
        self.durable = self.after(self.durable, batch)
        self.ownership_moves()

    @precondition(lambda self: self.owner.claimant.role is Role.RECOVERING)
    @rule()
    def recover(self) -> None:
        self.take(self.owner)

    @precondition(lambda self: self.other.waiting and self.other.claimant.role is Role.SERVING)
    @rule(count=st.integers(1, 5))
    def a_zombie_appends(self, count: int) -> None:
        """It learns that it was fenced, and nothing of it is in the log."""
        self.other.claimant.append(count)
        self.other.waiting = []
        assert self.other.claimant.role is Role.FOLLOWING

    # --- whose it is -------------------------------------------------------------------------------

    @rule()
    def ownership_moves(self) -> None:
        """The owner does not know yet."""
        self.other.claimant.give_up()
        self.other.waiting, self.other.doubtful = [], []
        self.owner, self.other = self.other, self.owner
        self.take(self.owner)

    @rule(standby=st.booleans())
    def crash(self, standby: bool) -> None:
        """Everything in memory is gone, and what was in flight with it."""
        if standby:
            self.other.claimant.give_up()
            self.other = self.new_side()
            self.other.view = None
        else:
            self.owner.claimant.give_up()
            self.owner = self.new_side()
            self.take(self.owner)

    @rule(most=st.one_of(st.none(), st.integers(1, 4)))
    def the_standby_follows(self, most: int | None) -> None:
        self.other.claimant.give_up()
        self.other.waiting, self.other.doubtful = [], []
        at_end = self.other.claimant.follow(most)
        self.other.view = dict(self.durable) if at_end else None

    @rule()
    def compact(self) -> None:
        """Who is behind reads everything again: tombstones that it has not seen may go."""
        if self.other.view != self.durable:
            self.crash(standby=True)
        self.world.compact()

    @rule()
    def a_newcomer_reads_everything(self) -> None:
        newcomer = self.new_side()
        assert newcomer.claimant.follow()
        newcomer.view = dict(self.durable)
        self.shows(newcomer)

    # --- what must always hold -----------------------------------------------------------------------

    @invariant()
    def each_side_shows_its_view(self) -> None:
        if hasattr(self, "world"):
            self.shows(self.owner)
            self.shows(self.other)

    def shows(self, side: Side) -> None:
        if side.view is None:
            return
        shard, view = side.claimant.shard, side.view
        assert dict(shard.entries()) == {key: value for key, value in view.items() if isinstance(key, OffsetKey)}
        assert shard.offset_count == sum(isinstance(key, OffsetKey) for key in view)
        assert set(shard.groups()) == {key.group for key in view if isinstance(key, OffsetKey)}
        assert not shard.problems
        for group in GROUPS:
            assert shard.last_active(group) == activity(view, group)
            held = offsets_of(view, group)
            assert shard.has_group(group) == bool(held)
            request = FetchRequest(group, [(topic, [partition]) for topic, partition in PLACES])
            for topic, [(partition, offset, epoch, metadata, error)] in shard.fetch(request).topics:
                value = held.get(OffsetKey(group, topic, partition))
                if value is None:
                    assert (offset, epoch, metadata, error) == (-1, -1, "", 0)
                else:
                    known_epoch = -1 if value.leader_epoch is None else value.leader_epoch
                    assert (offset, epoch, metadata, error) == (value.offset, known_epoch, value.metadata, 0)
