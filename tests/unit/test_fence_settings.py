"""The check of the brokers' settings on which the fence of the offsets topic depends, without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import NotAuthorized, OffsetMgrError, ServerError, Unreachable, UnsupportedOperation
from offsetmgr.kafka.client.broker_settings import group_setting, reported_settings
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.kafka.protocol.releases import KAFKA_0_8_2, Versions
from offsetmgr.manager.log.fence_settings import (
    FENCE_SETTINGS,
    MIN_EXPIRATION_S,
    BrokerSettings,
    FenceSettings,
    UnsuitableBroker,
    check_apis,
    fence_settings,
)
from offsetmgr.manager.log.kafka.broker_checks import check_brokers

PRODUCER, TRANSACTIONAL, IDLE = FENCE_SETTINGS
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
DEFAULTS = {PRODUCER: DAY_MS, TRANSACTIONAL: 7 * DAY_MS, IDLE: 10 * MINUTE_MS}
KAFKA_2_8: Versions = {ApiKey.FETCH: (0, 12), ApiKey.INIT_PRODUCER_ID: (0, 4), ApiKey.DESCRIBE_PRODUCERS: (0, 0)}
KAFKA_3_9: Versions = {**KAFKA_2_8, ApiKey.FETCH: (0, 17), ApiKey.INIT_PRODUCER_ID: (0, 5)}


def broker(
    changes: Mapping[str, object] | None = None, *, number: int = 1, versions: Versions = KAFKA_3_9
) -> BrokerSettings:
    """A broker with default settings and these changes; None omits a setting."""
    values = {**DEFAULTS, **(changes or {})}
    return BrokerSettings(
        f"{number} (b{number}:9092)",
        versions,
        {name: str(value) for name, value in values.items() if value is not None},
    )


def test_default_settings_allow_a_refresh_every_hour() -> None:
    assert fence_settings([broker(), broker(number=2)]) == FenceSettings(
        refresh_interval_s=3_600, expiration_s=86_400, max_idle_s=600, brokers=("1 (b1:9092)", "2 (b2:9092)")
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
def test_claims_are_refreshed_four_times_within_the_shortest_expiration_of_any_broker(
    changes: dict[str, int], expiration_s: float, refresh_s: float
) -> None:
    idle = {IDLE: changes.get(IDLE, 10 * MINUTE_MS)}

    found = fence_settings([broker(idle), broker(changes, number=2), broker(idle, number=3)])

    assert (found.expiration_s, found.refresh_interval_s) == (expiration_s, refresh_s)


def test_before_3_4_the_expiration_of_transactional_ids_counts_for_producers_too() -> None:
    old = broker({PRODUCER: None, TRANSACTIONAL: 2 * HOUR_MS}, versions=KAFKA_2_8)

    assert fence_settings([old]).expiration_s == 7_200
    assert fence_settings([old, broker({PRODUCER: HOUR_MS}, number=2)]).expiration_s == 3_600
    # Kafka 3.4 has the setting, but a client cannot distinguish 3.4 from 3.2.
    assert fence_settings([broker({PRODUCER: HOUR_MS}, versions=KAFKA_2_8)]).expiration_s == 3_600


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
def test_unsuitable_settings_are_rejected_by_name_value_broker_and_limit(
    changes: dict[str, object], text: str, hint: str
) -> None:
    with pytest.raises(UnsuitableBroker) as rejected:
        fence_settings([broker(), broker(changes, number=2)])

    if "half of" in text:  # broker 1 is the first broker that keeps idle connections for too long
        assert str(rejected.value).startswith(f"broker 1 (b1:9092): {text}")
    else:
        assert str(rejected.value).startswith(f"broker 2 (b2:9092): {text}")
    assert hint in rejected.value.hint
    assert not rejected.value.retriable


def test_tests_can_allow_a_shorter_expiration() -> None:
    short = broker({PRODUCER: 2_000, IDLE: 1_000})

    assert fence_settings([short], 2).refresh_interval_s == 0.5
    with pytest.raises(UnsuitableBroker, match="at least 2001"):
        fence_settings([short], 2.001)


@pytest.mark.parametrize(
    ("versions", "missing"),
    [
        (KAFKA_0_8_2, r"DescribeProducers \(Kafka 2.8 and later\)"),
        ({ApiKey.INIT_PRODUCER_ID: (0, 4)}, r"DescribeProducers \(Kafka 2.8 and later\)"),
        ({ApiKey.DESCRIBE_PRODUCERS: (0, 0)}, r"InitProducerId version 3 \(Kafka 2.5 and later\)"),
        ({**KAFKA_2_8, ApiKey.INIT_PRODUCER_ID: (0, 2)}, r"InitProducerId version 3 \(Kafka 2.5 and later\)"),
        ({**KAFKA_2_8, ApiKey.INIT_PRODUCER_ID: (4, 9)}, r"InitProducerId version 3 \(Kafka 2.5 and later\)"),
    ],
)
def test_a_broker_without_a_needed_request_is_rejected_by_the_name_of_the_request(
    versions: Versions, missing: str
) -> None:
    with pytest.raises(UnsupportedOperation, match=rf"^broker h:1: it does not support {missing}$"):
        check_apis("h:1", versions)


@pytest.mark.parametrize("versions", [KAFKA_2_8, KAFKA_3_9])
def test_brokers_from_2_8_on_have_the_needed_requests(versions: Versions) -> None:
    check_apis("h:1", versions)


# --- the requests ---------------------------------------------------------------------------------


class FakeConnection:
    """Answers Metadata with the brokers, and DescribeConfigs with the settings of one broker."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.address = Address(f"b{number}", 9092)
        self.versions = cluster.versions[number]

    async def call(self, request: Request, timeout_s: float) -> dict[str, Any]:
        if request.api_key == ApiKey.METADATA:
            listed = [{"node_id": n, "host": f"b{n}", "port": 9092} for n in self.cluster.listed()]
            return {"brokers": listed, "topics": []}
        (resource,) = request.message["resources"]
        assert resource["resource_name"] == str(self.number)
        if self.cluster.error_code:
            return {"results": [{"error_code": self.cluster.error_code, "error_message": None, "configs": []}]}
        values = {**DEFAULTS, **self.cluster.settings.get(self.number, {})}
        configs = [{"name": name, "value": str(values[name])} for name in resource["configuration_keys"]]
        return {"results": [{"error_code": 0, "error_message": None, "configs": configs}]}


class FakeCluster:
    """A `Client` of a cluster of fake brokers. ``down`` contains, for each request for the list of brokers, the brokers
    that are listed but do not respond; the last entry stays."""

    def __init__(
        self,
        versions: Mapping[int, Versions],
        settings: Mapping[int, Mapping[str, int]] | None = None,
        *,
        down: Sequence[set[int]] = (set(),),
        error_code: int = 0,
        reached: bool = True,
    ) -> None:
        self.versions = dict(versions)
        self.settings = settings or {}
        self.down = list(down)
        self.error_code = error_code
        self.reached = reached
        self.lists = 0

    def listed(self) -> list[int]:
        self.lists += 1
        if len(self.down) > 1 and self.lists > 1:
            self.down.pop(0)
        return list(self.versions)

    async def any_connection(self, deadline: float) -> FakeConnection:
        if not self.reached:
            raise Unreachable("broker b1:9092")
        return FakeConnection(self, 1)

    async def broker_versions(self, brokers: Sequence[Address], deadline: float) -> dict[Address, Versions | None]:
        numbers = {address: int(address.host.removeprefix("b")) for address in brokers}
        return {at: None if number in self.down[0] else self.versions[number] for at, number in numbers.items()}

    def node(self, address: Address) -> FakeCluster:
        self.chosen = int(address.host.removeprefix("b"))
        return self

    async def connection(self, deadline: float) -> FakeConnection:
        return FakeConnection(self, self.chosen)

    def check(self, timeout_s: float = 120) -> FenceSettings:
        async def run() -> FenceSettings:
            return await check_brokers(cast(Client, self), asyncio.get_running_loop().time() + timeout_s)

        return asyncio.run(run())


def test_every_listed_broker_is_asked_for_its_own_settings() -> None:
    found = FakeCluster({2: KAFKA_3_9, 1: KAFKA_3_9}, {2: {PRODUCER: HOUR_MS}}).check()

    assert (found.brokers, found.expiration_s) == (("1 (b1:9092)", "2 (b2:9092)"), 3_600)


def test_the_check_waits_for_a_listed_broker_that_does_not_respond() -> None:
    cluster = FakeCluster({1: KAFKA_3_9, 2: KAFKA_3_9}, down=[{2}, {2}, set()])

    assert cluster.check().brokers == ("1 (b1:9092)", "2 (b2:9092)")
    assert cluster.lists == 3


def test_a_listed_broker_that_never_responds_is_an_error() -> None:
    cluster = FakeCluster({1: KAFKA_3_9, 2: KAFKA_3_9}, down=[{2}])

    with pytest.raises(Unreachable, match="broker b2:9092: it does not respond, so the manager cannot check"):
        cluster.check(2)
    assert cluster.lists > 1


@pytest.mark.parametrize(
    ("cluster", "error", "text"),
    [
        (
            FakeCluster({1: KAFKA_3_9, 2: {**KAFKA_2_8, ApiKey.DESCRIBE_PRODUCERS: (0, -1)}, 3: {}}, down=[{1}]),
            UnsupportedOperation,
            "broker b2:9092: it does not support DescribeProducers",
        ),
        (
            FakeCluster({1: KAFKA_3_9}, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            NotAuthorized,
            "settings of broker b1:9092: not authorized to read them",
        ),
        (FakeCluster({1: KAFKA_3_9}, error_code=ErrorCode.INVALID_REQUEST), ServerError, "broker b1:9092"),
        (FakeCluster({1: KAFKA_3_9}, {1: {PRODUCER: 1}}), UnsuitableBroker, "is 1, but managers need at least 600000"),
        (FakeCluster({1: KAFKA_3_9}, reached=False), Unreachable, "broker b1:9092"),
    ],
)
def test_errors_that_time_does_not_cure_are_raised_at_once(
    cluster: FakeCluster, error: type[OffsetMgrError], text: str
) -> None:
    with pytest.raises(error) as raised:
        cluster.check(600)

    assert type(raised.value) is error
    assert text in str(raised.value)
    if error is NotAuthorized:
        assert raised.value.hint.endswith("--operation DescribeConfigs --cluster")


def test_an_empty_response_is_not_an_empty_set_of_settings() -> None:
    class Silent(FakeConnection):
        async def call(self, request: Request, timeout_s: float) -> dict[str, Any]:
            return {"results": []}

    async def scenario() -> None:
        connection = cast(BrokerConnection, Silent(FakeCluster({1: KAFKA_3_9}), 1))
        deadline = asyncio.get_running_loop().time() + 120
        with pytest.raises(ServerError, match="broker 1: the response does not contain the settings"):
            await reported_settings(connection, 1, FENCE_SETTINGS, deadline)
        with pytest.raises(ServerError, match="group shop: the response does not contain the settings"):
            await group_setting(connection, "shop", "consumer.heartbeat.interval.ms", deadline)

    asyncio.run(scenario())


def test_the_shortest_allowed_expiration_leaves_time_for_three_failed_refreshes() -> None:
    interval_s = fence_settings([broker({PRODUCER: int(MIN_EXPIRATION_S * 1000), IDLE: 1})]).refresh_interval_s

    assert MIN_EXPIRATION_S - 3 * interval_s >= 150
