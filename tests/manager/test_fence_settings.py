"""The check of the brokers' settings on which the fence of the offsets topic depends, without brokers."""

import asyncio
from collections.abc import Mapping

import pytest
from fake_broker import VERSIONS, FakeBroker

from offsetmgr.core.errors import NotAuthorized, OffsetMgrError, ServerError, UnsupportedOperation
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.releases import KAFKA_0_8_2, Versions
from offsetmgr.manager.log import topic
from offsetmgr.manager.log.kafka.broker_checks import check_brokers

PRODUCER, TRANSACTIONAL, IDLE = topic.FENCE_SETTINGS
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
DEFAULTS = {PRODUCER: DAY_MS, TRANSACTIONAL: 7 * DAY_MS, IDLE: 10 * MINUTE_MS}
FETCH, INIT_PRODUCER_ID, DESCRIBE_PRODUCERS = 1, 22, 61
KAFKA_2_8: Versions = {FETCH: (0, 12), INIT_PRODUCER_ID: (0, 4), DESCRIBE_PRODUCERS: (0, 0)}
KAFKA_3_9: Versions = {**KAFKA_2_8, FETCH: (0, 17), INIT_PRODUCER_ID: (0, 5)}


def broker(
    changes: Mapping[str, object] | None = None, *, number: int = 1, versions: Versions = KAFKA_3_9
) -> topic.BrokerSettings:
    """A broker with default settings and these changes; None omits a setting."""
    values = {**DEFAULTS, **(changes or {})}
    return topic.BrokerSettings(
        f"{number} (b{number}:9092)",
        versions,
        {name: str(value) for name, value in values.items() if value is not None},
    )


@pytest.mark.parametrize(
    ("changes", "expiration_s", "refresh_s"),
    [
        ({PRODUCER: 4 * HOUR_MS}, 14_400, 3_600),
        ({PRODUCER: 4 * HOUR_MS - 4}, 14_399.996, 3_599.999),
        ({PRODUCER: 2 * HOUR_MS}, 7_200, 1_800),
        ({TRANSACTIONAL: HOUR_MS}, 3_600, 900),
        ({PRODUCER: HOUR_MS, TRANSACTIONAL: 2 * HOUR_MS}, 3_600, 900),
        ({PRODUCER: 20 * MINUTE_MS}, 1_200, 300),  # the shortest one with the default of connections.max.idle.ms
        ({PRODUCER: 10 * MINUTE_MS, IDLE: 5 * MINUTE_MS}, 600, 150),
    ],
)
def test_claims_are_refreshed_four_times_within_the_shortest_expiration_of_any_broker(changes, expiration_s, refresh_s):
    idle = {IDLE: changes.get(IDLE, 10 * MINUTE_MS)}

    found = topic.fence_settings([broker(idle), broker(changes, number=2), broker(idle, number=3)])

    assert (found.expiration_s, found.refresh_interval_s) == (expiration_s, refresh_s)


def test_before_3_4_the_expiration_of_transactional_ids_counts_for_producers_too() -> None:
    old = broker({PRODUCER: None, TRANSACTIONAL: 2 * HOUR_MS}, versions=KAFKA_2_8)

    assert topic.fence_settings([old]).expiration_s == 7_200
    assert topic.fence_settings([old, broker({PRODUCER: HOUR_MS}, number=2)]).expiration_s == 3_600
    # Kafka 3.4 has the setting, but a client cannot distinguish 3.4 from 3.2.
    assert topic.fence_settings([broker({PRODUCER: HOUR_MS}, versions=KAFKA_2_8)]).expiration_s == 3_600


@pytest.mark.parametrize(
    ("changes", "text", "hint"),
    [
        ({PRODUCER: 599_999}, f"its {PRODUCER} is 599999, but managers need at least 600000:", "kafka-configs --alter"),
        ({TRANSACTIONAL: 1}, f"its {TRANSACTIONAL} is 1, but managers need at least 600000:", "server.properties"),
        (
            {PRODUCER: 20 * MINUTE_MS - 2},
            f"its {IDLE} is 600000, but managers need at most 599999, half of {PRODUCER}=1199998 of broker 2 (b2:9092)",
            f"lower {IDLE}",
        ),
        ({IDLE: 12 * HOUR_MS + 1}, f"its {IDLE} is 43200001, but managers need at most 43200000", f"lower {IDLE}"),
        ({IDLE: -1}, f"its {IDLE} is -1 (never), but managers need at most 43200000", f"lower {IDLE}"),
        ({TRANSACTIONAL: None}, f"it does not report {TRANSACTIONAL}", ""),
        ({PRODUCER: None}, f"it does not report {PRODUCER}", ""),
        ({IDLE: None}, f"it does not report {IDLE}", ""),
        ({IDLE: "ten"}, f"it reports {IDLE}='ten', which is not a number", ""),
    ],
)
def test_unsuitable_settings_are_rejected_by_name_value_broker_and_limit(changes, text: str, hint: str) -> None:
    with pytest.raises(topic.UnsuitableBroker) as rejected:
        topic.fence_settings([broker(), broker(changes, number=2)])

    if "half of" in text:  # broker 1 is the first broker that keeps idle connections for too long
        assert str(rejected.value).startswith(f"broker 1 (b1:9092): {text}")
    else:
        assert str(rejected.value).startswith(f"broker 2 (b2:9092): {text}")
    assert hint in rejected.value.hint
    assert not rejected.value.retriable


@pytest.mark.parametrize(
    ("versions", "missing"),
    [
        (KAFKA_0_8_2, r"DescribeProducers \(Kafka 2.8 and later\)"),
        ({INIT_PRODUCER_ID: (0, 4)}, r"DescribeProducers \(Kafka 2.8 and later\)"),
        ({DESCRIBE_PRODUCERS: (0, 0)}, r"InitProducerId version 3 \(Kafka 2.5 and later\)"),
        ({**KAFKA_2_8, INIT_PRODUCER_ID: (0, 2)}, r"InitProducerId version 3 \(Kafka 2.5 and later\)"),
        ({**KAFKA_2_8, INIT_PRODUCER_ID: (4, 9)}, r"InitProducerId version 3 \(Kafka 2.5 and later\)"),
    ],
)
def test_a_broker_without_a_needed_request_is_rejected_by_the_name_of_the_request(versions, missing: str) -> None:
    with pytest.raises(UnsupportedOperation, match=rf"^broker h:1: it does not support {missing}$"):
        topic.check_apis("h:1", versions)
    for supported in (KAFKA_2_8, KAFKA_3_9):
        topic.check_apis("h:1", supported)


@pytest.mark.parametrize(
    ("results", "error", "text"),
    [
        ([{"error_code": 31}], NotAuthorized, "settings of broker 127.0.0.1:{port}: not authorized to read them"),
        ([{"error_code": 42}], ServerError, "broker 127.0.0.1:{port}"),
        ([], ServerError, "broker 1: the response does not contain the settings"),
    ],
)
def test_a_refusal_of_the_settings_is_raised_at_once(results, error: type[OffsetMgrError], text: str) -> None:
    rest = {"error_message": None, "resource_type": 4, "resource_name": "1", "configs": []}
    answer = {"results": [{**rest, **result} for result in results]}

    async def run(bootstrap: str) -> None:
        client = Client(bootstrap, Security())
        try:
            await check_brokers(client, asyncio.get_running_loop().time() + 600)
        finally:
            await client.close()

    with FakeBroker({32: lambda _: answer}, versions={**VERSIONS, **KAFKA_2_8}) as fake:
        with pytest.raises(error) as raised:
            asyncio.run(run(fake.bootstrap))
        assert type(raised.value) is error
        assert text.format(port=fake.port) in str(raised.value)
