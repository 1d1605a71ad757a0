"""The numbers that both ends of `inspection` share; no kio in here."""

from __future__ import annotations

from typing import Final

INSPECT: Final = 30_001
"""The API's key: far from Kafka's own, which count up from 0."""

VERSION: Final = 0

FIRST_MANAGER: Final = 1_000_000_000
"""Managers have node ids from here on, brokers below it."""

MOST_ROWS: Final = 5_000
"""Of a dump, in one answer."""
