"""The store contract on brokers of older releases."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from offsetmgr.config import ConnectionConfig
from offsetmgr.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.segments.collecting import read_partition
from offsetmgr.stores.base import Change, GroupEdit, GroupEditResult, OffsetStore, Verdict
from offsetmgr.stores.kafka import KafkaStore

pytest.register_assert_rewrite("offsetmgr.testing.store_contract")

from offsetmgr.testing.store_contract import StoreContract  # noqa: E402

if TYPE_CHECKING:
    from matrix.conftest import Era

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


class PatientStore(KafkaStore):
    """Brokers before 2.4 delete offsets at their next check for expired ones: an edit ends once they have."""

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        for edit, result in self._each(list(edits)):
            gone = [
                tp
                for tp, outcome in result.outcomes.items()
                if edit.changes[tp].after is None and outcome.verdict is Verdict.WRITTEN
            ]
            deadline = time.monotonic() + 30
            while gone and any(isinstance(held, Committed) for held in self.fetch(edit.group, gone).values()):
                assert time.monotonic() < deadline, f"{gone[0]} of {edit.group} is not deleted after 30 s"
                time.sleep(0.1)
            yield result

    def _each(self, edits: list[GroupEdit]) -> Iterator[tuple[GroupEdit, GroupEditResult]]:
        by_group = {edit.group: edit for edit in edits}
        for result in list(super().edit(edits)):
            yield by_group[result.group], result


class OldBrokersContract(StoreContract):
    era: Era

    def ensure_topic(self, topic: str, partitions: int) -> None:
        self.era.make_topic(topic, partitions)

    def test_the_leader_epoch_is_kept_exactly_where_the_store_says_so(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        """Brokers keep it from 2.1 on."""
        tp = self.tp(topic, 0)
        store.commit(group, {tp: OffsetAndMetadata(5, leader_epoch=0)})
        (held,) = store.fetch(group).values()
        assert isinstance(held, Committed)
        assert held.leader_epoch == (0 if self.era.release == "2.8.2" else None)


class TestFrom09(OldBrokersContract):
    @pytest.fixture
    def store(self, later_era: Era) -> Iterator[KafkaStore]:
        self.era = later_era
        with PatientStore(later_era.bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
            yield store


class Test082(OldBrokersContract):
    """These brokers look for expired offsets every 10 minutes, whatever ``offsets.retention.check.interval.ms`` says:
    until then a deleted offset is there, and its life is over in the log."""

    @pytest.fixture
    def store(self, era_082: Era) -> Iterator[KafkaStore]:
        self.era = era_082
        with KafkaStore(era_082.bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
            yield store

    def in_the_log(self, group: str) -> dict[TopicPartition, int]:
        """When the life of each offset of the group began, as the newest records of the offsets topic say."""
        began: dict[TopicPartition, int] = {}
        for folder in (self.era.broker.folder / "data").glob("__consumer_offsets-*"):
            for saved in read_partition(folder).decoded.groups:
                if saved.group == group:
                    began |= {tp: offset.commit_timestamp for tp, offset in saved.offsets.items()}
        return began

    def test_delete_of_everything_leaves_nothing(self, store: OffsetStore, group: str, topic: str) -> None:
        offsets = {self.tp(topic, n): OffsetAndMetadata(n) for n in range(3)}
        store.commit(group, offsets)
        store.delete(group, list(offsets))
        assert self.in_the_log(group) == dict.fromkeys(offsets, 0)

    def test_delete_gives_back_before_images_and_leaves_the_rest(
        self, store: OffsetStore, group: str, topic: str
    ) -> None:
        gone, stays = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {gone: OffsetAndMetadata(5), stays: OffsetAndMetadata(6)})
        done = store.delete(group, [gone])
        before = done.outcomes[gone].before
        assert isinstance(before, Committed)
        assert before.offset == 5
        began = self.in_the_log(group)
        assert began[gone] == 0
        assert began[stays] > 0

    def test_an_expected_commit_that_is_gone_conflicts(self, store: OffsetStore, group: str, topic: str) -> None:
        """It is not gone yet, so the edit is carried out, and the offset lives on."""
        tp = self.tp(topic, 0)
        store.commit(group, {tp: OffsetAndMetadata(5)})
        store.delete(group, [tp])
        (result,) = store.edit([GroupEdit(group, {tp: Change(OffsetAndMetadata(7), expected=Committed(5))})])
        assert result.outcomes[tp].verdict is Verdict.WRITTEN
        assert self.in_the_log(group)[tp] > 0

    def test_a_before_image_undoes_an_edit(self, store: OffsetStore, group: str, topic: str) -> None:
        old, new = self.tp(topic, 0), self.tp(topic, 1)
        store.commit(group, {old: OffsetAndMetadata(5)})
        (done,) = store.edit([GroupEdit(group, {old: Change(OffsetAndMetadata(9)), new: Change(OffsetAndMetadata(3))})])
        back = {
            tp: Change(outcome.before.value() if isinstance(outcome.before, Committed) else None, allow_rewind=True)
            for tp, outcome in done.outcomes.items()
        }
        list(store.edit([GroupEdit(group, back)]))
        held = store.fetch(group, [old])[old]
        assert isinstance(held, Committed)
        assert held.offset == 5
        assert self.in_the_log(group)[new] == 0
