"""Every command that connects to servers reads several contexts, changes servers, or states why it accepts only one."""

import csv
import io
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from in_process import command as in_process
from in_process import rows
from test_help import commands

from offsetmgr.cli.app import run
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore

MANY = {
    "doctor", "groups list", "groups describe", "groups where", "offsets get", "offsets lag", "offsets peek",
    "offsets export", "offsets diff",
    "cluster describe", "runbook check", "zk tree", "zk brokers", "zk topics", "zk members", "zk owners",
    "zk check", "manager status", "manager dump", "period status", "period history",
}  # fmt: skip

ONE = {
    "migrate plan": (["--from", "file:a.avro", "--to", "kafka://h:1", "--all-groups", "-o", "p"], "one source"),
    "migrate status": (["p"], "the plan names the servers of one migration"),
    "migrate report": (["p"], "a report is about one cluster"),
    "migrate verify": (["p"], "the plan names the servers of one migration"),
    "migrate renew": (["p", "-o", "q"], "the plan names the servers of one migration"),
    "migrate readiness": (["--from", "kafka://h:1", "--to", "kafka://h:2", "--all-groups"], "it compares two clusters"),
    "runbook write": (["--to", "kafka", "-g", "shop"], "a runbook belongs to the groups of one cluster"),
    "manager serve": ([], "a manager serves one cluster"),
    "spark audit": ([], "Spark runs one job"),
    "spark diff": (["--from", "file:a.avro", "--to", "file:b.avro"], "Spark runs one job"),
}
"""Read-only commands of one cluster, with arguments, and a part of the reason."""


def test_every_command_with_a_context_is_in_one_of_the_lists() -> None:
    changing, several, others = set(), set(), set()
    for name, command in commands().items():
        options = {parameter.name: parameter for parameter in command.params}
        if "context" not in options or name in ("help connection", "mcp"):  # agents choose one of several contexts
            continue
        if "several clusters" in (options["context"].help or ""):
            several.add(name)
        elif {"execute", "yes"} & options.keys():
            changing.add(name)
        else:
            others.add(name)
    assert several == MANY
    assert others == ONE.keys()
    assert not several & changing


def test_the_guide_lists_the_commands_that_accept_several_contexts() -> None:
    page = Path(__file__, "../../../docs/how-to/many-clusters.md").resolve().read_text()
    listed = page.rpartition("The commands are ")[2].partition("All other")[0]
    found = set()
    for text in re.findall(r"`([^`]+)`", listed):
        group, _, names = text.partition(" ")
        found |= {f"{group} {name}".strip() for name in names.split("|")}
    assert found == MANY


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text("".join(f'[context.prod-{n}]\nbootstrap-server = "127.0.0.1:{n}"\n' for n in (1, 2)))
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(config))


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize("name", list(ONE))
def test_a_command_of_one_cluster_states_the_reason(name: str) -> None:
    arguments, reason = ONE[name]
    arguments = arguments or required(name)
    error = in_process(*name.split(), *arguments, "--context", "prod-*", code=2).stderr
    assert f"error: --context 'prod-*': {reason}" in error.replace("a plan has one source", "one source")
    assert "hint: name one: offsetmgr context list\n" in error


def test_two_contexts_of_one_store_get_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        with SnapshotStore(tmp_path / f"{name}.avro") as store:
            store.commit("shop", {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    config = tmp_path / "config.toml"
    stores = {"prod-a": "one", "prod-b": "two", "prod-c": "one"}
    config.write_text("".join(f'[context.{n}]\nstore = "file:{tmp_path}/{s}.avro"\n' for n, s in stores.items()))
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(config))
    shown = in_process("offsets", "get", "-g", "shop", "--context", "prod-*").stderr
    warning = "warning: contexts prod-a, prod-c name the same store, so its rows are repeated: "
    assert [line for line in shown.splitlines() if line.startswith("warning: contexts")] == [
        f"{warning}file:{tmp_path}/one.avro"
    ]
    shown = in_process("offsets", "get", "-g", "shop", "--context", "prod-a,prod-b").stderr
    assert "warning: contexts" not in shown


@pytest.fixture
def misspelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration file with the contexts prod-a, which has group shop, and prod-b, which has an unknown key."""
    with SnapshotStore(tmp_path / "a.avro") as store:
        store.commit("shop", {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    config = tmp_path / "config.toml"
    config.write_text(f'[context.prod-a]\nstore = "file:{tmp_path}/a.avro"\n[context.prod-b]\nbootstrap = "h:1"\n')
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(config))


@pytest.mark.usefixtures("misspelled")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("offsets get -g shop --context prod-a", 0),
        ("offsets get -g shop --context prod-a,prod-a*", 0),
        ("context show prod-a", 0),
        ("context use prod-a", 0),
        ("offsets get -g shop --context prod-b", 2),
        ("context show prod-b", 2),
        ("context use prod-b", 2),
        ("context list", 1),
        ("offsets get -g shop --context prod-*", 1),
    ],
)
def test_a_misspelled_key_concerns_only_its_context(command: str, code: int) -> None:
    shown = in_process(*command.split(), code=code)
    assert ("unknown key 'bootstrap'" in shown.stdout + shown.stderr) == (code > 0)
    assert ("prod-a" in shown.stdout) == (code == 1 or "show prod-a" in command or "prod-a*" in command)


def required(name: str) -> list[str]:
    """The required options of a command, with a value for each."""
    import_module(f"offsetmgr.cli.{name.split(maxsplit=1)[0]}")
    parameters: list[Any] = [p for p in commands()[name].params if p.required]
    return [word for p in parameters for word in ([p.opts[0], "x"] if p.opts[0].startswith("-") else ["x"])]


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["offsets", "diff", "--from", "kafka://h:1"], "--from"),
        (["offsets", "export", "-", "--as", "csv", "--all-groups"], "FILE -"),
        (["runbook", "check", "-g", "shop", "--phase", "dual", "--plan", "p"], "--plan"),
    ],
)
def test_an_option_of_one_cluster_is_refused_with_several_contexts(arguments: list[str], option: str) -> None:
    errors = in_process(*arguments, "--context", "prod-*", code=2).stderr
    assert f"error: {option} with several contexts: " in errors


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts: prod-1 has group shop in topic orders, prod-2 in topic bills, prod-3 does not have it, and prod-4 does
    not respond."""
    text = '[context.prod-4]\nzookeeper = "127.0.0.1:1"\ntimeout = 1000\n'
    for number, text_of in enumerate(("shop,orders,0,5\n", "shop,bills,0,5\n", "other,orders,0,5\n"), 1):
        (tmp_path / f"{number}.csv").write_text(text_of)
        text += f'[context.prod-{number}]\nstore = "file:{tmp_path}/{number}.csv"\n'
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "config.toml"))


@pytest.mark.usefixtures("clusters")
def test_only_a_group_that_does_not_exist_is_reported_as_missing() -> None:
    get = ["offsets", "get", "shop", "--context"]
    errors = in_process(*get, "prod-1,prod-2,prod-3", "--topic", "orders").stderr
    assert "group 'shop' does not exist in 1 cluster of 3\n" in errors
    assert "prod-2: group 'shop': has no committed offsets in topic orders\n" in errors
    errors = in_process(*get, "prod-1,prod-3,prod-4", code=1).stderr
    assert "group 'shop' does not exist in 1 cluster of 3\n" in errors
    assert "error: 1 of 3 clusters failed: prod-4\n" in errors


@pytest.mark.usefixtures("clusters")
def test_a_row_has_its_cluster_in_each_format() -> None:
    get = ("offsets", "get", "shop", "--context")
    table = in_process(*get, "prod-1,prod-2").stdout.splitlines()
    assert [line.split()[:2] for line in table] == [["CLUSTER", "GROUP"], ["prod-1", "shop"], ["prod-2", "shop"]]
    read = csv.DictReader(io.StringIO(in_process(*get, "prod-[12]", "--format", "csv").stdout))
    assert [(row["cluster"], row["offset"], row["error"]) for row in read] == [("prod-1", "5", ""), ("prod-2", "5", "")]
    none = rows("offsets", "get", "none", "--context", "prod-1,prod-3", code=1)
    assert [(row["cluster"], "does not exist in" in row["error"]) for row in none] == [
        ("prod-1", True),
        ("prod-3", True),
    ]


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("groups delete -g g --execute --yes --context prod-*", "'prod-*': this command accepts only one context"),
        ("groups list --context stage-*", "context 'stage-*': not in "),
        ("groups list --context prod-* --bootstrap-server 127.0.0.1:1", "names the servers of one"),
        ("groups describe --context prod-*", "no group is named"),
        ("groups list --context prod-*", "the variable OFFSETMGR_BOOTSTRAP_SERVER replaces the address of each"),
    ],
)
def test_wrong_usage_of_several_contexts(arguments: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "OFFSETMGR" in why:
        monkeypatch.setenv("OFFSETMGR_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert in_process(*arguments.split(), code=2).stderr.count(why) == 1


@pytest.mark.usefixtures("clusters")
def test_a_terminal_shows_the_error_of_a_cluster_within_its_width(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["offsets", "get", "shop", "--context", "prod-1,prod-4"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("prod-4") and "ZooKeeper at 127.0.0.1:1" in line for line in lines)
