"""Fixtures for tests of the relay: one relay in front of brokers of each release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running_relay import RunningRelay

from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.server.security.authorization import ADMIN_APIS, AuthorizationRules, Operation, Rule


@pytest.fixture(scope="module")
def relay(kafka: KafkaBroker) -> Iterator[RunningRelay]:
    with RunningRelay(kafka.bootstrap) as running:
        yield running


@pytest.fixture(scope="module")
def kraft_relay(kraft: KraftBroker) -> Iterator[RunningRelay]:
    """The relay checks every request with rules, which allow everything."""
    everything = Rule(frozenset("*"), ("*",), ("*",), frozenset(Operation), frozenset(ADMIN_APIS), ("*",))
    with RunningRelay(kraft.bootstrap, authorizer=AuthorizationRules([everything])) as running:
        yield running


@pytest.fixture(params=["kafka-3.9", "kafka-4.4"])
def release(request: pytest.FixtureRequest) -> tuple[str, RunningRelay]:
    """A release of Kafka's tools, and a relay in front of brokers of that release."""
    return request.param, request.getfixturevalue("relay" if request.param == "kafka-3.9" else "kraft_relay")
