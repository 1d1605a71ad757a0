"""``migrate report``: the page names every group once at its most urgent risk, and claims nothing that was not read."""

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from in_process import command
from one_migration import Migration, commit

from offsetmgr.core.commit_mode import Confidence, Phase, PhaseEvidence
from offsetmgr.core.document import to_text
from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import Committed, GroupMember, LogRange, TopicPartition
from offsetmgr.core.selection import literal_pattern
from offsetmgr.migration.location import GroupLocation, GroupSample, MigratedGroup, StoreSample, locate
from offsetmgr.migration.progress import Stage
from offsetmgr.migration.report import GroupRisk, MigrationReport, ReportedGroup
from offsetmgr.testing.memory import MemoryStore

HOSTILE = "<b>`a`|*b*\x1b[2J"
FINALIZED = {"kind": "group-finalized", "verified": 1, "left_out": 0, "gate": ["seen", ""]}
STORE = ("--store", "memory:source")
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
WEEK_MS = 1_796_614_680_000


@pytest.fixture
def migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Migration:
    """Wave 1 is finalized, wave 2 is applied, and its group is back in the source; wave 3 is planned."""
    monkeypatch.chdir(tmp_path)
    found = Migration(tmp_path)
    waves = tmp_path / "waves.csv"
    waves.write_text(f'group,wave,owner\nshop,1,web\naudit,2,web\n"{literal_pattern(HOSTILE)}",3,\n')
    for name in ("shop", "audit", HOSTILE):
        commit(found.source, name, 10, 20)
    sides = ("--from", "memory:source", "--to", "memory:target")
    found.command("migrate", "plan", *sides, "--waves", waves, "-o", found.path)
    found.apply(("shop", "audit"))
    found.append({**FINALIZED, "group": "shop"})
    return found


def test_one_page_has_waves_risks_and_next_commands(migration: Migration) -> None:
    report = ("migrate", "report", "plan.json", *STORE)
    with migration.configured():
        text = command(*report, code=1)
        markdown = command(*report, "--format", "markdown", code=1).stdout
        html = command(*report, "--format", "html", code=1).stdout
        of_wave = command(*report, "--wave", 3, "--window", 1)
    lines = text.stdout.splitlines()
    assert text.stderr.endswith("groups: 3, at risk: 1, errors: 0\n")
    assert [line.split()[:5] for line in lines if line.startswith("plan.json ")] == [
        ["plan.json", "1", "1", "1", "0"],
        ["plan.json", "2", "1", "0", "1"],
        ["plan.json", "3", "1", "0", "0"],
    ]
    assert "Applied, and not finalized: 1" in text.stdout
    at = lines.index("Phase unknown")
    assert lines[at + 2 : at + 5] == ["audit", "  wave: 2", "  phase: unknown"]
    assert f"  next: offsetmgr migrate finalize plan.json audit {' '.join(STORE)}" in lines
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if len(line) > 80 and "next:" not in line] == []
    assert "not watched, which takes a window" in of_wave.stdout and of_wave.stderr.endswith(
        "groups: 1, at risk: 0, errors: 0\n"
    )
    assert "| audit" not in markdown and "| `audit` | 2    | unknown |" in markdown
    assert "&lt;b&gt;`a`|*b*" in html and "<b>" not in html and "http" not in html


def test_a_page_replaces_its_file(migration: Migration, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    with migration.configured():
        done = command("migrate", "report", *STORE, "--format", "html", "-o", page, code=1)
        assert command("migrate", "report", "--wave", 1, *STORE, code=2).stderr.startswith("error: --wave 1: waves are")
    assert done.stdout == "" and f"wrote {page}\n" in done.stderr
    assert page.read_text().startswith("<!doctype html>") and page.read_text().endswith("</html>\n")
    assert "without a plan, those that the operation log has" in page.read_text()


def test_a_plan_of_other_stores_and_a_group_that_no_store_has_are_errors(migration: Migration, tmp_path: Path) -> None:
    other = Migration(tmp_path / "other")
    commit(other.source, "gone", 1)
    other.source.id, other.target.id = "another", "cluster"
    other.plan()
    migration.source.data.pop("audit")
    migration.target.data.pop("audit")
    with migration.configured():
        done = command("migrate", "report", migration.path, *STORE, code=1)
        elsewhere = command("migrate", "report", other.path, *STORE, code=1).stdout
    assert f"- plan {other.path}: the settings name neither of its stores" in " ".join(elsewhere.split())
    assert "- group 'audit': does not exist in memory:source, memory:target" in done.stdout
    assert done.stderr.endswith("groups: 2, at risk: 0, errors: 1\n")


def test_a_wave_is_that_of_the_plan_that_has_it(migration: Migration, tmp_path: Path) -> None:
    again = Migration(tmp_path / "again", migration.source, migration.target)
    again.plan()
    plans = ("migrate", "report", again.path, migration.path)
    with migration.configured():
        done = command(*plans, *STORE, "--wave", 3)
        refused = command(*plans, *STORE, "--wave", 4, code=2).stderr
    assert done.stderr.endswith("groups: 1, at risk: 0, errors: 0\n")
    assert f"{migration.path} has no such wave (its waves: 1, 2, 3)" in " ".join(refused.split())


def test_without_a_server_the_plan_and_its_journal_are_the_page(migration: Migration) -> None:
    dead = patch.object(MemoryStore, "log_origin", side_effect=Unreachable("the server", "no answer"))
    with migration.configured(), dead:
        done = command("migrate", "report", "plan.json", *STORE, code=1)
        assert command("migrate", "report", *STORE, code=1).stdout == ""
    assert done.stderr.endswith("groups: 3, at risk: 3, errors: 2\n")
    assert "- memory:source: not read: the server: no answer" in done.stdout
    assert re.findall(r"^plan.json +\d +1 +(\d)", done.stdout, re.MULTILINE) == ["1", "0", "0"]  # finalized
    assert "applied, and the journal records no end" in done.stdout


# --- the risks of one group ---------------------------------------------------------------------------

PLAN = MigratedGroup(
    "p.json", "shop", "shop", Stage.APPLIED, "zookeeper", "kafka", "zookeeper://h", "kafka://h", expires_at=WEEK_MS
)
FINAL = replace(PLAN, stage=Stage.FINALIZED, finalized_at=1)


def held(name: str, *offsets: int, members: int = 0, error: Unreachable | None = None) -> StoreSample:
    live = tuple(GroupMember(f"m-{n}", "", "", None) for n in range(members))
    read = {tp: Committed(offset) for tp, offset in zip((T0, T1), offsets, strict=False)}
    return StoreSample(name, f"{name}://h", read, live, error, error)


def risks(location: GroupLocation) -> dict[GroupRisk, str]:
    return dict(ReportedGroup.of(location, None).risks)


def located(*stores: StoreSample, plan: MigratedGroup | None = None, seen: Phase | None = None) -> GroupLocation:
    evidence = None if seen is None else PhaseEvidence(seen, Confidence.SEEN, "commits were seen")
    return locate(GroupSample("shop", stores, {T0: LogRange(0, 100), T1: LogRange(0, 100)}, evidence, plan))


def test_old_consumers_that_were_not_bounced_have_old_settings() -> None:
    old, new = held("zookeeper", 5, 7, members=2), held("kafka", 5, 6)
    found = risks(located(old, new, plan=PLAN, seen=Phase.ZOOKEEPER))
    assert found[GroupRisk.OLD_SETTINGS] == "2 members registered in ZooKeeper, and the phase is zookeeper (seen)"
    assert found[GroupRisk.STALE] == "Kafka differs on 1 of 2 partitions (orders-1: 6 in Kafka, 7 in ZooKeeper)"
    assert found[GroupRisk.UNFINALIZED] == "applied, and the journal records no end"
    assert GroupRisk.OLD_SETTINGS in risks(located(old, new, plan=PLAN, seen=Phase.DUAL))
    assert GroupRisk.OLD_SETTINGS in risks(located(old, held("kafka", 5, 7), plan=FINAL))  # they may be dual
    bounced = risks(located(old, new, plan=FINAL, seen=Phase.KAFKA))
    assert [*bounced] == [GroupRisk.STALE]
    assert risks(located(held("zookeeper", 5, 5), new, plan=FINAL, seen=Phase.KAFKA)) == {}  # the way back
    assert risks(located(held("zookeeper", 5, 5), new, plan=FINAL)) == {}
    planned = replace(PLAN, stage=Stage.PLANNED)
    assert GroupRisk.OLD_SETTINGS not in risks(located(old, new, plan=planned, seen=Phase.ZOOKEEPER))


def test_copied_offsets_that_no_consumer_commits_expire() -> None:
    sides = held("zookeeper", 5), held("kafka", 5)
    expiry = "expiry 2026-12-07 03:38 UTC, unless a consumer commits; migrate apply PLAN --refresh renews"
    assert risks(located(*sides, plan=FINAL)) == {GroupRisk.EXPIRY: expiry}
    assert risks(located(sides[0], held("kafka", 5, members=1), plan=FINAL)) == {}


def test_a_store_that_was_not_read_is_a_risk_and_proves_nothing() -> None:
    dead = held("kafka", error=Unreachable("Kafka", "no answer"))
    found = risks(located(held("zookeeper", 5), dead))
    assert found == {GroupRisk.UNREAD: "Kafka: Kafka: no answer"}
    moved = ReportedGroup.of(located(held("zookeeper", 5), dead, plan=FINAL), None)
    assert (moved.location.evidence.known_phase, moved.location.lag) == ("moved (inferred)", None)
    assert (
        moved.location.next.text() == "correct the address, the access or the server of Kafka first: it cannot be read"
    )
    alike = located(held("zookeeper", 5), held("kafka", 5))
    running = located(held("zookeeper", 5, members=1), held("kafka", 5))
    for one, first in ((alike, "start the group's consumers"), (running, "let the consumers read new messages")):
        text = locate(replace(one.sample, watched=True)).next.text()
        assert text == f"the watched commits do not show the phase: {first}, and watch again"
    equal = risks(alike)
    assert [*equal] == [GroupRisk.UNKNOWN] and equal[GroupRisk.UNKNOWN].startswith("ZooKeeper and Kafka hold equal")


def named(one: GroupLocation, name: str, wave: int | None = None) -> ReportedGroup:
    plan = one.sample.plan and replace(one.sample.plan, group=name, target_group=name)
    return ReportedGroup(replace(one, sample=replace(one.sample, group=name, plan=plan)), {}, wave)


def page_of(groups: list[ReportedGroup], **waves: int) -> str:
    return to_text(*MigrationReport(0, 1, {}, groups, (), {"p.json": waves}).page(" --context c"))


def test_groups_that_differ_only_in_their_names_share_a_row_with_one_command_for_all() -> None:
    unknown = located(held("zookeeper", 5), held("kafka", 5))
    text = page_of([named(unknown, f"g-{n:05}") for n in range(11_000)])
    assert "\ng-00000 and 10,999 more\n" in text
    assert "  next: offsetmgr migrate report --window 60 --context c\n" in text
    planned = located(held("zookeeper", 5), held("kafka"), plan=replace(PLAN, stage=Stage.PLANNED))
    wave, apply = [named(planned, f"w{n:03}", 2) for n in range(150)], "  next: offsetmgr migrate apply p.json"
    whole = {one.location.name: 2 for one in wave}
    assert f"{apply} --wave 2 --context c\n" in page_of(wave, **whole, other=1)
    assert f"{apply} --wave 2 --exclude-group other --context c\n" in page_of(wave, **whole, other=2)
    assert f"{apply} --group w000 --group w001 --context c\n" in page_of(wave[:2], **whole)
    text = page_of([named(unknown, f"g-{n:05}", n) for n in range(11_000)])  # a section is short
    assert "\ng-00019\n" in text and "\ng-00020\n" not in text and "\nand 10,980 more groups\n" in text
    assert len(text.splitlines()) < 250
