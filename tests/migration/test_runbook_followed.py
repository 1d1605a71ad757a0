"""A written runbook is followed command by command in the sandbox: each step prints what the runbook shows.

Its HTML page is opened in a browser."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from steady_load import Load
from test_audit_browser import open_at_every_width, overflowing_texts, scroll_width

from offsetmgr.sandbox import Sandbox

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
PARTITIONS = 8


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Runs a command line in the directory of the test; returns the exit code and the output of both streams."""
    program = tmp_path / "bin" / "offsetmgr"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m offsetmgr "$@"\n')
    program.chmod(0o755)
    own = {name: value for name, value in os.environ.items() if not name.startswith("OFFSETMGR_BOOT")}
    environ = own | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "OFFSETMGR_SANDBOX": str(tmp_path / "sandbox"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }

    def run(command: str) -> tuple[int, str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        where: dict[str, Any] = {"cwd": tmp_path, "env": environ, "stdin": subprocess.DEVNULL}
        done = subprocess.run(["bash", "-c", command], timeout=600, check=False, **pipes, **where)
        return done.returncode, done.stdout

    yield run
    Sandbox(tmp_path / "sandbox").down()


def pattern_of(sample: str) -> str:
    """The pattern of the output that a sample stands for: ``...`` is any text in a line, or any lines."""
    lines = (
        "(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
        for line in sample.splitlines()
    )
    return "".join(lines)


def follow(step: dict[str, Any], run: Callable[[str], tuple[int, str]]) -> None:
    printed = ""
    for command in step["commands"]:
        code, output = run(command)
        if step["title"] == "Check the servers" and "No such command" in output:
            return  # this checkout has no command `doctor`
        assert code == 0, f"{command}\n{output}"
        printed += re.sub(r"watching commits for up to \d+ s\n", "", output)  # on a busy machine
    assert re.search(pattern_of(step["prints"]), printed), f"{step['prints']}\n--- printed:\n{printed}"


def test_a_runbook_is_followed_as_printed_and_looks_right(shell, tmp_path):
    up = "offsetmgr sandbox up --old-consumers 2 --group shop --topic orders"
    code, output = shell(f"{up} --partitions {PARTITIONS}")
    assert code == 0, output
    servers = dict(re.findall(r"export OFFSETMGR_(\w+)=(\S+)", output))
    options = f"--zookeeper {servers['ZOOKEEPER']} --bootstrap-server {servers['BOOTSTRAP_SERVER']}"
    write = (
        "offsetmgr runbook write --group shop --to kafka --command 'offsetmgr sandbox restart {member} {settings}'"
        f" --test-command 'echo {{member}} {{host}}' {options}"
    )
    load = Load(servers["BOOTSTRAP_SERVER"], "orders", range(PARTITIONS), form="{partition}:{number}")
    with load:
        code, output = shell(f"{write} -o shop.html -o shop.md")
        assert code == 0, output
        assert re.findall("wrote (.*)", output) == ["shop.json", "shop.html", "shop.md"]
        (book,) = json.loads((tmp_path / "shop.json").read_text())["runbooks"]
        for step in book["steps"]:
            follow(step, shell)
        # The way back from the last bounce also works after the cleaning up.
        (last,) = [step for step in book["steps"] if step["section"] == "Bounce 2 of 2: dual -> kafka"]
        for command in last["back"]:
            code, output = shell(command)
            assert code == 0, output
        assert output.endswith("bounce dual -> zookeeper of group shop: done\n")

        # The way back from the middle of the first bounce: the restart of the second member fails.
        code, output = shell(f"{write} -o again.html")
        assert code == 0, output
        (again,) = json.loads((tmp_path / "again.json").read_text())["runbooks"]
        (first,) = [step for step in again["steps"] if step["section"] == "Bounce 1 of 2: zookeeper -> dual"]
        member = min(one["id"] for one in again["baseline"]["members"])
        code, output = shell(first["commands"][0].replace("--command '", f"--command 'test {{member}} = {member} && "))
        assert (code, "exit code 1" in output) == (1, True), output
        (back,) = first["back"]
        code, output = shell(back)
        assert code == 0, output
        assert output.endswith("bounce dual -> zookeeper of group shop: done\n")
    consumed = Counter(
        line.split("\t")[3]
        for path in tmp_path.glob("sandbox/data/shop-*/messages.tsv")
        for line in path.read_text().splitlines()
    )
    for partition in range(PARTITIONS):
        numbers = {int(message.split(":")[1]) for message in consumed if message.startswith(f"{partition}:")}
        assert numbers == set(range(len(numbers)))  # no message is skipped
    assert load.sent.total() - len(consumed) < 50 * PARTITIONS
    # A member that a busy machine stops for longer than its session repeats the messages since its last commit.
    assert consumed.total() - len(consumed) < 50 * PARTITIONS

    page, markdown = (tmp_path / "shop.html").read_text(), (tmp_path / "shop.md").read_text()
    for step in book["steps"]:
        for command in (*step["commands"], *step["back"]):
            assert f"<code>{escape(command)}</code>" in page
            assert f"```sh\n{command}\n```" in markdown
    with Browser(tmp_path) as browser:
        for view in open_at_every_width(browser, tmp_path / "shop.html"):
            assert scroll_width(view) <= view.width
            assert overflowing_texts(view) == []
