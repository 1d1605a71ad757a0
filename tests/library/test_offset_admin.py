"""The checks of `OffsetAdmin` and `Migration` that need no server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from offsetmgr import (
    AheadPolicy,
    ConnectionConfig,
    GroupSelection,
    KafkaCluster,
    OffsetAdmin,
    PlanOptions,
    ToEarliest,
    ToOffset,
    TopicPartition,
    ToTime,
    errors,
)
from offsetmgr.app import groups, offsets
from offsetmgr.app.connections import connect
from offsetmgr.cli.watch import total_row
from offsetmgr.core.model import is_valid_topic_name
from offsetmgr.core.selection import TopicSelection

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def admin(tmp_path: Path) -> OffsetAdmin:
    """An admin of a file with the groups ``shop``, ``shop*`` and ``shopping``."""
    path = tmp_path / "offsets.csv"
    path.write_text("shop,orders,0,4\nshop*,orders,0,5\nshopping,bills,0,6\n", "utf-8")
    return OffsetAdmin(f"file:{path}")


def test_a_name_that_is_a_glob_and_a_group_selects_the_group(admin: OffsetAdmin) -> None:
    assert [found.name for found in admin.lag("shop*")] == ["shop*"]
    assert [found.name for found in admin.lag("shop?*")] == ["shop*", "shopping"]
    assert [found.name for found in admin.plan_delete("shop*")] == ["shop*"]
    assert [found.name for found in admin.plan_delete("*")] == ["shop", "shop*", "shopping"]


WRONG_CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda admin: admin.lag([]), "groups: the selection is empty"),
    (lambda admin: admin.plan_delete("shop", topics=[]), "topics: the selection is empty"),
    (lambda admin: admin.plan_delete(None), "no group is named"),
    (lambda admin: admin.plan_set("shop", {ORDERS: -1}), "is not an offset"),
    (lambda admin: admin.plan_set("shop", {ORDERS: 2**63}), "is not an offset"),
    (lambda admin: admin.plan_set("shop", {ORDERS: "4"}), "'4' is not an offset"),
    (lambda admin: admin.plan_set("shop", {ORDERS: 4.0}), "4.0 is not an offset"),
    (lambda admin: admin.plan_set("shop", {}), "no offset is given"),
    (lambda admin: admin.plan_set("shop", {"orders:0": 4}), "is not a TopicPartition"),
    (lambda admin: admin.plan_set("shop", {("orders", 0): 4}), "is not a TopicPartition"),
    (lambda admin: list(admin.lag(b"shop")), "a name of a group is a str"),
    (lambda admin: list(admin.where(["shop", b"shop"])), "a name of a group is a str"),
    (lambda admin: list(admin.plan_delete([7])), "a name of a group is a str"),
    (lambda admin: admin.plan_copy("shop", "shop"), "both names are the same"),
    # A broker reads -1 as the end of the log and -2 as its start.
    (lambda admin: admin.plan_reset("shop", ToTime(-1)), "not a number of milliseconds"),
    (lambda admin: admin.plan_reset("shop", ToEarliest), "is not a position"),
    (lambda _: ToTime(datetime(2026, 3, 1, tzinfo=UTC)), "not a number of milliseconds"),  # type: ignore[arg-type]
    (lambda _: ToTime.at(datetime(2026, 3, 1)), "has no time zone"),
    (lambda _: ToOffset("5"), "reset with ToOffset: '5' is no int"),  # type: ignore[arg-type]
    (lambda _: ToTime.at(5), "has no time zone"),  # type: ignore[arg-type]
    (lambda admin: admin.plan_set("shop", 5), "offsets 5: are not a mapping"),
    (lambda admin: admin.plan_set("shop", 0), "offsets 0: are not a mapping"),
    (lambda admin: admin.store.commit("shop", {ORDERS: 4.5}), "4.5 is not an offset"),
    (lambda admin: admin.store.commit("shop", {("orders", 0): 4}), "is not a TopicPartition"),
]


@pytest.mark.parametrize(("call", "why"), WRONG_CALLS)
def test_a_wrong_argument_is_a_usage_error_of_the_plan(admin, call: Callable[[OffsetAdmin], object], why: str) -> None:
    """Otherwise the edit would fail while it is executed, or an empty selection would mean all groups."""
    with pytest.raises(errors.UsageError, match=why):
        call(admin)


def test_an_import_of_no_groups_is_a_usage_error(admin: OffsetAdmin, tmp_path: Path) -> None:
    admin.write_snapshot(tmp_path / "all.avro")
    with pytest.raises(errors.UsageError, match="groups: the selection is empty"):
        admin.plan_import(tmp_path / "all.avro", groups=[])


def test_topics_are_a_text_a_partition_or_several_of_them(admin: OffsetAdmin) -> None:
    for topics in ("orders", ["orders"], ORDERS, [ORDERS], "orders:0"):
        assert admin.plan_delete("shop", topics).counts.writes == 1
    with pytest.raises(errors.GroupNotFound):
        admin.plan_copy("shop", "new", "bills")


def test_the_lag_of_a_group_is_unknown_and_not_zero_if_one_lag_is(admin: OffsetAdmin) -> None:
    (group,) = admin.lag("shop")  # no brokers are known
    assert (group.rows[0].note, group.total, group.largest) == ("no brokers are known", None, None)
    error = errors.OffsetMgrError("not readable")
    assert group._replace(rows=[group.rows[0]._replace(lag=0), group.rows[0]._replace(error=error)]).failure is error
    assert total_row("shop", []) == ("shop", 0, None, None, 0)


def test_a_snapshot_that_cannot_be_complete_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "offsets.csv").write_text("broken,orders,0,-2\n", "utf-8")
    with OffsetAdmin(f"file:{tmp_path}/offsets.csv") as admin:
        with pytest.raises(errors.UnsupportedOperation, match=r"csv was not written: group 'broken' is not"):
            admin.write_snapshot(tmp_path / "out.csv")
        assert isinstance(next(admin.lag()).failure, errors.CorruptData)


def test_functions_take_names_in_place_of_selections(tmp_path: Path) -> None:
    (tmp_path / "offsets.csv").write_text("shop,orders,0,4\n", "utf-8")
    with connect(f"file:{tmp_path}/offsets.csv") as connections:
        for name in ("shop", ["shop"]):
            assert [one.name for one in offsets.lag(connections, name, topics="orders")] == ["shop"]  # type: ignore[arg-type]
            assert groups.delete(connections, name).counts.writes == 1  # type: ignore[arg-type]
        with pytest.raises(errors.UsageError, match="no group is named"):
            groups.delete(connections, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="positional"):
            groups.delete(connections, "shop", *range(50))  # type: ignore[arg-type]


def test_an_edit_that_is_refused_raises_its_report(admin: OffsetAdmin, tmp_path: Path) -> None:
    plan = admin.plan_set("shop", {ORDERS: 9})
    (tmp_path / "offsets.csv").write_text("shop,orders,0,5\n", "utf-8")
    with pytest.raises(errors.GroupsFailed, match="offsets set: 1 group failed") as raised:
        plan.execute(tmp_path / "before.avro")
    report = raised.value.report
    assert str(raised.value).count("group shop") == 1 and raised.value.hint == raised.value.group_failures["shop"].hint
    assert report is plan.report and isinstance(raised.value.group_failures["shop"], errors.Conflict)
    assert report is not None and report.before_images == (tmp_path / "before.avro",)
    with admin.plan_import(tmp_path / "offsets.csv") as refused, pytest.raises(LookupError):
        admin.plan_undo_of("missing")
    assert refused.execute(raise_on_failure=False).ok and issubclass(errors.OperationNotFound, LookupError)


def test_a_topic_without_an_offset_is_an_error_of_the_lag(admin: OffsetAdmin) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition, match="topic missing"):
        list(admin.lag("shop", "missing"))
    with pytest.raises(LookupError, match="topic missing"):
        list(admin.describe(None, "missing"))


def test_before_images_are_not_imported_and_a_snapshot_is_not_undone(admin: OffsetAdmin, tmp_path: Path) -> None:
    report = admin.plan_set("shop", {ORDERS: 9}).execute(tmp_path / "before.avro")
    with pytest.raises(ValueError, match="before-images") as raised:
        admin.plan_import(report.before_images[0])
    assert isinstance(raised.value, errors.UsageError)
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


def test_a_plan_is_executed_once_but_again_if_its_before_images_could_not_be_written(admin, tmp_path) -> None:
    (tmp_path / "taken.avro").touch()
    plan = admin.plan_set("shop", {ORDERS: 9})
    with pytest.raises(errors.UsageError, match="exists already"):
        plan.execute(tmp_path / "taken.avro")
    assert plan.report is None
    assert plan.execute(tmp_path / "free.avro").written == 1
    with pytest.raises(errors.UsageError, match="executed already"):
        plan.execute(tmp_path / "second.avro")


def test_after_close_every_method_is_a_usage_error(admin: OffsetAdmin, tmp_path: Path) -> None:
    plan = admin.plan_set("shop", {ORDERS: 9})
    admin.close()
    admin.close()
    for call in (admin.groups, admin.lag, admin.describe, plan.execute, plan.weaknesses, lambda: list(plan)):
        with pytest.raises(errors.UsageError, match="was closed"):
            call()
    with pytest.raises(errors.UsageError, match="was closed"):
        admin.write_snapshot(tmp_path / "late.avro")


def test_brokers_are_named_as_a_program_names_them(admin: OffsetAdmin) -> None:
    with pytest.raises(errors.UsageError) as caught:
        admin.plan_reset("shop", ToEarliest())
    assert "bootstrap_server=" in caught.value.hint


def test_an_unknown_dual_store_is_an_invalid_uri() -> None:
    with OffsetAdmin("dual:missing", config=ConnectionConfig()) as admin, pytest.raises(errors.InvalidUri):
        admin.groups()


def test_a_text_is_one_group_of_the_options_of_a_plan() -> None:
    options = PlanOptions(groups="shop", topics="orders")  # type: ignore[arg-type]
    assert (options.groups, options.topics) == (GroupSelection("shop"), TopicSelection.of("orders"))


def test_a_snapshot_file_as_source_refuses_targets_that_are_ahead() -> None:
    """As ``migrate plan`` does: a file is usually older than the target."""
    assert PlanOptions().for_source("file:a.avro").if_ahead is AheadPolicy.REFUSE
    assert PlanOptions().for_source("zookeeper://h1:2181").if_ahead is None  # decided by evidence
    assert PlanOptions(AheadPolicy.KEEP).for_source("file:a.avro").if_ahead is AheadPolicy.KEEP


def test_edits_in_the_same_millisecond_have_different_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def edit(number: int) -> Path:
        file = tmp_path / f"{number}.csv"
        file.write_text("shop,orders,0,4\n")
        with OffsetAdmin(f"file:{file}") as one:
            return one.plan_set("shop", {ORDERS: 5}).execute().before_images[0]

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(edit, range(40)))) == 40


# Topic names that Kafka does not allow; `manager serve` accepts commits for them
IMPOSSIBLE = ["", ".", "..", "a b", "a/b", "ü", "a\n", "a\udc80", "x" * 250]
PARTITIONS = [TopicPartition(name, 0) for name in IMPOSSIBLE]


@pytest.mark.parametrize("name", [*IMPOSSIBLE, "a", "...", "A.b_c-9", "__consumer_offsets", "x" * 249])
def test_names_that_a_topic_may_have(name: str) -> None:
    assert is_valid_topic_name(name) == (name not in IMPOSSIBLE)


def test_an_invalid_topic_name_is_an_error_without_a_request() -> None:
    with KafkaCluster("127.0.0.1:1") as cluster:
        found = cluster.log_ranges(PARTITIONS)
        at_times = cluster.offsets_for_time(PARTITIONS, 0)
        assert cluster.topics(IMPOSSIBLE) == {}

    assert list(found) == PARTITIONS
    assert {type(outcome) for outcome in (*found.values(), *at_times.values())} == {errors.UnknownTopicOrPartition}
    assert str(found[TopicPartition("a b", 0)]) == "a b-0: no topic of Kafka can have this name"


def test_groups_are_renamed_and_deleted_and_the_log_undoes_that(admin: OffsetAdmin) -> None:
    renamed = admin.plan_rename("shop", "store").execute()
    assert renamed.ok and [call.verb for call in renamed.undo] == ["offsets import"] * 2
    assert renamed.operations == tuple(one.id for one in admin.operations())[-2:]
    assert "shop" not in admin.groups()
    assert admin.plan_delete_groups("store").execute().written == 1
    deleted = admin.operations("store")[-1]
    (undo,) = admin.plan_undo_of(deleted.id)
    assert undo.execute().written == 1 and undo.report is not None
    assert (admin.operations("store")[-1].undoes, "store" in admin.groups()) == (deleted.id, True)
    with pytest.raises(errors.UsageError, match="undid it already"):
        admin.plan_undo_of(deleted.id)
    assert admin.plan_undo(undo.report.before_images[0]).execute().ok
    assert admin.operations("store")[-1].undoes == undo.report.operations[0]
