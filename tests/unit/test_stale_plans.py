"""Apply of a plan that is older than a day, by the command and by the library."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from test_doc_blocks import parse

from offsetmgr import Migration, OffsetAndMetadata, PlanOptions, TopicPartition, errors
from offsetmgr.cli.app import run
from offsetmgr.core.clock import SystemClock
from offsetmgr.migration import renewal
from offsetmgr.stores.snapshot import SnapshotStore

ORDERS = TopicPartition("orders", 0)


class Later(SystemClock):
    """A clock that is two days ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * 24 * 3_600_000


class Earlier(SystemClock):
    """A clock that is behind the clock of the plan by two days and an hour."""

    def now_ms(self) -> int:
        return super().now_ms() - (2 * 24 + 1) * 3_600_000


def commit(path: Path, offset: int, group: str = "my shop") -> None:
    with SnapshotStore(path) as store:
        store.commit(group, {ORDERS: OffsetAndMetadata(offset)})


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of two days ago. Since then, the group has moved on in the source from 10 to 11."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source, target, path = tmp_path / "source.avro", tmp_path / "target.avro", tmp_path / "shop.plan"
    commit(source, 10)
    commit(target, 1, "other")
    Migration.plan(f"file:{source}", f"file:{target}", path, PlanOptions(groups=("*",))).close()
    commit(source, 11)
    monkeypatch.setattr(renewal, "SystemClock", Later)
    return path


def test_a_plan_of_the_future_is_checked_like_an_old_one(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that was ahead when the plan was made must not switch off the check until the same day."""
    monkeypatch.setattr(renewal, "SystemClock", Earlier)
    assert run(["migrate", "apply", str(plan), "--yes"]) == 1
    assert "its time is 2 days in the future, because a clock was wrong, and 1 group changed" in capsys.readouterr().err


def test_the_hint_for_an_old_plan_renews_the_same_groups(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    login = tmp_path / "a b.properties"
    login.write_text("client.id=me\n")
    options = ["--command-config", str(login)]
    assert run(["migrate", "apply", str(plan), "--group", "my shop", *options, "--yes"]) == 1
    shown = capsys.readouterr().err
    assert "it is 2 days old, and 1 group changed in the source since then: my shop" in shown
    command = re.search(r"plan them again: offsetmgr (.*); or", shown)
    assert command is not None
    words = shlex.split(command[1])
    parse(words)
    assert words[2:] == [str(plan), "-o", "FILE", "--group", "my shop", *options]
    assert run(["migrate", "apply", str(plan), "--yes", "--accept-stale"]) == 0


def test_the_library_refuses_an_old_plan_whose_source_has_moved_on(plan: Path) -> None:
    with Migration(plan) as migration:
        with pytest.raises(errors.PlanError, match="it is 2 days old, and 1 group changed in the source") as raised:
            migration.apply()
        assert raised.value.hint.endswith("or write the old offsets with accept_stale=True")
        assert migration.apply(accept_stale=True).written == 1
