"""The shard compared with its oracle on an in-memory log, in both record formats and in plain text."""

import os

import pytest
from hypothesis import settings
from plain_format import PlainFormat
from scenario_log import MemoryScenarioLog
from shard_model import ShardModel

from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.kafka import KafkaRecordFormat

EXAMPLES = 2000 if os.environ.get("OFFSETMGR_SOAK") else 100
SETTINGS = settings(max_examples=EXAMPLES // 2, stateful_step_count=50, deadline=None, derandomize=True)


class InMemory(ShardModel):
    def new_log(self) -> MemoryScenarioLog:
        return MemoryScenarioLog()


class AvroModel(InMemory):
    record_format = AvroRecordFormat()


class KafkaModel(InMemory):
    record_format = KafkaRecordFormat()


class PlainModel(InMemory):
    record_format = PlainFormat()


TestAvro = pytest.mark.slow(AvroModel.TestCase)
TestAvro.settings = SETTINGS
TestKafka = pytest.mark.slow(KafkaModel.TestCase)
TestKafka.settings = SETTINGS
TestPlain = PlainModel.TestCase
TestPlain.settings = settings(SETTINGS, max_examples=EXAMPLES // 4)
