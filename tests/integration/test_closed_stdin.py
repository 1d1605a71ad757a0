"""Commands that prompt before they change servers: with stdin closed each is refused and writes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from everyday import Cli, committed
from same_cluster import join_cluster

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers
pytest_plugins = ["everyday_fixtures"]

CLOSED = ("sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", "from offsetmgr.cli.app import main; main()")


def test_every_prompt_of_a_migration_is_refused_without_stdin(
    cli: Cli, topic: str, zookeeper: ZooKeeperServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    chroot = f"{zookeeper.connect}/{topic}"
    join_cluster(chroot, kafka.bootstrap)
    old, new = ["--zookeeper", chroot], ["--bootstrap-server", kafka.bootstrap]
    group, plan = topic, str(tmp_path / "plan.json")
    sides = ["--from", f"zookeeper://{chroot}", "--to", f"kafka://{kafka.bootstrap}"]

    def set_old(offset: int) -> None:
        selection = ["--group", group, "--topic", f"{topic}:0", "--to-offset", str(offset)]
        cli("offsets", "set", *selection, *old, *(["--new-group"] if offset == 3 else []), "--execute", "--yes")

    def refused(*arguments: str) -> None:
        done = cli(*arguments, code=2, program=CLOSED)
        assert "stdin is not a terminal" in done.stderr and "hint: add --yes" in done.stderr, done.stderr

    set_old(3)
    cli("migrate", "plan", *sides, "--group", group, "-o", plan)
    refused("migrate", "apply", plan)
    refused("migrate", "mirror", *sides, "--group", group)
    assert "does not exist" in cli("offsets", "get", "--group", group, *new, code=1).stderr
    cli("migrate", "apply", plan, "--yes")
    refused("migrate", "apply", "--refresh", plan)
    refused("migrate", "rollback", plan)
    reset = ["offsets", "reset", "--group", group, "--topic", topic, "--to-earliest", "--execute"]
    refused(*reset, *new)
    refused(*reset, *old, *new, "--store", f"zookeeper://{chroot}")
    assert committed(cli, new, group) == committed(cli, old, group) == {0: 3}
