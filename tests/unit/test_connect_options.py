"""The stores and sessions that the connection options open; several purposes share one session."""

from __future__ import annotations

from importlib.metadata import version

import pytest

import offsetmgr
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.groups import members_source
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

CONNECT = "127.0.0.1:1/kafka"


@pytest.fixture
def registry_sessions(monkeypatch: pytest.MonkeyPatch) -> list[ZookeeperSession]:
    """The sessions through which registries are read."""
    sessions: list[ZookeeperSession] = []

    def registry_directory(session: ZookeeperSession) -> members_source.Descriptions:
        sessions.append(session)
        return {}

    monkeypatch.setattr(members_source, "registry_directory", registry_directory)
    return sessions


def test_members_are_read_in_the_session_of_the_store(registry_sessions: list[ZookeeperSession]) -> None:
    with ConnectFlags(SettingsLayer(zookeeper=CONNECT), None) as connect:
        store = connect.store()
        connect.directory()

        assert isinstance(store, ZookeeperStore)
        assert registry_sessions == [store.session]


def test_members_of_another_zookeeper_are_read_in_a_separate_session(registry_sessions: list[ZookeeperSession]) -> None:
    with ConnectFlags(SettingsLayer(zookeeper="127.0.0.1:1/other"), None) as connect:
        connect.store()
        connect.directory(f"zookeeper://{CONNECT}")

        assert [session.connect for session in registry_sessions] == [CONNECT]


def test_the_version_is_the_one_that_is_installed() -> None:
    assert offsetmgr.__version__ == version("offsetmgr")
