"""`StoreContract`: tests of the contract of `OffsetStore`. Users can test their own stores with them.

The tests check only the guarantees that *every* store gives, and do not depend on a particular server. Every test uses
its own group and topic names, so all tests can use the same store, and the store may contain other groups.
"""

from __future__ import annotations

import itertools
import uuid

import pytest

from offsetmgr.core.errors import OffsetMgrError, PartialFailure
from offsetmgr.core.model import ABSENT, MAX_OFFSET, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, OffsetStore
from offsetmgr.testing.store_edit_contract import (
    StoreEditContract,
    _committed,
    _conflict,
    _edit,
    _offset,
    _offsets,
    _statuses,
)

MAX_TOPIC_LENGTH = 249
"""Kafka's limit on the length of a topic name (org.apache.kafka.common.internals.Topic)."""


class StoreContract(StoreEditContract):
    """The tests of the contract of `OffsetStore`. Subclasses must override the fixture ``store``. They must also
    override `ensure_topic` or `tp` if the default implementation does not suit the store.

    Example, with `MemoryStore` in place of the store under test::

        import pytest

        pytest.register_assert_rewrite("offsetmgr.testing")  # before the import, for readable failures
        from offsetmgr.testing import MemoryStore, StoreContract

        class TestMyStore(StoreContract):
            @pytest.fixture
            def store(self) -> MemoryStore:
                return MemoryStore()
    """

    many_groups = 150
    """The number of groups that the bulk tests write. It should be larger than the number of groups that the store
    processes in one batch."""

    # --- absent and committed ---------------------------------------------------------------------

    def test_an_unknown_group_has_no_commits(self, store: OffsetStore, group: str) -> None:
        assert dict(store.fetch(group)) == {}

    def test_an_unknown_group_is_absent_in_each_partition_asked(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        asked = [self.tp(topic, 0), self.tp(topic, 5)]

        assert dict(store.fetch(group, asked)) == {asked[0]: ABSENT, asked[1]: ABSENT}

    def test_fetch_of_no_partitions_is_empty(self, store: OffsetStore, group: str, topic: str) -> None:
        store.commit(group, {self.tp(topic, 0): OffsetAndMetadata(1)})

        assert dict(store.fetch(group, [])) == {}

    def test_offset_zero_is_a_commit_and_its_neighbour_is_absent(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        zero, other = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {zero: OffsetAndMetadata(0)})

        found = dict(store.fetch(group, [zero, other]))

        assert found.pop(other) == ABSENT
        assert _offsets(found) == {zero: 0}

    # --- commit and fetch -------------------------------------------------------------------------

    def test_committed_offsets_are_fetched(self, store: OffsetStore, group: str, topic: str) -> None:
        committed = {self.tp(topic, p): OffsetAndMetadata(100 + p) for p in range(8)}

        result = store.commit(group, committed)

        assert result.group == group
        assert _statuses(result) == dict.fromkeys(committed, EditStatus.WRITTEN)
        assert {tp: o.before for tp, o in result.outcomes.items()} == dict.fromkeys(committed, ABSENT)
        assert _offsets(store.fetch(group)) == {tp: o.offset for tp, o in committed.items()}
        assert _offsets(store.fetch(group, list(committed))) == {tp: o.offset for tp, o in committed.items()}

    def test_fetch_of_given_partitions_omits_the_others(self, store: OffsetStore, group: str, topic: str) -> None:
        store.commit(group, {self.tp(topic, p): OffsetAndMetadata(p) for p in range(4)})

        assert _offsets(store.fetch(group, [self.tp(topic, 2)])) == {self.tp(topic, 2): 2}

    def test_the_largest_offset_survives(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, MAX_OFFSET)

        assert _offset(store.fetch(group)[tp]) == 9223372036854775807

    @pytest.mark.parametrize("form", ["with.dots.in.it", "with-dashes-", "UPPER_and_lower.0-1", "longest"])
    def test_unusual_names_are_kept(self, store: OffsetStore, form: str) -> None:
        unique = uuid.uuid4().hex
        topic = f"{unique}-".ljust(MAX_TOPIC_LENGTH, "x") if form == "longest" else f"{form}{unique}"
        group = f"{form}.group-{unique}"
        self.ensure_topic(topic, 2)
        committed = {self.tp(topic, 0): OffsetAndMetadata(7), self.tp(topic, 1): OffsetAndMetadata(8)}

        store.commit(group, committed)

        assert _offsets(store.fetch(group)) == {self.tp(topic, 0): 7, self.tp(topic, 1): 8}
        assert group in set(store.groups())

    def test_a_group_whose_name_is_a_prefix_of_another_is_separate(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        tp = self._commit_one(store, group, topic, 1)
        store.commit(f"{group}-2", {tp: OffsetAndMetadata(2)})

        assert _offsets(store.fetch(group)) == {tp: 1}
        assert _offsets(store.fetch(f"{group}-2")) == {tp: 2}

    def test_a_negative_offset_is_rejected(self, store: OffsetStore, group: str, topic: str) -> None:
        good, bad = self.tp(topic, 0), self.tp(topic, 1)

        with pytest.raises(PartialFailure) as caught:
            store.commit(group, {good: OffsetAndMetadata(5), bad: OffsetAndMetadata(-1)})

        assert set(caught.value.failures) == {bad}
        assert _offsets(store.fetch(group)) == {good: 5}

    def test_an_empty_topic_and_a_negative_partition_are_rejected(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        good, unnamed, negative = self.tp(topic, 0), self.tp("", 0), TopicPartition(topic, -1)

        with pytest.raises(PartialFailure) as caught:
            store.commit(group, {tp: OffsetAndMetadata(5) for tp in (good, unnamed, negative)})

        assert set(caught.value.failures) == {unnamed, negative}
        assert _offsets(store.fetch(group)) == {good: 5}
        with pytest.raises(PartialFailure):
            store.commit(group, {negative: OffsetAndMetadata(5)})

    def test_the_group_with_the_empty_name_is_kept_or_rejected(self, store: OffsetStore, topic: str) -> None:
        """Brokers accept this name, and ZooKeeper has no node for it."""
        tp = self.tp(topic, 0)

        try:
            store.commit("", {tp: OffsetAndMetadata(5)})
        except PartialFailure as rejected:
            assert set(rejected.failures) == {tp}
            assert "" not in set(store.groups())
        else:
            assert _offset(store.fetch("", [tp])[tp]) == 5
            store.delete("")
            assert tp not in store.fetch("")

    # --- metadata and leader epochs ------------------------------------------------------------------

    def test_metadata_is_kept_exactly_if_it_is_a_capability(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self.tp(topic, 0)

        store.commit(group, {tp: OffsetAndMetadata(5, metadata='by "hand", ü')})

        expected = 'by "hand", ü' if store.capabilities.metadata else ""
        assert _committed(store.fetch(group)[tp]).metadata == expected

    def test_new_metadata_at_the_same_offset_is_a_change_only_if_metadata_is_kept(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        tp = self.tp(topic, 0)
        store.commit(group, {tp: OffsetAndMetadata(5, metadata="one")})

        result = store.commit(group, {tp: OffsetAndMetadata(5, metadata="two")})

        expected = EditStatus.WRITTEN if store.capabilities.metadata else EditStatus.UNCHANGED
        assert _statuses(result) == {tp: expected}

    def test_the_leader_epoch_is_kept_exactly_if_it_is_a_capability(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        tp = self.tp(topic, 0)

        store.commit(group, {tp: OffsetAndMetadata(5, leader_epoch=0)})

        assert _committed(store.fetch(group)[tp]).leader_epoch == (0 if store.capabilities.leader_epoch else None)

    def test_an_unknown_leader_epoch_is_none(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, 5)

        assert _committed(store.fetch(group)[tp]).leader_epoch is None

    def test_the_commit_timestamp_is_known_exactly_if_it_is_a_capability(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        tp = self.tp(topic, 0)

        store.commit(group, {tp: OffsetAndMetadata(5, commit_timestamp=1_700_000_000_000)})

        timestamp = _committed(store.fetch(group)[tp]).commit_timestamp
        assert (timestamp is not None) == store.capabilities.commit_timestamp
        assert timestamp is None or timestamp >= 1_700_000_000_000

    # --- many groups ------------------------------------------------------------------------------

    def test_many_groups_in_one_stream_of_edits_and_in_one_scan(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        names = [f"{group}-{n}" for n in range(self.many_groups)]
        edits = (
            GroupEdit(name, {self.tp(topic, p): Change(OffsetAndMetadata(n * 10 + p)) for p in range(4)})
            for n, name in enumerate(names)
        )

        results = list(store.edit(edits))

        assert sorted(r.group for r in results) == sorted(names)
        assert {v for r in results for v in _statuses(r).values()} == {EditStatus.WRITTEN}
        scanned = list(store.scan(iter(names)))
        assert sorted(s.name for s in scanned) == sorted(names)
        by_name = {s.name: s for s in scanned}
        for n, name in enumerate(names):
            assert by_name[name].error is None
            assert dict(by_name[name].errors) == {}
            assert _offsets(by_name[name].offsets) == {self.tp(topic, p): n * 10 + p for p in range(4)}
        assert set(names) <= set(store.groups())

    def test_one_groups_failure_does_not_stop_the_other_groups(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        tp = self.tp(topic, 0)
        names = [f"{group}-{n}" for n in range(5)]
        store.commit(names[2], {tp: OffsetAndMetadata(100)})

        edits = (GroupEdit(name, {tp: Change(OffsetAndMetadata(7), ABSENT)}) for name in names)
        results = {result.group: result for result in store.edit(edits)}

        expected = dict.fromkeys(names, EditStatus.WRITTEN) | {names[2]: EditStatus.FAILED}
        assert {name: results[name].outcomes[tp].status for name in names} == expected
        assert _offset(_conflict(results[names[2]], tp).actual) == 100

    def test_an_edit_of_nothing_has_no_outcomes(self, store: OffsetStore, group: str) -> None:
        result = _edit(store, group, {})

        assert result.group == group
        assert dict(result.outcomes) == {}

    def test_scan_returns_a_result_for_unknown_groups_too(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, 5)

        scanned = {s.name: s for s in store.scan([f"{group}-unknown", group])}

        assert set(scanned) == {group, f"{group}-unknown"}
        assert _offsets(scanned[group].offsets) == {tp: 5}
        unknown = scanned[f"{group}-unknown"]
        assert (dict(unknown.offsets), dict(unknown.errors), unknown.error) == ({}, {}, None)

    def test_scan_of_no_groups_is_empty(self, store: OffsetStore) -> None:
        assert list(store.scan([])) == []

    def test_scan_consumes_its_groups_lazily(self, store: OffsetStore, group: str) -> None:
        endless = (f"{group}-{n}" for n in itertools.count())

        first = list(itertools.islice(store.scan(endless), 3))

        assert len(first) == 3

    def test_scan_and_fetch_agree(self, store: OffsetStore, group: str, topic: str) -> None:
        store.commit(group, {self.tp(topic, p): OffsetAndMetadata(p, metadata=f"m{p}") for p in range(8)})

        (scanned,) = store.scan([group])

        assert dict(scanned.offsets) == dict(store.fetch(group))

    # --- identity of the store -----------------------------------------------------------------------

    def test_the_identity_is_stable_and_names_its_source(self, store: OffsetStore) -> None:
        identity = store.identity()

        assert identity == store.identity()
        assert identity.kind and identity.id and identity.how

    def test_the_store_is_an_offset_store_with_a_uri(self, store: OffsetStore) -> None:
        assert isinstance(store, OffsetStore)
        assert ":" in store.uri

    def test_errors_of_a_partial_failure_name_what_failed(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self.tp(topic, 3)
        store.commit(group, {tp: OffsetAndMetadata(5)})

        with pytest.raises(PartialFailure) as caught:
            store.commit(group, {tp: OffsetAndMetadata(4)})

        assert group in str(caught.value)
        error = caught.value.failures[tp]
        assert isinstance(error, OffsetMgrError)
        assert "5" in str(error) and "4" in str(error)
