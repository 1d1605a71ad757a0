"""The checks of `OffsetAdmin` and `Migration` that need no server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from one_migration import OneLog

from offsetmgr import (
    AheadPolicy,
    ConnectionConfig,
    OffsetAdmin,
    PlanOptions,
    ToEarliest,
    TopicPartition,
    ToTime,
    errors,
)
from offsetmgr.api.arguments import require_scenario
from offsetmgr.api.connections import Connections
from offsetmgr.core.model import LogRange
from offsetmgr.groups.before_images import default_image_path
from offsetmgr.migration.group_home import OtherHome
from offsetmgr.stores.kafka import KafkaStore

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def admin(tmp_path: Path) -> OffsetAdmin:
    """An admin of a file with the groups ``shop``, ``shop*`` and ``shopping``."""
    path = tmp_path / "offsets.csv"
    path.write_text("shop,orders,0,4\nshop*,orders,0,5\nshopping,bills,0,6\n", "utf-8")
    return OffsetAdmin(f"file:{path}")


def test_a_name_that_is_a_glob_and_a_group_selects_the_group(admin: OffsetAdmin) -> None:
    assert [found.group for found in admin.lag("shop*")] == ["shop*"]
    assert [found.group for found in admin.lag("shop?*")] == ["shop*", "shopping"]
    assert [found.group for found in admin.plan_delete("shop*")] == ["shop*"]


def test_an_empty_selection_never_means_all(admin: OffsetAdmin, tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="groups: the selection is empty"):
        admin.lag([])
    with pytest.raises(errors.UsageError, match="topics: the selection is empty"):
        admin.plan_delete("shop", topics=[])
    admin.write_snapshot(tmp_path / "all.avro")
    with pytest.raises(errors.UsageError, match="groups: the selection is empty"):
        admin.plan_import(tmp_path / "all.avro", groups=[])


def test_an_import_clamps_offsets_to_the_logs_of_the_known_brokers(
    admin: OffsetAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "cluster", lambda _self, _what: OneLog(LogRange(0, 5)))
    admin.write_snapshot(tmp_path / "all.avro")
    (tmp_path / "new.csv").write_text("other,orders,0,1\n", "utf-8")

    def planned(bootstrap: str | None, *, unchecked: bool = False) -> list[tuple[int | None, str]]:
        with OffsetAdmin(f"file:{tmp_path / 'new.csv'}", bootstrap_server=bootstrap) as other:
            plan = other.plan_import(tmp_path / "all.avro", unchecked=unchecked)
            return [(one.after and one.after.offset, one.note) for group in plan for one in group.changes]

    assert planned("h:9092") == [(4, ""), (5, ""), (5, "clamped from 6 to the log's end")]
    assert planned("h:9092", unchecked=True) == planned(None) == [(4, ""), (5, ""), (6, "")]


def test_a_snapshot_has_the_offsets_of_the_store_in_which_the_groups_live(
    admin: OffsetAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = admin.store.uri, f"file:{tmp_path / 'new.csv'}"
    (tmp_path / "new.csv").write_text("shop,orders,0,1206\nshopping,bills,0,7\n", "utf-8")

    def homes(_self: Connections, groups: list[str]) -> dict[str, OtherHome]:
        return {name: OtherHome(name, name, old, new, "seen", (old, new)) for name in groups if name != "shop*"}

    monkeypatch.setattr(Connections, "homes", homes)
    admin.write_snapshot(tmp_path / "moved.csv", ["shop", "shopping"])
    admin.write_snapshot(tmp_path / "all.csv")

    assert "shop,orders,0,1206" in (tmp_path / "moved.csv").read_text("utf-8")
    assert "shop,orders,0,4" in (tmp_path / "all.csv").read_text("utf-8")
    assert [record.message.partition(": ")[0] for record in caplog.records] == [f"reading {new}", f"reading {old}"]


def test_the_library_logs_that_a_filtered_login_may_not_see_all_offsets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(KafkaStore, "filter_note", lambda _self: "the brokers leave out offsets")
    with OffsetAdmin("kafka://h1:9092") as admin:
        assert admin.store.uri == "kafka://h1:9092"
    admin.close()
    assert [(record.name, record.message) for record in caplog.records] == [
        ("offsetmgr", "the brokers leave out offsets")
    ]


def test_an_edit_of_all_groups_has_to_be_explicit(admin: OffsetAdmin) -> None:
    with pytest.raises(errors.UsageError, match="no group is named"):
        admin.plan_delete(None)  # type: ignore[arg-type]
    assert [found.group for found in admin.plan_delete("*")] == ["shop", "shop*", "shopping"]


def test_topics_are_a_text_a_partition_or_several_of_them(admin: OffsetAdmin) -> None:
    for topics in ("orders", ["orders"], ORDERS, [ORDERS], "orders:0"):
        assert admin.plan_delete("shop", topics).counts.writes == 1
    with pytest.raises(errors.GroupNotFound):
        admin.plan_copy("shop", "new", "bills")


def test_a_topic_without_an_offset_is_an_error_of_the_lag(admin: OffsetAdmin) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition, match="topic missing"):
        list(admin.lag("shop", "missing"))
    with pytest.raises(errors.UnknownTopicOrPartition, match="topic missing"):
        list(admin.describe(None, "missing"))


def test_an_offset_is_between_0_and_the_largest_number_of_kafka(admin: OffsetAdmin) -> None:
    for offset in (-1, 2**63):
        with pytest.raises(errors.UsageError, match="is not an offset"):
            admin.plan_set("shop", {ORDERS: offset})
    with pytest.raises(errors.UsageError, match="no offset is given"):
        admin.plan_set("shop", {})


@pytest.mark.parametrize("groups", [b"shop", ["shop", b"shop"], [7]])
def test_a_name_that_is_no_text_is_a_usage_error(admin: OffsetAdmin, groups: Any) -> None:
    for call in (admin.lag, admin.where, admin.plan_delete):
        with pytest.raises(errors.UsageError, match="a name of a group is a str"):
            list(call(groups))


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ({"orders:0": 4}, "is not a TopicPartition"),
        ({("orders", 0): 4}, "is not a TopicPartition"),
        ({ORDERS: "4"}, "'4' is not an offset"),
        ({ORDERS: 4.0}, "4.0 is not an offset"),
    ],
)
def test_a_key_or_an_offset_of_a_wrong_type_is_a_usage_error_of_the_plan(
    admin: OffsetAdmin, offsets: Any, why: str
) -> None:
    """Otherwise the edit would fail while it is executed."""
    with pytest.raises(errors.UsageError, match=why):
        admin.plan_set("shop", offsets)


def test_a_time_is_not_negative() -> None:
    """A broker reads -1 as the end of the log and -2 as its start."""
    with pytest.raises(errors.UsageError, match="not a number of milliseconds"):
        ToTime(-1)


def test_a_scenario_without_parentheses_is_a_usage_error() -> None:
    require_scenario(ToEarliest())
    with pytest.raises(errors.UsageError, match="is not a position"):
        require_scenario(ToEarliest)


def test_a_copy_to_the_same_group_is_a_usage_error(admin: OffsetAdmin) -> None:
    with pytest.raises(errors.UsageError, match="both names are the same"):
        admin.plan_copy("shop", "shop")


def test_an_edit_of_a_file_is_undone(admin: OffsetAdmin, tmp_path: Path) -> None:
    report = admin.plan_set("shop", {ORDERS: 1, TopicPartition("orders", 1): 9}).execute(tmp_path / "before.avro")
    assert (report.written, report.ok, report.not_atomic) == (2, True, ())
    undone = admin.plan_undo(report.before_images[0]).execute(tmp_path / "undo.avro")
    assert (undone.written, undone.ok) == (2, True)
    (found,) = admin.lag("shop")
    assert [(row.partition, row.committed) for row in found.rows] == [(ORDERS, admin.store.fetch("shop")[ORDERS])]


def test_before_images_are_not_imported_and_a_snapshot_is_not_undone(admin: OffsetAdmin, tmp_path: Path) -> None:
    report = admin.plan_set("shop", {ORDERS: 9}).execute(tmp_path / "before.avro")
    with pytest.raises(errors.UsageError, match="before-images"):
        admin.plan_import(report.before_images[0])
    admin.write_snapshot(tmp_path / "all.avro")
    with pytest.raises(errors.MalformedData, match="is a snapshot and holds no before-images"):
        admin.plan_undo(tmp_path / "all.avro")


def test_a_file_that_cannot_be_opened_or_written_is_a_failure_of_the_file(admin: OffsetAdmin, tmp_path: Path) -> None:
    missing = tmp_path / "missing.avro"
    for call in (admin.plan_import, admin.plan_undo):
        with pytest.raises(errors.FileFailure, match="No such file"):
            call(missing)
    (tmp_path / "a file").touch()
    with pytest.raises(errors.FileFailure, match="cannot be written"):
        admin.plan_set("shop", {ORDERS: 9}).execute(tmp_path / "a file" / "before.avro")


def test_the_undo_of_another_store_is_a_usage_error(admin: OffsetAdmin, tmp_path: Path) -> None:
    """The plan would find none of the offsets, and report success."""
    report = admin.plan_set("shop", {ORDERS: 9}).execute(tmp_path / "before.avro")
    (tmp_path / "other.csv").write_text("shop,orders,0,4\n", "utf-8")
    with (
        OffsetAdmin(f"file:{tmp_path / 'other.csv'}") as other,
        pytest.raises(errors.UsageError, match=r"was made in file:.*offsets.csv, which is not file:.*other.csv"),
    ):
        other.plan_undo(report.before_images[0])


def test_a_plan_is_executed_once_but_again_if_its_before_images_could_not_be_written(
    admin: OffsetAdmin, tmp_path: Path
) -> None:
    (tmp_path / "taken.avro").touch()
    plan = admin.plan_set("shop", {ORDERS: 9})
    with pytest.raises(errors.UsageError, match="exists already"):
        plan.execute(tmp_path / "taken.avro")
    assert plan.report is None
    assert plan.execute(tmp_path / "free.avro").written == 1
    with pytest.raises(errors.UsageError, match="executed already"):
        plan.execute(tmp_path / "second.avro")


def test_an_interrupted_edit_names_its_before_images(admin: OffsetAdmin, tmp_path: Path) -> None:
    plan = admin.plan_set("shop", {ORDERS: 9})

    def interrupt(_path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.execute(tmp_path / "before.avro", on_durable=interrupt)
    assert plan.report is not None
    assert plan.report.before_images == (tmp_path / "before.avro",)
    assert plan.report.written == 0
    assert admin.plan_undo(tmp_path / "before.avro").counts.writes == 0


def test_after_close_every_method_is_a_usage_error(admin: OffsetAdmin, tmp_path: Path) -> None:
    plan = admin.plan_set("shop", {ORDERS: 9})
    admin.close()
    admin.close()
    for call in (admin.groups, admin.lag, admin.describe, plan.execute, plan.weaknesses, lambda: list(plan)):
        with pytest.raises(errors.UsageError, match="was closed"):
            call()
    with pytest.raises(errors.UsageError, match="was closed"):
        admin.write_snapshot(tmp_path / "late.avro")


def test_a_plan_that_nothing_refers_to_is_closed(admin: OffsetAdmin) -> None:
    plan = admin.plan_set("shop", {ORDERS: 9})
    assert len(admin._plans) == 1
    del plan
    assert len(admin._plans) == 0


def test_brokers_are_named_as_a_program_names_them(admin: OffsetAdmin) -> None:
    with pytest.raises(errors.UsageError) as caught:
        admin.plan_reset("shop", ToEarliest())
    assert "bootstrap_server=" in caught.value.hint


def test_an_unknown_dual_store_is_an_invalid_uri() -> None:
    with OffsetAdmin("dual:missing", config=ConnectionConfig()) as admin, pytest.raises(errors.InvalidUri):
        admin.groups()


def test_a_text_is_one_group_of_the_options_of_a_plan() -> None:
    options = PlanOptions(groups="shop", topics="orders")  # type: ignore[arg-type]
    assert (options.groups, options.topics) == (("shop",), ("orders",))


def test_a_snapshot_file_as_source_refuses_targets_that_are_ahead() -> None:
    """As ``migrate plan`` does: a file is usually older than the target."""
    assert PlanOptions().for_source("file:a.avro").if_ahead is AheadPolicy.REFUSE
    assert PlanOptions().for_source("zookeeper://h1:2181").if_ahead is None  # decided by evidence
    assert PlanOptions(AheadPolicy.KEEP).for_source("file:a.avro").if_ahead is AheadPolicy.KEEP


def test_edits_in_the_same_millisecond_have_different_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: default_image_path("offsets set"), range(200)))
    assert len(paths) == 200
