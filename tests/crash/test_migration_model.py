"""The migration compared with an oracle of plain dicts: plan, apply, crash, resume and roll back, while other clients
write to both stores."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from one_migration import Migration

from offsetmgr import AheadPolicy, PlanOptions, TopicPartition
from offsetmgr import Migration as Library
from offsetmgr.core.errors import GroupNotFound, JournalError
from offsetmgr.core.model import Committed
from offsetmgr.migration import journaled_writer
from offsetmgr.migration.progress import Journal, JournalRecord
from offsetmgr.testing.memory import MemoryStore

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips fsync: the kills end only the process, so its writes survive, and a sync would only take time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


GROUPS = ("g0", "g1", "g2")
PARTITIONS = tuple(TopicPartition("t", p) for p in range(3))
KEYS = tuple((group, tp) for group in GROUPS for tp in PARTITIONS)
OFFSETS = st.integers(0, 20)
Offsets = dict[tuple[str, TopicPartition], int]


class Killed(BaseException):
    """Represents a kill at a journal step."""


@contextmanager
def killed_at(left: int | None, after: bool) -> Iterator[None]:
    """Raises `Killed` at an append to the journal, before it or after its fsync, when ``left`` others were made."""
    append = Journal.append
    steps = iter(range(left if left is not None else 1_000_000))

    def append_or_die(journal: Journal, records: Iterable[JournalRecord]) -> None:
        records = list(records)
        dies = bool(records) and next(steps, None) is None
        if not dies or after:
            append(journal, records)
        if dies:
            raise Killed

    with patch.object(Journal, "append", append_or_die):
        yield


def offsets_in(store: MemoryStore) -> Offsets:
    return {(group, tp): c.offset for group, found in store.data.items() for tp, c in found.items()}


class MigrationModel(RuleBasedStateMachine):
    """``before`` is the content of the target when the plan was made; ``touched`` are the partitions of the target that
    other clients have changed since."""

    @initialize()
    def start(self) -> None:
        journaled_writer.BATCH_GROUPS = 1
        self.directory = tempfile.TemporaryDirectory()
        self.source, self.target = MemoryStore("source"), MemoryStore("target")
        self.migration = Migration(Path(self.directory.name), self.source, self.target)
        self.plan: Library | None = None
        self.before: Offsets = {}
        self.touched: set[tuple[str, TopicPartition]] = set()
        self.oracle_source: Offsets = {}
        self.number = 0
        self.rolled_back = False

    def teardown(self) -> None:
        journaled_writer.BATCH_GROUPS = 100
        if hasattr(self, "directory"):
            self.directory.cleanup()

    @rule(key=st.sampled_from(KEYS), offset=OFFSETS)
    def another_client_commits_to_the_source(self, key, offset):
        self._write(self.source, key, offset)
        self.oracle_source[key] = offset

    @rule(key=st.sampled_from(KEYS), offset=OFFSETS)
    def another_client_commits_to_the_target(self, key, offset):
        self._write(self.target, key, offset)
        self.touched.add(key)

    def _write(self, store: MemoryStore, key: tuple[str, TopicPartition], offset: int) -> None:
        store.data.setdefault(key[0], {})[key[1]] = Committed(offset)

    @rule(mode=st.sampled_from(AheadPolicy))
    def make_a_plan(self, mode):
        self.number += 1
        self.migration.name, self.migration.options = f"{self.number}.json", PlanOptions(mode)
        try:
            self.plan = self.migration.plan()
        except GroupNotFound:
            assert self.oracle_source == {}
            self.plan = None
        self.before, self.touched = offsets_in(self.target), set()
        self.rolled_back = False

    @precondition(lambda self: self.plan is not None and not self.rolled_back)
    @rule(kill=st.none() | st.integers(0, 8), after=st.booleans())
    def apply_the_plan(self, kill, after):
        assert self.plan is not None
        now = offsets_in(self.target)
        report = self._run(self.migration.apply, kill, after)
        steps = {(g.name, s.tp): s for g in self.plan.groups() for s in g.writes()}
        found = offsets_in(self.target)
        for key in KEYS:
            step = steps.get(key)
            assert step is None or step.after is not None
            if found.get(key) != now.get(key):
                assert step is not None and step.after is not None, f"{key} is not in the plan"
                assert found[key] == step.after.offset
                assert now.get(key) == (step.target.offset if step.target else None)
                assert now.get(key, -1) < found[key] or step.action.value == "rewind"
            elif report is not None and step is not None and step.after and now.get(key) != step.after.offset:
                failed = report.failed.get(key[0])
                beyond = now.get(key, -1) > step.after.offset
                assert beyond or (failed is not None and key[1] in failed.failed) or key in self.touched
        if report is not None and not self.touched:
            assert report.ok

    @precondition(lambda self: self.plan is not None)
    @rule(kill=st.none() | st.integers(0, 8), after=st.booleans())
    def roll_back_the_plan(self, kill, after):
        assert self.plan is not None
        if not self.migration.state().apply.intents:
            return
        now = offsets_in(self.target)
        try:
            report = self._run(self.migration.rollback, kill, after)
        except JournalError:  # nothing to roll back: other clients changed every planned partition first
            assert offsets_in(self.target) == now
            state = self.migration.state()
            applied = [state.partitions(state.apply, group.name) for group in self.plan.groups()]
            assert not any(group.written or group.in_doubt for group in applied)
            return
        self.rolled_back = True
        found = offsets_in(self.target)
        for key in KEYS:
            if found.get(key) != now.get(key):
                assert found.get(key) == self.before.get(key), f"{key} differs from its before-image"
            if report is not None and key not in self.touched:
                assert found.get(key) == self.before.get(key), f"{key} was not restored"

    def _run(self, command: Any, kill: int | None, after: bool) -> Any:
        try:
            with killed_at(kill, after):
                return command()
        except Killed:
            return None

    @invariant()
    def the_source_is_untouched(self) -> None:
        if hasattr(self, "source"):
            assert offsets_in(self.source) == self.oracle_source


TestMigrationModel = MigrationModel.TestCase
TestMigrationModel.settings = settings(
    max_examples=5000 if os.environ.get("OFFSETMGR_SOAK") else 100, stateful_step_count=30, deadline=None
)
