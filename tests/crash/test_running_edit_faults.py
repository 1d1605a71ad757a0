"""Faults in the middle of an edit of a running group: the group continues by itself, no record is lost, the operation
log shows the edit, its undo works, and a later edit works."""

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTopic
from processes import until
from release_fixtures import QUICK_HEARTBEATS
from running_consumers import RdkafkaMember
from running_group import PARTITIONS, running_group

from offsetmgr.sandbox import KraftBroker

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

CLASSIC_STEPS = (
    "JOIN_GROUP:1", "LEAVE_GROUP:1", "JOIN_GROUP:2", "SYNC_GROUP:1", "OFFSET_FETCH:1", "<OFFSET_COMMIT:1",
    "OFFSET_COMMIT:1", "HEARTBEAT:1", "JOIN_GROUP:3", "SYNC_GROUP:2", "OFFSET_FETCH:2", "LEAVE_GROUP:2",
    "OFFSET_FETCH:3",
)  # fmt: skip
"""All steps of an edit in a group of the classic protocol."""
CONSUMER_STEPS = (
    "CONSUMER_GROUP_HEARTBEAT:1", "LEAVE_GROUP:1", "OFFSET_FETCH:1", "<OFFSET_COMMIT:1", "OFFSET_COMMIT:1",
    "OFFSET_FETCH:2", "OFFSET_FETCH:3",
)  # fmt: skip
"""All steps of an edit in a group of the consumer protocol."""
AT_ONCE = 4
"""Groups that are edited at the same time. The members of more groups would miss their sessions on a slow machine."""
CONSUMER_PROTOCOL: dict[str, Any] = {"group.protocol": "consumer"}
SHORT_SESSIONS = {
    **QUICK_HEARTBEATS,
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 10_000,
}


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bootstrap(protocol: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("kafka" if protocol == "classic" else "kraft").bootstrap)


@pytest.fixture
def config(protocol: str) -> dict[str, Any]:
    return {} if protocol == "classic" else CONSUMER_PROTOCOL


def kill_at(step: str, bootstrap: str, group: str, home: Path, **config: Any) -> str:
    """Kills an edit at this step, and checks everything that must hold afterwards. Returns a line for the report."""
    with running_group(bootstrap, group, home, **config) as (running, _members):
        process = running.start_faulty(step, signal.SIGKILL, *running.reset(3))
        _, errors = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, f"{step}: {errors}"
        killed = time.time()
        running.await_members(2)
        freed = time.time() - killed
        running.await_progress()
        running.await_commits()
        (operation,) = running.operations()
        assert operation["outcome"] == "unknown"
        assert operation["written"] is None
        _, undo = running.run("edits", "undo", operation["id"], "--execute", "--yes")
        # A busy group makes the edit join again, so a later step can precede the write.
        if step in CLASSIC_STEPS[:5] or step in CONSUMER_STEPS[:3]:
            assert "nothing to change" in undo, f"{step}: {undo}"
        elif step.startswith("<") or "commits sent: 0\n" not in errors:
            assert "nothing to change" not in undo, f"{step}: {undo}"
        began = time.time()
        running.run(*running.reset(5))
        running.await_record(0, 5, began)
        running.await_progress()
        running.check_nothing_lost()
        return f"{step}: the group was free {freed:.1f} s after the kill"


def kill_at_each(steps: tuple[str, ...], bootstrap: str, topics: list[str], home: Path, **config: Any) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        started = [
            threads.submit(kill_at, step, bootstrap, topic, home / str(number), **config)
            for number, (step, topic) in enumerate(zip(steps, topics, strict=True))
        ]
    for one in started:
        sys.stdout.write(f"{one.result()}\n")


def test_an_edit_killed_at_any_step_leaves_a_group_that_continues(kafka, unique, make_topic, tmp_path) -> None:
    topics = [make_topic(f"{unique[-20:]}-{number}", PARTITIONS) for number in range(len(CLASSIC_STEPS))]
    kill_at_each(CLASSIC_STEPS, kafka.bootstrap, topics, tmp_path)


def test_an_edit_killed_in_a_group_of_the_consumer_protocol(unique: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    with KraftBroker(tmp_path / "kraft", config=SHORT_SESSIONS) as kraft:
        topics = [
            make_topic(f"{unique[-20:]}-{number}", PARTITIONS, bootstrap=kraft.bootstrap)
            for number in range(len(CONSUMER_STEPS))
        ]
        kill_at_each(CONSUMER_STEPS, kraft.bootstrap, topics, tmp_path, **CONSUMER_PROTOCOL)


def test_a_signal_in_the_middle_of_an_edit_makes_it_leave_the_group(bootstrap, config, unique, make_topic, tmp_path):
    steps = ("LEAVE_GROUP:1", "<OFFSET_COMMIT:1", "OFFSET_COMMIT:1", "OFFSET_FETCH:2")
    numbers = (signal.SIGINT, signal.SIGTERM)  # the same handler receives both
    cases = list(zip(steps, numbers * 2, strict=True))
    topics = [make_topic(f"{unique[-20:]}-{n}", PARTITIONS, bootstrap=bootstrap) for n in range(len(cases))]

    def interrupt(step: str, number: signal.Signals, topic: str) -> None:
        with running_group(bootstrap, topic, tmp_path / topic, **config) as (running, _members):
            process = running.start_faulty(step, number, *running.reset(3))
            _, errors = running.finish(process, code=130)
            assert not running.is_edited()  # a killed edit is in the group for longer: 10 s, or 45 s
            assert "not confirmed; undo: offsetmgr offsets import" in errors, errors
            running.await_members(2)
            running.await_progress()
            (operation,) = running.operations()
            assert operation["outcome"] == "interrupted"
            running.run("edits", "undo", operation["id"], "--execute", "--yes")
            running.await_progress()
            running.check_nothing_lost()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for one in [threads.submit(interrupt, *case, topic) for case, topic in zip(cases, topics, strict=True)]:
            one.result()


def test_two_edits_at_once_are_made_one_after_the_other_or_refused(
    protocol: str, bootstrap: str, config: dict[str, Any], unique: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(unique, PARTITIONS, bootstrap=bootstrap)
    with running_group(bootstrap, topic, tmp_path, **config) as (running, _members):
        for _ in range(3):
            began = time.time()
            first, second = (running.start(*running.reset(offset)) for offset in (4, 7))
            done = {offset: running.finish(one, code=None) for offset, one in ((4, first), (7, second))}
            codes = {4: first.returncode, 7: second.returncode}
            for offset, code in codes.items():
                if code == 0:
                    running.await_record(0, offset, began)
                else:
                    assert "another run of offsetmgr edits it" in done[offset][1], done[offset][1]
            sys.stdout.write(f"{protocol}: exit codes {codes}\n")
            running.await_members(2)
            running.await_progress()
        began = time.time()
        running.run(*running.reset(5))
        running.await_record(0, 5, began)
        running.check_nothing_lost()


def test_a_frozen_edit_writes_nothing_after_it_was_removed(config, unique, make_topic, tmp_path) -> None:
    with KraftBroker(tmp_path / "kraft", config=SHORT_SESSIONS) as broker:
        topic = make_topic(unique, PARTITIONS, bootstrap=broker.bootstrap)
        with running_group(broker.bootstrap, topic, tmp_path / "home", **config) as (running, _members):
            process = running.start_frozen("<OFFSET_COMMIT:1", *running.reset(3))
            running.await_members(2)
            running.await_progress()
            began = time.time()
            process.send_signal(signal.SIGCONT)
            running.finish(process)
            # The commit of the frozen process was rejected. It took the group over once more.
            running.await_record(0, 3, began)
            running.await_progress()
            running.check_nothing_lost()


def test_consumers_that_die_join_or_leave_during_an_edit(bootstrap, config, unique, make_topic, tmp_path) -> None:
    topic = make_topic(unique, PARTITIONS, bootstrap=bootstrap)
    with running_group(bootstrap, topic, tmp_path, **config) as (running, members):

        def edit_while(change: Any) -> str:
            began = time.time()
            process = running.start_frozen("<OFFSET_COMMIT:1", *running.reset(3))
            change()
            process.send_signal(signal.SIGCONT)
            _, errors = running.finish(process)
            running.await_record(0, 3, began)
            running.await_progress()
            return errors

        late: list[RdkafkaMember] = []

        def join() -> None:
            late.append(RdkafkaMember(bootstrap, topic, topic, running.deliveries, name="late", **config))

        errors = edit_while(join)
        assert "2 of 2 members back" in errors or "3 of 2 members back" in errors, errors
        for one in late:
            one.stop()
        running.await_members(2)
        errors = edit_while(members.pop().stop)
        assert "1 of 2 members back" in errors, errors
        assert "not verified" in errors
        running.await_members(1)
        running.check_nothing_lost()


def test_a_member_that_does_not_call_poll_is_reported_and_continues_at_the_edit(kafka, unique, make_topic, tmp_path):
    topic = make_topic(unique, PARTITIONS)
    with running_group(kafka.bootstrap, topic, tmp_path, members=1) as (running, _members):
        slow = RdkafkaMember(
            kafka.bootstrap, topic, topic, running.deliveries, name="slow", commit="sync", work_s=50, batch=1
        )
        until(lambda: any(one.member == "slow" for one in running.deliveries.found))
        began = time.time()
        _, errors = running.run(*running.reset(3))
        sys.stdout.write(errors)
        assert "1 of 2 members back" in errors
        assert "the others have not called poll yet" in errors
        running.await_record(0, 3, began)
        slow.stop()
        running.await_members(1, 90)
        running.await_progress()
        running.check_nothing_lost()
