"""The packages of a release: the wheel alone gives everything that the documentation names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("packages")
    subprocess.run([PROJECT / "scripts" / "package", directory], check=True)
    return directory


@pytest.fixture(scope="module")
def installed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone, without any extra."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (wheel,) = packages.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    options = ["--disable-pip-version-check", "--no-compile", "--constraint", str(PROJECT / "constraints.txt")]
    subprocess.run([*pip, *options, str(wheel)], check=True)
    return environment / "bin"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed / "offsetmgr", *arguments], cwd=installed, capture_output=True, text=True, check=False
    )


def test_each_command_of_the_reference_is_in_the_wheel(installed: Path) -> None:
    reference = (PROJECT / "docs" / "reference" / "cli.md").read_text("utf-8")
    commands = re.findall(r"^\$ (offsetmgr .*)--help$", reference, re.MULTILINE)
    assert len(commands) > 50

    program = """
import json, sys
from offsetmgr.cli.app import run

failed = [words for words in json.load(sys.stdin) if run([*words[1:], "--help"]) != 0]
sys.exit(f"failed: {failed}" if failed else 0)
"""
    words = json.dumps([command.split() for command in commands])
    done = subprocess.run(
        [installed / "python", "-c", program], input=words, cwd=installed, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("extra", "arguments"), [("sandbox", ["sandbox", "up"]), ("spark", ["spark", "audit", "-o", "x"])]
)
def test_a_command_that_needs_an_extra_names_it(
    installed: Path, extra: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFSETMGR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OFFSETMGR_SANDBOX", str(tmp_path / "sandbox"))

    failed = run(installed, *arguments, *(["--bootstrap-server", "127.0.0.1:1"] if extra == "spark" else []))

    assert failed.returncode != 0
    assert "Traceback" not in failed.stderr
    assert f"hint: install offsetmgr with its extra {extra}: pip install '.[{extra}]'" in failed.stderr


def test_the_extras_of_the_documentation_exist_and_no_page_installs_from_an_index() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named, from_index = set(), []
    for page in PAGES:
        for command in re.findall(r"pip install [^`\n]*", page.read_text("utf-8")):
            named.update(name for found in re.findall(r"\.\[([\w,]+)\]", command) for name in found.split(","))
            if re.search(r"(?<![\w./-])offsetmgr(?![\w./-])", command):
                from_index.append(f"{page}: {command}")
    assert named and named <= extras.keys()
    assert from_index == []


def test_the_list_of_packages_names_all_dependencies_and_no_path(packages: Path) -> None:
    (file,) = packages.glob("*.cdx.json")
    found = {part["name"].lower(): part["version"] for part in json.loads(file.read_text("utf-8"))["components"]}
    assert {"offsetmgr", "confluent-kafka", "kazoo", "fastavro", "typer"} <= found.keys()
    assert "pip" not in found
    assert not re.search(r"file:|/tmp|/home", file.read_text("utf-8"))
