"""The reports of edits of running groups: which commits after the edit show that the members continue at the new
offsets. No servers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import command, rows
from memory_stores import in_memory

from offsetmgr.core.errors import OffsetMgrError, ServerError, TimedOut, UnknownTopicOrPartition
from offsetmgr.core.model import Committed, GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.groups.execute import may_have_written
from offsetmgr.stores import running_edits
from offsetmgr.stores.running_edits import RunningEdits
from offsetmgr.testing.memory import MemoryStore

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
FAILED_READ = ServerError("t-0", "the read failed")

Read = Mapping[TopicPartition, int | OffsetMgrError]


def fetched(read: Read) -> Any:
    return SimpleNamespace(
        offsets={tp: Committed(one) for tp, one in read.items() if isinstance(one, int)},
        errors={tp: one for tp, one in read.items() if isinstance(one, OffsetMgrError)},
    )


class Takeover:
    """A group that is taken over: ``reads`` are the offsets before the edit and, if given, after the return of the
    members."""

    evicted = (GroupMember("m-1", "app"),)

    def __init__(self, *reads: Read) -> None:
        self.reads = list(reads)
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self.rejects: dict[TopicPartition, OffsetMgrError] = {}
        self.current: dict[TopicPartition, int | OffsetMgrError] = {}

    async def fetch(self, partitions: Sequence[TopicPartition], deadline: float) -> Any:
        del partitions, deadline
        if self.reads:
            self.current = dict(self.reads.pop(0))
        return fetched(self.current)

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        del deadline
        self.commits.append(dict(offsets))
        self.current |= {tp: one.offset for tp, one in offsets.items()}
        return {tp: self.rejects.get(tp) for tp in offsets}

    async def delete(
        self, partitions: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        del deadline
        return dict.fromkeys(partitions)

    async def readmit(self, withheld: Iterable[TopicPartition], until: float) -> int:
        del withheld, until
        return 1


class Coordinator:
    """The reads of the watch after the takeover. The last one repeats."""

    def __init__(self, *reads: Read) -> None:
        self.reads = list(reads)

    async def fetch(self, group: str, partitions: Sequence[TopicPartition], deadline: float) -> Any:
        del group, deadline
        read = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        return fetched({tp: one for tp, one in read.items() if tp in partitions})


class Listener:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def on_before(self, group: str, offsets: object) -> None:
        del group, offsets

    def on_step(self, text: str) -> None:
        self.steps.append(text)


class Edit:
    """An edit of group ``g``, whose log ends are at offset 100, and its result."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log_end: int | OffsetMgrError = 100
        self.takeovers = 0
        self.listener = Listener()
        self._patch = monkeypatch
        monkeypatch.setattr(running_edits, "_WATCH_S", 0.1)
        monkeypatch.setattr(running_edits, "_POLL_S", 0.01)
        monkeypatch.setattr(running_edits, "_QUIET_S", 0.01)

    def run(self, changes: Mapping[TopicPartition, int | None], takeover: Takeover, *watched: Read) -> GroupEditResult:
        described = GroupDescription("g", "STABLE", "consumer", "range", members=takeover.evicted)

        async def settled(*_: object) -> GroupDescription:
            return described

        async def is_consumer_group(*_: object) -> bool:
            return False

        async def list_offsets(*arguments: Any) -> dict[TopicPartition, int | OffsetMgrError]:
            return dict.fromkeys(arguments[1], self.log_end)

        @asynccontextmanager
        async def take_over(*_: object) -> AsyncIterator[Takeover]:
            self.takeovers += 1
            yield takeover

        for name, one in (("settled", settled), ("is_consumer_group", is_consumer_group), ("take_over", take_over)):
            self._patch.setattr(running_edits, name, one)
        self._patch.setattr(running_edits, "list_offsets", list_offsets, raising=False)
        client: Any = None
        edits: Any = Coordinator(*watched)
        planned = {
            tp: Change(None if after is None else OffsetAndMetadata(after), allow_rewind=True)
            for tp, after in changes.items()
        }
        running = RunningEdits(client, edits, self.listener, 30.0)
        return asyncio.run(running.edit(GroupEdit("g", planned), threading.Event(), conditional=False))


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Edit:
    return Edit(monkeypatch)


SEEN = "seen: the members continue from the new offsets (t-0 at 10)"
ABSENT = "1 deleted offset still absent, without a commit of a member"
BEGAN = "seen: the members began where auto.offset.reset says (t-0 at 7)"
AGAIN = "not verified: 1 deleted offset committed again (t-0 at 25)"
STILL = "1 partition still at the new offset"
UNREAD = "not verified: the offsets could not be read again (t-0: the read failed)"
DELETED = "not verified: another client meanwhile deleted the new offsets of t-0"
BOTH = {A: 20, B: 20}


@pytest.mark.parametrize(
    ("changes", "before", "watched", "atomic", "texts"),
    [
        ({A: 4}, {A: 20}, [{A: 4}, {A: 10}], True, [SEEN]),
        ({A: None}, {A: 20}, [{}], True, [ABSENT]),
        ({A: None}, {A: 20}, [{}, {A: 7}], True, [BEGAN]),
        ({A: None}, {A: 20}, [{}, {A: 25}], False, [AGAIN]),
        ({A: 4, B: 4}, BOTH, [{A: FAILED_READ, B: 4}], False, [STILL, UNREAD]),
        ({A: 4}, {A: 20}, [{A: 4}, {A: FAILED_READ}], True, [STILL]),  # the last successful read counts
        ({A: 4}, {A: 20}, [{A: 4}, {}], False, [DELETED]),
    ],
)
def test_the_report_names_what_the_watch_saw(
    edit: Edit, changes: dict[Any, int | None], before: Read, watched: list[Read], *, atomic: bool, texts: list[str]
) -> None:
    reads = [before, {}] if changes[A] is None else [before]
    done = edit.run(changes, Takeover(*reads), *watched)
    assert (done.atomic, done.failures, edit.takeovers) == (atomic, {}, 1)
    assert done.outcomes[A].status is EditStatus.WRITTEN
    assert [text for text in texts if text not in done.how] == []
    assert done.how.endswith(texts[-1]) or not atomic or texts == [STILL]
    assert "-1" not in done.how


@pytest.mark.parametrize(
    ("before", "after", "log_end", "commit", "seen"),
    [
        (20, 4, 100, 20, False),  # a rewind, and the members are at the old offset
        (20, 50, 100, 60, False),  # forward, and a batch from before the edit may contain 60
        (20, 50, 100, 100, False),
        (20, 50, 100, 101, True),
        (20, 50, FAILED_READ, 101, False),  # the log end is unknown
        (50, 50, 100, 60, False),
        (None, 50, 100, 60, False),  # the members had no committed offset
        (None, 50, 100, 101, False),
    ],
)
def test_a_commit_that_a_member_could_make_without_the_edit_is_inferred(
    edit: Edit, before: int | None, after: int, log_end: int | OffsetMgrError, commit: int, *, seen: bool
) -> None:
    edit.log_end = log_end
    done = edit.run({A: after}, Takeover({} if before is None else {A: before}), {A: commit})
    assert ("seen: the members continue" in done.how) == seen
    assert (f"inferred: t-0 at {commit}" in done.how) != seen
    assert done.atomic


def test_only_written_partitions_count_as_still_at_the_new_offset(edit: Edit) -> None:
    takeover = Takeover({A: 20, B: 20})
    takeover.rejects = {B: UnknownTopicOrPartition("t-1", "does not exist")}
    assert STILL in edit.run({A: 4, B: 4}, takeover, {A: 4, B: 4}).how


@pytest.mark.parametrize(("back", "watched", "text"), [({}, {}, "meanwhile deleted"), ({A: FAILED_READ}, {A: 4}, "")])
def test_a_read_without_an_offset_while_the_members_come_back_is_not_an_earlier_commit(edit, back, watched, text):
    takeover = Takeover({A: 20}, back)
    done = edit.run({A: 4}, takeover, watched)
    assert text in done.how
    assert "overwritten" not in done.how
    assert len(takeover.commits) == 1


def test_an_edit_that_members_overwrite_can_be_undone(edit: Edit, tmp_path, monkeypatch) -> None:
    done = edit.run({A: 15, B: 15}, Takeover({A: 20, B: 20}), {A: 12, B: 15})
    assert edit.takeovers == 3
    assert edit.listener.steps.count("group g: t-0 at 12 was committed again; the edit is repeated") == 2
    error = done.failures[A]
    assert "a member committed 12 after the edit" in str(error)
    assert may_have_written(type(error).__name__)
    assert not done.atomic

    class Overwritten(MemoryStore):
        def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
            list(edits)
            yield done

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    in_memory(store=Overwritten("store", data={"g": {A: Committed(20), B: Committed(20)}}))
    reset = ("offsets", "set", "-g", "g", "--topic", "t", "--to-offset", "15", "--store", "memory:store")
    command(*reset, "--execute", "--yes", code=1)
    (operation,) = rows("edits", "list")
    (operation,) = rows("edits", "show", operation["id"])
    assert (operation["outcome"], operation["written"], operation["failed"]) == ("failed", 2, 1)


class SlowTakeover(Takeover):
    """A group whose broker does not respond to reads. The client waits until the deadline."""

    async def fetch(self, partitions: Sequence[TopicPartition], deadline: float) -> Any:
        if self.reads:
            return await super().fetch(partitions, deadline)
        await asyncio.sleep(0.1)
        raise TimedOut("broker h:1", "no answer within 0.402 s")


def test_the_report_of_a_slow_edit_names_the_limit_of_the_whole_edit(edit: Edit, monkeypatch) -> None:
    monkeypatch.setattr(running_edits, "_TAKEOVER_S", 0.05)
    done = edit.run({A: 4}, SlowTakeover(), {A: 4})
    why = "it was not taken over, read and written within 0.05 s; the last request waited for broker h:1"
    assert str(done.outcomes[A].error) == f"group g: {why}"
    done = edit.run({A: 4}, SlowTakeover({A: 20}), {A: 4})
    assert "its offsets were not read and written again within 0.05 s" in done.how
    assert "0.402" not in done.how
