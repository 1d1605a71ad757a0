"""The files of a release: the wheel alone gives everything that the documentation names; the executables hold it."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
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
def test_a_command_that_needs_an_extra_names_it(installed, extra: str, arguments, tmp_path, monkeypatch) -> None:
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


def test_an_executable_holds_each_dependency_for_each_version_of_python(packages: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=packages, check=True)
    for processor in ("x86_64", "aarch64"):
        (file,) = packages.glob(f"offsetmgr-*-linux-{processor}")
        with zipfile.ZipFile(file) as content:
            wheels = {name.split("/")[1] for name in content.namelist() if re.match(r"\.deps/.", name)}
        for version in (311, 312, 313, 314):
            of_version = {name.split("-")[0] for name in wheels if f"-cp{version}-cp{version}-" in name}
            assert of_version == {"cffi", "confluent_kafka", "cramjam", "crc32c", "fastavro", "kio"}
        assert all(name.endswith((f"_{processor}.whl", "-none-any.whl")) for name in wheels)


@pytest.mark.parametrize(("source", "code"), [("volumes/state", 0), ("kubernetes.io~empty-dir/state", 1)])
def test_the_executable_edits_only_if_a_volume_keeps_the_before_images(packages, tmp_path, source, code: int) -> None:
    (executable,) = packages.glob(f"offsetmgr-*-linux-{platform.machine()}")
    offsets, volume, state = tmp_path / "offsets.csv", tmp_path / source, tmp_path / "state"
    offsets.write_text("shop,orders,0,5\n")
    volume.mkdir(parents=True)
    state.mkdir()
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"']
    edit = ["offsets", "set", "shop", "--topic", "orders:0", "--to-offset", "8", "--execute", "--yes"]
    environment = {**os.environ, "OFFSETMGR_STATE_VOLUME": str(state), "XDG_STATE_HOME": str(state)}
    done = subprocess.run(
        [*mounted, "-", volume, state, executable, *edit, "--store", f"file:{offsets}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, f"{state} is an emptyDir, which Kubernetes deletes" in done.stderr) == (code, code == 1)
    assert offsets.read_text().split() == [f"shop,orders,0,{5 if code else 8}"]
    assert len([*volume.rglob("*.avro")]) == 1 - code


def test_a_trial_that_stops_early_removes_no_image_of_the_operator(tmp_path: Path) -> None:
    for name in ("scripts", "dist", ".venv/bin", "scratch"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(PROJECT / "scripts/try_artefacts", tmp_path / "scripts")
    programs = {"offsetmgr": "exit 1", "buildah": 'echo "$*" >>buildah', "rm": "exit 1", "mktemp": "echo scratch"}
    for name, body in programs.items():
        (tmp_path / f".venv/bin/{name}").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / f".venv/bin/{name}").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}/.venv/bin:{os.environ['PATH']}"}
    assert subprocess.run([tmp_path / "scripts/try_artefacts"], env=environment, check=False).returncode == 1
    tag = r"localhost/offsetmgr-trial-\d+"
    assert re.fullmatch(rf"rmi --force {tag} {tag}-base\n", (tmp_path / "buildah").read_text())
