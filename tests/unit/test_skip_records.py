"""``offsets reset --skip``: the offset after the skipped records."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from offsetmgr.cli import skip_records
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.consumer import simple
from offsetmgr.core.errors import OffsetOutOfRange
from offsetmgr.core.model import TopicPartition


class TruncatedLog:
    """A consumer of a log that no longer has the committed offset."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> TruncatedLog:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fetch(self, _: object) -> NoReturn:
        hint = 'use out_of_range="earliest" or "latest" to read from the log\'s start or end instead'
        raise OffsetOutOfRange("fetch of orders-0 at offset 3", "the log begins at 10 and ends at 20", hint)


def test_an_offset_outside_the_log_gets_a_hint_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple, "SimpleConsumer", TruncatedLog)
    connect: Any = ConnectFlags(SettingsLayer(bootstrap_server="127.0.0.1:1"), None)
    monkeypatch.setattr(connect, "cluster", lambda _: None)
    with pytest.raises(OffsetOutOfRange, match="begins at 10") as error:
        skip_records._offset_after(connect, TopicPartition("orders", 0), 3, 1)
    assert error.value.hint == "--to-earliest goes to the log's start, --to-latest to its end"
