"""Constants of the manager API, for its client and its server. The module does not import kio."""

from __future__ import annotations

from typing import Final

INSPECT: Final = 30_001
"""The API key. Kafka numbers its API keys from 0, so this number does not collide with a key of Kafka."""

VERSION: Final = 0

FIRST_MANAGER_ID: Final = 1_000_000_000
"""The minimum node id of managers. Brokers have lower ids."""

MAX_DUMP_ROWS: Final = 5_000
"""The maximum number of rows in one response to a dump request."""
