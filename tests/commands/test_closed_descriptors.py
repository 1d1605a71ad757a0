"""Commands whose stdin, stdout or stderr is closed: no prompt can be answered, and no error is an internal one."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import command as in_process
from processes import own_environment

COMMAND = f'{shlex.quote(sys.executable)} -c "from offsetmgr.cli.app import main; main()"'
FROM = "g,t,0,100\ng,t,1,200\nempty,t,0,1\n"

PROMPTS = {
    "set": "offsets set --group g --topic t:0 --to-offset 150 --store file:store.csv --execute",
    "delete of offsets": "offsets delete --group g --all-topics --store file:store.csv --execute",
    "import": "offsets import in.csv --group g --store file:store.csv --execute",
    "delete of a group": "groups delete --group g --store file:store.csv --execute",
    "copy": "groups copy g other --store file:store.csv --execute",
    "rename": "groups rename g other --store file:store.csv --execute",
    "apply": "migrate apply there",
    "refresh": "migrate apply --refresh applied",
    "rollback": "migrate rollback applied",
    "mirror": "migrate mirror --from file:in.csv --to file:there.avro --group g",
}
"""Commands that ask before they change a file; the other commands that ask need servers."""
CONFIRMED = f"{PROMPTS['set']} --yes"


def shell(directory: Path, command: str) -> subprocess.CompletedProcess[str]:
    words, env = ["sh", "-c", f"{COMMAND} {command}"], own_environment(directory)
    null = subprocess.DEVNULL
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, cwd=directory, env=env, stdin=null, check=False
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "store.csv").write_text(FROM)
    for name in ("in.csv", "new.csv"):
        (tmp_path / name).write_text("g,t,0,150\n")
    return tmp_path


@pytest.mark.parametrize("command", PROMPTS.values(), ids=PROMPTS.keys())
def test_a_prompt_without_stdin_is_refused_and_names_the_flag(directory: Path, command: str, monkeypatch) -> None:
    source, plan = ["--from", "file:new.csv", "--group", "g"], ["migrate", "plan"]
    monkeypatch.chdir(directory)
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "state"))
    for name in ("there", "applied"):
        in_process("offsets", "export", f"{name}.avro", "--group", "g", "--store", "file:store.csv")
        in_process(*plan, *source, "--to", f"file:{name}.avro", "-o", name)
    in_process("migrate", "apply", "applied", "--yes")
    before = [Path(f"{name}.avro").read_bytes() for name in ("there", "applied")]
    Path("new.csv").write_text("g,t,0,160\n")
    done = shell(directory, f"{command} <&-")
    assert done.returncode == 2, done.stderr
    assert "stdin is not a terminal" in done.stderr and "hint: add --yes" in done.stderr
    assert "internal" not in done.stderr
    assert (directory / "store.csv").read_text() == FROM
    assert [Path(f"{name}.avro").read_bytes() for name in ("there", "applied")] == before


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_command_works_without_stdin_or_stderr(directory: Path, closed: str) -> None:
    done = shell(directory, f"{CONFIRMED} {closed}")
    assert done.returncode == 0, done.stderr
    assert "g,t,0,150" in (directory / "store.csv").read_text().splitlines()
    listed = shell(directory, f"offsets get --group g --store file:store.csv --format csv {closed}")
    assert listed.returncode == 0 and "g,t,0,committed,150" in listed.stdout


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_without_stdout_changes_nothing(directory: Path, closed: str) -> None:
    done = shell(directory, f"{CONFIRMED} {closed}")
    assert done.returncode == 1
    expected = "" if "2>&-" in closed else "error: cannot write the output: Bad file descriptor\n"
    assert done.stderr == expected
    assert (directory / "store.csv").read_text() == FROM
    assert shell(directory, f"--help {closed}").stderr == expected


def test_only_the_prompt_reads_stdin() -> None:
    package = Path(__file__).parents[2] / "offsetmgr" / "cli"
    reading = {p.name for p in package.glob("*.py") if "sys.stdin" in p.read_text() or "input(" in p.read_text()}
    assert reading == {"app.py", "connect_flags.py"}
