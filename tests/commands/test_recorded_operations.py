"""Every command that changes a server is in the operation log, with its reason. Each row of the table is executed."""

from typing import Final

import pytest
from everyday import Cli, committed
from test_help import commands

from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

TABLE: Final = {
    "offsets set": "offsets set -g G --topic T:0 --to-offset 3 KAFKA --execute",
    "offsets reset": "offsets reset -g G --topic T:0 --to-earliest KAFKA --execute",
    "offsets delete": "offsets delete -g G --topic T:0 KAFKA --execute",
    "offsets import": "offsets export DIR/save.avro -g G KAFKA\noffsets delete -g G --topic T:0 KAFKA --execute\n"
    "offsets import DIR/save.avro KAFKA --execute",
    "groups copy": "groups copy G G-copy KAFKA --execute",
    "groups rename": "groups rename G G-new KAFKA --execute",
    "groups delete": "groups delete -g G KAFKA --execute",
    "migrate apply": "PLAN\nmigrate apply DIR/plan.json",
    "migrate apply --refresh": "PLAN\nmigrate apply DIR/plan.json\nmigrate apply DIR/plan.json --refresh",
    "migrate rollback": "PLAN\nmigrate apply DIR/plan.json\nmigrate rollback DIR/plan.json",
    "migrate finalize": "PLAN\nmigrate apply DIR/plan.json\nmigrate finalize DIR/plan.json --delete-source --window 1",
    "migrate mirror": "migrate mirror ZK-TO-KAFKA -g G-old --once --settle 200",
    "zk delete-topic": "zk delete-topic --topic T --zookeeper ZK --execute",
}
"""Operation -> the command lines that execute it; the last one is checked."""

PROVEN_BY: Final = {
    "zk elect": "test_controller_requests_on_brokers.py",
    "zk reassign": "test_controller_requests_on_brokers.py",
    "migrate cutover": "migration/test_cutover.py: it removes static members, and applies plans, which are recorded",
    "runbook bounce": "test_bounce_failures.py, test_forward_copy.py",
    "period abort": "test_period_work.py",
    "period rerun": "test_period_work.py",
    "spark copy": "test_spark_tables.py",
    "log recover": "segments/test_log_recovery.py",
    "log offsets": "segments/test_log_offsets_command.py: it runs an edit, as offsets import does",
}
"""The commands whose servers take long to start, and the test that checks their records."""

NOT_RECORDED: Final = {"edits undo": "runs other commands, which are recorded"}


def test_every_command_that_asks_or_executes_is_in_a_table_and_has_a_reason() -> None:
    changing = {
        name: {parameter.name for parameter in command.params}
        for name, command in commands().items()
        if {"execute", "yes"} & {parameter.name for parameter in command.params}
    }
    known = {name.split(" --")[0] for name in TABLE} | PROVEN_BY.keys() | NOT_RECORDED.keys()
    assert set(changing) == known
    assert not [name for name, options in changing.items() if "reason" not in options]


@pytest.mark.parametrize("operation", list(TABLE))
def test_the_operation_log_has_who_when_why_the_stores_and_the_before_images(operation, cli, kafka, topic, tmp_path):
    zookeeper, new = f"zookeeper://{kafka.zookeeper}", f"kafka://{kafka.bootstrap}"
    words = {
        "KAFKA": ["--bootstrap-server", kafka.bootstrap],
        "ZK-TO-KAFKA": ["--from", zookeeper, "--to", new],
        "ZK": [kafka.zookeeper],
        "PLAN": ["migrate", "plan", "--from", zookeeper, "--to", new, "-g", f"{topic}-old", "-o", "DIR/plan.json"],
        "T": [topic],
        "G": [topic],
    }

    def expanded(line: str) -> list[str]:
        found = [part for word in line.split() for part in words.get(word, [word])]
        rest = {"T:0": f"{topic}:0", "G-old": f"{topic}-old", "G-new": f"{topic}-new", "G-copy": f"{topic}-copy"}
        return [rest.get(word, word).replace("DIR/", f"{tmp_path}/") for word in found]

    first = ("offsets", "set", "--topic", f"{topic}:0", "--to-offset", "5", "--new-group", "--execute", "--yes")
    cli(*first, "-g", topic, *words["KAFKA"])
    cli(*first, "-g", f"{topic}-old", "--store", zookeeper)
    *setup, last = TABLE[operation].splitlines()
    for line in setup:
        changes = "--execute" in line or line.startswith("migrate")
        cli(*expanded(line), *(("--yes",) if changes else ()))
    before = len(cli.rows("edits", "list"))
    cli(*expanded(last), "--yes", "--reason", "ticket 7")
    recorded = cli.rows("edits", "list")[before:]
    name = operation.removesuffix(" --refresh")
    assert recorded and recorded[0]["operation"] == operation
    for one in recorded:
        (shown,) = cli.rows("edits", "show", one["id"])
        assert (shown["operation"], shown["outcome"], shown["reason"]) == (one["operation"], "done", "ticket 7")
        assert shown["user"] and shown["host"] and shown["at_ms"]
        assert shown["command"].startswith(f"offsetmgr {name.split(' --')[0]} ")
        assert shown["stores"]


def test_a_mirror_is_undone_by_its_before_images(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    zookeeper, new = f"zookeeper://{kafka.zookeeper}", ["--bootstrap-server", kafka.bootstrap]
    first = ("offsets", "set", "-g", topic, "--topic", f"{topic}:0", "--new-group", "--execute", "--yes")
    cli(*first, "--to-offset", "5", "--store", zookeeper)
    cli(*first, "--to-offset", "2", *new)
    mirrored = cli(
        "migrate", "mirror", "--from", zookeeper, "--to", f"kafka://{kafka.bootstrap}", "-g", topic,
        "--once", "--settle", "200", "--yes",
    )  # fmt: skip
    assert committed(cli, new, topic) == {0: 5}
    *_, mirror = cli.rows("edits", "list")
    (shown,) = cli.rows("edits", "show", mirror["id"])
    assert f"before-images: {shown['files']}\n" in mirrored.stderr
    cli("edits", "undo", mirror["id"], "--execute", "--yes")
    assert committed(cli, new, topic) == {0: 2}
