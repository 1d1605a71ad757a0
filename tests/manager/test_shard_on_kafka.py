"""Shards over a real offsets topic, compared with their oracle.

Faults that a real log cannot reproduce, such as an append that hangs midway, are tested on the in-memory log only.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from processes import create_topic
from scenario_log import ScenarioLog
from shard_model import ShardModel

from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import RecordFormat
from offsetmgr.records.kafka import KafkaRecordFormat
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
PARTITIONS = 400 if SOAK else 40
AVRO, KAFKA = AvroRecordFormat(), KafkaRecordFormat()


@pytest.fixture(scope="module")
def new_log(kafka: KafkaBroker) -> Iterator[Callable[[], ScenarioLog]]:
    """Creates logs, each on its own partition, since the creation of a topic takes longer than a scenario."""
    topic = create_topic(kafka.bootstrap, f"shard-worlds-{os.urandom(4).hex()}", PARTITIONS)
    log = KafkaLog(kafka.bootstrap, topic, PARTITIONS)
    numbers = count()
    yield lambda: ScenarioLog(log, next(numbers))
    log.close()


@pytest.mark.parametrize("format_of_records", [AVRO, KAFKA], ids=lambda one: one.name)
def test_model(format_of_records: RecordFormat, new_log: Callable[[], ScenarioLog]) -> None:
    class OnKafka(ShardModel):
        record_format = format_of_records

        def new_log(self) -> ScenarioLog:
            return new_log()

    run_state_machine_as_test(
        OnKafka,
        settings=settings(
            max_examples=100 if SOAK else 6,
            stateful_step_count=40 if SOAK else 20,
            phases=[Phase.generate],
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
