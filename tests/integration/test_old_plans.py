"""A later wave of a plan that is two weeks old, on real servers: apply refuses and prints a command that works."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from everyday import Cli, committed

from offsetmgr.migration.journal import copy_journal, journal_path
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.sandbox import KafkaBroker

pytest_plugins = ["everyday_fixtures"]

pytestmark = pytest.mark.servers

DAYS_MS = 24 * 3_600_000


def aged(path: Path, days: int) -> None:
    """Rewrites a plan and its journal as if the plan had been made ``days`` days ago."""
    plan = PlanFile(path)
    header = replace(plan.header, created_at=plan.header.created_at - days * DAYS_MS)
    older = path.with_name("older.json")
    _, sha256 = write_plan(older, header, list(plan.groups()), lambda _topics: plan.summary.topic_ids)
    copy_journal(journal_path(path), journal_path(older), sha256)
    older.replace(path)
    journal_path(older).replace(journal_path(path))


def test_a_wave_after_two_weeks_gets_the_offsets_of_its_day(
    cli: Cli, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    old, new = f"zookeeper://{kafka.zookeeper}", ["--bootstrap-server", kafka.bootstrap]
    first, third = f"{topic}-1", f"{topic}-3"
    for group in (first, third):
        cli(
            "offsets", "set", "-g", group, "--topic", f"{topic}:0", "--to-offset", "2", "--new-group", "--execute",
            "--yes", "--store", old,
        )  # fmt: skip
    plan, waves = tmp_path / "fleet.json", tmp_path / "waves.csv"
    waves.write_text(f"group,wave,owner\n{first},1,blue\n{third},3,red\n")
    cli("migrate", "plan", "--from", old, "--to", f"kafka://{kafka.bootstrap}", "--waves", str(waves), "-o", str(plan))
    cli("migrate", "apply", str(plan), "--wave", "1", "--yes")
    aged(plan, 14)
    for group in (first, third):
        cli(
            "offsets",
            "set",
            "-g",
            group,
            "--topic",
            f"{topic}:0",
            "--to-offset",
            "9",
            "--execute",
            "--yes",
            "--store",
            old,
        )

    refused = cli("migrate", "apply", str(plan), "--group", third, "--yes", code=1)
    assert f"it is 14 days old, and 1 group changed in the source since then: {third}\n" in refused.stderr
    cli("offsets", "get", "-g", third, *new, code=1)  # it does not exist
    command = re.search(r"plan them again: offsetmgr (migrate renew .*); or", refused.stderr)
    assert command is not None
    assert command[1] == f"migrate renew {plan} -o FILE --group {third}"
    second = str(tmp_path / "second.json")
    done = cli(*shlex.split(command[1].replace("FILE", second)))
    assert f"planned 1 group again; 1 group kept; {plan} is replaced\n" in done.stderr

    cli("migrate", "apply", second, "--wave", "3", "--yes")
    assert committed(cli, new, third) == {0: 9}
    assert committed(cli, new, first) == {0: 2}
    rows = {one["group"]: (one["wave"], one["owner"], one["state"]) for one in cli.rows("migrate", "status", second)}
    assert rows == {first: (1, "blue", "applied"), third: (3, "red", "applied")}
    replaced = cli("migrate", "status", str(plan), code=1)
    assert f"it was renewed as {second}" in replaced.stderr
    cli("migrate", "rollback", second, "--wave", "1", "--yes")
    assert committed(cli, new, third) == {0: 9}
