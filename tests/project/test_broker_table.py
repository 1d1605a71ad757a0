"""The capability table in the reference matches real brokers of each release."""

import subprocess
import sys

import broker_table
import pytest

from offsetmgr.kafka.protocol.releases import CAPABILITIES


@pytest.mark.servers
@pytest.mark.matrix
def test_the_capability_table_matches_the_brokers() -> None:
    done = subprocess.run(
        [sys.executable, broker_table.__file__, "--check"], check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_capability_is_tried() -> None:
    """The attempt has the capability's name."""
    broker = broker_table.Broker.__new__(broker_table.Broker)
    assert all(callable(broker_table.method_of(capability, broker)) for capability in CAPABILITIES)
