"""A plan that is weeks old: apply refuses old offsets; a renewed plan keeps waves, owners, states and before-images."""

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from edited_plans import edit_plan
from in_process import parse
from memory_stores import StoreWithTopicIds
from one_migration import ORDERS, Migration, commit

from offsetmgr import errors
from offsetmgr.core.errors import JournalError, MalformedData, PlanError

DAY_MS = 24 * 3_600_000


def aged(migration: Migration, days: float) -> None:
    """Changes the time of a plan that has no journal yet."""
    (at,) = re.findall(r'"created_at": (\d+)', migration.path.read_text())
    edit_plan(migration.path, (f'"created_at": {at}', f'"created_at": {int(at) - int(days * DAY_MS)}'))


@pytest.fixture
def fleet(tmp_path: Path) -> Migration:
    """Three groups in three waves. Wave 1 is applied and dual; two weeks later, all groups have moved on."""
    migration = Migration(tmp_path, target=StoreWithTopicIds("target"))
    for group in ("a1", "b2", "c3"):
        commit(migration.source, group, 10, 20)
        commit(migration.target, group, 1)
    (tmp_path / "waves").write_text("group,wave,owner\na1,1,team-a1\nb2,2,team-b2\nc3,3,team-c3\n")
    sides = ("--from", "memory:source", "--to", "memory:target", "--all-groups")
    migration.command("migrate", "plan", *sides, "--waves", tmp_path / "waves", "-o", migration.path)
    aged(migration, 14)
    migration.apply("a1")
    migration.append({"kind": "group-phase", "group": "a1", "phase": "dual", "why": "2 members committed"})
    for group in ("a1", "b2", "c3"):
        commit(migration.source, group, 1000, 2000)
    return migration


def second(fleet: Migration) -> Migration:
    return replace(fleet, name="second.json")


def renew(fleet: Migration, *options: str, code: int = 0) -> str:
    return fleet.run("renew", "-o", str(second(fleet).path), *options, code=code)


def sources(migration: Migration) -> dict[str, list[int]]:
    with migration.opened() as library:
        return {group.name: [step.source.offset for step in group.steps if step.source] for group in library.groups()}


# --- apply of an old plan -------------------------------------------------------------------------------


def test_apply_names_the_groups_that_moved_since_the_plan_but_not_those_that_were_applied(fleet: Migration) -> None:
    refused = fleet.run("apply", "--yes", code=1)
    assert "it is 14 days old, and 2 groups changed in the source since then: b2, c3\n" in refused
    assert "1 group changed in the source since then: c3\n" in fleet.run("apply", "--group", "c3", "--yes", code=1)
    commit(fleet.source, "b2", 10, 20)  # as the plan has them
    del fleet.source.data["b2"][ORDERS[0]], fleet.source.data["c3"]
    assert "2 groups changed in the source since then: b2, c3\n" in fleet.run("apply", "--yes", code=1)


@pytest.mark.parametrize("broken", ["b2", ("b2", ORDERS[1])])
def test_a_failed_read_does_not_show_that_a_group_has_not_moved(fleet: Migration, broken: Any) -> None:
    commit(fleet.source, "b2", 10, 20)  # as the plan has them
    assert "1 group changed in the source since then: c3\n" in fleet.run("apply", "--yes", code=1)
    fleet.source.broken[broken] = MalformedData("znode /consumers/b2", "it cannot be read")
    refused = fleet.run("apply", "--yes", code=1)
    assert re.search(r"source of group b2 cannot be compared with it: .*cannot be read", refused)
    assert "hint: fix the cause and repeat the command, or leave out the group\n" in refused
    assert "1 group changed in the source since then: c3\n" in fleet.run("apply", "--group", "c3", "--yes", code=1)


@pytest.fixture
def old(tmp_path: Path) -> Migration:
    """A plan of two days ago. Since then, the group has moved on in the source."""
    migration = Migration(tmp_path)
    commit(migration.source, "my shop", 10)
    migration.plan()
    aged(migration, 2)
    commit(migration.source, "my shop", 11)
    return migration


def test_the_hint_for_an_old_plan_renews_the_same_groups(old: Migration) -> None:
    login = old.directory / "a b.properties"
    login.write_text("client.id=me\n")
    options = ["--command-config", str(login)]
    shown = old.run("apply", "--group", "my shop", *options, "--yes", code=1)
    assert "it is 2 days old, and 1 group changed in the source since then: my shop" in shown
    command = re.search(r"plan them again: offsetmgr (.*); or", shown)
    assert command is not None
    words = shlex.split(command[1])
    parse(words)
    assert words[2:] == [str(old.path), "--output", "FILE", "--group", "my shop", *options]
    old.run("apply", "--yes", "--accept-stale")


def test_the_library_refuses_an_old_plan_whose_source_has_moved_on_and_a_plan_of_the_future_too(old: Migration) -> None:
    with pytest.raises(errors.PlanError, match="it is 2 days old, and 1 group changed in the source") as raised:
        old.apply()
    assert raised.value.hint.endswith("or write the old offsets with accept_stale=")
    aged(old, -4.5)  # a clock that was ahead when the plan was made must not switch off the check
    why = "its time is 2 days in the future, because a clock was wrong, and 1 group changed"
    assert why in old.run("apply", "--yes", code=1)
    assert old.apply(accept_stale=True).written == 1


def test_a_plan_that_must_be_unchanged_is_not_written_after_a_new_commit_in_the_source(tmp_path: Path) -> None:
    migration = Migration(tmp_path)
    commit(migration.source, "shop", 10)
    migration.plan()
    assert "are both given" in migration.run("apply", "--if-unchanged", "--accept-stale", code=2)
    commit(migration.source, "shop", 10, 17)
    refused = migration.run("apply", "--yes", "--if-unchanged", code=1)
    assert re.search(r"1 group changed in the source since then: shop\nhint: plan them again: .* FILE\n", refused)
    assert not migration.target_offsets()
    del migration.source.data["shop"][ORDERS[1]]
    commit(migration.source, "new", 1)
    assert "matches 1 more group now: new" in migration.run("apply", "--yes", "--if-unchanged")


# --- a renewed plan -------------------------------------------------------------------------------------


def test_a_later_wave_is_applied_with_the_offsets_of_its_day(fleet: Migration) -> None:
    assert f"planned 2 groups again; 1 group kept; {fleet.path} is replaced" in renew(fleet)
    later = second(fleet)
    rows = later.status()
    assert [(name, row["wave"], row["owner"], row["state"]) for name, row in rows.items()] == [
        ("a1", 1, "team-a1", "dual"),
        ("b2", 2, "team-b2", "planned"),
        ("c3", 3, "team-c3", "planned"),
    ]
    assert rows["a1"]["evidence"] == "2 members committed"
    assert sources(later) == {"a1": [10, 20], "b2": [1000, 2000], "c3": [1000, 2000]}
    later.apply("c3")
    assert later.target_offsets()["c3"] == {ORDERS[0]: 1000, ORDERS[1]: 2000}
    assert later.target_offsets()["b2"] == {ORDERS[0]: 1}
    assert later.rollback().ok  # also the wave that was applied with the old plan
    assert later.target_offsets() == {group: {ORDERS[0]: 1} for group in ("a1", "b2", "c3")}


def test_an_offset_that_stays_although_its_topic_was_recreated_is_refused(fleet: Migration) -> None:
    fleet.target.topic_id = "after"  # type: ignore[attr-defined]
    commit(fleet.source, "b2", 10, 2000)  # the first offset is that of the plan
    renew(fleet)
    with second(fleet).opened() as library:
        steps = {group.name: [step.action.value for step in group.steps] for group in library.groups()}
        assert steps == {"a1": ["copy", "copy"], "b2": ["refuse-recreated", "copy"], "c3": ["copy", "copy"]}
        assert library.summary.topic_ids == {"orders": "before"}  # a1 has offsets of the deleted log


def test_only_the_named_groups_are_planned_again_and_the_old_plan_is_replaced(fleet: Migration) -> None:
    renew(fleet, "--group", "a1", "--group", "c3")
    assert sources(second(fleet)) == {"a1": [10, 20], "b2": [10, 20], "c3": [1000, 2000]}
    with pytest.raises(JournalError, match=r"it was renewed as .*second\.json"):
        fleet.state()
    second(fleet).state()
    second(fleet).path.unlink()
    with pytest.raises(JournalError) as caught:
        fleet.state()
    again = f"migrate.renew({str(fleet.path)!r}, new_path={str(second(fleet).path)!r})"
    assert caught.value.hint.endswith(again)


def test_a_group_of_which_nothing_was_written_is_named_and_one_in_part_prevents_a_renewal(fleet: Migration) -> None:
    commit(fleet.target, "c3", 3, 5)
    assert "failed: 2 partitions of 1 group; nothing is done" in fleet.run(
        "apply", "--accept-stale", "--yes", "c3", code=1
    )
    shutil.copytree(fleet.directory, fleet.directory / "one")
    one = replace(fleet, directory=fleet.directory / "one")
    shown = renew(one)
    assert "planned 1 group again; 2 groups kept" in shown
    assert "kept, although apply wrote nothing of it: c3. Apply tries it again" in shown
    assert sources(second(one)) == {"a1": [10, 20], "b2": [1000, 2000], "c3": [10, 20]}
    assert second(one).status()["c3"]["state"] == "planned"
    commit(fleet.target, "b2", None, 5)
    assert not fleet.apply("b2", accept_stale=True).ok
    refused = renew(fleet, code=1)
    assert "1 group applied in part: b2" in refused
    assert f"run: offsetmgr migrate apply {shlex.quote(str(fleet.path))} --group b2" in refused
    assert not second(fleet).path.exists()


def test_nothing_is_renewed_if_every_group_was_begun_or_a_journal_exists(fleet: Migration) -> None:
    assert "apply has begun every group" in renew(fleet, "--group", "a1", code=2)
    journal = second(fleet).journal
    for content in (b"", fleet.journal.read_bytes()):  # also the journal of another plan
        journal.write_bytes(content)
        assert "exists already" in renew(fleet, code=1)
        assert journal.read_bytes() == content


def executable(fleet: Migration) -> list[str]:
    """The plans that apply accepts."""
    found = []
    for one in (fleet, second(fleet)):
        try:
            one.state()
        except (JournalError, PlanError):
            continue
        found.append(one.name)
    return found


def killed(fleet: Migration, at: int, when: str) -> bool:
    """Renews the plan in a process that is killed before or after its ``at``-th change or sync of a file. Returns False
    if there are fewer."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    signal.alarm(300)  # a fork of a process with threads can hang
    count = itertools.count()

    def dying(original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            last = next(count) == at
            if last and when == "before":
                os._exit(9)
            try:
                return original(*arguments, **named)
            finally:
                if last:
                    os._exit(9)

        return call

    try:
        for name in ("fsync", "replace", "link", "unlink"):
            setattr(os, name, dying(getattr(os, name)))
        shutil.copyfileobj = dying(shutil.copyfileobj)
        renew(fleet)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_step_leaves_at_most_one_plan_and_the_same_command_ends_the_renewal(tmp_path, fleet, when):
    for at in itertools.count():
        one = replace(fleet, directory=tmp_path / str(at))
        one.directory.mkdir()
        for path in (fleet.path, fleet.journal):
            shutil.copy(path, one.directory)
        was_killed = killed(one, at, when)
        replaced = b'"kind":"renewed"' in one.journal.read_bytes()
        found = executable(one)
        assert found == (
            [] if replaced and not second(one).path.exists() else ["second.json" if replaced else "plan.json"]
        )
        if found != ["second.json"]:
            renew(one)
        assert executable(one) == ["second.json"]
        assert second(one).state().apply.done
        second(one).apply("b2")
        left = [path for path in one.directory.glob(".second.json.*") if not path.name.endswith(".lock")]
        for path in left:  # a later run removes the file of a kill after a minute
            os.utime(path, (time.time() - 3_600,) * 2)
        second(one).apply("c3")
        assert not list(one.directory.glob(".second.json.renewed*"))
        if not was_killed:
            break
    assert at >= 8


def test_a_run_of_the_new_plan_removes_the_file_of_a_killed_renewal_after_a_minute(fleet: Migration) -> None:
    renew(fleet)
    left = fleet.directory / ".second.json.renewed.01234567.tmp"
    shutil.copy(second(fleet).path, left)
    for age_s, kept in ((0, True), (3_600, False)):
        os.utime(left, (time.time() - age_s,) * 2)
        second(fleet).apply("b2")
        assert left.exists() is kept


def test_a_renewal_that_was_killed_does_not_replace_another_file(fleet: Migration) -> None:
    sha256, path = json.loads(fleet.path.read_text())["sha256"], second(fleet).path
    renew(fleet)
    path.rename(path.with_name(f".second.json.renewed.{sha256[:8]}.tmp"))
    shutil.copy(fleet.path, path)
    assert "exists already" in renew(fleet, code=1)
    path.unlink()
    assert f"it is complete now, and {fleet.path} is replaced" in renew(fleet)
    assert executable(fleet) == ["second.json"]


@pytest.mark.parametrize("replaced", [True, False])
def test_the_renewal_of_an_earlier_version_is_ended_or_starts_again(fleet: Migration, replaced: bool) -> None:
    """It had another temporary name for the new plan."""
    sha256, path, journal = json.loads(fleet.path.read_text())["sha256"], second(fleet).path, fleet.journal.read_bytes()
    renew(fleet)
    former = path.rename(path.with_name(f".second.json.{sha256[:16]}.part"))
    if not replaced:
        fleet.journal.write_bytes(journal)
    renew(fleet)
    assert not former.exists()
    assert executable(fleet) == ["second.json"]
