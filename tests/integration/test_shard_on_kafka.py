"""Shards over a real offsets topic: the scenarios of ``tests/scenarios/shard``, and the model against its oracle.

Faults that a real log cannot reproduce, such as an append that hangs midway, are tested on the in-memory log only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from scenarios.scenario_log import ScenarioLog
from scenarios.shard_model import ShardModel
from scenarios.shard_script import SCENARIOS, required_outcomes, run_scenario

from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
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
    topic = f"shard-worlds-{os.urandom(4).hex()}"
    log = KafkaLog(kafka.bootstrap, topic, ensure_topic(kafka.bootstrap, {}, topic, partitions=PARTITIONS).partitions)
    numbers = count()
    yield lambda: ScenarioLog(log, next(numbers))
    log.close()


@pytest.mark.parametrize(
    ("scenario", "record_format"),
    [
        pytest.param(path, (AVRO, KAFKA)[number % 2], id=path.stem)
        for number, path in enumerate(SCENARIOS)
        if required_outcomes(path) <= set(ScenarioLog.outcomes)
    ],
)
def test_scenario(scenario: Path, record_format: RecordFormat, new_log: Callable[[], ScenarioLog]) -> None:
    run_scenario(scenario, new_log(), record_format)


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
