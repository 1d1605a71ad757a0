"""What the connection options of a command line open, and what is opened once for several purposes."""

from __future__ import annotations

from importlib.metadata import version

import pytest

import offsetmgr
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.groups import members_source
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

PLACE = "127.0.0.1:1/kafka"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ZookeeperSession]:
    """The sessions through which registries are read."""
    sessions: list[ZookeeperSession] = []

    def registry_directory(session: ZookeeperSession) -> members_source.Descriptions:
        sessions.append(session)
        return {}

    monkeypatch.setattr(members_source, "registry_directory", registry_directory)
    return sessions


def test_members_are_asked_for_in_the_session_of_the_store(asked: list[ZookeeperSession]) -> None:
    with ConnectFlags(SettingsLayer(zookeeper=PLACE), None) as connect:
        store = connect.store()
        connect.directory()

        assert isinstance(store, ZookeeperStore)
        assert asked == [store.session]


def test_members_of_another_place_are_asked_for_in_a_session_of_its_own(asked: list[ZookeeperSession]) -> None:
    with ConnectFlags(SettingsLayer(zookeeper="127.0.0.1:1/other"), None) as connect:
        connect.store()
        connect.directory(f"zookeeper://{PLACE}")

        assert [session.connect for session in asked] == [PLACE]


def test_the_version_is_the_one_that_is_installed() -> None:
    assert offsetmgr.__version__ == version("offsetmgr")
