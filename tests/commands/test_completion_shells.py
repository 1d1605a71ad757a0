"""Completion in real shells: a user types in a pseudo-terminal, and reads what the shell inserts and lists."""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from committed_offsets import commit
from one_migration import Migration
from terminal import Terminal

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(offsetmgr completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u; source <(offsetmgr completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "offsetmgr completion fish | source"),
}
GROUPS = ("a$(touch HACKED)b", "billing", "billing:eu", "it's", "my group")


def _install(shell: str) -> None:
    if shutil.which(shell) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "-qq", "update"], check=True)
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        lock = ["-o", "DPkg::Lock::Timeout=120"]
        subprocess.run(["apt-get", "-qq", *lock, "install", "-y", shell], check=True, env=environ)
    if shutil.which(shell) is None:
        pytest.fail(f"{shell} is not installed, and this user cannot install it")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory, a command ``offsetmgr`` and a store of `GROUPS`."""
    program = tmp_path / "bin" / "offsetmgr"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offsetmgr "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    rows = "".join(f'"{group}",t,0,1\n' for group in GROUPS)
    (tmp_path / "offsets.csv").write_text(f"group,topic,partition,offset\n{rows}")
    config = tmp_path / "config" / "offsetmgr" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[context.prod]\nzookeeper = "h:1"\n[context.test]\nzookeeper = "h:2"\n')
    (tmp_path / "waves.csv").write_text("group,wave\nbilling,12\n")
    sides = ("--from", f"file:{tmp_path / 'offsets.csv'}", "--to", "memory:target")
    migration = Migration(tmp_path)
    migration.command("migrate", "plan", *sides, "--waves", tmp_path / "waves.csv", "-o", migration.path)
    return tmp_path


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, home: Path) -> Iterator[Terminal]:
    """A shell that has loaded the completion script."""
    _install(request.param)
    command, load = SHELLS[request.param]
    env = {name: value for name, value in os.environ.items() if not name.startswith("OFFSETMGR_")}
    env |= {"PATH": f"{home / 'bin'}:{env['PATH']}", "HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    env |= {"XDG_CACHE_HOME": str(home / "cache"), "XDG_CONFIG_HOME": str(home / "config")}
    env |= {"OFFSETMGR_STORE": f"file:{home / 'offsets.csv'}", "PYTHONPATH": str(Path(__file__).parents[2])}
    with Terminal(command, env, columns=120) as terminal:
        terminal.settle()
        for line in (f"cd {home}", load):
            terminal.type(f"{line}; echo loa''ded\r")
            terminal.wait_for("loaded")
            terminal.settle()
        yield terminal


def typed(shell: Terminal, line: str, *expected: str) -> None:
    """Types a line with tabs and waits until the terminal shows the texts. The line is empty before and after."""
    shell.type(line)
    for text in expected:
        shell.wait_for(text)
    shown = shell.settle()
    shell.type("\x15")
    shell.settle(0.5)
    assert "error" not in shown.lower() and "Traceback" not in shown


def test_commands_groups_and_files(shell: Terminal, home: Path) -> None:
    typed(shell, "offsetmgr grou\t", "groups")
    typed(shell, "offsetmgr groups desc\t", "describe")
    typed(shell, "offsetmgr groups describe billing:\t", "billing:eu")
    typed(shell, "offsetmgr groups describe my\t", "my\\ group")
    typed(shell, 'offsetmgr groups describe "my\t', '"my group"')
    typed(shell, "offsetmgr groups describe --group=it\t", "--group=it\\'s")
    typed(shell, "offsetmgr offsets import off\t", "offsets.csv")
    typed(shell, "offsetmgr groups describe bill\t\t\t", "billing", "billing:eu")
    for word in ("table", "json", "csv"):
        typed(shell, "offsetmgr offsets get --format \t\t", word)
    typed(shell, "offsetmgr groups list --context prod,\t", "prod,test")
    typed(shell, "offsetmgr groups list --context=prod,t\t", "--context=prod,test")
    typed(shell, "offsetmgr migrate apply plan.json --wave 1\t", "--wave 12")
    # A group's name is never run as shell code.
    typed(shell, "offsetmgr groups describe a\t", "a\\$\\(touch\\ HACKED\\)b")
    assert not (home / "HACKED").exists()


def test_a_dead_cluster_causes_no_message(shell: Terminal) -> None:
    line = "offsetmgr groups describe --bootstrap-server 127.0.0.1:1 bill\t"
    shell.type(line)
    shown = shell.settle()
    assert " ".join(shown.replace("\r", "\n").split()).endswith("bill"), shown


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_groups_and_topics_of_a_real_cluster(shell: Terminal, home, kafka, unique, make_topic) -> None:
    topic = make_topic(f"t-{unique}")
    commit(f"kafka://{kafka.bootstrap}", f"g-{unique}", topic, {0: 7})
    command = f"offsetmgr offsets lag --bootstrap-server {kafka.bootstrap}"
    for begun, name in (
        (f"{command} g-{unique[:20]}", f"g-{unique}"),
        (f"{command} -t {topic[:20]}", topic),
        (f"{command} -t {topic}:", f"{topic}:0"),
    ):
        deadline = time.monotonic() + 300
        # A busy server may not answer within the time limit of a completion. The shell then keeps an empty list.
        while name not in shell.text and time.monotonic() < deadline:
            shutil.rmtree(home / "cache", ignore_errors=True)
            shell.type(f"\x15{begun}\t")
            shell.settle(3)
        typed(shell, f"\x15{begun}\t", name)
