"""Contexts, and read-only commands for many clusters at once: real servers under many names, and dead addresses."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from committed_offsets import commit
from everyday import Cli
from processes import fill

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer

pytestmark = pytest.mark.servers

TIMEOUT_S = 6


@pytest.fixture
def stalled() -> Iterator[str]:
    """An address whose connections the kernel accepts, and that never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def config_of(cli: Cli) -> Path:
    config = Path(cli.environ["XDG_CONFIG_HOME"]) / "offsetmgr" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    return config


def table(name: str, **settings: str) -> str:
    return f"[context.{name}]\n" + "".join(f'{key} = "{value}"\n' for key, value in settings.items())


@pytest.fixture
def clusters(cli: Cli, kafka: KafkaBroker, kraft: KraftBroker, zookeeper: ZooKeeperServer, stalled: str) -> list[str]:
    """35 contexts of three real servers, and 5 dead ones, three of which accept connections and never respond."""
    old = {"zookeeper": f"{zookeeper.connect}/kafka", "bootstrap-server": kafka.bootstrap}
    kinds = (old, {"bootstrap-server": kafka.bootstrap}, {"bootstrap-server": kraft.bootstrap})
    text = "".join(table(f"prod-{n:02}", timeout="120s", **kinds[n % 3]) for n in range(35))
    dead = {"timeout": f"{TIMEOUT_S}s"}
    text += table("prod-dead-1", **dead, **{"bootstrap-server": "127.0.0.1:1"})
    text += "".join(table(f"prod-dead-{n}", **dead, **{"bootstrap-server": stalled}) for n in (2, 3, 5))
    text += table("prod-dead-4", **dead, **{"zookeeper": "127.0.0.1:4"})
    text += table("test", **{"bootstrap-server": "127.0.0.1:5"})
    config_of(cli).write_text(text)
    return sorted([*(f"prod-{n:02}" for n in range(35)), *(f"prod-dead-{n}" for n in range(1, 6))])


@pytest.mark.parametrize(
    "command",
    [
        ("groups", "list"),
        ("groups", "describe", "{group}*"),
        ("groups", "where", "{group}*"),
        ("offsets", "lag", "{group}*"),
        ("cluster", "describe"),
    ],
    ids=" ".join,
)
def test_forty_clusters_are_asked_at_the_same_time(cli, clusters, kafka, topic, command: tuple[str, ...]) -> None:
    commit(f"kafka://{kafka.bootstrap}", topic, topic, {0: 4})
    # The shared servers have the groups of all earlier tests, so only a glob makes the duration comparable.
    words = [word.format(group=topic) for word in command]
    done, seconds = cli.timed(*words, "--context", "prod-*", "--format", "json", code=1)
    rows = json.loads(done.stdout)
    failed = {row["cluster"]: row["error"] for row in rows if row["error"]}
    assert sorted(failed) == [f"prod-dead-{n}" for n in range(1, 6)]
    assert all(failed.values())
    assert all(row.get("group") is None for row in rows if row["error"])
    if command[0] != "cluster":
        having = {row["cluster"] for row in rows if row.get("group") == topic}
        assert having >= {name for n, name in enumerate(clusters[:35]) if n % 3 == 1}
    assert "error: 5 of 40 clusters failed: prod-dead-1, " in done.stderr
    assert seconds < 3 * TIMEOUT_S  # the four that time out would take 24 s in turn


def test_the_default_context_is_stored_without_other_changes(cli: Cli, kafka: KafkaBroker, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("sasl.password=secret-1\nsecurity.protocol=PLAINTEXT\n")
    body = (
        "# clusters of the shop\n\n# the first one\n[context.a]  # kept\n"
        f'bootstrap-server = "{kafka.bootstrap}"\nzookeeper-auth = "digest:app:secret-2"\n'
        f'command-config = "{properties}"\n\n[context.b]\nzookeeper = "zk:2181"  # kept, too\n'
    )
    config = config_of(cli)
    real = tmp_path / "dotfiles.toml"
    real.write_text(body)
    real.chmod(0o600)
    config.symlink_to(real)
    cli("context", "use", "a")
    assert real.read_text() == body.replace("# the first one", 'default-context = "a"\n\n# the first one')
    assert config.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert [(row["context"], row["default"]) for row in cli.rows("context", "list")] == [("a", "yes"), ("b", None)]
    cli("groups", "list")
    cli("context", "use", "b")
    assert real.read_text() == body.replace("# the first one", 'default-context = "b"\n\n# the first one')
    cli.environ["OFFSETMGR_TIMEOUT"] = "5000"
    shown = {row["setting"]: (row["value"], row["source"]) for row in cli.rows("context", "show", "a")}
    assert shown["bootstrap-server"] == (kafka.bootstrap, f"context 'a' in {config}")
    assert {name for name, (_, source) in shown.items() if source.startswith("OFFSETMGR_")} == {"timeout"}
    assert shown["timeout"] == (5000, "OFFSETMGR_TIMEOUT")
    assert shown["zookeeper-auth"][0] == "digest:app:***"
    assert shown["sasl.password"] == ("***", str(properties))
    for output in ("table", "json", "csv"):
        assert "secret-" not in cli("context", "show", "a", "--format", output).stdout
    unknown = cli("context", "use", "c", code=2)
    assert "contexts there: a, b" in unknown.stderr


@pytest.fixture
def two(cli: Cli, kafka: KafkaBroker, kraft: KraftBroker, topic: str) -> str:
    """Two contexts: a cluster with a ZooKeeper in which a group is ahead of Kafka, and one without the group."""
    config_of(cli).write_text(
        table("prod-a", zookeeper=kafka.zookeeper, **{"bootstrap-server": kafka.bootstrap})
        + table("prod-b", zookeeper=kafka.zookeeper.partition("/")[0], **{"bootstrap-server": kraft.bootstrap})
    )
    for uri, offset in ((f"zookeeper://{kafka.zookeeper}", 9), (f"kafka://{kafka.bootstrap}", 4)):
        commit(uri, topic, topic, {0: offset})
    return topic


@pytest.mark.parametrize("command", [("offsets", "lag"), ("groups", "describe")], ids=" ".join)
def test_top_and_sort_apply_to_the_rows_of_all_clusters(cli, kafka, kraft, make_topic, unique, command) -> None:
    config_of(cli).write_text(table("prod-0", **{"bootstrap-server": "127.0.0.1:1"}))
    for name, bootstrap, records in (("prod-a", kafka.bootstrap, (1, 25)), ("prod-b", kraft.bootstrap, (20, 30))):
        make_topic(unique, 2, bootstrap=bootstrap)
        fill(bootstrap, unique, *records)
        commit(f"kafka://{bootstrap}", unique, unique, dict.fromkeys(range(2), 0))
        with config_of(cli).open("a") as config:
            config.write(table(name, **{"bootstrap-server": bootstrap}))

    def lags(*order: str) -> list[tuple[str, int | None]]:
        rows = cli.rows(*command, "-g", unique, "--context", "prod-*", *order, code=1)
        return [(row["cluster"], row["lag"]) for row in rows]

    every = [("prod-b", 30), ("prod-a", 25), ("prod-b", 20), ("prod-a", 1)]
    assert lags("--sort", "lag") == [*every, ("prod-0", None)]
    assert lags("--top", "3") == [*every[:3], ("prod-0", None)]


def test_a_diff_compares_the_stores_of_each_cluster(cli: Cli, two: str) -> None:
    sides = ("--from", "zookeeper", "--to", "kafka")  # the default
    (row,) = cli.rows("offsets", "diff", "-g", two, "--context", "prod-*", *sides, code=1)
    assert (row["cluster"], row["group"], row["from_offset"], row["to_offset"]) == ("prod-a", two, 9, 4)
    alone = cli.rows("offsets", "diff", "-g", two, "--context", "prod-a", code=1)
    assert [(row["group"], row["from_offset"], row["to_offset"]) for row in alone] == [(two, 9, 4)]


def test_the_stores_of_a_migration_are_named_as_in_the_context(cli, two, kafka, tmp_path) -> None:
    plan = ("migrate", "plan", two, "--from", "zookeeper", "-o", str(tmp_path / "p"))
    cli(*plan, "--to", "kafka", "--context", "prod-a")
    (header, *_) = (tmp_path / "p").read_text().splitlines()
    assert f"zookeeper://{kafka.zookeeper}" in header and f"kafka://{kafka.bootstrap}" in header
    missing = cli(*plan, "--to", "manager", "--context", "prod-a", code=2).stderr
    assert "error: --to manager: the settings do not name the offset manager\nhint: " in missing
    assert "or as in --to manager://" in missing


def test_an_export_writes_one_file_for_each_cluster(cli: Cli, two: str, tmp_path: Path) -> None:
    rows = cli.rows("offsets", "export", str(tmp_path / "save.csv"), "-g", two, "--context", "prod-*")
    file = tmp_path / "save-prod-a.csv"
    found = [(row["cluster"], row["file"], row["groups"], row["offsets"]) for row in rows]
    assert found == [("prod-a", str(file), 1, 1)]
    assert f"{two},{two},0,9" in file.read_text()
    assert not (tmp_path / "save-prod-b.csv").exists()


def test_runbook_check_has_rows_for_each_cluster(cli: Cli, two: str) -> None:
    check = ("runbook", "check", "-g", two, "--phase", "dual", "--window", "0")
    rows = cli.rows(*check, "--context", "prod-*", code=1)
    assert rows and {row["cluster"] for row in rows} <= {"prod-a", "prod-b"}
