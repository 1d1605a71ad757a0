"""Shell completion: the words of a command line, the completions, and their cache."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_process import command, rows
from one_migration import Migration, commit

from offsetmgr.app.connections import Connections
from offsetmgr.cli import completion as completion_names
from offsetmgr.cli.app import REGISTRY
from offsetmgr.cli.render import OutputFormat
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore

GROUPS = ("a$(touch x)b", "billing", "billing:eu", "it's", "my group", "orders-1")


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OFFSETMGR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "offsets.csv"
    lines = "".join(f'"{group}",t,0,1\n' for group in GROUPS)
    file.write_text(f"group,topic,partition,offset\n{lines}")
    monkeypatch.setenv("OFFSETMGR_STORE", f"file:{file}")
    return file


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def completions(*words: str) -> list[str]:
    kind, *lines = command("__complete", "zsh", "offsetmgr", *words).stdout.splitlines()
    return [kind, *(line.partition("\t")[0] for line in lines)]


def bash(line: str, wordbreaks: str = " \t\n\"'@><=;|&(:") -> list[str]:
    return command("__complete", "bash", line, wordbreaks).stdout.splitlines()[1:]


def test_commands_options_and_values_are_completed() -> None:
    assert completions("") == ["words", *REGISTRY]
    assert completions("groups", "de") == ["words", "describe", "delete"]
    assert "--to-latest" in completions("offsets", "reset", "--to-")
    assert "--bootstrap-server" in completions("offsets", "reset", "--boot")
    assert completions("offsets", "get", "--format", "") == ["words", *OutputFormat]
    assert completions("offsets", "get", "--format=j") == ["words", "--format=json"]
    for before in (["--debug"], ["--wide", "--debug"]):
        assert completions(*before, "groups", "de") == ["words", "describe", "delete"]
    assert completions("completion", "") == ["words", "bash", "zsh", "fish"]


def test_names_of_files_are_left_to_the_shell() -> None:
    assert completions("offsets", "import", "") == ["files"]
    assert completions("offsets", "get", "--command-config", "") == ["files"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("before", [["describe"], ["describe", "--group"], ["describe", "-g"], ["copy"]])
def test_groups_are_completed_as_arguments_and_options(before: list[str]) -> None:
    assert completions("groups", *before, "") == ["words", *GROUPS]
    assert completions("groups", *before, "bill") == ["words", "billing", "billing:eu"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "words",
    [
        ["migrate", "apply"],
        ["migrate", "finalize"],
        ["migrate", "status"],
        ["runbook", "bounce", "--to-phase", "dual", "--plan"],
        ["runbook", "write", "--plan"],
    ],
    ids=" ".join,
)
def test_groups_of_a_plan_are_completed_from_its_file(tmp_path: Path, words: list[str]) -> None:
    migration = Migration(tmp_path)
    for group in ("billing", "settlement"):
        commit(migration.source, group, 1)
    migration.plan()
    for before in ([], ["--group"], ["-g"]):
        assert completions(*words, str(migration.path), *before, "") == ["words", "billing", "settlement"]
        assert completions(*words, str(tmp_path / "missing.json"), *before, "") == ["words"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("offsetmgr groups describe my", ["my\\ group"]),
        ("offsetmgr groups describe my\\ g", ["my\\ group"]),
        ('offsetmgr groups describe "my', ["my group"]),
        ("offsetmgr groups describe billing:", ["eu"]),
        ("offsetmgr groups describe 'billing:", ["billing:eu"]),
        ("offsetmgr groups describe --group=it", ["it\\'s"]),
        ("offsetmgr groups describe 'it", ["it'\\''s"]),
        ("offsetmgr groups describe a", ["a\\$\\(touch\\ x\\)b"]),
        ('offsetmgr groups describe "a', ["a\\$(touch x)b"]),
        ("offsetmgr offsets get --format=", [*OutputFormat]),
    ],
)
def test_bash_gets_what_it_inserts(line: str, expected: list[str]) -> None:
    assert bash(line) == expected


def test_contexts_come_from_the_configuration_file(tmp_path: Path) -> None:
    config = tmp_path / "config" / "offsetmgr"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(
        '[context.prod]\nstore = "kafka://h:1"\n[context.test]\nstore = "kafka://h:2"\n'
    )
    assert completions("groups", "list", "--context", "") == ["words", "prod", "test"]
    assert completions("groups", "list", "--context", "prod,") == ["words", "prod,test"]
    assert completions("groups", "list", "--context=test,p") == ["words", "--context=test,prod"]
    assert completions("mcp", "--context", "prod,") == ["words", "prod,test"]
    assert completions("migrate", "apply", "p.json", "--context", "prod,") == ["words"]  # it takes one context
    for words in (("groups", "copy", "a", "b", "--to"), ("offsets", "diff", "--from"), ("migrate", "plan", "--to")):
        assert completions(*words, "") == ["words", "zookeeper", "kafka", "manager"]


@pytest.mark.parametrize("words", [["migrate", "apply"], ["migrate", "report", "x"], ["runbook", "bounce", "--plan"]])
def test_waves_of_a_plan_are_completed_from_its_file(tmp_path: Path, words: list[str]) -> None:
    migration = Migration(tmp_path)
    commit(migration.source, "billing", 1)
    commit(migration.source, "settlement", 1)
    (tmp_path / "waves.csv").write_text("group,wave\nbilling,12\nsettlement,2\n")
    sides = ("--from", "memory:source", "--to", "memory:target", "--waves", tmp_path / "waves.csv")
    migration.command("migrate", "plan", *sides, "-o", migration.path)
    assert completions(*words, str(migration.path), "--wave", "") == ["words", "12", "2"]
    assert completions(*words, str(migration.path), "--wave", "1") == ["words", "12"]
    assert completions(*words, str(tmp_path / "missing.json"), "--wave", "") == ["words"]


def test_partitions_follow_the_colon_of_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"orders": 3}
    cluster = SimpleNamespace(topics=lambda names=counts: {name: counts[name] for name in names if name in counts})
    monkeypatch.setattr(Connections, "cluster_or_none", lambda _self: cluster)
    monkeypatch.setenv("OFFSETMGR_BOOTSTRAP_SERVER", "h:1")
    lag = ("offsets", "lag", "-t")
    assert completions(*lag, "ord") == ["words", "orders"]
    assert completions(*lag, "orders:") == ["words", "orders:0", "orders:1", "orders:2"]
    assert completions(*lag, "orders:2,0,") == ["words", "orders:2,0,1"]
    assert completions(*lag, "missing:") == ["words"]
    assert completions("offsets", "lag", "-torders:2,") == ["words", "-torders:2,0", "-torders:2,1"]
    (tmp_path / "c.toml").write_text("[context.a]\nstore = 'kafka://h:1'\n[context.b]\nstore = 'kafka://h:2'\n")
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "c.toml"))
    done = command("__complete", "zsh", "offsetmgr", "offsets", "lag", "--context", "a,b", "-t", "orders:1,")
    assert (done.stdout.split(), done.stderr) == (["words", "orders:1,0", "orders:1,2"], "")
    assert bash("offsetmgr offsets lag -t orders:0,") == ["0,1", "0,2"]
    assert bash("offsetmgr offsets lag --topic=orders:2") == ["2"]


def test_a_cluster_that_does_not_answer_delays_one_completion_only(silent_port: int, monkeypatch) -> None:
    words = ("groups", "describe", "--bootstrap-server", f"127.0.0.1:{silent_port}", "")
    monkeypatch.setattr(completion_names, "_REQUEST_MS", 300_000)
    monkeypatch.setattr(completion_names, "CACHE_S", 300.0)
    started = time.monotonic()
    assert completions(*words) == ["words"]
    monkeypatch.setattr(completion_names, "LIMIT_S", 300.0)
    assert completions(*words) == ["words"]
    assert time.monotonic() - started < 100  # each completion that waits for the cluster takes 300 s


def test_names_are_cached_for_a_short_time_and_survive_a_failure(store: Path, tmp_path: Path) -> None:
    assert completions("groups", "describe", "") == ["words", *GROUPS]
    store.write_text("group,topic,partition,offset\nnew,t,0,1\n")
    assert completions("groups", "describe", "") == ["words", *GROUPS]
    [cache] = (tmp_path / "cache" / "offsetmgr" / "completion").iterdir()
    old = time.time() - completion_names.CACHE_S - 1
    os.utime(cache, (old, old))
    assert completions("groups", "describe", "") == ["words", "new"]
    store.unlink()
    os.utime(cache, (old, old))
    assert completions("groups", "describe", "") == ["words", "new"]
    cache.write_bytes(b"\xff")
    assert completions("groups", "describe", "") == ["words"]


@pytest.mark.usefixtures("store")
def test_ids_of_recorded_operations_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    command("offsets", "set", "billing", "--topic", "t:0", "--to-offset", "5", "--execute", "--yes")
    (one,) = rows("edits", "list")
    assert completions("edits", "undo", one["id"][:4]) == ["words", one["id"]]


@pytest.mark.usefixtures("store")
def test_groups_of_the_living_store_are_completed_if_another_store_is_dead(silent_port: int, monkeypatch) -> None:
    monkeypatch.setattr(completion_names, "LIMIT_S", 1.0)
    for name in ("OFFSETMGR_BOOTSTRAP_SERVER", "OFFSETMGR_ZOOKEEPER"):
        monkeypatch.setenv(name, f"127.0.0.1:{silent_port}")
    assert completions("groups", "describe", "") == ["words", *GROUPS]


def test_names_with_control_characters_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SnapshotStore(tmp_path / "x.avro") as store:
        for group in ("b", "a\nb", "a\tb", "a"):
            store.commit(group, {TopicPartition("t", 0): OffsetAndMetadata(1)})
    monkeypatch.setenv("OFFSETMGR_STORE", f"file:{tmp_path}/x.avro")
    assert completions("groups", "describe", "") == ["words", "a", "b"]


def test_a_failure_prints_no_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CONFIG", "/does/not/exist")
    for words in (["zsh", "offsetmgr", "groups", "describe", ""], []):
        assert command("__complete", *words, code=1).stdout == "words\n"


def test_the_script_for_bash_has_no_syntax_error(tmp_path: Path) -> None:
    script = tmp_path / "script"  # `test_completion_shells` loads all scripts in their shells
    script.write_text(command("completion", "bash").stdout)
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
