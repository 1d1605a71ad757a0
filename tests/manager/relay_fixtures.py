"""Fixtures for tests of the relay: one relay in front of brokers of each release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running_relay import RunningRelay

from offsetmgr.sandbox import KafkaBroker, KraftBroker


@pytest.fixture(scope="module")
def relay(kafka: KafkaBroker) -> Iterator[RunningRelay]:
    with RunningRelay(kafka.bootstrap) as running:
        yield running


@pytest.fixture(scope="module")
def kraft_relay(kraft: KraftBroker) -> Iterator[RunningRelay]:
    with RunningRelay(kraft.bootstrap) as running:
        yield running


@pytest.fixture(params=["kafka-3.9", "kafka-4.4"])
def release(request: pytest.FixtureRequest) -> tuple[str, RunningRelay]:
    """A release of Kafka's tools, and a relay in front of brokers of that release."""
    return request.param, request.getfixturevalue("relay" if request.param == "kafka-3.9" else "kraft_relay")
