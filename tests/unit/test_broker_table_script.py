"""scripts/broker_table.py tries every capability; the attempt has the capability's name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import broker_table

from offsetmgr.kafka.protocol.releases import CAPABILITIES, Capability


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda one: one.name)
def test_every_capability_is_tried(capability: Capability) -> None:
    method = broker_table.method_of(capability, broker_table.Broker.__new__(broker_table.Broker))
    assert callable(method)
