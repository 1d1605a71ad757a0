"""The stores and sessions that the connection options open; several purposes share one session."""

from __future__ import annotations

import shlex
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import offsetmgr
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.cli.runbook import runbook_arguments
from offsetmgr.cli.runbook_options import RestartFlags
from offsetmgr.cli.stale_offsets import StaleOffsetCounter
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups import members_source
from offsetmgr.migration.group_observer import GroupView
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

CONNECT = "127.0.0.1:1/kafka"


@pytest.fixture
def registry_sessions(monkeypatch: pytest.MonkeyPatch) -> list[ZookeeperSession]:
    """The sessions through which registries are read."""
    sessions: list[ZookeeperSession] = []

    def registry_describer(session: ZookeeperSession) -> members_source.Descriptions:
        sessions.append(session)
        return {}

    monkeypatch.setattr(members_source, "registry_describer", registry_describer)
    return sessions


def test_members_are_read_in_the_session_of_the_store(registry_sessions: list[ZookeeperSession]) -> None:
    with ConnectFlags(SettingsLayer(zookeeper=CONNECT), None) as connect:
        store = connect.store()
        connect.group_describer()

        assert isinstance(store, ZookeeperStore)
        assert registry_sessions == [store.session]


def test_members_of_another_zookeeper_are_read_in_a_separate_session(registry_sessions: list[ZookeeperSession]) -> None:
    with ConnectFlags(SettingsLayer(zookeeper="127.0.0.1:1/other"), None) as connect:
        connect.store()
        connect.group_describer(f"zookeeper://{CONNECT}")

        assert [session.connect for session in registry_sessions] == [CONNECT]


def test_the_commands_that_are_printed_work_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my client.properties").write_text("client.id=me\n")
    (tmp_path / "own.toml").write_text("[context.prod]\ntimeout = 1000\n")
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "own.toml"))
    monkeypatch.setenv("OFFSETMGR_CONTEXT", "prod")
    monkeypatch.chdir(tmp_path)
    settings = SettingsLayer(bootstrap_server="h:9092", command_config="my client.properties")
    with ConnectFlags(settings, None) as connect:
        repeated = ["--command-config", str(tmp_path / "my client.properties"), "--context", "prod"]
        assert shlex.split(connect.followup_options) == repeated
        assert shlex.split(connect.given_options) == ["--bootstrap-server", "h:9092", *repeated]
        restart = RestartFlags(command="restart {member}").restart()
        view = cast(
            "GroupView",
            SimpleNamespace(
                zookeeper=SimpleNamespace(uri=f"zookeeper://{CONNECT}"),
                kafka=SimpleNamespace(uri="kafka://h:9092"),
                cluster=SimpleNamespace(offsets_retention_ms=lambda: None),
            ),
        )
        written = runbook_arguments(connect, None, view, "runbook.json", restart, "shop")
        assert shlex.split(written.servers)[4:] == shlex.split(written.followups) == repeated


@pytest.mark.parametrize(
    "settings",
    [SettingsLayer(), SettingsLayer(zookeeper="127.0.0.1:1", bootstrap_server="127.0.0.1:1", timeout_ms=200)],
    ids=["no store", "stores that do not respond"],
)
def test_a_search_for_a_missing_group_that_fails_keeps_the_first_error(settings: SettingsLayer) -> None:
    missing = GroupNotFound("group shop", "does not exist", groups=("shop",))
    with ConnectFlags(settings, None) as connect:
        assert connect.with_other_store(missing) is missing


def test_the_version_is_the_one_that_is_installed() -> None:
    assert offsetmgr.__version__ == version("offsetmgr")


def test_the_hint_below_stale_offsets_is_a_complete_command(capsys: pytest.CaptureFixture[str]) -> None:
    zookeeper, kafka = (cast(OffsetStore, SimpleNamespace(uri=uri)) for uri in ("zookeeper://z:1/kafka", "kafka://k:1"))
    stale = StaleOffsetCounter(zookeeper, [kafka], " --context old")

    assert len(list(stale.count([("my group", "orders", 0, "older than Kafka's 90")]))) == 1
    stale.report()

    command = "offsetmgr groups where 'my group' --window 60 --context old"
    assert f"{command} shows where the group commits\n" in capsys.readouterr().err
