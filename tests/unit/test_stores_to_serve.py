"""The stores that `manager serve --store` accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetmgr.core.errors import UsageError
from offsetmgr.server.process.manager_process import check_servable
from offsetmgr.stores.uri import open_store


def test_a_file_is_rejected_whether_it_exists_or_not(tmp_path: Path) -> None:
    with open_store(f"file:{tmp_path / 'x.avro'}") as store, pytest.raises(UsageError, match="is a file") as refused:
        check_servable(store)

    assert refused.value.hint == (
        "serve zookeeper://, kafka:// or dual:, and copy the file's offsets there with offsets import"
    )


@pytest.mark.parametrize("uri", ["zookeeper://127.0.0.1:1", "kafka://127.0.0.1:1"])
def test_other_stores_are_accepted(uri: str) -> None:
    with open_store(uri) as store:
        check_servable(store)
