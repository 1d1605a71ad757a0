"""A ``--topic`` that matches nothing, alone or among others: every command fails."""

from pathlib import Path
from urllib.parse import quote

import pytest
from in_process import command

from offsetmgr.core.model import BrokerPartition, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A snapshot file: groups a and b have committed 5 and 7 in orders-0. other.avro in its directory has no groups."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    empty(tmp_path / "other.avro")
    with SnapshotStore(tmp_path / "here.avro") as store:
        store.commit("a", {ORDERS: OffsetAndMetadata(5)})
        store.commit("b", {ORDERS: OffsetAndMetadata(7)})
    return f"file:{tmp_path / 'here.avro'}"


def empty(path: Path) -> str:
    """A snapshot file without groups, as a store."""
    write_snapshot(path, SnapshotHeader.new("test", "file", "none", ""), (), format="avro")
    return f"file:{path}"


def offsets_of(uri: str) -> dict[str, int]:
    with SnapshotStore(Path(uri.removeprefix("file:"))) as store:
        found = {group: store.fetch(group)[ORDERS] for group in store.groups()}
    return {group: one.offset for group, one in found.items() if isinstance(one, Committed)}


def commands(uri: str, directory: Path) -> dict[str, list[str]]:
    """Every command that selects topics, with the options to execute it and without its --topic."""
    other = f"file:{directory / 'other.avro'}"
    return {
        "delete": ["offsets", "delete", "--group", "a", "--store", uri, "--execute", "--yes"],
        "set": ["offsets", "set", "--group", "a", "--to-offset", "3", "--store", uri, "--execute", "--yes"],
        "export": ["offsets", "export", str(directory / "out.avro"), "--all-groups", "--store", uri],
        "import": ["offsets", "import", uri.removeprefix("file:"), "--store", other, "--execute", "--yes"],
        "copy": ["groups", "copy", "a", "c", "--store", uri, "--execute", "--yes"],
        "diff": ["offsets", "diff", "--from", uri, "--to", uri],
        "plan": ["migrate", "plan", "--from", uri, "--to", other, "--group", "a", "-o", str(directory / "plan.json")],
        "mirror": ["migrate", "mirror", "--from", uri, "--to", other, "--group", "a", "--once", "--yes"],
    }


ALL = ["delete", "set", "export", "import", "copy", "diff", "plan", "mirror"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("topics", [["typo"], ["orders:0", "typo"], ["orders", "typo*"]], ids=" ".join)
def test_a_topic_without_offsets_fails_the_command_before_any_change(name: str, topics, uri, tmp_path) -> None:
    options = (word for topic in topics for word in ("--topic", topic))
    errors = command(*commands(uri, tmp_path)[name], *options, code=1).stderr
    assert "no difference" not in errors
    if len(topics) > 1:
        assert f"error: topic {topics[-1]}: not among the groups' offsets in " in errors
    assert offsets_of(uri) == {"a": 5, "b": 7}
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(("out", "plan"))] == []
    assert offsets_of(f"file:{tmp_path / 'other.avro'}") == {}


@pytest.mark.parametrize("name", ALL)
def test_the_same_command_succeeds_with_existing_topics(name: str, uri: str, tmp_path: Path) -> None:
    errors = command(*commands(uri, tmp_path)[name], "--topic", "orders:0", "--topic", "ord*").stderr
    assert name != "diff" or "no difference in 2 groups" in errors


def test_a_topic_of_one_group_alone_is_found(uri: str, tmp_path: Path) -> None:
    with SnapshotStore(tmp_path / "here.avro") as store:
        store.commit("b", {TopicPartition("more", 0): OffsetAndMetadata(1)})
    errors = command(*commands(uri, tmp_path)["export"], "--topic", "orders", "--topic", "more").stderr
    assert "exported 3 offsets of 2 groups" in errors


@pytest.mark.parametrize("name", [name for name in ALL if name != "set"])
def test_a_decreasing_range_is_a_usage_error(name: str, uri: str, tmp_path: Path) -> None:
    errors = command(*commands(uri, tmp_path)[name], "--topic", "orders:7-2", code=2).stderr
    assert "error: topic orders:7-2: 7-2 is not a range" in errors


def test_stores_without_groups_are_not_reported_as_equal(tmp_path: Path) -> None:
    here, other = empty(tmp_path / "here.avro"), empty(tmp_path / "other.avro")
    errors = command("offsets", "diff", "--from", here, "--to", other, code=1).stderr
    none = f"no groups in {quote(here, '/:')} nor in {quote(other, '/:')}"
    assert f"error: nothing to compare: {none}\nhint: check the addresses" in errors
    assert "no difference" not in errors


def test_a_plan_accepts_ranges_as_every_command_does() -> None:
    options = PlanOptions(topics=("orders:1-3,7", "clicks*"))
    selected = [n for n in range(9) if options.selects(TopicPartition("orders", n))]
    assert selected == [1, 2, 3, 7]
    assert options.selects(TopicPartition("clicks-eu", 5))
    assert options.selects(TopicPartition("orders", BrokerPartition(1, 3)))
    assert not options.selects(TopicPartition("orders", BrokerPartition(2, 3)))
