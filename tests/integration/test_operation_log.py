"""``offsetmgr edits``: every edit and migration is recorded, and an edit can be undone by its id."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from everyday import Cli, committed

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytest_plugins = ["everyday_fixtures"]

pytestmark = pytest.mark.servers


def set_offset(cli: Cli, flags: list[str], topic: str, offset: int, *more: str, code: int = 0) -> str:
    new = ["--new-group"] if not cli.rows("edits", "list") else []
    return cli(
        "offsets", "set", "--group", topic, "--topic", f"{topic}:0", "--to-offset", str(offset), *new, *more,
        "--execute", "--yes", *flags, code=code,
    ).stderr  # fmt: skip


def test_an_edit_is_recorded_with_its_reason_and_undone_by_its_id(cli: Cli, flags: list[str], topic: str) -> None:
    set_offset(cli, flags, topic, 3)
    set_offset(cli, flags, topic, 8, "--reason", "skip the poisoned records")

    first, edit = cli.rows("edits", "list", "--group", topic)
    assert (first["operation"], first["written"], first["reason"]) == ("offsets set", 1, None)
    assert (edit["outcome"], edit["reason"]) == ("done", "skip the poisoned records")
    assert edit["user"].startswith(getpass.getuser())
    (shown,) = cli.rows("edits", "show", edit["id"])
    assert shown["command"].endswith("--execute --yes " + " ".join(flags))
    assert (shown["groups"], len(shown["stores"].split(", "))) == (topic, len(stores(flags)))

    preview = cli("edits", "undo", edit["id"])
    assert "dry run" in preview.stderr
    assert committed(cli, flags, topic) == {0: 8}
    cli("edits", "undo", edit["id"], "--execute", "--yes")

    assert committed(cli, flags, topic) == {0: 3}
    undone = cli.rows("edits", "show", edit["id"])[0]["undone_by"]
    assert cli.rows("edits", "show", undone)[0]["undoes"] == edit["id"]
    again = cli("edits", "undo", edit["id"], "--execute", "--yes", code=2)
    assert f"{undone} undid it already" in again.stderr


def stores(flags: list[str]) -> list[str]:
    return ["primary", "secondary"] if "--store" in flags else ["one"]


def test_an_undo_restores_no_offset_that_has_changed_since(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    set_offset(cli, flags, topic, 3)
    set_offset(cli, flags, topic, 8)
    set_offset(cli, flags, topic, 9)

    _, edit, _ = cli.rows("edits", "list")
    undone = cli("edits", "undo", edit["id"], "--execute", "--yes", code=1)

    assert "changed" in undone.stderr
    assert committed(cli, flags, topic) == {0: 9}
    assert cli.rows("edits", "show", edit["id"])[0]["undone_by"] is None


def test_a_migration_is_recorded_and_its_undo_is_a_rollback(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str, tmp_path: Path
) -> None:
    old = f"zookeeper://{zookeeper.connect}/kafka"
    set_offset(cli, ["--store", old], topic, 5)
    plan = str(tmp_path / "plan.json")
    cli("migrate", "plan", "--from", old, "--to", f"kafka://{kafka.bootstrap}", "--group", topic, "-o", plan)
    cli("migrate", "apply", plan, "--yes")

    *_, apply = cli.rows("edits", "list")
    assert (apply["operation"], apply["outcome"], apply["written"]) == ("migrate apply", "done", 1)
    preview = cli("edits", "undo", apply["id"])
    assert f"$ offsetmgr migrate rollback {plan} --run {apply['id']} --dry-run\n" in preview.stderr
    assert "dry run: would restore 1 offset; nothing was changed\n" in preview.stderr
    assert committed(cli, ["--bootstrap-server", kafka.bootstrap], topic) == {0: 5}
    cli("edits", "undo", apply["id"], "--execute", "--yes")

    *_, rollback = cli.rows("edits", "list")
    assert (rollback["operation"], rollback["outcome"]) == ("migrate rollback", "done")
    assert cli.rows("edits", "show", apply["id"])[0]["undone_by"] == rollback["id"]
    refused = cli("edits", "undo", rollback["id"], code=2)
    assert "migrate rollback has no undo" in refused.stderr


def test_the_undo_of_one_apply_leaves_the_groups_of_another_apply(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str, tmp_path: Path
) -> None:
    old, new = f"zookeeper://{zookeeper.connect}/kafka", ["--bootstrap-server", kafka.bootstrap]
    groups = [f"{topic}-a", f"{topic}-b"]
    for group in groups:
        cli(
            "offsets", "set", "--group", group, "--topic", f"{topic}:0", "--to-offset", "5", "--new-group",
            "--execute", "--yes", "--store", old,
        )  # fmt: skip
    settings = tmp_path / "client.properties"
    settings.write_text("client.id=undo-test\n")
    plan = str(tmp_path / "plan.json")
    names = [word for group in groups for word in ("--group", group)]
    cli("migrate", "plan", "--from", old, "--to", f"kafka://{kafka.bootstrap}", *names, "-o", plan)
    for group in groups:
        cli("migrate", "apply", plan, "--group", group, "--yes", "--command-config", str(settings))

    first, second = (one for one in cli.rows("edits", "list") if one["operation"] == "migrate apply")
    (shown,) = cli.rows("edits", "show", first["id"])
    assert shown["undo"] == f"offsetmgr migrate rollback {plan} --run {first['id']} --command-config {settings}"
    cli("edits", "undo", first["id"], "--execute", "--yes")

    assert committed(cli, new, groups[1]) == {0: 5}
    states = {one["group"]: one["state"] for one in cli.rows("migrate", "status", plan)}
    assert states == {groups[0]: "rolled back", groups[1]: "applied"}
    cli("offsets", "set", "--group", groups[1], "--topic", f"{topic}:0", "--to-offset", "6", "--execute", "--yes", *new)
    refused = cli("edits", "undo", second["id"], code=1)
    assert "it has changed since apply" in refused.stdout
    assert "would restore 0 offsets, and refuse 1" in refused.stderr
    assert committed(cli, new, groups[1]) == {0: 6}


def test_an_edit_changes_nothing_if_it_cannot_be_recorded(
    cli: Cli, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    set_offset(cli, flags, topic, 3)
    log = tmp_path / "state" / "offsetmgr" / "operations.jsonl"
    log.unlink()
    log.mkdir()

    failed = cli(
        "offsets", "set", "--group", topic, "--topic", f"{topic}:0", "--to-offset", "8", "--execute", "--yes", *flags,
        code=1,
    ).stderr  # fmt: skip

    assert "operation log" in failed
    assert "hint: set XDG_STATE_HOME to a directory that can be written" in failed
    assert committed(cli, flags, topic) == {0: 3}
