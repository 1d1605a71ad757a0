"""`Metrics`: the manager's metrics in Prometheus' format, from the backend's values and the latencies of requests.

The backend's values are read when Prometheus scrapes the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from offsetmgr.core.batches import by_key

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """All metrics of one manager process. ``values`` returns values by name, such as ``commits_total`` or
    ``shards{state="ACTIVE"}``; a name that ends in ``_total`` is a counter."""

    def __init__(self, values: Callable[[], Mapping[str, float]]) -> None:
        self._values = values
        self._registry = CollectorRegistry()
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
        lines: list[str] = []
        for name, samples in by_key((one[0].partition("{")[0], one) for one in self._values().items()).items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP offsetmgr_{name} {name.replace('_', ' ')}", f"# TYPE offsetmgr_{name} {kind}"]
            lines += [f"offsetmgr_{key} {float(value)}" for key, value in samples]
        return "".join(f"{line}\n" for line in lines).encode() + generate_latest(self._registry)
