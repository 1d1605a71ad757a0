"""The fixtures of the relay: one before brokers of each release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from relayed import RunningRelay

from offsetmgr.sandbox import KafkaBroker, KraftBroker


@pytest.fixture(scope="module")
def relay(kafka: KafkaBroker) -> Iterator[RunningRelay]:
    with RunningRelay(kafka.bootstrap) as running:
        yield running


@pytest.fixture(scope="module")
def relay41(kraft: KraftBroker) -> Iterator[RunningRelay]:
    with RunningRelay(kraft.bootstrap) as running:
        yield running


@pytest.fixture(params=["kafka-3.9", "kafka-4.1"])
def release(request: pytest.FixtureRequest) -> tuple[str, RunningRelay]:
    """Kafka's own tools of a release, and a relay before brokers of the same."""
    return request.param, request.getfixturevalue("relay" if request.param == "kafka-3.9" else "relay41")
