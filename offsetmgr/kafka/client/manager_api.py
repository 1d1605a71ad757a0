"""Constants of the manager API for both ends, without an import of kio."""

from __future__ import annotations

from typing import Final

INSPECT: Final = 30_001
"""The API key, far from Kafka's keys, which count up from 0."""

VERSION: Final = 0

FIRST_MANAGER_ID: Final = 1_000_000_000
"""The lowest node id of a manager; brokers have lower ids."""

MAX_DUMP_ROWS: Final = 5_000
"""The maximum number of rows of a dump in one response."""
