"""Downloads of jars with Ivy. A script that is started instead of Java creates the files or fails."""

from __future__ import annotations

import locale
from pathlib import Path

import pytest

from offsetmgr.spark.ivy import DownloadFailed, Ivy, Module, is_complete

TARGET = """#!/bin/sh
while [ "$1" != "-retrieve" ]; do [ "$1" = "-ivy" ] && ivy="$2"; shift; done
target="$(dirname "$2")"
"""
MODULES = [Module("org.example", "server", "1.0"), Module("org.example", "tools", "1.0", transitive=False)]


def ivy(tmp_path: Path, commands: str) -> Ivy:
    java = tmp_path / "java"
    java.write_text(TARGET + commands)
    java.chmod(0o755)
    return Ivy(tmp_path / "ivy.jar", str(java), tmp_path / "home")


def test_the_jars_of_all_modules_replace_an_incomplete_directory(tmp_path: Path) -> None:
    commands = (
        f'cp "$ivy" "{tmp_path}/ivy.xml"; mkdir "$target"; touch "$target/a.jar" "$target/b.jar"; echo downloading x'
    )
    directory = tmp_path / "jars" / "set"
    directory.mkdir(parents=True)
    (directory / "left.jar").touch()
    assert not is_complete(directory)

    assert ivy(tmp_path, commands).download(directory, MODULES, excluded=[("org.other", "*")]) == 2

    assert is_complete(directory)
    assert sorted(jar.name for jar in directory.glob("*.jar")) == ["a.jar", "b.jar"]
    assert [path.name for path in directory.parent.iterdir()] == ["set"]
    described = (tmp_path / "ivy.xml").read_text()
    assert '<dependency org="org.example" name="server" rev="1.0" transitive="true" conf="default"/>' in described
    assert '<dependency org="org.example" name="tools" rev="1.0" transitive="false" conf="default"/>' in described
    assert '<exclude org="org.other" module="*"/>' in described


def test_ivy_runs_in_utf_8_in_every_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getencoding", lambda: "ANSI_X3.4-1968")  # with LC_ALL=C
    monkeypatch.setenv("LC_ALL", "C")

    with pytest.raises(DownloadFailed, match=r"error: C\.UTF-8"):
        ivy(tmp_path, 'echo "error: $LC_ALL"; exit 1').download(tmp_path / "büro" / "set", MODULES)


def test_the_progress_is_reported_at_every_tenth_file(tmp_path: Path) -> None:
    commands = 'for n in $(seq 25); do echo "downloading $n"; done; mkdir "$target"; touch "$target/a.jar"'
    seen: list[int] = []

    ivy(tmp_path, commands).download(tmp_path / "jars" / "set", MODULES, progress=seen.append)

    assert seen == [10, 20]


@pytest.mark.parametrize(
    ("commands", "reasons"),
    [
        ("exit 3", ("Ivy ended with exit code 3",)),
        ("exit 0", ("Ivy retrieved none",)),
        (
            "echo ':: UNRESOLVED DEPENDENCIES ::'; echo ':: server;1.0: not found'; echo ':: server;1.0: not found'",
            ("UNRESOLVED DEPENDENCIES", "server;1.0: not found"),
        ),
        ("exec sleep 60", ("Ivy has not ended within 0.2 s",)),
    ],
)
def test_a_failure_has_its_reasons_and_leaves_no_files(tmp_path: Path, commands: str, reasons: tuple[str, ...]) -> None:
    with pytest.raises(DownloadFailed) as failed:
        ivy(tmp_path, commands).download(
            tmp_path / "jars" / "set", MODULES, timeout_s=0.2 if "sleep" in commands else 60
        )

    assert failed.value.reasons == reasons
    assert list((tmp_path / "jars").iterdir()) == []


def test_java_that_cannot_run_is_a_failure(tmp_path: Path) -> None:
    broken = Ivy(tmp_path / "ivy.jar", str(tmp_path / "none"), tmp_path / "home")
    with pytest.raises(DownloadFailed, match="No such file"):
        broken.download(tmp_path / "jars" / "set", MODULES)
