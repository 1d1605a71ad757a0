"""`Metrics`: the manager's metrics in Prometheus' format, from the backend's values and the latencies of requests.

The backend's values are read when Prometheus scrapes the metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_NAME: Final = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})?$")
_LABEL: Final = re.compile(r'([a-z_]+)="([^"]*)"')


class Metrics:
    """All metrics of one manager process. ``values`` returns values by name, such as ``commits_total`` or
    ``shards{state="ACTIVE"}``; a name that ends in ``_total`` is a counter."""

    def __init__(self, values: Callable[[], Mapping[str, float]]) -> None:
        self._values = values
        self._registry = CollectorRegistry()
        self._registry.register(self)
        latency = Histogram(
            "offsetmgr_request_seconds",
            "Seconds from a request's last byte to its response, by kind of request",
            ["request"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._latency: dict[str, Callable[[float], None]] = {
            name: latency.labels(name).observe for name in ("commit", "fetch", "other", "relayed")
        }

    def observe(self, request: str, seconds: float) -> None:
        """Records the duration of a request of this kind (``commit``, ``fetch``, ``other``, ``relayed``)."""
        self._latency[request](seconds)

    def text(self) -> bytes:
        """All metrics, in the format that Prometheus scrapes."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Converts the backend's values to metrics; called by Prometheus' registry."""
        families: dict[str, Metric] = {}
        for key, value in self._values().items():
            match = _NAME.match(key)
            if match is None:
                raise ValueError(f"invalid metric name: {key}")
            labels = dict(_LABEL.findall(match["labels"] or ""))
            name = f"offsetmgr_{match['name']}"
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = families[name] = kind(name, match["name"].replace("_", " "), labels=list(labels))
            family.add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
        yield from families.values()
