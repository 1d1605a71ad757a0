"""Large streams of edits on a real ZooKeeper: unusual changes among common ones, and concurrent changes."""

from collections.abc import Callable, Iterator

import pytest
from committed_offsets import offsets
from cutting_proxy import TRANSACTION, CuttingProxy

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict, CorruptData, RewindRefused, Unreachable, UsageError
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers

PARTITIONS = [TopicPartition("orders", n) for n in range(90)]
GROUPS_IN_ONE_TRANSACTION = 5
GROUPS_PER_BATCH = 10 * GROUPS_IN_ONE_TRANSACTION
"""At most so many groups are written at once."""


def fill(store: ZookeeperStore, groups: list[str], offset: int = 5) -> None:
    change = Change(OffsetAndMetadata(offset))
    for result in store.edit(GroupEdit(group, dict.fromkeys(PARTITIONS, change)) for group in groups):
        assert not result.failures


def moves(store: ZookeeperStore, groups: list[str]) -> list[GroupEdit]:
    """Edits that set every partition to 6 if its present offset has not changed since a scan."""
    six = OffsetAndMetadata(6)
    return [
        GroupEdit(found.name, {tp: Change(six, now) for tp, now in sorted(found.offsets.items())})
        for found in store.scan(groups)
    ]


def committed(store: ZookeeperStore, group: str) -> dict[int, tuple[int, int | None]]:
    """Partition of the topic -> offset and version."""
    found = store.fetch(group, PARTITIONS)
    return {tp.partition: (o.offset, o.version) for tp, o in found.items() if isinstance(o, Committed)}


def statuses(results: list[GroupEditResult]) -> set[EditStatus]:
    return {outcome.status for result in results for outcome in result.outcomes.values()}


def before_transactions(store: ZookeeperStore, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Calls ``happens`` once, after the nodes were read and before the first transactions are sent."""
    begin = store.session.begin_transactions
    events = iter([happens])

    def first(batches: object) -> object:
        for event in events:
            event()
        return begin(batches)  # type: ignore[arg-type]

    monkeypatch.setattr(store.session, "begin_transactions", first)


def test_a_stream_longer_than_one_batch_keeps_its_order_and_a_second_edit_sees_the_first(zookeeper, kazoo, unique):
    kazoo.create(f"/{unique}")
    groups = [f"g{n:03}" for n in range(3 * GROUPS_PER_BATCH)]
    with ZookeeperStore(f"{zookeeper.connect}/{unique}", config=ConnectionConfig(timeout_ms=20_000)) as store:
        fill(store, groups)
        scanned = {found.name: found.offsets for found in store.scan(groups)}
        again = Change(OffsetAndMetadata(7), expected=Committed(6, version=1))
        *results, last = store.edit([*moves(store, groups), GroupEdit(groups[0], {PARTITIONS[0]: again})])
        assert statuses([last]) == {EditStatus.WRITTEN}
        assert committed(store, groups.pop(0))[0] == (7, 2)
        assert [result.group for result in results] == list(scanned)
        assert statuses(results) == {EditStatus.WRITTEN}
        assert all(list(result.outcomes) == PARTITIONS for result in results)
        for result in results:
            assert {tp: outcome.before for tp, outcome in result.outcomes.items()} == scanned[result.group]
        for group in groups:
            assert committed(store, group) == dict.fromkeys(range(90), (6, 1))


def test_every_kind_of_change_among_common_ones_has_its_own_outcome(zk_store, kazoo, unique):
    groups = [f"{unique}-{n}" for n in range(10)]
    fill(zk_store, groups)
    kazoo.set(f"/consumers/{groups[3]}/offsets/orders/10", b"junk")
    kazoo.set(f"/consumers/{groups[3]}/offsets/orders/11", b"7")
    new, impossible = TopicPartition("new-topic", 0), TopicPartition("a/b", 0)
    edits = [GroupEdit(group, dict.fromkeys(PARTITIONS, Change(OffsetAndMetadata(6)))) for group in groups]
    odd = {
        PARTITIONS[0]: Change(OffsetAndMetadata(6), expected=Committed(5)),  # common, without a version
        PARTITIONS[1]: Change(None),
        impossible: Change(OffsetAndMetadata(6)),
        PARTITIONS[2]: Change(OffsetAndMetadata(4)),
        PARTITIONS[3]: Change(OffsetAndMetadata(4), allow_rewind=True),
        new: Change(OffsetAndMetadata(1), expected=ABSENT),
        PARTITIONS[4]: Change(OffsetAndMetadata(5)),
        PARTITIONS[5]: Change(OffsetAndMetadata(6), expected=Committed(5, version=3)),
        PARTITIONS[6]: Change(OffsetAndMetadata(6), expected=ABSENT),
        PARTITIONS[7]: Change(OffsetAndMetadata(-1)),
        PARTITIONS[10]: Change(OffsetAndMetadata(6)),
        PARTITIONS[11]: Change(OffsetAndMetadata(6), expected=Committed(5)),
    }
    edits[3] = GroupEdit(groups[3], odd)

    results = list(zk_store.edit(edits))

    assert [result.group for result in results] == groups
    assert statuses(results[:3] + results[4:]) == {EditStatus.WRITTEN}
    outcomes = results[3].outcomes
    assert list(outcomes) == list(odd)
    assert {tp for tp, outcome in outcomes.items() if outcome.status is EditStatus.WRITTEN} == {
        *(PARTITIONS[n] for n in (0, 1, 3)),
        new,
    }
    assert outcomes[PARTITIONS[4]].status is EditStatus.UNCHANGED
    assert {tp: type(error) for tp, error in results[3].failures.items()} == {
        impossible: UsageError,
        PARTITIONS[2]: RewindRefused,
        PARTITIONS[5]: Conflict,
        PARTITIONS[6]: Conflict,
        PARTITIONS[7]: UsageError,
        PARTITIONS[10]: CorruptData,
        PARTITIONS[11]: Conflict,
    }
    assert kazoo.get(f"/consumers/{groups[3]}/offsets/orders/10")[0] == b"junk"
    kazoo.set(f"/consumers/{groups[3]}/offsets/orders/10", b"5")
    found = committed(zk_store, groups[3])
    assert [found.get(n) for n in range(8)] == [(6, 1), None, (5, 0), (4, 1), *[(5, 0)] * 4]
    assert zk_store.fetch(groups[3], [new])[new] != ABSENT


def test_a_node_that_others_changed_after_the_scan_is_not_overwritten(zk_store, kazoo, unique):
    groups = [f"{unique}-{n}" for n in range(10)]
    fill(zk_store, groups)
    edits = moves(zk_store, groups)
    node = f"/consumers/{groups[4]}/offsets/orders/"
    kazoo.delete(f"{node}7")
    kazoo.create(f"{node}7", b"99")  # at version 0, like the node that the edit is based on
    kazoo.delete(f"{node}8")
    kazoo.set(f"{node}9", b"5")  # the same offset, committed once more
    results = list(zk_store.edit(edits))
    failures = results[4].failures
    assert set(failures) == set(PARTITIONS[7:10])
    assert {type(error) for error in failures.values()} == {Conflict}
    actual = [getattr(failures[tp], "actual", None) for tp in PARTITIONS[7:10]]
    assert [one.offset if isinstance(one, Committed) else one for one in actual] == [99, ABSENT, 5]
    assert all(not result.failures for result in results if result.group != groups[4])
    assert committed(zk_store, groups[4]) == dict.fromkeys(set(range(90)) - {8}, (6, 1)) | {7: (99, 0), 9: (5, 1)}


def test_a_group_deleted_and_recreated_after_the_scan_keeps_its_new_offsets(zk_store, kazoo, unique):
    groups = [f"{unique}-{n}" for n in range(10)]
    fill(zk_store, groups)
    edits = moves(zk_store, groups)
    kazoo.delete(f"/consumers/{groups[4]}", recursive=True)
    fill(zk_store, [groups[4]], offset=3)  # each node at version 0, as it was
    kazoo.delete(f"/consumers/{groups[5]}", recursive=True)
    results = list(zk_store.edit(edits))
    assert {type(error) for error in results[4].failures.values()} == {Conflict}
    assert {type(error) for error in results[5].failures.values()} == {Conflict}
    assert (len(results[4].failures), len(results[5].failures)) == (90, 90)
    assert all(not result.failures for result in [*results[:4], *results[6:]])
    assert committed(zk_store, groups[4]) == dict.fromkeys(range(90), (3, 0))
    assert committed(zk_store, groups[5]) == {}


def test_only_partitions_that_change_between_read_and_write_fail(zk_store, kazoo, unique, monkeypatch):
    groups = [f"{unique}-{n}" for n in range(10)]
    fill(zk_store, groups)
    edits = moves(zk_store, groups)

    def others() -> None:
        kazoo.set(f"/consumers/{groups[0]}/offsets/orders/3", b"50")
        kazoo.set(f"/consumers/{groups[0]}/offsets/orders/4", b"4")
        kazoo.delete(f"/consumers/{groups[9]}/offsets/orders/89")

    before_transactions(zk_store, monkeypatch, others)
    results = list(zk_store.edit(edits))
    assert set(results[0].failures) == {PARTITIONS[3], PARTITIONS[4]}
    assert set(results[9].failures) == {PARTITIONS[89]}
    assert {type(error) for result in results for error in result.failures.values()} == {Conflict}
    assert all(not result.failures for result in results[1:9])
    assert committed(zk_store, groups[0]) == dict.fromkeys(range(90), (6, 1)) | {3: (50, 1), 4: (4, 1)}
    assert committed(zk_store, groups[9]) == dict.fromkeys(range(89), (6, 1))


@pytest.mark.parametrize("deliver", [False, True], ids=["request lost", "response lost"])
def test_a_connection_lost_at_a_transaction_leaves_everything_written_once(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, zk_store: ZookeeperStore, unique: str, deliver: bool
) -> None:
    groups = [f"{unique}-{n}" for n in range(20)]
    fill(zk_store, groups)
    edits = moves(through_proxy, groups)
    proxy.cut(TRANSACTION, deliver=deliver)
    results = list(through_proxy.edit(edits))
    assert proxy.cuts == 1
    assert statuses(results) == {EditStatus.WRITTEN}
    assert {outcome.before for result in results for outcome in result.outcomes.values()} == {
        change.expected for edit in edits for change in edit.changes.values()
    }
    for group in groups:
        assert committed(zk_store, group) == dict.fromkeys(range(90), (6, 1))


def test_a_connection_lost_between_read_and_write_loses_nothing(proxy, through_proxy, unique, monkeypatch):
    groups = [f"{unique}-{n}" for n in range(10)]
    fill(through_proxy, groups)
    edits = moves(through_proxy, groups)
    before_transactions(through_proxy, monkeypatch, proxy.cut_now)
    results = list(through_proxy.edit(edits))
    assert statuses(results) == {EditStatus.WRITTEN}
    for group in groups:
        assert committed(through_proxy, group) == dict.fromkeys(range(90), (6, 1))


def test_the_outcome_of_a_transaction_is_unknown_if_no_node_shows_it(proxy, through_proxy, kazoo, unique):
    groups = [f"{unique}-{n}" for n in range(GROUPS_IN_ONE_TRANSACTION)]
    fill(through_proxy, groups)
    edits = moves(through_proxy, groups)

    def others() -> None:
        transaction = kazoo.transaction()
        for group in groups:
            for tp in PARTITIONS:
                transaction.set_data(f"/consumers/{group}/offsets/orders/{tp.partition}", b"99")
        assert len(transaction.commit()) == 450

    proxy.cut(TRANSACTION, deliver=True, between=others)
    results = list(through_proxy.edit(edits))
    errors = [error for result in results for error in result.failures.values()]
    assert len(errors) == 450
    assert {type(error) for error in errors} == {Unreachable}
    assert all("outcome is unknown" in str(error) for error in errors)
    assert {offset for group in groups for offset, _ in committed(through_proxy, group).values()} == {99}


def test_if_the_source_of_edits_fails_the_results_of_sent_edits_come_first(zk_store, unique):
    groups = [f"{unique}-{n:03}" for n in range(3 * GROUPS_PER_BATCH)]
    fill(zk_store, groups)
    edits = moves(zk_store, groups)

    def failing() -> Iterator[GroupEdit]:
        yield from edits[:-10]
        raise UsageError("the file", "ends here")

    results: list[GroupEditResult] = []
    with pytest.raises(UsageError, match="ends here"):
        for result in zk_store.edit(failing()):
            results.append(result)
    written = {result.group for result in results}
    assert statuses(results) == {EditStatus.WRITTEN}
    assert [result.group for result in results] == groups[: len(results)]
    assert len(results) > 0
    for group in groups:
        assert {offset for offset, _ in committed(zk_store, group).values()} == {6 if group in written else 5}


def test_twenty_thousand_groups(own_server: ZooKeeperServer) -> None:
    with ZookeeperStore(own_server.connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        edits = (GroupEdit(f"group-{n:05}", {PARTITIONS[0]: Change(OffsetAndMetadata(n))}) for n in range(20_000))
        statuses = {o.status for result in store.edit(edits) for o in result.outcomes.values()}
        names = list(store.groups())
        found = {s.name: offsets(dict(s.offsets)) for s in store.scan(names)}
    assert statuses == {EditStatus.WRITTEN}
    assert sorted(names) == [f"group-{n:05}" for n in range(20_000)]
    assert found == {f"group-{n:05}": {PARTITIONS[0]: n} for n in range(20_000)}
