"""The settings of a manager: their defaults in the documentation, and their sources."""

import re
from pathlib import Path
from typing import Any

import pytest
from backend_listeners import serve_options

from offsetmgr import ConnectionConfig, OffsetManager
from offsetmgr.cli.app import run
from offsetmgr.config.manager_settings import ManagerSettings, setting_options
from offsetmgr.core.advice import option
from offsetmgr.core.errors import ConfigError
from offsetmgr.manager.group_secret import load_group_secret

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "offset-manager-settings.md"
EMPTY = ("--metrics-listen", "", "--advertise", "", "--relay-ports", "")
ROW = re.compile(r"^\| [^|]+ \| (?P<text>[^|]+) \| (?P<settings>`[^|]+`) \|$", re.M)


def forms(field: str) -> set[str]:
    """The default of a field, as the documentation may write it."""
    value = getattr(ManagerSettings, field)
    if field.endswith(("_s", "_ms")):
        seconds = value / 1000 if field.endswith("_ms") else value
        units = {1: "s", 60: "minutes", 3_600: "hours", 86_400: "days"}
        return {f"{seconds / unit:g} {name}" for unit, name in units.items()}
    return {f"{value:,}", f"{value >> 10} KiB", f"{value >> 20} MiB"}


def test_the_documentation_has_the_defaults() -> None:
    fields = {option(one.name): field for field, one in setting_options().items()}
    section = PAGE.read_text("utf-8").partition("## Limits")[2]
    rows = [(row["text"], row["settings"][1:-1].split("`, `")) for row in ROW.finditer(section)]
    found = {fields.get(name, name): text for text, names in rows for name in names}
    assert {field for field, text in found.items() if not any(form in text for form in forms(field))} == set()
    numbers = {field for field, one in setting_options().items() if one.least is not None and one.default is not None}
    assert numbers <= set(found)


def test_an_option_overrides_a_variable_which_overrides_the_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "c.toml").write_text("[manager]\nretention-minutes = 1\nstandby = false\nmax-tags = 3\nrelay = true\n")
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "c.toml"))
    monkeypatch.setenv("OFFSETMGR_MANAGER_RETENTION_MINUTES", "2")
    monkeypatch.setenv("OFFSETMGR_MANAGER_COMMIT_TIMEOUT", "700")
    found = serve_options("nowhere:1", "--commit-timeout", "800", "--no-relay", *EMPTY)
    assert (found.retention_ms, found.commit_timeout_s, found.standby, found.max_tags) == (120_000, 0.8, False, 3)
    assert (found.relay, found.metrics_listen, found.advertise, found.relay_ports) == (False, None, None, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"secrets = ['{'hidden-' * 5}', 'hidden{' ' * 40}']", "at least 32 characters; number 2 has fewer"),
        ("required = true", "secrets: must contain secrets of at least 32 characters"),
        ("secrets = 'hidden'", "secrets: must be a list of strings"),
        ("hidden = true", "has an unknown field; known are secrets, required"),
        ("secrets = ['hidden-hidden-hidden-hidden-1234']\nrequired = 'hidden'", "required: must be true or false"),
        ("secrets = [hidden", "is not TOML"),
    ],
)
def test_an_error_in_the_file_of_the_managers_secret_contains_no_secret(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "managers.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(why)) as failed:
        load_group_secret("t.managers", str(tmp_path / "managers.toml"))
    assert "hidden" not in str(failed.value)


def test_the_managers_secret_is_read_before_the_brokers_are_asked_and_is_no_option(capsys) -> None:
    command = "manager serve --bootstrap-server 127.0.0.1:1 --listen 127.0.0.1:0 --managers-secret hidden"
    assert run(command.split()) == 2
    assert capsys.readouterr().err.startswith("error: file of the managers' secret: does not exist\n")


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("[manager]\nretention = 1", "", "[manager]: unknown key 'retention'"),
        ("[manager]\npartitions = '1'", "", "[manager]: partitions must be a whole number"),
        ("manager = 1", "", "'manager' must be a table [manager]"),
        ("", "--advertise h", "--advertise h: is not HOST:PORT"),
        ("", "--relay-ports 9-8", "--relay-ports 9-8: is not FIRST-LAST"),
        ("", "--tls-key k", "--tls-certificate and --tls-key go together"),
        ("", "--relay-ports 8-9", "--relay-ports: works only with --relay"),
    ],
)
def test_a_wrong_setting_is_named(text: str, options: str, why: str, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "c.toml").write_text(text)
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "c.toml"))
    with pytest.raises(AssertionError):
        serve_options("nowhere:1", *options.split())
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("name", "why"), [("load_threads", "at least 1"), ("lag_interval_s", "more than 0")])
def test_a_setting_of_a_program_has_a_minimum(name: str, why: str) -> None:
    given: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be {why}"):
        ManagerSettings(**given)


def test_an_embedded_manager_uses_the_connection_and_the_members_of_its_settings() -> None:
    members: Any = object()
    given = ManagerSettings(connection=ConnectionConfig(kafka={"client.id": "shop"}), members=members)
    node = OffsetManager("nowhere:1", manager=given, timeout_s=7)._node
    assert node.settings.connection == ConnectionConfig(kafka={"client.id": "shop"}, timeout_ms=7_000)
    assert node._members is members
