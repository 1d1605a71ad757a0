"""The data rule "dual commit: Kafka first", case by case.

The primary is written first, and the secondary only for partitions that the primary accepted. A fetch returns the
larger offset of both.
"""

from typing import Any
from urllib.parse import quote

import pytest
from scripted_group import ScriptedClock

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core import errors
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.stores import dual_policy
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.uri import open_store
from offsetmgr.testing.faulty_store import FaultyStore
from offsetmgr.testing.memory import MemoryStore

T0, T1, T2 = ALL = tuple(TopicPartition("t", p) for p in range(3))


class SleepRecorder(ScriptedClock):
    """Advances in `sleep`, and records the durations."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        super().sleep(seconds)


class Pair:
    """A dual store over two in-memory stores with injected faults."""

    def __init__(self) -> None:
        self.kafka, self.zookeeper = MemoryStore("kafka"), MemoryStore("zookeeper")
        self.primary, self.secondary = FaultyStore(self.kafka), FaultyStore(self.zookeeper)
        self.clock = SleepRecorder()
        self.dual = DualStore(self.primary, self.secondary, clock=self.clock)
        self.dual.cross_cluster_check()  # compares the clusters while both stores are reachable

    def put(self, kafka: dict[TopicPartition, int], zookeeper: dict[TopicPartition, int]) -> None:
        for store, values in ((self.kafka, kafka), (self.zookeeper, zookeeper)):
            store.data["g"] = {tp: Committed(offset, version=0) for tp, offset in values.items()}

    def commit(self, offset: int, tp: TopicPartition = T0, **options: Any) -> GroupEditResult:
        return self.dual.commit("g", {tp: OffsetAndMetadata(offset)}, **options)

    @property
    def offsets(self) -> tuple[dict[int, int], dict[int, int]]:
        first, second = (
            {tp.partition: c.offset for tp, c in store.data.get("g", {}).items()}
            for store in (self.kafka, self.zookeeper)
        )
        return first, second


@pytest.fixture
def pair() -> Pair:
    return Pair()


# --- reading ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_read_error_of_one_store_is_never_replaced_by_the_value_of_the_other(pair: Pair, side: str) -> None:
    pair.put({T0: 10, T1: 5}, {T0: 7, T1: 6})
    getattr(pair, side).fail("read", errors.CorruptData("t-0", "not a number"), partition=T0)
    with pytest.raises(errors.PartialFailure) as caught:
        pair.dual.fetch("g")
    assert set(caught.value.failures) == {T0}
    assert caught.value.successes == {T1: Committed(6)}
    (scanned,) = pair.dual.scan(["g"])
    assert (dict(scanned.offsets), set(scanned.errors)) == ({T1: Committed(6)}, {T0})


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_store_that_cannot_be_read_at_all_is_an_error_and_not_the_other_store(pair: Pair, side: str) -> None:
    pair.put({T0: 10}, {T0: 7})
    getattr(pair, side).fail("read")
    with pytest.raises(errors.Unreachable):
        pair.dual.fetch("g")
    (scanned,) = pair.dual.scan(["g"])
    assert isinstance(scanned.error, errors.Unreachable)
    with pytest.raises(errors.Unreachable):
        list(pair.dual.groups())


def test_groups_are_those_of_both_each_once_and_scan_reads_the_names_in_batches(pair: Pair) -> None:
    pair.kafka.data = {"a": {}, "b": {}}
    pair.zookeeper.data = {"b": {}, "c": {}}
    assert sorted(pair.dual.groups()) == ["a", "b", "c"]
    names = iter([f"g{n}" for n in range(1000)])
    scan = pair.dual.scan(names)
    next(scan)
    assert next(names)  # not all names were read
    assert sum(1 for _ in scan) == 998


# --- committing -------------------------------------------------------------------------------------


def test_a_commit_that_only_the_secondary_lacks_is_written(pair: Pair) -> None:
    pair.put({T0: 100}, {T0: 50})
    assert pair.commit(100).outcomes[T0].status is EditStatus.WRITTEN
    assert pair.offsets == ({0: 100}, {0: 100})


def test_the_secondary_gets_only_partitions_that_the_primary_accepted_and_after_it(pair: Pair) -> None:
    order: list[str] = []
    for name, store in (("kafka", pair.kafka), ("zookeeper", pair.zookeeper)):
        edit = store.edit
        store.edit = lambda edits, name=name, edit=edit: [order.append(name), *edit(edits)][1:]  # type: ignore
    pair.primary.fail("write", errors.NotAuthorized("t-1", "no"), partition=T1)
    with pytest.raises(errors.PartialFailure) as caught:
        pair.dual.commit("g", {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    assert set(caught.value.failures) == {T1}
    assert pair.offsets == ({0: 5}, {0: 5})
    assert order == ["kafka", "zookeeper"]


def test_a_deliberate_rewind_and_a_deletion_write_both(pair: Pair) -> None:
    pair.put({T0: 9, T1: 1}, {T0: 5, T2: 2})
    pair.commit(3, allow_rewind=True)
    assert pair.dual.fetch("g")[T0] == Committed(3)
    result = pair.dual.delete("g")
    before = {T0: Committed(3), T1: Committed(1), T2: Committed(2)}
    assert {tp: o.before for tp, o in result.outcomes.items()} == before
    assert pair.offsets == ({}, {})


def test_the_expected_value_of_a_change_is_compared_with_the_result_of_fetch(pair: Pair) -> None:
    pair.put({T0: 5}, {T0: 9})
    current = pair.dual.fetch("g")[T0]
    (wrong,) = pair.dual.edit([GroupEdit("g", {T0: Change(OffsetAndMetadata(12), expected=Committed(5))})])
    (right,) = pair.dual.edit([GroupEdit("g", {T0: Change(OffsetAndMetadata(12), expected=current)})])
    error = wrong.outcomes[T0].error
    assert isinstance(error, errors.Conflict)
    assert error.actual == Committed(9)
    assert right.outcomes[T0].status is EditStatus.WRITTEN
    assert not right.atomic
    assert pair.offsets == ({0: 12}, {0: 12})


# --- a secondary that fails -------------------------------------------------------------------------


def test_a_secondary_failure_is_reported_retried_kept_and_never_a_lost_commit(pair: Pair) -> None:
    pair.put({T0: 5}, {T0: 5})
    pair.secondary.fail("write")
    result = pair.commit(8)
    assert result.outcomes[T0].status is EditStatus.WRITTEN
    assert isinstance(result.secondary[T0], errors.Unreachable)
    assert pair.clock.slept == [0.1, 0.1]  # three attempts
    assert pair.dual.pending["g"][T0].after == OffsetAndMetadata(8)
    assert pair.offsets == ({0: 8}, {0: 5})
    assert pair.dual.fetch("g")[T0] == Committed(8)


@pytest.mark.parametrize("lost", [False, True])
def test_a_short_failure_of_the_secondary_is_gone_by_the_second_attempt(pair: Pair, lost: bool) -> None:
    """If the response was lost, the write of the first attempt is no conflict for the second one."""
    pair.put({T0: 100}, {T0: 100})
    pair.secondary.fail("write", after=lost, times=1)
    assert dict(pair.commit(50, allow_rewind=True).secondary) == {}
    assert pair.dual.pending == {}
    assert pair.offsets == ({0: 50}, {0: 50})


def test_a_permanent_error_of_the_secondary_is_not_retried_at_once(pair: Pair) -> None:
    pair.secondary.fail("write", errors.NotAuthorized("t-0", "no"), partition=T0)
    result = pair.dual.commit("g", {T0: OffsetAndMetadata(8), T1: OffsetAndMetadata(9)})
    assert set(result.secondary) == {T0}
    assert pair.clock.slept == []
    assert set(pair.dual.pending["g"]) == {T0}
    assert pair.offsets == ({0: 8, 1: 9}, {1: 9})


def test_a_second_attempt_for_one_partition_does_not_forget_the_error_of_another(pair: Pair) -> None:
    pair.put({}, {T1: 7})
    pair.secondary.fail("read", times=1).fail("write", partition=T0)
    result = pair.dual.commit("g", {T0: OffsetAndMetadata(1), T1: OffsetAndMetadata(1)})
    assert {tp: type(error) for tp, error in result.secondary.items()} == {
        T0: errors.Unreachable,
        T1: errors.RewindRefused,
    }


def test_a_commit_goes_to_the_primary_while_the_secondary_cannot_even_be_read(pair: Pair) -> None:
    pair.put({T0: 5, T1: 5}, {T0: 7})
    pair.secondary.fail("read").fail("write")
    result = pair.commit(6)
    assert result.outcomes[T0].status is EditStatus.WRITTEN
    assert result.outcomes[T0].before is None  # the larger of both offsets is unknown
    pair.secondary.heal()
    assert isinstance(pair.dual.flush()["g"][T0], errors.RewindRefused)  # it was ahead, and stays ahead
    assert pair.dual.pending == {}


def test_a_pending_rewind_never_undoes_later_commits_of_other_clients(pair: Pair) -> None:
    pair.put({T0: 100, T1: 100}, {T0: 100, T1: 100})
    pair.secondary.fail("write")
    pair.dual.commit("g", {T0: OffsetAndMetadata(50), T1: OffsetAndMetadata(50)}, allow_rewind=True)
    pair.secondary.heal()
    pair.zookeeper.commit("g", {T0: OffsetAndMetadata(120)})
    pair.kafka.commit("g", {T1: OffsetAndMetadata(70)})
    failed = pair.dual.flush()
    assert {tp: type(error) for tp, error in failed["g"].items()} == {T0: errors.Conflict, T1: errors.Conflict}
    assert pair.offsets == ({0: 50, 1: 70}, {0: 120, 1: 100})
    assert pair.dual.pending == {}


def test_an_error_of_closing_one_store_leaves_the_other_closed(pair: Pair) -> None:
    closed: list[str] = []

    def fail() -> None:
        raise errors.OffsetMgrError("closing", "failed")

    pair.kafka.close = fail  # type: ignore[method-assign]
    pair.zookeeper.close = lambda: closed.append("zookeeper")  # type: ignore[method-assign]
    with pytest.raises(errors.OffsetMgrError):
        pair.dual.close()
    assert closed == ["zookeeper"]


# --- many groups ------------------------------------------------------------------------------------


def test_the_parts_that_fail_are_reported_group_by_group_and_a_second_edit_sees_the_first(pair: Pair) -> None:
    pair.primary.fail("write", errors.NotAuthorized("group g1", "no"), group="g1")
    pair.secondary.fail("write", errors.NotAuthorized("group g2", "no"), group="g2")
    edits = [GroupEdit(f"g{n}", {T0: Change(OffsetAndMetadata(1))}) for n in range(4)]
    again = GroupEdit("g3", {T0: Change(OffsetAndMetadata(2), expected=Committed(1))})
    results = list(pair.dual.edit([*edits, again]))
    written, failed = EditStatus.WRITTEN, EditStatus.FAILED
    assert [r.outcomes[T0].status for r in results] == [written, failed, written, written, written]
    assert {r.group for r in results if r.secondary} == set(pair.dual.pending) == {"g2"}


# --- two clusters ------------------------------------------------------------------------------------


def _foreign(translate: OffsetTranslation | None = None) -> tuple[MemoryStore, MemoryStore, DualStore]:
    first, second = MemoryStore("first", cluster="A"), MemoryStore("second", cluster="B")
    return first, second, DualStore(first, second, translate=translate)


def test_two_stores_of_different_clusters_are_refused_at_the_first_call_and_nothing_is_written() -> None:
    first, second, dual = _foreign()
    commit = lambda: dual.commit("g", {T0: OffsetAndMetadata(1)})  # noqa: E731
    for call in (lambda: dual.fetch("g"), lambda: list(dual.scan(["g"])), commit, dual.log_origin):
        with pytest.raises(
            errors.OtherCluster, match="the primary belongs to cluster A, the secondary to B"
        ) as refused:
            call()
        assert "translate=none" in refused.value.hint
    assert (first.data, second.data) == ({}, {})


def test_with_translate_none_both_are_written_and_no_leader_epoch_crosses_to_the_other_cluster() -> None:
    same = MemoryStore("first"), MemoryStore("second")
    DualStore(*same).commit("g", {T0: OffsetAndMetadata(7, "", 3)})
    assert [store.data["g"][T0].leader_epoch for store in same] == [3, 3]
    first, second, dual = _foreign(OffsetTranslation.NONE)
    dual.commit("g", {T0: OffsetAndMetadata(7, "m", 3)})
    assert (first.data["g"][T0].leader_epoch, second.data["g"][T0].leader_epoch) == (3, None)
    assert second.data["g"][T0].offset == 7
    assert dual.log_origin() == first.log_origin()
    assert dual.uri.endswith("&translate=none")
    second.commit("g", {T0: OffsetAndMetadata(9, "m", 8)})
    found = dual.fetch("g")[T0]
    assert found == second.data["g"][T0]._replace(leader_epoch=None, version=None)
    (scanned,) = dual.scan(["g"])
    assert (scanned.offsets[T0].offset, scanned.offsets[T0].leader_epoch) == (9, None)


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_until_both_clusters_are_known_nothing_is_written_and_then_they_are_compared_once(side: str) -> None:
    primary, secondary = FaultyStore(MemoryStore("first")), FaultyStore(MemoryStore("second"))
    dual = DualStore(primary, secondary)
    (primary if side == "primary" else secondary).fail("read")
    (failed,) = dual.edit([GroupEdit("g", {T0: Change(OffsetAndMetadata(1))})])
    with pytest.raises(errors.Unreachable):
        dual.fetch("g")
    (scanned,) = dual.scan(["g"])
    assert isinstance(failed.outcomes[T0].error, errors.Unreachable)
    assert isinstance(scanned.error, errors.Unreachable)
    assert [store.store.data for store in (primary, secondary)] == [{}, {}]  # type: ignore[attr-defined]
    primary.heal()
    secondary.heal()
    dual.commit("g", {T0: OffsetAndMetadata(1)})
    compared = dual.cross_cluster_check()
    dual.fetch("g")
    assert dual.cross_cluster_check() is compared


@pytest.mark.parametrize("named", [True, False])
def test_translate_none_is_read_from_the_uri_and_from_the_config_file(named: bool) -> None:
    settings = {"primary": "kafka://h:9092", "secondary": "zookeeper://h:2181"}
    config = ConnectionConfig(stores={"both": {**settings, "translate": "none"}})
    uri = "dual:?" + "&".join(f"{name}={quote(one, safe='')}" for name, one in settings.items()) + "&translate=none"
    assert open_store("dual:both" if named else uri, config).uri.endswith("&translate=none")
    with pytest.raises(errors.InvalidUri, match="unknown translation 'all'"):
        open_store(uri.replace("translate=none", "translate=all"))
    with pytest.raises(errors.InvalidUri, match="unknown translation 'all'"):
        open_store("dual:both", ConnectionConfig(stores={"both": {**settings, "translate": "all"}}))


# --- the rules as functions of the values in both stores ---------------------------------------------

FIVE = OffsetAndMetadata(5)


def test_a_write_that_can_only_raise_the_secondary_has_no_condition() -> None:
    assert dual_policy.secondary_change(FIVE, Committed(9), may_lower=False) == Change(FIVE)


@pytest.mark.parametrize(
    ("after", "error", "accepted"),
    [
        (None, errors.GroupNotFound("group g", "it has no offsets"), True),
        (FIVE, errors.GroupNotFound("group g", "it has no offsets"), False),
        (None, errors.Conflict("t-0", "changed"), False),
    ],
)
def test_a_deletion_counts_as_accepted_if_the_primary_has_no_such_group(after, error, accepted):
    outcome = ChangeOutcome(EditStatus.FAILED, ABSENT, error)
    assert dual_policy.accepted_by_primary(Change(after), outcome) is accepted


def test_an_unreadable_value_is_ahead_of_nothing_and_hides_no_other() -> None:
    broken = errors.Unreachable("t-0", "no answer")
    assert dual_policy.partitions_ahead({T0: Committed(3)}, {T0: broken}) == {}
    assert dual_policy.partitions_ahead({T0: broken}, {T0: Committed(3)}) == {T0: (None, 3)}
