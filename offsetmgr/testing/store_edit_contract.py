"""`StoreEditContract`: the tests of edits, which are a part of `StoreContract`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import pytest

from offsetmgr.core.errors import Conflict, PartialFailure, RewindRefused
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupEditResult, OffsetStore


class StoreEditContract:
    """The tests of edits of one group."""

    @pytest.fixture
    def store(self) -> OffsetStore | Iterator[OffsetStore]:
        """The store under test. The overriding fixture closes the store after the test."""
        raise NotImplementedError("override the fixture `store`")

    def ensure_topic(self, topic: str, partitions: int) -> None:
        """Creates a topic unless it exists. Tests call it before they commit offsets of the topic. This implementation
        does nothing. Override this method for a store that accepts commits only for existing topics."""

    def tp(self, topic: str, number: int) -> TopicPartition:
        """Returns a partition of a topic. Override this method for a store whose partitions are not plain numbers
        (Kafka 0.7)."""
        return TopicPartition(topic, number)

    @pytest.fixture
    def group(self) -> str:
        """A group id that no other test uses."""
        return f"contract-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def topic(self) -> str:
        """A topic with 8 partitions that no other test uses."""
        name = f"contract-{uuid.uuid4().hex[:12]}"
        self.ensure_topic(name, 8)
        return name

    def _commit_one(self, store: OffsetStore, group: str, topic: str, offset: int) -> TopicPartition:
        tp = self.tp(topic, 0)
        store.commit(group, {tp: OffsetAndMetadata(offset)})
        return tp

    # --- unchanged, forward, rewind ------------------------------------------------------------------

    def test_committing_the_same_value_again_changes_nothing(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, 5)
        first = store.fetch(group)[tp]

        result = store.commit(group, {tp: OffsetAndMetadata(5)})

        assert _statuses(result) == {tp: EditStatus.UNCHANGED}
        assert store.fetch(group)[tp] == first

    def test_a_commit_forward_gives_back_its_before_image(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, 5)

        result = store.commit(group, {tp: OffsetAndMetadata(6)})

        assert _statuses(result) == {tp: EditStatus.WRITTEN}
        assert _offset(result.outcomes[tp].before) == 5

    def test_a_rewind_is_rejected_and_the_rest_is_written(self, store: OffsetStore, group: str, topic: str) -> None:
        back, forward = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {back: OffsetAndMetadata(50), forward: OffsetAndMetadata(50)})

        with pytest.raises(PartialFailure) as caught:
            store.commit(group, {back: OffsetAndMetadata(49), forward: OffsetAndMetadata(51)})

        assert isinstance(caught.value.failures[back], RewindRefused)
        assert caught.value.successes[forward].status is EditStatus.WRITTEN
        assert _offsets(store.fetch(group)) == {back: 50, forward: 51}

    def test_a_rewind_is_written_if_the_caller_allows_it(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, 50)

        result = store.commit(group, {tp: OffsetAndMetadata(10)}, allow_rewind=True)

        assert _statuses(result) == {tp: EditStatus.WRITTEN}
        assert _offset(result.outcomes[tp].before) == 50
        assert _offsets(store.fetch(group)) == {tp: 10}

    def test_the_expected_value_does_not_lift_the_rewind_rule(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, 50)
        held = store.fetch(group)[tp]

        result = _edit(store, group, {tp: Change(OffsetAndMetadata(10), expected=held)})

        assert isinstance(result.outcomes[tp].error, RewindRefused)
        assert _offsets(store.fetch(group)) == {tp: 50}

    # --- conditional writes -----------------------------------------------------------------------

    def test_expected_absent_creates(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self.tp(topic, 0)

        result = _edit(store, group, {tp: Change(OffsetAndMetadata(5), expected=ABSENT)})

        assert _statuses(result) == {tp: EditStatus.WRITTEN}
        assert result.outcomes[tp].before == ABSENT
        assert _offsets(store.fetch(group)) == {tp: 5}

    def test_expected_absent_conflicts_with_a_commit_that_exists(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        tp = self._commit_one(store, group, topic, 5)

        assert _offset(_refused(store, group, tp, Change(OffsetAndMetadata(9), expected=ABSENT))) == 5

    def test_an_expected_commit_that_still_holds_is_replaced(self, store: OffsetStore, group: str, topic: str) -> None:
        tp = self._commit_one(store, group, topic, 5)
        held = store.fetch(group)[tp]

        result = _edit(store, group, {tp: Change(OffsetAndMetadata(9), expected=held)})

        assert _statuses(result) == {tp: EditStatus.WRITTEN}
        assert _offset(result.outcomes[tp].before) == 5
        assert _offsets(store.fetch(group)) == {tp: 9}

    def test_an_expected_commit_without_a_version_is_compared_by_offset(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        tp = self._commit_one(store, group, topic, 5)

        result = _edit(store, group, {tp: Change(OffsetAndMetadata(9), expected=Committed(5))})

        assert _statuses(result) == {tp: EditStatus.WRITTEN}
        assert _offsets(store.fetch(group)) == {tp: 9}

    @pytest.mark.parametrize("after", [OffsetAndMetadata(9), None], ids=["commit", "delete"])
    def test_an_expected_commit_that_moved_conflicts(
        self, store: OffsetStore, group: str, topic: str, after: OffsetAndMetadata | None
    ) -> None:
        tp = self._commit_one(store, group, topic, 5)
        stale = store.fetch(group)[tp]
        store.commit(group, {tp: OffsetAndMetadata(6)})

        assert _offset(_refused(store, group, tp, Change(after, expected=stale))) == 6

    def test_an_expected_commit_that_is_gone_conflicts(self, store: OffsetStore, group: str, topic: str) -> None:
        tp, other = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {tp: OffsetAndMetadata(5), other: OffsetAndMetadata(5)})
        held = store.fetch(group)[tp]
        store.delete(group, [tp])

        assert _refused(store, group, tp, Change(OffsetAndMetadata(9), expected=held)) == ABSENT
        assert _offsets(store.fetch(group)) == {other: 5}

    def test_a_bad_partition_does_not_stop_the_others(self, store: OffsetStore, group: str, topic: str) -> None:
        first, conflicting, backward, last = (self.tp(topic, p) for p in range(4))
        store.commit(group, {conflicting: OffsetAndMetadata(5), backward: OffsetAndMetadata(5)})

        changes = {
            first: Change(OffsetAndMetadata(1), expected=ABSENT),
            conflicting: Change(OffsetAndMetadata(9), expected=ABSENT),
            backward: Change(OffsetAndMetadata(4)),
            last: Change(OffsetAndMetadata(2)),
        }

        result = _edit(store, group, changes)

        failed = dict.fromkeys((conflicting, backward), EditStatus.FAILED)
        assert _statuses(result) == {first: EditStatus.WRITTEN, **failed, last: EditStatus.WRITTEN}
        assert set(result.failures) == {conflicting, backward}
        assert isinstance(result.failures[conflicting], Conflict)
        assert isinstance(result.failures[backward], RewindRefused)
        assert _offsets(store.fetch(group)) == {first: 1, conflicting: 5, backward: 5, last: 2}

    # --- delete -----------------------------------------------------------------------------------

    def test_delete_gives_back_before_images_and_leaves_the_rest(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        gone, kept = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {gone: OffsetAndMetadata(5), kept: OffsetAndMetadata(6)})

        result = store.delete(group, [gone])

        assert _statuses(result) == {gone: EditStatus.WRITTEN}
        assert _offset(result.outcomes[gone].before) == 5
        assert store.fetch(group, [gone])[gone] == ABSENT
        assert _offsets(store.fetch(group)) == {kept: 6}

    def test_delete_of_everything_leaves_nothing(self, store: OffsetStore, group: str, topic: str) -> None:
        store.commit(group, {self.tp(topic, p): OffsetAndMetadata(p) for p in range(3)})

        result = store.delete(group)

        before = {tp: _offset(outcome.before) for tp, outcome in result.outcomes.items()}
        assert before == {self.tp(topic, p): p for p in range(3)}
        assert dict(store.fetch(group)) == {}

    def test_delete_of_an_absent_commit_changes_nothing(self, store: OffsetStore, group: str, topic: str) -> None:
        kept, absent = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {kept: OffsetAndMetadata(5)})

        result = store.delete(group, [absent])

        assert _statuses(result) == {absent: EditStatus.UNCHANGED}
        assert result.outcomes[absent].before == ABSENT
        assert _offsets(store.fetch(group)) == {kept: 5}

    def test_a_before_image_undoes_an_edit(self, store: OffsetStore, group: str, topic: str) -> None:
        moved, created = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {moved: OffsetAndMetadata(5)})
        done = store.commit(group, {moved: OffsetAndMetadata(9), created: OffsetAndMetadata(3)})

        undo = {
            tp: Change(outcome.before.value() if isinstance(outcome.before, Committed) else None, allow_rewind=True)
            for tp, outcome in done.outcomes.items()
        }
        result = _edit(store, group, undo)

        assert _statuses(result) == {moved: EditStatus.WRITTEN, created: EditStatus.WRITTEN}
        assert _offsets(store.fetch(group)) == {moved: 5}


def _edit(store: OffsetStore, group: str, changes: Mapping[TopicPartition, Change]) -> GroupEditResult:
    (result,) = store.edit([GroupEdit(group, changes)])
    return result


def _refused(store: OffsetStore, group: str, tp: TopicPartition, change: Change) -> Offset | None:
    """Makes an edit whose expected value does not hold. Checks that it fails and changes nothing. Returns what the
    store holds according to the error."""
    before = _offsets(store.fetch(group))
    result = _edit(store, group, {tp: change})
    assert _statuses(result) == {tp: EditStatus.FAILED}
    assert _offsets(store.fetch(group)) == before
    actual: Offset | None = _conflict(result, tp).actual
    return actual


def _statuses(result: GroupEditResult) -> dict[TopicPartition, EditStatus]:
    return {tp: outcome.status for tp, outcome in result.outcomes.items()}


def _offset(found: Offset | None) -> int:
    return _committed(found).offset


def _offsets(found: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, int]:
    return {tp: _offset(value) for tp, value in found.items()}


def _conflict(result: GroupEditResult, tp: TopicPartition) -> Conflict:
    error = result.outcomes[tp].error
    assert isinstance(error, Conflict), f"expected a conflict, got {error!r}"
    return error


def _committed(found: Offset | None) -> Committed:
    assert isinstance(found, Committed), f"expected a commit, found {found!r}"
    return found
