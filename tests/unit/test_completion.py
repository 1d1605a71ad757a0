"""Shell completion: the words of a command line, the completions, and their cache."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from one_migration import Migration, commit

from offsetmgr.cli import completion_names
from offsetmgr.cli.app import run
from offsetmgr.cli.root import REGISTRY
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.groups.operation_log import OperationLog, OperationStart

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
    rows = "".join(f'"{group}",t,0,1\n' for group in GROUPS)
    file.write_text(f"group,topic,partition,offset\n{rows}")
    monkeypatch.setenv("OFFSETMGR_STORE", f"file:{file}")
    return file


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def completions(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert run(["__complete", "zsh", "offsetmgr", *words]) == 0
    kind, *lines = capsys.readouterr().out.splitlines()
    return [kind, *(line.partition("\t")[0] for line in lines)]


def bash(capsys: pytest.CaptureFixture[str], line: str, wordbreaks: str = " \t\n\"'@><=;|&(:") -> list[str]:
    assert run(["__complete", "bash", line, wordbreaks]) == 0
    return capsys.readouterr().out.splitlines()[1:]


def test_commands_options_and_values_are_completed(capsys: pytest.CaptureFixture[str]) -> None:
    assert completions(capsys, "") == ["words", *REGISTRY]
    assert completions(capsys, "groups", "de") == ["words", "describe", "delete"]
    assert "--to-latest" in completions(capsys, "offsets", "reset", "--to-")
    assert "--bootstrap-server" in completions(capsys, "offsets", "reset", "--boot")
    assert completions(capsys, "offsets", "get", "--format", "") == ["words", "table", "json", "csv"]
    assert completions(capsys, "offsets", "get", "--format=j") == ["words", "--format=json"]
    for before in (["--debug"], ["--wide", "--debug"]):
        assert completions(capsys, *before, "groups", "de") == ["words", "describe", "delete"]
    assert completions(capsys, "completion", "") == ["words", "bash", "zsh", "fish"]


def test_names_of_files_are_left_to_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert completions(capsys, "offsets", "import", "") == ["files"]
    assert completions(capsys, "offsets", "get", "--command-config", "") == ["files"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("before", [["describe"], ["describe", "--group"], ["describe", "-g"], ["copy"]])
def test_groups_are_completed_as_arguments_and_options(capsys: pytest.CaptureFixture[str], before: list[str]) -> None:
    assert completions(capsys, "groups", *before, "") == ["words", *GROUPS]
    assert completions(capsys, "groups", *before, "bill") == ["words", "billing", "billing:eu"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "command",
    [
        ["migrate", "apply"],
        ["migrate", "finalize"],
        ["migrate", "status"],
        ["runbook", "bounce", "--to-phase", "dual", "--plan"],
        ["runbook", "write", "--plan"],
    ],
    ids=" ".join,
)
def test_groups_of_a_plan_are_completed_from_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    migration = Migration(tmp_path)
    for group in ("billing", "settlement"):
        commit(migration.source, group, 1)
    migration.plan()
    for before in ([], ["--group"], ["-g"]):
        assert completions(capsys, *command, str(migration.path), *before, "") == ["words", "billing", "settlement"]
        assert completions(capsys, *command, str(tmp_path / "missing.json"), *before, "") == ["words"]


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
        ("offsetmgr offsets get --format=", ["table", "json", "csv"]),
    ],
)
def test_bash_gets_what_it_inserts(capsys: pytest.CaptureFixture[str], line: str, expected: list[str]) -> None:
    assert bash(capsys, line) == expected


def test_contexts_come_from_the_configuration_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "config" / "offsetmgr"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(
        '[context.prod]\nstore = "kafka://h:1"\n[context.test]\nstore = "kafka://h:2"\n'
    )
    assert completions(capsys, "groups", "list", "--context", "") == ["words", "prod", "test"]


def test_a_cluster_that_does_not_answer_delays_one_completion_only(
    capsys: pytest.CaptureFixture[str], silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("groups", "describe", "--bootstrap-server", f"127.0.0.1:{silent_port}", "")
    monkeypatch.setattr(completion_names, "_REQUEST_MS", 300_000)
    monkeypatch.setattr(completion_names, "CACHE_S", 300.0)
    started = time.monotonic()
    assert completions(capsys, *words) == ["words"]
    monkeypatch.setattr(completion_names, "LIMIT_S", 300.0)
    assert completions(capsys, *words) == ["words"]
    assert time.monotonic() - started < 100  # each completion that waits for the cluster takes 300 s


def test_names_are_cached_for_a_short_time_and_survive_a_failure(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    assert completions(capsys, "groups", "describe", "") == ["words", *GROUPS]
    store.write_text("group,topic,partition,offset\nnew,t,0,1\n")
    assert completions(capsys, "groups", "describe", "") == ["words", *GROUPS]
    [cache] = (tmp_path / "cache" / "offsetmgr" / "completion").iterdir()
    old = time.time() - completion_names.CACHE_S - 1
    os.utime(cache, (old, old))
    assert completions(capsys, "groups", "describe", "") == ["words", "new"]
    store.unlink()
    os.utime(cache, (old, old))
    assert completions(capsys, "groups", "describe", "") == ["words", "new"]
    cache.write_bytes(b"\xff")
    assert completions(capsys, "groups", "describe", "") == ["words"]


def test_ids_of_recorded_operations_are_completed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with OperationLog().recorded(OperationStart("offsets set", ("file:x",), ("g",), 1, 1)) as one:
        pass
    assert completions(capsys, "edits", "undo", one.id[:4]) == ["words", one.id]


def stores_of(stores: dict[str, Any]) -> Any:
    """Opens `ConnectFlags` with these stores, of which the first is selected."""
    selected = next(iter(stores))
    configured = dict(enumerate(stores))
    return lambda: SimpleNamespace(uri=selected, configured_stores=lambda: configured, store=stores.__getitem__)


def fake_store(cluster_id: str, *groups: str) -> Any:
    return SimpleNamespace(groups=lambda: list(groups), log_origin=lambda: LogOrigin(cluster_id, "test"))


def dead_store() -> Any:
    return SimpleNamespace(groups=threading.Event().wait)


def test_groups_of_the_other_configured_stores_are_completed() -> None:
    stores = {"zookeeper": fake_store("A", "a"), "kafka": fake_store("A", "a", "b"), "manager": fake_store("B", "c")}
    assert completion_names._groups(stores_of(stores)) == ({"a", "b"}, True)


@pytest.mark.parametrize("living", [0, 1, 2])
def test_groups_of_the_living_store_are_completed_if_the_other_stores_are_dead(
    living: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_names, "LIMIT_S", 1.0)
    stores = {str(number): fake_store("A", "a") if number == living else dead_store() for number in range(3)}
    assert completion_names._groups(stores_of(stores)) == ({"a"}, False)


def test_names_with_control_characters_are_left_out() -> None:
    assert completion_names.printable(["b", "a\nb", "a\tb", "", "a"]) == ["a", "b"]


def test_a_failure_prints_no_completions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CONFIG", "/does/not/exist")
    assert run(["__complete", "zsh", "offsetmgr", "groups", "describe", ""]) == 1
    assert capsys.readouterr().out == "words\n"
    assert run(["__complete"]) == 1
    assert capsys.readouterr().out == "words\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_have_no_syntax_error(capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str) -> None:
    assert run(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    checked = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
