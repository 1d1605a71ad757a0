"""The scenarios of ``tests/scenarios/shard`` on an in-memory log, in every record format."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios.plain_format import PlainFormat
from scenarios.scenario_log import MemoryScenarioLog
from scenarios.shard_script import SCENARIOS, run_scenario

from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import RecordFormat
from offsetmgr.records.kafka import KafkaRecordFormat


@pytest.mark.parametrize(
    "record_format", [AvroRecordFormat(), KafkaRecordFormat(), PlainFormat()], ids=lambda one: one.name
)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(scenario: Path, record_format: RecordFormat) -> None:
    run_scenario(scenario, MemoryScenarioLog(), record_format)
